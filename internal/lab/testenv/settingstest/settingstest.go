// Package settingstest sets every setting of a struct, so that a test notices a setting that does not arrive where it
// acts.
package settingstest

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/field"
)

// Setting is one setting of a struct, or of a struct in it.
type Setting struct {
	// Path has the names of the fields: "Backoff.Initial".
	Path string
	// Key is the same in notifyd.yaml: "backoff.initial"; "" for a setting that only a program has.
	Key string
	// Value is the field, which can be set.
	Value reflect.Value

	rule field.Rule
}

// Of returns the settings of a struct, in the order of its fields. to is a pointer to the struct.
func Of(to any) []Setting { return settings(reflect.ValueOf(to).Elem(), "", "", true) }

func settings(v reflect.Value, path, key string, inFile bool) (all []Setting) {
	for f, value := range v.Fields() {
		if !f.IsExported() {
			continue
		}

		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		isInFile := inFile && name != "-"
		s := Setting{Path: path + f.Name, Value: value, rule: field.RuleOf(f.Tag)}
		if isInFile {
			s.Key = key + name
		}

		_, isText := reflect.TypeAssert[encoding.TextMarshaler](value)
		switch {
		case value.Kind() != reflect.Struct || isText:
			all = append(all, s)
		case f.Anonymous:
			all = append(all, settings(value, path, key, isInFile)...)
		default:
			all = append(all, settings(value, s.Path+".", s.Key+".", isInFile)...)
		}
	}

	return all
}

// InFile returns the settings of a struct that notifyd.yaml has.
func InFile(to any) []Setting {
	return slices.DeleteFunc(Of(to), func(s Setting) bool { return s.Key == "" })
}

// File returns the text of these settings in notifyd.yaml, as one mapping.
func File(tb testing.TB, all []Setting) string {
	tb.Helper()
	mapping := make(map[string]any)
	for _, s := range all {
		in := mapping
		keys := strings.Split(s.Key, ".")
		for _, key := range keys[:len(keys)-1] {
			if in[key] == nil {
				in[key] = make(map[string]any)
			}
			in = in[key].(map[string]any) //nolint:forcetypeassert // made above
		}

		value := s.Value.Interface()
		if d, isDuration := value.(time.Duration); isDuration {
			value = d.String()
		}
		in[keys[len(keys)-1]] = value
	}

	text, err := json.Marshal(mapping) // which is YAML, too
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// Fill gives every setting a value that is allowed, is not the default, and that no other setting has. given has,
// by path, the values that do not follow from the tags.
func Fill(tb testing.TB, all []Setting, given map[string]any) {
	tb.Helper()
	missing := maps.Clone(given)
	for i, s := range all {
		want, isGiven := given[s.Path]
		delete(missing, s.Path)
		if !isGiven {
			want = s.other(i + 1)
		}
		if want == nil {
			tb.Fatalf("%s: the test gives no value", s.Path)
		}

		s.Value.Set(reflect.ValueOf(want))
		if s.Value.IsZero() || fmt.Sprint(s.Value) == s.rule.Default {
			tb.Fatalf("%s: %v is the default", s.Path, want)
		}
	}

	for path := range missing {
		tb.Errorf("%s: no such setting", path)
	}
}

// other returns a value n steps away from the default. It returns nil for a type without steps.
func (s *Setting) other(n int) any {
	standard := reflect.New(s.Value.Type()).Elem()
	if s.rule.Default != "" {
		fill(standard, s.rule.Default)
	}

	if len(s.rule.Enum) > 0 {
		i := slices.IndexFunc(s.rule.Enum, func(word string) bool { return word != s.rule.Default })
		standard.SetString(s.rule.Enum[i])
		return standard.Interface()
	}

	step := int64(n)
	if s.Value.Type() == reflect.TypeFor[time.Duration]() {
		step *= int64(time.Millisecond)
	}

	switch {
	case s.Value.Kind() == reflect.Bool:
		return true
	case s.Value.CanFloat():
		standard.SetFloat(standard.Float() + float64(n)/8)
	case s.Value.CanInt() && s.rule.Max != nil && float64(standard.Int()+step) > *s.rule.Max:
		standard.SetInt(standard.Int() - step)
	case s.Value.CanInt():
		low := int64(math.MinInt64)
		if s.rule.Min != nil {
			low = int64(*s.rule.Min)
		}
		standard.SetInt(max(standard.Int(), low) + step)
	default:
		return nil
	}

	return standard.Interface()
}

// fill sets v to the value of a default, parsed by package field.
func fill(v reflect.Value, text string) {
	t := reflect.StructOf([]reflect.StructField{{Name: "F", Type: v.Type(), Tag: reflect.StructTag(`default:"` + text + `"`)}})
	one := reflect.New(t)
	field.Fill(one.Interface())
	v.Set(one.Elem().Field(0))
}

// Arrive runs a subtest for each setting of a struct: the function of the table with its path, which fails unless the
// setting is where it acts. A setting without a function fails the test. of is a pointer to the struct.
func Arrive(t *testing.T, of any, table map[string]func(t *testing.T)) {
	t.Helper()
	left := maps.Clone(table)
	for _, s := range Of(of) {
		see := table[s.Path]
		delete(left, s.Path)
		if see == nil {
			t.Errorf("%s: the table does not tell how to see it act", s.Path)
			continue
		}
		t.Run(s.Path, see)
	}

	for path := range left {
		t.Errorf("%s: no such setting", path)
	}
}

// Same fails unless the settings of two structs of one type are equal.
func Same(tb testing.TB, got, want []Setting) {
	tb.Helper()
	for i, s := range got {
		if g, w := s.Value.Interface(), want[i].Value.Interface(); !reflect.DeepEqual(g, w) {
			tb.Errorf("%s: %v, want %v", s.Path, g, w)
		}
	}
}
