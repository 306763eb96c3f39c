package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// FuzzHeaders: whatever SQL has stored in the column is kept: strings as they are, other values as
// their JSON, and a value that is not an object as a whole. The memory is linear in the text.
func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{"", "null", "{}", "[]", `"a"`, "1", `{"a": "b"}`, `{"a": 1, "b": null, "c": {"d": [true]}}`, `{"\u0061": "\ud83d\ude00"}`, `{"": ""}`, `{"a": "1", "a": "2"}`, "{"} {
		f.Add([]byte(seed))
	}
	f.Add([]byte(`{"a":` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + `}`))
	f.Add([]byte(`{` + strings.Repeat(`"":[],`, 2_000) + `"a":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var got map[string]string
		if n, most := testenv.Allocated(func() { got = DecodeHeaders(raw) }), 64*len(raw)+1<<14; n > uint64(most) {
			t.Errorf("%d bytes are allocated for %d", n, len(raw))
		}
		var values map[string]any
		if len(raw) == 0 {
			if len(got) != 0 {
				t.Errorf("made up: %q", got)
			}
			return
		}
		numbers := json.NewDecoder(bytes.NewReader(raw))
		numbers.UseNumber() // those beyond a float64 are JSON, too
		if !json.Valid(raw) || numbers.Decode(&values) != nil {
			if got[UnreadableHeaders] != string(raw) {
				t.Errorf("%q is lost: %q", raw, got)
			}
			return
		}
		if len(got) != len(values) {
			t.Errorf("%q: %d headers of %d", raw, len(got), len(values))
		}
		for name, v := range values {
			text, ok := got[name]
			if s, isString := v.(string); isString {
				if !ok || text != s {
					t.Errorf("%q is %q, want %q", name, text, s)
				}
			} else if !ok || !json.Valid([]byte(text)) {
				t.Errorf("%q of %q is %q", name, raw, text)
			}
		}
	})
}
