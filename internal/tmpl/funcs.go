package tmpl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/mail"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

const (
	// presentFunc is appended to every value that is printed; templates do not write it.
	presentFunc = "present"
)

// funcs returns the functions that a template may use in addition to the functions of Go's text/template:
//
//	json V                   compact JSON
//	get V "a.b"              the value at a path, or nothing if it is absent
//	default D V              D if V is absent, null or ""
//	required "message" V     V, or an error with the message if V is absent, null or ""
//	upper, lower, title S    a text in capitals, in small letters, with a capital for each word
//	trim S                   a text without white space around it
//	trunc N S                the first N characters of S
//	join SEP LIST            the elements of a list with SEP between them
//	date LAYOUT T            T, a time or an RFC 3339 text, in the layout of Go's time package
//	money AMOUNT CUR         an amount and its currency: "19.99 EUR". An integer counts minor
//	                         units (cents); a text or a number with a point is a decimal amount
//	number V                 a number: "1234.5"
//	address NAME EMAIL       "NAME" <EMAIL>, quoted so that a name cannot add a recipient
//	int V                    a number or text as an integer, to compare or to count with
//	fixed N V                a number with N digits after the point
//
// The value comes last, so that a pipeline reads from left to right:
// {{ .Payload.name | trim | upper }}. With a [Locale], date, money and number write in its manner.
func funcs(k Kind, r rule, now *current) map[string]any {
	all := map[string]any{
		presentFunc: present(r),
		"json":      toJSON,
		"get":       Get,
		"default":   defaultTo,
		"required":  required,
		"upper":     text1(strings.ToUpper),
		"lower":     text1(strings.ToLower),
		"title":     text1(title),
		"trim":      text1(strings.TrimSpace),
		"trunc":     trunc,
		"join":      join,
		"date":      now.date,
		"money":     now.money,
		"number":    now.number,
		"address":   address,
		"int":       toInt,
		"fixed":     fixed,
		// print, printf and println of Go, with a limit: in a loop they could exhaust the memory.
		"print":   func(args ...any) (string, error) { return bounded(fmt.Sprint(args...)) },
		"println": func(args ...any) (string, error) { return bounded(fmt.Sprintln(args...)) },
		"printf": func(format string, args ...any) (string, error) {
			return bounded(fmt.Sprintf(format, args...))
		},
	}

	if k == Address {
		all["join"] = joinAddresses
	}

	return all
}

// FuncNames returns the names of the functions of this package, sorted, without those of text/template.
func FuncNames() []string {
	names := slices.Sorted(maps.Keys(funcs(Text, Text.rule(), new(current))))
	return slices.DeleteFunc(names, func(n string) bool {
		return n == presentFunc || strings.HasPrefix(n, "print")
	})
}

func bounded(s string) (string, error) {
	if len(s) > MaxOutput {
		return "", funcErrorf("a text has more than %d bytes", MaxOutput)
	}
	return s, nil
}

// present returns the function that ends each action: it escapes v by the rule. Its error names the expression, if v is null or
// absent, or if the rule refuses v. written is the expression. ofType is true if the expression reads .Event.Type and no other
// value.
func present(r rule) func(written string, ofType bool, v any) (any, error) {
	return func(written string, ofType bool, v any) (any, error) {
		if v == nil {
			return nil, &funcError{text: "the value is null or absent: fix the event, or use get and default", at: written}
		}

		out, err := r.value(v, ofType)
		if own, ok := errors.AsType[*funcError](err); ok {
			return nil, &funcError{text: own.text, at: written}
		}
		return out, err
	}
}

func toJSON(v any) (jsonText, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", funcErrorf("json: the value cannot be written as JSON")
	}
	return jsonText(strings.TrimSuffix(b.String(), "\n")), nil
}

