package config

import (
	"reflect"
	"strconv"
	"strings"
)

// setting is a key of a mapping and the fields that it is decoded into.
type setting struct {
	name    string
	targets []reflect.Value
	rule    rule
}

// rule is the content of a field's tags. It serves the file, the schema and the
// reference, so they cannot disagree.
type rule struct {
	required bool
	enum     []string
	min, max *float64
	former   map[string]string // former values, and their replacements
	ifSet    bool              // it is printed only if it is set

	description string
	kind        string // the type that the reference prints; "" for the type of the field
	unset       string // the default that the reference prints; "" for the value of the field
}

// settingsOf lists the keys of all given structs.
func settingsOf(structs ...reflect.Value) []setting {
	var all []setting
	for _, s := range structs {
		for field, value := range s.Fields() {
			if !field.IsExported() {
				continue
			}
			name, inline := keyOf(field)
			if inline {
				all = append(all, settingsOf(reflect.Indirect(value))...)
				continue
			}
			if name != "" {
				all = merge(all, setting{name, []reflect.Value{value}, ruleOf(field.Tag)})
			}
		}
	}
	return all
}

func merge(all []setting, s setting) []setting {
	for i := range all {
		if all[i].name == s.name {
			all[i].targets = append(all[i].targets, s.targets...)
			return all
		}
	}
	return append(all, s)
}

// keyOf returns the key of a field, "" if it has none, and whether the field is
// a struct whose own fields stand in its place.
func keyOf(f reflect.StructField) (name string, inline bool) {
	tag, hasTag := f.Tag.Lookup("yaml")
	name, options, _ := strings.Cut(tag, ",")
	switch {
	case name == "-":
		return "", false
	case f.Type.Kind() == reflect.Struct && (options == "inline" || f.Anonymous && !hasTag):
		return "", true
	case name == "":
		return strings.ToLower(f.Name), false
	default:
		return name, false
	}
}

func ruleOf(tag reflect.StructTag) rule {
	r := rule{
		ifSet:       tag.Get("print") == "set",
		description: tag.Get("jsonschema_description"), kind: tag.Get("kind"), unset: tag.Get("unset"),
	}
	for word := range strings.SplitSeq(tag.Get("former"), ",") {
		if before, now, ok := strings.Cut(word, "="); ok {
			if r.former == nil {
				r.former = make(map[string]string)
			}
			r.former[before] = now
		}
	}
	for word := range strings.SplitSeq(tag.Get("jsonschema"), ",") {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "required":
			r.required = true
		case "enum":
			r.enum = append(r.enum, value)
		case "minimum":
			r.min = number(value)
		case "maximum":
			r.max = number(value)
		}
	}
	return r
}

func number(s string) *float64 {
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return &f
	}
	return nil
}
