package when_test

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/when"
)

func TestKey(t *testing.T) {
	t.Parallel()
	l, err := when.New()
	if err != nil {
		t.Fatal(err)
	}
	e := &delivery.Event{
		ID: 7, Type: "order.created", AggregateType: "order", AggregateID: "12", Headers: map[string]string{"tenant": "acme"},
		Payload: []byte(`{"customer_id": 4711, "vip": true, "lines": [1]}`),
	}
	for text, want := range map[string]string{
		`payload.customer_id`: "4711", `headers["tenant"]`: "acme", `event.aggregate_id`: "12", `payload.vip`: "true",
		`event.id`: "7", `event.type + "/" + event.aggregate_id`: "order.created/12", `payload.vip ? "vip" : headers["tenant"]`: "vip",
	} {
		x, err := l.CompileKey(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := x.Key(&delivery.Candidate{Event: e}); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{`payload.nothing`: "nothing", `payload.lines`: "must be a text or a whole number", `headers["x"]`: "x"} {
		x, err := l.CompileKey(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if key, err := x.Key(&delivery.Candidate{Event: e}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", text, key, err, want)
		}
	}
	for text, want := range map[string]string{`event.created_at`: "must be a text or a whole number", `headers`: "must be a text", `payload.`: "", `paylod.x`: "paylod"} {
		if _, err := l.CompileKey(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
