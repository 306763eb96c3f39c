package queue

import (
	"testing"

	"github.com/notifyd/notifyd/internal/pgschema"
)

// TestHeardDeliveries: a replay of dead letters notifies many times a second. Each time relays look
// for due deliveries, and no sweep of the table comes of it.
func TestHeardDeliveries(t *testing.T) {
	t.Parallel()
	s, _, _ := newTestScheduler(t)
	e := &Engine{sched: s}
	if !e.Payload(pgschema.WordDeliveries) || e.Payload("another word") {
		t.Error("the engine knows the wrong words")
	}
	if q := s.pick(t); q.Source != SourceDue {
		q = s.pick(t) // due deliveries and sweeps take turns
		if q.Source != SourceDue {
			t.Errorf("%v follows a notification about deliveries", q)
		}
	}
	if s.sweep.wanted != sweepNone {
		t.Error("a sweep was requested")
	}
}
