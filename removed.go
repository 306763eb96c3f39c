package notifyd

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// removedAfter is how long the position of a destination that no relay has must have held back the purge
// before that is an incident: relays are restarted one after the other, and some have other destinations.
const removedAfter = 5 * time.Minute

// removed watches the positions of destinations that are gone.
type removed struct {
	known func(destination string) bool // of this relay
	since map[string]time.Time
	told  map[string]bool
}

func newRemoved(known func(string) bool) *removed {
	return &removed{known: known, since: make(map[string]time.Time), told: make(map[string]bool)}
}

// look returns the incidents of positions that no relay has and that keep events from being purged: one for each,
// until it moves, is forgotten, or has a relay again.
func (w *removed) look(now time.Time, all []observe.Position) (news []delivery.Incident) {
	held := make(map[string]bool)
	for i := range all {
		p := &all[i]
		if p.Destination == "" || p.Session != nil || !p.HoldsBack || w.known(p.Destination) {
			continue
		}
		held[p.Destination] = true
		if w.since[p.Destination].IsZero() {
			w.since[p.Destination] = now
		}
		if w.told[p.Destination] || now.Sub(w.since[p.Destination]) < removedAfter {
			continue
		}
		w.told[p.Destination] = true
		news = append(news, delivery.Incident{Kind: delivery.IncidentHeldBack, Time: now, Destination: p.Destination, Err: fmt.Errorf(
			"no relay has it, and its position keeps the events above %d from being purged: put it back, or notifyd positions forget %q", p.Lowest, p.Destination)})
	}
	for name := range w.since {
		if !held[name] {
			delete(w.since, name)
			delete(w.told, name)
		}
	}
	return news
}
