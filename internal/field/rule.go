package field

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/handlers"
)

// Rule holds the tags that declare a setting on a struct's field. A setting is declared only there: the library, the
// daemon, the schema and the reference page read the same tags. The description of a setting is the first paragraph of the
// field's doc comment, with keys and values of notifyd.yaml in backticks; cmd/internal/describe collects them.
type Rule struct {
	// Required is true for `jsonschema:"required"`.
	Required bool
	// Enum are the words of `enum:"a,b"`; none if every value is allowed.
	Enum []string
	// Min and Max are the bounds of `jsonschema:"minimum=...,maximum=..."`, durations in nanoseconds; nil for none.
	Min, Max *float64
	// Default is `default:"..."`, "" for none: durations in Go's syntax.
	Default string
	// Zero is `zero:"..."`: what 0 means, such as "never", where it is not the default.
	Zero string
	// Former are former words and their replacements: `former:"true=aggregate"`.
	Former map[string]string
	// Short is `short:"..."` on a field that is a struct: the key of the mapping that a scalar stands for.
	Short string
	// IfSet is true for `print:"set"`: the setting is printed only if it is set.
	IfSet bool
	// Kind is `kind:"..."`: the type that the reference page prints, with code in single quotes; "" for the type of the
	// field.
	Kind string
	// Unset is `unset:"..."`: the default that the reference page prints, with code in single quotes; "" for the value of
	// the field.
	Unset string
}

// RuleOf reads the tags of a field.
func RuleOf(tag reflect.StructTag) Rule {
	r := Rule{
		Default: tag.Get("default"),
		Zero:    tag.Get("zero"),
		Short:   tag.Get("short"),
		IfSet:   tag.Get("print") == "set",
		Kind:    tag.Get("kind"),
		Unset:   tag.Get("unset"),
	}

	if words := tag.Get("enum"); words != "" {
		r.Enum = strings.Split(words, ",")
	}

	for word := range strings.SplitSeq(tag.Get("former"), ",") {
		if before, now, ok := strings.Cut(word, "="); ok {
			if r.Former == nil {
				r.Former = make(map[string]string)
			}
			r.Former[before] = now
		}
	}

	for word := range strings.SplitSeq(tag.Get("jsonschema"), ",") {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "required":
			r.Required = true
		case "minimum":
			r.Min = bound(value)
		case "maximum":
			r.Max = bound(value)
		}
	}

	return r
}

func bound(text string) *float64 {
	if f, err := strconv.ParseFloat(text, 64); err == nil {
		return &f
	}
	if d, err := time.ParseDuration(text); err == nil {
		f := float64(d)
		return &f
	}
	return nil
}

// none stands for 0 in a field where a default replaces 0.
const none = -1

// Fill sets the zero fields of a struct to their defaults. A field with a default whose 0 means something else holds -1
// for 0: Fill replaces -1 by 0. to is a pointer to the struct.
func Fill(to any) {
	for f, v := range reflect.ValueOf(to).Elem().Fields() {
		r := RuleOf(f.Tag)
		switch {
		case v.IsZero() && r.Default != "":
			set(v, r.Default)
		case r.hidesZero() && v.CanInt() && v.Int() == none:
			v.SetInt(0)
		}
	}
}

// hidesZero reports whether the field cannot hold its 0, because a default replaces it.
func (r Rule) hidesZero() bool { return r.Zero != "" && r.Default != "" }

// Literal prepares a struct that was read from a file, where 0 is never the default. It replaces 0 by -1 in each field
// whose -1 Fill replaces by 0. to is a pointer to the struct.
func Literal(to any) {
	for f, v := range reflect.ValueOf(to).Elem().Fields() {
		if RuleOf(f.Tag).hidesZero() && v.CanInt() && v.Int() == 0 {
			v.SetInt(none)
		}
	}
}

// set sets v to the parsed text of a default. It panics if the text is invalid, which is a mistake in a tag.
func set(v reflect.Value, text string) {
	var err error
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = time.ParseDuration(text)
		v.SetInt(int64(d))
	case v.CanInt():
		var n int64
		n, err = strconv.ParseInt(text, 10, 64)
		v.SetInt(n)
	case v.CanFloat():
		var f float64
		f, err = strconv.ParseFloat(text, 64)
		v.SetFloat(f)
	case v.Kind() == reflect.String:
		v.SetString(text)
	default:
		err = errors.New("no type for a default")
	}

	if err != nil {
		panic(fmt.Sprintf("bug: default %q of a %s: %v", text, v.Type(), err))
	}
}

// Check returns an error for each field of a struct that breaks the bounds or the enum of its tag, joined. The path of
// each error is the field's key in the file. A zero passes: it stands for the default, or for the meaning that the tag
// zero names. Each element of a list is checked, also a zero.
func Check(s any) error {
	var errs []error
	for f, v := range reflect.Indirect(reflect.ValueOf(s)).Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "" || name == "-" || v.IsZero() {
			continue
		}
		r := RuleOf(f.Tag)
		if err := r.check(v); err != nil {
			errs = append(errs, &handlers.FieldError{Path: name, Err: err})
		}
		if v.Kind() == reflect.Slice {
			errs = append(errs, r.checkAll(name, v)...)
		}
	}
	return errors.Join(errs...)
}

// checkAll returns an error for each element of a list that breaks the rule.
func (r Rule) checkAll(name string, list reflect.Value) (errs []error) {
	for i, v := range list.Seq2() {
		if err := r.check(v); err != nil {
			errs = append(errs, &handlers.FieldError{Path: fmt.Sprint(name, ".", i), Err: err})
		}
	}
	return errs
}

// check returns an error if the value breaks the rule.
func (r Rule) check(v reflect.Value) error {
	switch {
	case v.Kind() == reflect.String:
		return r.checkWord(v.String())
	case v.CanInt():
		return r.checkNumber(float64(v.Int()), v.Interface())
	case v.CanFloat():
		return r.checkNumber(v.Float(), v.Interface())
	default:
		return nil
	}
}

func (r Rule) checkWord(word string) error {
	if len(r.Enum) == 0 || slices.Contains(r.Enum, word) {
		return nil
	}
	return formatted("unknown word %q: use %s", word, strings.Join(r.Enum, ", "))
}

func (r Rule) checkNumber(n float64, shown any) error {
	_, isDuration := shown.(time.Duration)
	text := func(f *float64) string {
		if isDuration {
			return time.Duration(*f).String()
		}
		return strconv.FormatFloat(*f, 'f', -1, 64)
	}

	switch {
	case r.Min != nil && !(n >= *r.Min): // NaN is not
		return formatted("%v is too small: the least is %s", shown, text(r.Min))
	case r.Max != nil && n > *r.Max:
		return formatted("%v is too large: the most is %s", shown, text(r.Max))
	default:
		return nil
	}
}

// formatted is fmt.Errorf with a format that [Own] finds.
func formatted(format string, args ...any) error {
	return formattedError{fmt.Errorf(format, args...), format}
}
