package handlers_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
)

// TestHidden formats a secret, and values that contain one, with every verb: fmt does not
// call String for %d, nor inside a value that the verb does not fit.
func TestHidden(t *testing.T) {
	t.Parallel()
	s := handlers.NewSecret("hunter2")
	type settings struct{ Password handlers.Secret }
	type holder struct {
		Any     any
		private handlers.Secret
	}
	for _, v := range []any{s, &s, settings{s}, &settings{s}, holder{&settings{s}, s}, []any{&settings{s}}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%z"} {
			if out := fmt.Sprintf(verb, v); strings.Contains(out, "hunter2") || strings.Contains(out, "68756e74657232") {
				t.Errorf("%s of %T: %s", verb, v, out)
			}
		}
		if out, err := json.Marshal(v); err != nil || strings.Contains(string(out), "hunter2") {
			t.Errorf("json: %s, %v", out, err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	var s handlers.Secret
	if !s.IsZero() || s.String() != "" || s.Reveal() != "" || !handlers.NewSecret("").IsZero() {
		t.Errorf("zero value: %q", s)
	}
	if err := s.UnmarshalText([]byte("x")); err != nil || s.Reveal() != "x" || s.IsZero() || s.String() != "[redacted]" {
		t.Errorf("after UnmarshalText: %q, %v", s, err)
	}
	// What was written is not read back as the secret.
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &s); err == nil || !strings.Contains(err.Error(), "hidden") || s.Reveal() != "x" {
		t.Errorf("of %s: %q, %v", text, s, err)
	}
	if err := json.Unmarshal([]byte(`""`), &s); err != nil || !s.IsZero() {
		t.Errorf("of nothing: %q, %v", s, err)
	}
}
