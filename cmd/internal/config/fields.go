package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/field"
)

// setting is a key of a mapping and the fields that it is decoded into.
type setting struct {
	name    string
	targets []reflect.Value
	rule    field.Rule

	// owner and field are where the first target is declared.
	owner reflect.Type
	field string
}

// settingsOf lists the keys of all given structs, each key once.
func settingsOf(structs ...reflect.Value) []setting {
	var all []setting
	for _, s := range structs {
		for f, value := range s.Fields() {
			if !f.IsExported() {
				continue
			}

			name, inline := keyOf(f)
			if inline {
				for _, inner := range settingsOf(reflect.Indirect(value)) {
					all = merge(all, inner)
				}
				continue
			}

			if name != "" {
				all = merge(all, setting{
					name: name, targets: []reflect.Value{value}, rule: field.RuleOf(f.Tag),
					owner: s.Type(), field: f.Name,
				})
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

// settingOf returns the setting of a name, which exists.
func settingOf(all []setting, name string) setting {
	return all[slices.IndexFunc(all, func(s setting) bool { return s.name == name })]
}

// keyOf returns the YAML key of a field, "" without one, and whether the field is
// inlined, which makes its own fields settings of the outer struct.
func keyOf(f reflect.StructField) (name string, inline bool) {
	tag, hasTag := f.Tag.Lookup("yaml")
	name, options, _ := strings.Cut(tag, ",")
	isInline := options == "inline" || f.Anonymous && !hasTag

	switch {
	case name == "-":
		return "", false
	case f.Type.Kind() == reflect.Struct && isInline:
		return "", true
	case name == "":
		return strings.ToLower(f.Name), false
	default:
		return name, false
	}
}
