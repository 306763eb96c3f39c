package secret_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/secret"
)

// TestHidden formats a secret, and values that contain one, with every verb: fmt does not
// call String for %d, nor inside a value that the verb does not fit.
func TestHidden(t *testing.T) {
	t.Parallel()
	s := secret.New("hunter2")
	type settings struct{ Password secret.String }
	type holder struct {
		Any     any
		private secret.String
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
	var s secret.String
	if !s.IsZero() || s.String() != "" || s.Reveal() != "" || !secret.New("").IsZero() {
		t.Errorf("zero value: %q", s)
	}
	if err := s.UnmarshalText([]byte("x")); err != nil || s.Reveal() != "x" || s.IsZero() || s.String() != secret.Redacted {
		t.Errorf("after UnmarshalText: %q, %v", s, err)
	}
}
