package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// Reference returns page, a Markdown text, with the table of each section of notifyd.yaml and of each destination type
// written anew between its markers: the lines "<!-- settings: NAME -->" and "<!-- end of settings -->". NAME is
// "top level", a key of the file such as "relay", "destinations.NAME" for the settings of every destination, or
// "type: email". It returns an error if a table has no marker or two, a marker has no table or no end, or a setting has no
// description. A destination type without a table gets a section behind those of the others.
func Reference(page []byte, registry Registry, descriptions Descriptions) ([]byte, error) {
	all, err := tablesOf(registry, descriptions)
	if err != nil {
		return nil, fmt.Errorf("config: reference: %w", err)
	}

	for _, name := range registry.names() {
		page = withSection(page, name)
	}

	var errs []error
	written := make(map[string]bool)

	page = tableRegexp.ReplaceAllFunc(page, func(old []byte) []byte {
		name := string(tableRegexp.FindSubmatch(old)[1])
		text, known := all.text[name]
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("config: reference: the marker %s: there is no such table: remove it", tableStart(name)))
		case written[name]:
			errs = append(errs, fmt.Errorf("config: reference: the marker %s: is there twice: remove one", tableStart(name)))
		case bytes.Count(old, []byte(tablePrefix)) > 1:
			errs = append(errs, fmt.Errorf("config: reference: the marker %s: has no end: add the line %s", tableStart(name), tableEnd))
		}

		written[name] = true
		return []byte(tableStart(name) + "\n\n" + text + "\n" + tableEnd + "\n")
	})

	for _, name := range all.names {
		if !written[name] {
			errs = append(errs, fmt.Errorf("config: reference: the page has no table of %q: add the lines %s and %s",
				name, tableStart(name), tableEnd))
		}
	}

	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return page, nil
}

const (
	tablePrefix = "<!-- settings: "
	tableEnd    = "<!-- end of settings -->"
)

// headingRegexp matches a heading.
var headingRegexp = regexp.MustCompile(`\n##+ `)

// withSection returns a page that has a section of a destination type.
func withSection(page []byte, kind string) []byte {
	start := []byte(tableStart("type: " + kind))
	last := bytes.LastIndex(page, []byte("\n"+tablePrefix+"type: "))
	if bytes.Contains(page, start) || last < 0 {
		return page
	}

	end := len(page)
	if next := headingRegexp.FindIndex(page[last:]); next != nil {
		end = last + next[0] + 1
	}
	section := fmt.Appendf(nil, "### type: %s\n\n[destinations/%[1]s.md](destinations/%[1]s.md) explains what \"delivered\" means, duplicates, "+
		"order, and the handling of each error.\n\n%s\n%s\n\n", kind, start, tableEnd)
	return slices.Concat(page[:end], section, page[end:])
}

func tableStart(name string) string { return tablePrefix + name + " -->" }

// tableRegexp matches a table with its markers.
var tableRegexp = regexp.MustCompile(`(?ms)^` + tablePrefix + `([^\n]*?) -->\n(.*?)^` + tableEnd + `\n`)

// tables holds Markdown tables by name.
type tables struct {
	descriptions Descriptions
	names        []string
	text         map[string]string
}

// tablesOf returns the tables of the file, in the file's order.
func tablesOf(registry Registry, descriptions Descriptions) (*tables, error) {
	all := &tables{descriptions: descriptions, text: make(map[string]string)}
	root := settingsOf(reflect.ValueOf(defaults()).Elem())

	var top []row
	var errs []error
	for _, s := range root {
		r, err := all.rowOf(s, "")
		top = append(top, r)
		errs = append(errs, err)
	}
	all.add("top level", top)

	for _, s := range root {
		switch v := s.targets[0]; {
		case v.Type() == reflect.TypeFor[Destinations]():
			errs = append(errs, all.addDestinations(registry))
		case v.Kind() == reflect.Slice:
			errs = append(errs, all.addStruct(s.name, reflect.New(v.Type().Elem()).Elem(), s.name+"[]."))
		case v.Kind() == reflect.Struct:
			errs = append(errs, all.addStruct(s.name, v, s.name+"."))
		}
	}

	return all, errors.Join(errs...)
}

