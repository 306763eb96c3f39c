package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/destinations"
)

// settingNames lists the keys of a struct, those of embedded structs included.
func settingNames(s reflect.Type) (names []string) {
	for f := range s.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case f.Anonymous && name == "":
			names = append(names, settingNames(f.Type)...)
		case f.IsExported() && name != "" && name != "-":
			names = append(names, name)
		}
	}
	return names
}

// TestNoSettingHasTwoMeanings: a name that every destination has means the same at
// each. A type may only give it another default.
func TestNoSettingHasTwoMeanings(t *testing.T) {
	t.Parallel()
	generic := reflect.TypeFor[config.Lane]()
	common := append(settingNames(generic), "type")
	for name, fresh := range destinations.Registry(".", nil, nil) {
		settings := reflect.TypeOf(fresh()).Elem()
		if len(settingNames(settings)) < 2 {
			t.Errorf("%s has the settings %v", name, settingNames(settings))
		}
		for f := range settings.Fields() {
			if f.Anonymous { // what the handler itself reads
				for _, own := range settingNames(f.Type) {
					if slices.Contains(common, own) {
						t.Errorf("%s: its setting %q has the name of one that every destination has", name, own)
					}
				}
				continue
			}
			for lane := range generic.Fields() {
				if key := f.Tag.Get("yaml"); key != "" && key == lane.Tag.Get("yaml") && f.Type != lane.Type {
					t.Errorf("%s: %s is a %s here and a %s at every destination", name, key, f.Type, lane.Type)
				}
			}
		}
	}
}