// Get returns the value at a path, nil for none: the function get of templates. A number names an element of a list.
func Get(from any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch m := from.(type) {
		case map[string]any:
			from = m[key]
		case map[string]string:
			s, ok := m[key]
			if !ok {
				return nil
			}
			from = s
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(m) {
				return nil
			}
			from = m[i]
		default:
			return nil
		}
	}

	return from
}

func defaultTo(d, v any) any {
	if v == nil || v == "" {
		return d
	}
	return v
}

func required(message string, v any) (any, error) {
	if v == nil || v == "" {
		return nil, funcErrorf("required: %s", message)
	}
	return v, nil
}

// text1 converts a function of a text to a template function.
func text1(f func(string) string) func(any) (string, error) {
	return func(v any) (string, error) {
		s, err := toText(v)
		if err != nil {
			return "", err
		}
		return f(s), nil
	}
}

// toText returns the text of a scalar.
func toText(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool, int, int64, float64:
		return fmt.Sprint(v), nil
	case fmt.Stringer:
		return v.String(), nil
	case nil:
		return "", funcErrorf("the value is null or absent: fix the event, or use get and default")
	default:
		return "", funcErrorf("the value is a list or an object, not a text: use json or join")
	}
}

func title(s string) string {
	first := true
	return strings.Map(func(r rune) rune {
		letter := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '\''
		if letter && first {
			r = unicode.ToTitle(r)
		}
		first = !letter
		return r
	}, s)
}

func trunc(n int, v any) (string, error) {
	s, err := toText(v)
	if err != nil {
		return "", err
	}

	if n < 0 {
		return "", funcErrorf("trunc: the length is negative")
	}

	for i := range s {
		if n == 0 {
			return s[:i], nil
		}
		n--
	}

	return s, nil
}

func join(sep string, list any) (string, error) {
	var parts []string
	switch list := list.(type) {
	case []any:
		for _, v := range list {
			s, err := toText(v)
			if err != nil {
				return "", err
			}
			parts = append(parts, s)
		}
	case []string:
		parts = list
	default:
		return "", funcErrorf("join: the value is not a list")
	}

	return bounded(strings.Join(parts, sep))
}

func address(name, email any) (addressText, error) {
	n, err := toText(name)
	if err != nil {
		return "", err
	}

	e, err := toText(email)
	if err != nil {
		return "", err
	}

	a, err := mail.ParseAddress(e)
	if err != nil || a.Name != "" {
		return "", funcErrorf("address: the value is not one e-mail address such as a@example.com")
	}

	return addressText((&mail.Address{Name: strings.Join(strings.Fields(n), " "), Address: a.Address}).String()), nil
}

func toInt(v any) (int64, error) {
	s, err := toText(v)
	if err != nil {
		return 0, err
	}

	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}

	f, err := strconv.ParseFloat(s, 64)
	n := int64(f)
	isWhole := err == nil && float64(n) == f
	isExact := f > -1<<53 && f < 1<<53
	if isWhole && isExact {
		return n, nil
	}

	return 0, funcErrorf("int: the value is not a whole number of 64 bits")
}

func fixed(digits int, v any) (string, error) {
	s, err := toText(v)
	if err != nil {
		return "", err
	}
	if digits < 0 || digits > 18 {
		return "", funcErrorf("fixed: the number of digits must be 0 to 18")
	}
	r, err := decimal(s)
	if err != nil {
		return "", err
	}
	return r.FloatString(digits), nil
}

// decimal parses a number exactly. The limits of the length and the exponent keep
// 1e999999999 from exhausting the memory.
func decimal(s string) (*big.Rat, error) {
	bad := funcErrorf("the value is not a number")
	if len(s) > 64 || strings.ContainsAny(s, "/_xXbBoOpP") {
		return nil, bad
	}

	if i := strings.IndexAny(s, "eE"); i >= 0 {
		if n, err := strconv.Atoi(s[i+1:]); err != nil || n > 64 || n < -64 {
			return nil, bad
		}
	}

	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil, bad
	}

	return r, nil
}
