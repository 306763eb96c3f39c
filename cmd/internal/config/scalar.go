package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/field"
)

// show returns the value of n for a message, if it may be shown.
func show(n *node) string {
	if n.hidden {
		return "the expanded value"
	}
	return quote(n.text)
}

// text returns the text of a scalar. A plain 123 or true is refused: text that
// looks like another type needs quotes.
func (d *decoder) text(n *node, path string) (string, bool) {
	switch {
	case n.kind == kindList && strings.HasSuffix(path, ".match"):
		d.list.add(n.at, path, "%s: expected text, got a list: write a route for each", path)
	case n.kind != kindScalar:
		d.wrong(n, path, "text")
	case n.tag == "!!int" || n.tag == "!!float" || n.tag == "!!bool":
		d.list.add(n.at, path, "%s: expected text, got %s: put it in quotes", path, describe(n))
	default:
		if n.hidden {
			d.expand.keep(n.text)
		}
		return n.text, true
	}
	return "", false
}

func (d *decoder) decodeDuration(n *node, target *time.Duration, r field.Rule, path string) {
	switch {
	case n.kind != kindScalar:
		d.wrong(n, path, "a duration like 30s")
		return
	case n.tag == "!!int" && n.text != "0":
		d.list.add(n.at, path, "%s: %s has no unit: write 500ms, 30s, 5m, 12h or 7d", path, show(n))
		return
	}

	text := n.text
	if n.hidden {
		text = strings.TrimSpace(text)
	}

	value, err := parseDuration(text)
	if err != nil {
		d.list.add(n.at, path, "%s: %s: %v", path, show(n), err)
		return
	}

	switch {
	case value == 0 && r.Zero != "":
	case r.Min != nil && float64(value) < *r.Min:
		cure := ""
		if r.Zero != "" {
			cure = ": write 0 for " + r.Zero
		}
		d.list.add(n.at, path, "%s: %s is too small: the least is %s%s",
			path, show(n), formatDuration(time.Duration(*r.Min)), cure)
		return
	case r.Max != nil && float64(value) > *r.Max:
		d.list.add(n.at, path, "%s: %s is too large: the most is %s", path, show(n), formatDuration(time.Duration(*r.Max)))
		return
	}

	*target = value
}

func (d *decoder) decodeScalar(n *node, v reflect.Value, r field.Rule, path string) {
	switch {
	case v.Kind() == reflect.String:
		d.decodeString(n, v, r, path)
	case v.Kind() == reflect.Bool:
		if b, ok := parseBool(n); ok {
			v.SetBool(b)
			return
		}
		d.wrongScalar(n, path, "true or false")
	case v.CanInt() || v.CanUint():
		d.decodeInt(n, v, r, path)
	case v.CanFloat():
		f, ok := parseFloat(n)
		if !ok {
			d.wrongScalar(n, path, "a number")
			return
		}

		if d.inRange(n, f, r, path) {
			v.SetFloat(f)
		}
	default:
		// A bug of notifyd, not a mistake of the operator; the schema test finds it.
		d.list.add(n.at, path, "%s: notifyd cannot read a %s", path, v.Type())
	}
}

func (d *decoder) decodeString(n *node, v reflect.Value, r field.Rule, path string) {
	if now, ok := r.Former[n.text]; ok && n.kind == kindScalar {
		d.list.add(n.at, path, "%s: %s is no longer accepted: write %s", path, show(n), now)
		return
	}

	text, ok := d.text(n, path)
	if !ok {
		return
	}

	if len(r.Enum) > 0 && !slices.Contains(r.Enum, text) {
		hint := ""
		if !n.hidden {
			hint = didYouMean(text, r.Enum)
		}
		d.list.add(n.at, path, "%s: %s is not one of %s%s", path, show(n), strings.Join(r.Enum, ", "), hint)
		return
	}

	v.SetString(text)
}

// didYouMean is suggest without the list, where the message has it already.
func didYouMean(word string, candidates []string) string {
	if hint := suggest(word, candidates); !strings.HasPrefix(hint, " (known") {
		return hint
	}
	return ""
}

