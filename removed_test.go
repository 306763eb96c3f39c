package notifyd

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// TestRemovedDestination: a position that no relay has, and that holds back the purge, is an incident once, after a
// while; and once more after it has been well.
func TestRemovedDestination(t *testing.T) {
	t.Parallel()
	w := newRemoved(func(name string) bool { return name == "mine" })
	held := []observe.Position{
		{Destination: "gone", Lowest: 7, HoldsBack: true},
		{Destination: "mine", HoldsBack: true},
		{Destination: "", HoldsBack: true},
		{Destination: "others", HoldsBack: true, Session: &observe.UnitSession{PID: 1}},
		{Destination: "ahead", Lowest: 9},
	}
	now := time.Now()
	if news := w.look(now, held); len(news) != 0 {
		t.Errorf("at once: %v", news)
	}
	news := w.look(now.Add(removedAfter), held)
	if len(news) != 1 || news[0].Kind != delivery.IncidentHeldBack || news[0].Destination != "gone" || !strings.Contains(news[0].Err.Error(), `above 7 from being purged: put it back, or notifyd positions forget "gone"`) {
		t.Errorf("after a while: %v", news)
	}
	if news := w.look(now.Add(2*removedAfter), held); len(news) != 0 {
		t.Errorf("again: %v", news)
	}
	w.look(now.Add(2*removedAfter), held[1:])
	w.look(now.Add(2*removedAfter), held)
	if news := w.look(now.Add(3*removedAfter), held); len(news) != 1 {
		t.Errorf("another time: %v", news)
	}
}
