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
	var words []string
	for part := range strings.SplitSeq(field.Tag.Get("jsonschema"), ",") {
		if word, ok := strings.CutPrefix(part, "enum="); ok {
			words = append(words, word)
		}
	}
	if len(words) == 0 || !slices.Equal(words, alertKinds()) {
		t.Errorf("the defaults are %q of %q", alertKinds(), words)
	}
}
