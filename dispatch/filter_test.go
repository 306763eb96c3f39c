package dispatch

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/notifyd/notifyd/delivery"
)

// TestSlowFilter: a filter and a rate key that take long are in the log, with the event and the route.
func TestSlowFilter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		takes := slow
		cfg := testLane()
		cfg.RateKey = func(*delivery.Candidate) (string, error) {
			after(takes)
			return "", errors.New("no key")
		}
		l := newTestLane(nil, cfg)
		defer l.drop()
		l.log, l.dest.RateKey = slog.New(slog.NewTextHandler(&text, nil)), cfg.RateKey
		r := newRouter()
		err := r.add("order.*", []*lane{l}, func(*delivery.Candidate) (bool, error) {
			after(takes)
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		e := &delivery.Event{ID: 7, Type: "order.created", Payload: []byte("12345")}
		ask := func() {
			t.Helper()
			if passes, err := r.find(e.Type).filters[0](&delivery.Candidate{Event: e}); !passes || err != nil {
				t.Fatal(passes, err)
			}
			l.RateKey(e)
		}

		ask()
		if text.Len() > 0 {
			t.Errorf("not slow: %s", text.String())
		}
		takes++
		ask()
		for _, want := range []string{`msg="slow evaluation" of=filter event_id=7 event_type=order.created bytes=5 route=order.*`, `msg="slow evaluation" of=rate_key event_id=7`} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s is missing in\n%s", want, text.String())
			}
		}
	})
}
