package target

import (
	"net/url"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/tmpl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestHostIsHeldTo, whatever became of the escaping.
func TestHostIsHeldTo(t *testing.T) {
	t.Parallel()
	raw, err := tmpl.AnyURL.Parse("url", "{{ .Payload.u }}")
	if err != nil {
		t.Fatal(err)
	}
	to := &URL{tmpl: raw, base: &url.URL{Scheme: "https", Host: "example.com"}}
	for u, good := range map[string]bool{
		"https://example.com/a": true, "http://example.com/a": false, "https://example.com:444/a": false, "https://example.com.evil.example/": false,
	} {
		data, err := tmpl.NewData(&delivery.Event{Payload: []byte(`{"u":"` + u + `"}`)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := to.Place(data); (err == nil) != good {
			t.Errorf("%s: %v", u, err)
		}
	}
}
