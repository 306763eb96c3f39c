package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
)

// settingFields lists the fields of a struct that are settings, those of inlined structs included. The index of a field
// is relative to the struct.
func settingFields(s reflect.Type) (fields []reflect.StructField) {
	for f := range s.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline", f.Anonymous && name == "":
			for _, inner := range settingFields(f.Type) {
				inner.Index = append(slices.Clone(f.Index), inner.Index...)
				fields = append(fields, inner)
			}
		case f.IsExported() && name != "" && name != "-":
			fields = append(fields, f)
		}
	}
	return fields
}

// settingNames lists the keys of a struct, those of inlined structs included.
func settingNames(s reflect.Type) (names []string) {
	for _, f := range settingFields(s) {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		names = append(names, name)
	}
	return names
}

// TestNoSettingHasTwoMeanings: a name that every destination has means the same at
// each. A type may only give it another default, in its struct Lane.
func TestNoSettingHasTwoMeanings(t *testing.T) {
	t.Parallel()
	lane := map[string]reflect.Type{"type": nil}
	for _, f := range settingFields(reflect.TypeFor[config.Lane]()) {
		lane[f.Tag.Get("yaml")] = f.Type
	}

	for name, fresh := range destinations.Registry(".", nil, nil) {
		settings := reflect.TypeOf(fresh()).Elem()
		all := settingFields(settings)
		if len(all) < 2 {
			t.Errorf("%s has the settings %v", name, all)
		}

		for _, f := range all {
			key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			of, isCommon := lane[key]
			if !isCommon {
				continue
			}

			depth := len(f.Index) - 1
			if depth == 0 || settings.FieldByIndex(f.Index[:depth]).Name != "Lane" { // what the handler itself reads
				t.Errorf("%s: its setting %q has the name of one that every destination has", name, key)
			}
			if f.Type != of {
				t.Errorf("%s: %s is a %s here and a %s at every destination", name, key, f.Type, of)
			}
		}
	}
}
