package wire

import (
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// FuzzTraced: a captured trace becomes a header only in the form of W3C Trace Context, and never beside one of the writer.
func FuzzTraced(f *testing.F) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, seed := range []string{"", good, "ff" + good[2:], good + "-", strings.ToUpper(good), "00-" + strings.Repeat("0", 32) + good[35:], good[:36] + strings.Repeat("0", 16) + "-01", strings.Repeat("-", 55), good[:54] + "\n"} {
		f.Add([]byte(seed), "")
		f.Add([]byte(seed), "TraceParent")
	}
	form := regexp.MustCompile(`\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\z`)
	f.Fuzz(func(t *testing.T, captured []byte, name string) {
		var given map[string]string
		if name != "" {
			given = map[string]string{name: "x"}
		}
		var got map[string]string
		const most = 4096 // one header, whatever was captured, and the noise of the runtime
		if n := testenv.Allocated(func() { got = Traced(given, captured) }); n > most {
			t.Errorf("%d bytes are allocated for %d", n, len(captured))
		}
		traces := 0
		for name, value := range got {
			if !strings.EqualFold(name, headerTrace) {
				continue
			}
			if traces++; value != "x" && (value != string(captured) || !form.MatchString(value) || strings.HasPrefix(value, "ff")) {
				t.Errorf("%q became %q", captured, value)
			}
		}
		if traces > 1 || strings.EqualFold(name, headerTrace) && got[name] != "x" {
			t.Errorf("%q beside %q: %q", captured, name, got)
		}
	})
}
