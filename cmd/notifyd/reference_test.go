package main

import (
	"errors"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/handlers"
)

// TestReferenceTellsWhatValidateWants: the tags kind and unset of a destination's settings repeat what their Validate
// enforces: bounds, words, and that a setting is required.
func TestReferenceTellsWhatValidateWants(t *testing.T) {
	t.Parallel()
	checks := 0
	for name, fresh := range destinations.Registry(t.TempDir(), nil, nil) {
		for _, field := range settingFields(reflect.TypeOf(fresh()).Elem()) {
			key, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			at := name + ": " + key
			kind := field.Tag.Get("kind")
			if field.Tag.Get("unset") == "required" {
				checks++
				if complaint(fresh(), key) == "" {
					t.Errorf("%s: is not required", at)
				}
			}
			for _, value := range outside(t, kind) {
				checks++
				if got := complaint(setting(fresh(), field, value), key); got == "" {
					t.Errorf("%s: the tag says %s, and %v is valid", at, kind, value)
				}
			}
			for _, value := range bounds(t, kind) {
				checks++
				if got := complaint(setting(fresh(), field, value), key); strings.Contains(got, "must be") {
					t.Errorf("%s: the tag says %s, and %v is not valid: %s", at, kind, value, got)
				}
			}
			if strings.HasPrefix(kind, "'") {
				checks++
				want := "use " + strings.ReplaceAll(kind, "'", "")
				if got := complaint(setting(fresh(), field, "nonsense"), key); !strings.HasSuffix(got, want) {
					t.Errorf("%s: the tag says %s, Validate says %s", at, kind, got)
				}
			}
		}
	}
	if checks < 60 {
		t.Errorf("only %d checks", checks)
	}
}

// setting sets a field of settings.
func setting(s config.Settings, field reflect.StructField, value any) config.Settings {
	v := reflect.ValueOf(s).Elem().FieldByIndex(field.Index)
	v.Set(reflect.ValueOf(value).Convert(v.Type()))
	return s
}

// complaint returns what Validate says about a setting, "" for nothing.
func complaint(s config.Settings, key string) string {
	var find func(err error) string
	find = func(err error) string {
		if joined, is := err.(interface{ Unwrap() []error }); is {
			for _, one := range joined.Unwrap() {
				if text := find(one); text != "" {
					return text
				}
			}
			return ""
		}
		if wrong, is := errors.AsType[*handlers.FieldError](err); is && wrong.Path == key {
			return wrong.Err.Error()
		}
		return ""
	}
	return find(s.Validate())
}

var (
	span    = regexp.MustCompile(`^(\d+) to (\d+)$`)
	least   = regexp.MustCompile(`^number, at least (\d+)$`)
	atMost  = regexp.MustCompile(`^duration, at most '(\w+)'$`)
	between = regexp.MustCompile(`^duration, '(\w+)' to '(\w+)'$`)
)

// outside returns values just outside of the bounds of a kind, and bounds those that are just within. Zero stands for the default.
func outside(t *testing.T, kind string) (all []any) {
	t.Helper()
	for i, bound := range bounds(t, kind) {
		low := i == 0 && !atMost.MatchString(kind)
		switch bound := bound.(type) {
		case int:
			if low && bound != 1 {
				all = append(all, bound-1)
			} else if !low {
				all = append(all, bound+1)
			}
		case time.Duration:
			if low {
				all = append(all, bound-1)
			} else {
				all = append(all, bound+1)
			}
		}
	}
	return all
}

func bounds(t *testing.T, kind string) (all []any) {
	t.Helper()
	for _, numbers := range []*regexp.Regexp{span, least} {
		if m := numbers.FindStringSubmatch(kind); m != nil {
			for _, text := range m[1:] {
				n, err := strconv.Atoi(text)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, n)
			}
		}
	}
	for _, durations := range []*regexp.Regexp{atMost, between} {
		if m := durations.FindStringSubmatch(kind); m != nil {
			for _, text := range m[1:] {
				d, err := time.ParseDuration(text)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, d)
			}
		}
	}
	return all
}