func (t *tables) addDestinations(registry Registry) error {
	lane := defaultLane()
	kind := row{"type", words(registry.names()), "required", typeDescription}
	errs := []error{t.addStruct("destinations.NAME", reflect.ValueOf(&lane).Elem(), "", kind)}
	for _, name := range registry.names() {
		own, err := registry[name].effective()
		if err != nil {
			errs = append(errs, fmt.Errorf("type: %s: %w", name, err))
			continue
		}
		errs = append(errs, t.addStruct("type: "+name, own, ""))
	}
	return errors.Join(errs...)
}

// addStruct adds the table of a struct whose keys begin with prefix. The given rows stand first.
func (t *tables) addStruct(name string, v reflect.Value, prefix string, before ...row) error {
	rows, err := t.rowsOf(v, prefix)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}

	t.add(name, append(before, rows...))
	return nil
}

func (t *tables) add(name string, rows []row) {
	var text strings.Builder
	text.WriteString("| Key | Type | Default | Meaning |\n|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&text, "| `%s` | %s | %s | %s |\n", r.key, r.kind, r.unset, r.meaning)
	}

	t.names = append(t.names, name)
	t.text[name] = text.String()
}

// row is a row of a table, in Markdown.
type row struct{ key, kind, unset, meaning string }

// rowsOf describes the settings of a struct, nested ones included. A field with the tag kind has no nested ones.
func (t *tables) rowsOf(v reflect.Value, prefix string) (all []row, err error) {
	for _, s := range settingsOf(v) {
		r, err := t.rowOf(s, prefix)
		if err != nil {
			return nil, err
		}
		all = append(all, r)

		if s.rule.Kind != "" {
			continue
		}

		value := s.targets[0]
		below := r.key + "."
		if value.Kind() == reflect.Slice {
			value = reflect.New(value.Type().Elem()).Elem()
			below = r.key + "[]."
		}

		if value.Kind() == reflect.Pointer {
			value = pointed(value)
		}
		if value.Kind() == reflect.Struct && !isText(value.Type()) {
			inner, err := t.rowsOf(value, below)
			if err != nil {
				return nil, err
			}
			all = append(all, inner...)
		}
	}
	return all, nil
}

var (
	errNoDescription = errors.New(`the field needs a doc comment, or else the yaml tag "-"`)
	errNoUnset       = errors.New("the field needs a tag unset: its default cannot be printed")
)

func (t *tables) rowOf(s setting, prefix string) (row, error) {
	r := row{prefix + s.name, markdown(ticked(s.rule.Kind)), markdown(ticked(s.rule.Unset)), markdown(t.descriptions.of(s))}
	if r.meaning == "" {
		return r, fmt.Errorf("%s: %w", r.key, errNoDescription)
	}

	if s.rule.Short != "" {
		short := settingOf(settingsOf(s.targets[0]), s.rule.Short)
		r.kind = kindOf(short.targets[0].Type(), short.rule) + " or mapping"
		r.unset = words([]string{short.targets[0].String()})
	}

	if r.kind == "" {
		r.kind = kindOf(s.targets[0].Type(), s.rule)
	}
	if s.rule.Required {
		r.unset = "required"
	}
	if r.unset == "" {
		unset, err := defaultText(s.targets[0])
		if err != nil {
			return r, fmt.Errorf("%s: %w", r.key, err)
		}
		r.unset = unset
	}

	return r, nil
}

// pointed returns what a pointer points to, a zero value where it is nil.
func pointed(v reflect.Value) reflect.Value {
	if v.IsNil() {
		return reflect.New(v.Type().Elem()).Elem()
	}
	return v.Elem()
}

// isText reports whether the file writes values of a type as text.
func isText(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[time.Duration](), reflect.TypeFor[handlers.Secret]():
		return true
	}
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) && t.Kind() != reflect.Slice
}

