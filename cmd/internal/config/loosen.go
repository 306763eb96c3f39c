package config

import (
	"reflect"
	"slices"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// expansionPattern matches a text with an expansion, which may stand for any scalar.
const expansionPattern = `\$\{(env|file):`

// orNull is the type of a value that leaves a setting at its default. Required
// settings and elements of lists do not accept it.
const orNull = "null"

// loosen completes the schema of the setting v, whose value is the default.
func loosen(s *jsonschema.Schema, v reflect.Value, d Descriptions, or ...string) error {
	if v.Kind() == reflect.Pointer {
		v = pointed(v)
	}

	types, err := loosenType(s, v, d)
	if err != nil || types == nil {
		return err
	}

	types = append(types, or...)
	if len(s.Enum) > 0 {
		words := &jsonschema.Schema{Enum: s.Enum}
		expanded := &jsonschema.Schema{Type: "string", Pattern: expansionPattern}
		s.Type = ""
		s.Enum = nil
		s.AnyOf = []*jsonschema.Schema{words, expanded}
		for _, t := range or {
			s.AnyOf = append(s.AnyOf, &jsonschema.Schema{Type: t})
		}
	} else {
		setTypes(s, types)
	}

	s.Default = defaultOf(v)
	return nil
}

// loosenType returns the JSON types that the file may use for v, nil for any.
func loosenType(s *jsonschema.Schema, v reflect.Value, d Descriptions) ([]string, error) {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		s.Pattern = durationPattern + "|" + expansionPattern
		s.Minimum = "0" // for numbers: only 0 needs no unit
		s.Maximum = "0"
		return []string{"string", "integer"}, nil
	}

	switch k := v.Kind(); {
	case s.Type == "string":
		return []string{"string"}, nil
	case k == reflect.Interface:
		return nil, nil
	case k == reflect.Struct:
		return []string{"object"}, loosenStruct(s, v, d)
	case k == reflect.Map:
		if s.AdditionalProperties != nil {
			return []string{"object"}, loosen(s.AdditionalProperties, reflect.Zero(v.Type().Elem()), d, orNull)
		}
		return []string{"object"}, nil
	case k == reflect.Slice:
		return loosenSlice(s, v, d)
	default:
		s.Pattern = expansionPattern // for strings: the number comes from elsewhere
		return []string{s.Type, "string"}, nil
	}
}

// loosenShort completes the schema of a mapping for which one of its words may stand.
func loosenShort(s *jsonschema.Schema, r field.Rule) {
	word := property(s, r.Short)
	mapping := *s
	mapping.Type = "object"
	mapping.Extras = nil
	mapping.Description = ""
	*s = jsonschema.Schema{Default: word.Default, AnyOf: append(slices.Clip(word.AnyOf), &mapping)}
}

func loosenSlice(s *jsonschema.Schema, v reflect.Value, d Descriptions) ([]string, error) {
	if s.Items == nil { // the destinations, which are written as a mapping
		return []string{"object"}, nil
	}

	elem := reflect.New(v.Type().Elem()).Elem()
	types := []string{"array"}
	if elem.Kind() == reflect.String {
		types = append(types, "string") // one string stands for a list of it
	}

	return types, loosen(s.Items, elem, d)
}

// setWords limits a text, or the elements of a list, to words.
func setWords(s *jsonschema.Schema, words []string) {
	if s.Items != nil {
		s = s.Items
	}
	for _, word := range words {
		s.Enum = append(s.Enum, word)
	}
}

func setTypes(s *jsonschema.Schema, types []string) {
	if len(types) == 1 {
		s.Type = types[0]
		return
	}

	s.Type = ""
	if s.Extras == nil {
		s.Extras = map[string]any{}
	}

	s.Extras["type"] = types
}

// defaultOf returns the default as the file would spell it, nil if it is not
// worth mentioning.
func defaultOf(v reflect.Value) any {
	if v.IsZero() || v.Type() == reflect.TypeFor[handlers.Secret]() {
		return nil
	}
	if d, ok := reflect.TypeAssert[time.Duration](v); ok {
		return formatDuration(d)
	}
	k := v.Kind()
	isNumber := v.CanInt() || v.CanUint() || v.CanFloat()
	if k == reflect.String || k == reflect.Bool || isNumber {
		return v.Interface()
	}
	return nil
}
