package idle_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/idle"
)

// TestRecord: whether first attempts and retries may go over a connection, now and later, by the answers on it.
func TestRecord(t *testing.T) {
	t.Parallel()
	cause := errors.New("refused")
	type serves struct{ first, retry bool }
	for name, c := range map[string]struct {
		errs       []error
		now, later serves
	}{
		"delivered":   {nil, serves{true, true}, serves{true, true}},
		"permanent":   {[]error{nil, delivery.Permanent(cause)}, serves{true, true}, serves{true, true}},
		"unclear":     {[]error{nil, delivery.Unclear(cause)}, serves{true, false}, serves{false, false}},
		"throttled":   {[]error{delivery.Throttled(0, cause), nil}, serves{true, false}, serves{false, false}},
		"unavailable": {[]error{delivery.Unavailable(cause)}, serves{false, false}, serves{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := idle.NewRecord()
				of := func() serves {
					first, retry := &delivery.Event{Attempt: 1}, &delivery.Event{Attempt: 2}
					return serves{r.Serves([]*delivery.Event{first}), r.Serves([]*delivery.Event{first, retry})}
				}
				r.Learn(c.errs)
				r.Learn(nil)
				if got := of(); got != c.now {
					t.Errorf("now %+v, want %+v", got, c.now)
				}
				time.Sleep(idle.RenewEvery) //nolint:forbidigo // of a synctest bubble
				if got := of(); got != c.later {
					t.Errorf("later %+v, want %+v", got, c.later)
				}
			})
		})
	}
}