// kindOf returns the cell Type for a field: the values that the file may have, within the bounds of a rule.
func kindOf(t reflect.Type, r field.Rule) string {
	switch k := t.Kind(); {
	case k == reflect.Pointer:
		return kindOf(t.Elem(), r)
	case t == reflect.TypeFor[time.Duration]():
		return durationOf(r)
	case t == reflect.TypeFor[handlers.Secret]():
		return "secret"
	case k == reflect.Slice && len(r.Enum) > 0:
		return "list of " + kindOf(t.Elem(), r)
	case t == reflect.TypeFor[Destinations](), k == reflect.Map, k == reflect.Struct && !isText(t):
		return "mapping"
	case k == reflect.Slice:
		return "list of " + kindOf(t.Elem(), r) + "s"
	case len(r.Enum) > 0:
		return words(r.Enum)
	case isText(t), k == reflect.String:
		return "text"
	case k == reflect.Bool:
		return "boolean"
	case k == reflect.Interface:
		return "anything"
	default:
		return rangeOf(r)
	}
}

func durationOf(r field.Rule) string {
	bound := func(f *float64) string { return words([]string{formatDuration(time.Duration(*f))}) }
	text := "duration"

	switch {
	case r.Min != nil && r.Max != nil:
		text += ", " + bound(r.Min) + " to " + bound(r.Max)
	case r.Min != nil && time.Duration(*r.Min) > time.Millisecond:
		text += ", at least " + bound(r.Min)
	case r.Max != nil:
		text += ", at most " + bound(r.Max)
	}

	return text
}

func rangeOf(r field.Rule) string {
	bound := func(f *float64) string { return strconv.FormatFloat(*f, 'f', -1, 64) }

	switch {
	case r.Min != nil && r.Max != nil:
		return bound(r.Min) + " to " + bound(r.Max)
	case r.Min != nil:
		return "number, at least " + bound(r.Min)
	case r.Max != nil:
		return "number, at most " + bound(r.Max)
	default:
		return "number"
	}
}

// defaultText returns the cell Default for a value: its spelling in the file, "none" if it is empty, and "" for a
// mapping, because its settings have the defaults.
func defaultText(v reflect.Value) (string, error) {
	d, isDuration := reflect.TypeAssert[time.Duration](v)

	switch k := v.Kind(); {
	case k == reflect.Pointer && !v.IsNil():
		return defaultText(v.Elem())
	case k == reflect.Struct && !isText(v.Type()):
		return "", nil
	case isDuration && d == 0:
		return "`0`", nil
	case isDuration:
		return words([]string{formatDuration(d)}), nil
	case k == reflect.Bool:
		return words([]string{strconv.FormatBool(v.Bool())}), nil
	case v.CanInt(), v.CanUint(), v.CanFloat():
		return fmt.Sprint(v.Interface()), nil
	case v.IsZero(), (k == reflect.Slice || k == reflect.Map) && v.Len() == 0:
		return "none", nil
	case k == reflect.String:
		return words([]string{v.String()}), nil
	default: // a secret, too
		return "", errNoUnset
	}
}

// words returns words as code, with commas between them.
func words(all []string) string { return "`" + strings.Join(all, "`, `") + "`" }

// quoted matches code in a tag: 'tls: implicit'. A tag cannot contain backticks. An apostrophe follows a letter, so it
// does not match.
var quoted = regexp.MustCompile(`(^|[\s(])'([^']+)'`)

// ticked returns the text of a tag with its code in backticks.
func ticked(s string) string { return quoted.ReplaceAllString(s, "$1`$2`") }

// markdown returns a text with code in backticks as a cell of a table.
func markdown(s string) string {
	parts := strings.Split(s, "`")
	for i := range parts {
		if i%2 == 0 { // outside of code
			parts[i] = strings.NewReplacer("<", "&lt;", "*", `\*`).Replace(parts[i])
		}
	}

	return strings.ReplaceAll(strings.Join(parts, "`"), "|", `\|`)
}
