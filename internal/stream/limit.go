package stream

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// limit decides what the rate limit of a destination makes of deliveries that are about to be handed over.
type limit interface {
	// admit returns what may go now, and keeps the rest: all is not empty.
	admit(g *gate, all []dispatch.Delivery, unblock []dispatch.Key) admitted
	// page is for how many of n events of a replay it is asked at once.
	page(n int) int
}

// newLimit returns the rate limit of a destination, nil if it has none.
func newLimit(d *dispatch.Destination) limit {
	switch {
	case !d.Limited():
		return nil
	case d.RateKey != nil:
		return limitOfKeys{}
	}
	return limitOfAll{}
}

// admitted is what a rate limit lets go of some deliveries.
type admitted struct {
	all     []dispatch.Delivery // these may go
	unblock []dispatch.Key
	held    []dispatch.Key // aggregates of which a delivery has become a row, to be blocked behind those that go
}

// without returns the keys that are not among those that stay.
func without(keys []dispatch.Key, stay map[dispatch.Key]bool) (left []dispatch.Key) {
	for _, key := range keys {
		if !stay[key] {
			left = append(left, key)
		}
	}
	return left
}

// limitOfAll counts all events together. What may not go yet is given back, and goes first when there is room.
type limitOfAll struct{}

func (limitOfAll) page(n int) int { return n }

func (limitOfAll) admit(g *gate, all []dispatch.Delivery, unblock []dispatch.Key) admitted {
	waits := g.lane.Admit(all)
	if waits == nil {
		return admitted{all: all, unblock: unblock}
	}
	to, stay := admitted{all: all[:0]}, make(map[dispatch.Key]bool)
	for i, d := range all {
		if waits[i] == 0 {
			to.all = append(to.all, d)
			continue
		}
		stay[d.Key] = true
		g.flight.giveBack(d)
	}
	to.unblock = without(unblock, stay)
	return to
}

// limitOfKeys counts the events of each key. What may not go yet becomes a row that is due when its turn may have come, and what comes
// behind it in its aggregate waits for it, so that other keys go on.
type limitOfKeys struct{}

// page asks one by one: what other keys gave to those behind one that waits would be lost.
func (limitOfKeys) page(int) int { return 1 }

func (limitOfKeys) admit(g *gate, all []dispatch.Delivery, unblock []dispatch.Key) admitted {
	waits := g.lane.Admit(all)
	if waits == nil {
		return admitted{all: all, unblock: unblock}
	}
	to, stay := admitted{all: all[:0]}, make(map[dispatch.Key]bool)
	for i, d := range all {
		inOrder := d.Key != dispatch.Key{}
		behind := inOrder && stay[d.Key]
		if waits[i] == 0 && !behind {
			to.all = append(to.all, d)
			continue
		}
		a := dispatch.Answer{Delivery: d, Verdict: dispatch.VerdictParked}
		if !behind {
			a.Verdict, a.Delay, a.Class, a.Err = dispatch.VerdictAside, waits[i], delivery.ClassDestination, dispatch.ErrLimited
			if inOrder {
				stay[d.Key] = true
				to.held = append(to.held, d.Key)
			}
		}
		g.keep(&a)
	}
	to.unblock = without(unblock, stay)
	return to
}

// admit does so for a replay, and returns how many may go. One that has to wait holds up those behind it, and
// nothing that is live.
func (s *aside) admit(all []dispatch.Delivery) int {
	if s.limit == nil {
		return len(all)
	}
	n := s.limit.page(len(all))
	for at := 0; at < len(all); at += n {
		for i, wait := range s.lane.Admit(all[at : at+n]) {
			if wait > 0 {
				all[at+i].Waited = true // its turn comes, and not always that of the one behind
				s.replay.waitsUntil = time.Now().Add(min(wait, maxPace))
				return at + i
			}
		}
	}
	return len(all)
}