func (d *decoder) decodeInt(n *node, v reflect.Value, r field.Rule, path string) {
	if n.kind == kindScalar && n.tag == "!!int" && leadingZero(n.text) {
		d.list.add(n.at, path, "%s: %s starts with a zero, which some programs read as octal: remove it", path, show(n))
		return
	}

	i, err := parseInt(n)
	if errors.Is(err, strconv.ErrRange) {
		d.list.add(n.at, path, "%s: the number is too large", path)
		return
	}
	if err != nil {
		d.wrongScalar(n, path, "a whole number")
		return
	}

	if !d.inRange(n, float64(i), r, path) {
		return
	}

	switch {
	case v.CanUint() && (i < 0 || v.OverflowUint(uint64(i))):
		d.list.add(n.at, path, "%s: %s is out of range", path, show(n))
	case v.CanUint():
		v.SetUint(uint64(i)) //nolint:gosec // the case above refuses negative numbers
	case v.OverflowInt(i):
		d.list.add(n.at, path, "%s: %s is out of range", path, show(n))
	default:
		v.SetInt(i)
	}
}

func leadingZero(s string) bool {
	s = strings.TrimLeft(s, "+-")
	if len(s) < 2 || s[0] != '0' {
		return false
	}
	isDigit := s[1] >= '0' && s[1] <= '9'
	return isDigit || s[1] == '_'
}

func (d *decoder) inRange(n *node, f float64, r field.Rule, path string) bool {
	switch {
	case r.Min != nil && f < *r.Min:
		d.list.add(n.at, path, "%s: %s is too small: the least is %v", path, show(n), *r.Min)
	case r.Max != nil && f > *r.Max:
		d.list.add(n.at, path, "%s: %s is too large: the most is %s", path, show(n), strconv.FormatFloat(*r.Max, 'f', -1, 64))
	default:
		return true
	}
	return false
}

// wrongScalar reports a scalar of the wrong kind, with its text if that helps.
func (d *decoder) wrongScalar(n *node, path, want string) {
	if n.kind == kindScalar {
		d.list.add(n.at, path, "%s: expected %s, got %s%s", path, want, show(n), unquote(n, want))
		return
	}
	d.wrong(n, path, want)
}

// unquote returns the cure of a number, or of true or false, in quotes.
func unquote(n *node, want string) string {
	if n.tag != "!!str" || n.hidden {
		return ""
	}

	bare := node{kind: kindScalar, text: n.text, hidden: true}
	_, isValue := parseFloat(&bare)
	if want == "true or false" {
		_, isValue = parseBool(&bare)
	}
	if isValue {
		return ": remove the quotes"
	}
	return ""
}

var errNotInt = errors.New("not a whole number")

// parseInt reads YAML's integers, and decimal text that came from an expansion.
func parseInt(n *node) (int64, error) {
	switch {
	case n.kind == kindScalar && n.tag == "!!int":
		return strconv.ParseInt(strings.ReplaceAll(n.text, "_", ""), 0, 64)
	case n.kind == kindScalar && n.hidden:
		return strconv.ParseInt(strings.TrimSpace(n.text), 10, 64)
	case n.kind == kindScalar && n.tag == "!!float" && strings.Trim(n.text, "+-0123456789_") == "":
		return 0, fmt.Errorf("%w: %w", errNotInt, strconv.ErrRange) // digits only: the number is too large for YAML's int
	default:
		return 0, errNotInt
	}
}

// parseFloat reads finite numbers.
func parseFloat(n *node) (float64, bool) {
	isNumber := n.tag == "!!int" || n.tag == "!!float"
	if n.kind != kindScalar || !n.hidden && !isNumber {
		return 0, false
	}

	if i, err := parseInt(n); err == nil {
		return float64(i), true
	}

	f, err := strconv.ParseFloat(strings.TrimSpace(strings.ReplaceAll(n.text, "_", "")), 64)
	return f, err == nil && !math.IsInf(f, 0) && !math.IsNaN(f)
}

func parseBool(n *node) (value, ok bool) {
	if n.kind != kindScalar || !n.hidden && n.tag != "!!bool" {
		return false, false
	}

	switch strings.ToLower(strings.TrimSpace(n.text)) {
	case "true":
		return true, true
	case "false":
		return false, true
	default:
		return false, false
	}
}

// plainScalar returns a scalar as the Go type that YAML assigns.
func plainScalar(n *node) any {
	if i, err := parseInt(n); err == nil {
		return i
	}
	if f, ok := parseFloat(n); ok {
		return f
	}
	if b, ok := parseBool(n); ok {
		return b
	}
	return n.text
}
