package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestAlertKinds: without alerts.on, every kind of incident is reported.
func TestAlertKinds(t *testing.T) {
	t.Parallel()
	field, _ := reflect.TypeFor[Alerts]().FieldByName("On")
	words := strings.Split(field.Tag.Get("enum"), ",")
	if !slices.Equal(words, alertKinds()) {
		t.Errorf("the defaults are %q of %q", alertKinds(), words)
	}
}
