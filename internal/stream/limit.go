package stream

import (
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// limit applies the rate limit of a destination.
type limit interface {
	// admit splits deliveries into allowed and delayed ones. all is not empty.
	admit(g *inFlight, all []dispatch.Delivery, unblock []dispatch.Key) admitted
	// page returns how many of n events of a replay one call asks for.
	page(n int) int
}

// newLimit returns the rate limit of a destination, nil without one.
func newLimit(d *dispatch.Destination) limit {
	switch {
	case !d.Limited():
		return nil
	case d.RateKey != nil:
		return limitOfKeys{}
	}
	return limitOfAll{}
}

// admitted has the deliveries that a rate limit allows.
type admitted struct {
	all     []dispatch.Delivery // allowed now
	unblock []dispatch.Key
	held    []dispatch.Key // aggregates with a delivery that became a row: they are blocked behind the allowed deliveries
}

// without returns the keys that are not in stay.
func without(keys []dispatch.Key, stay map[dispatch.Key]bool) (left []dispatch.Key) {
	for _, key := range keys {
		if !stay[key] {
			left = append(left, key)
		}
	}
	return left
}

// limitOfAll counts all events together. The shard gets delayed deliveries back, and hands them over first.
type limitOfAll struct{}

func (limitOfAll) page(n int) int { return n }

func (limitOfAll) admit(g *inFlight, all []dispatch.Delivery, unblock []dispatch.Key) admitted {
	waits := g.lane.Admit(all, 0)
	if waits == nil {
		return admitted{all: all, unblock: unblock}
	}

	to := admitted{all: all[:0]}
	stay := make(map[dispatch.Key]bool)
	for i, d := range all {
		if waits[i] == 0 {
			to.all = append(to.all, d)
			continue
		}
		stay[d.Key] = true
		g.events.Return(d)
	}

	to.unblock = without(unblock, stay)
	return to
}

// limitOfKeys counts the events of each key. A delayed delivery becomes a row that is due at its likely turn, and later
// deliveries of its aggregate wait behind it. Other keys continue meanwhile.
type limitOfKeys struct{}

// page returns 1: with more, other keys would spend tokens on events behind a delayed one and lose them.
func (limitOfKeys) page(int) int { return 1 }

func (limitOfKeys) admit(g *inFlight, all []dispatch.Delivery, unblock []dispatch.Key) admitted {
	waits := g.lane.Admit(all, 0)
	if waits == nil {
		return admitted{all: all, unblock: unblock}
	}

	to := admitted{all: all[:0]}
	stay := make(map[dispatch.Key]bool)
	for i, d := range all {
		inOrder := d.Key != dispatch.Key{}
		behind := inOrder && stay[d.Key]
		if waits[i] == 0 && !behind {
			to.all = append(to.all, d)
			continue
		}

		a := dispatch.Answer{Delivery: d, Verdict: dispatch.VerdictParked}
		if !behind {
			a.Verdict = dispatch.VerdictQuarantined
			a.Delay = waits[i]
			a.Class = delivery.ClassDestination
			a.Err = dispatch.ErrLimited

			if inOrder {
				stay[d.Key] = true
				to.held = append(to.held, d.Key)
			}
		}

		g.store(&a)
	}

	to.unblock = without(unblock, stay)
	return to
}
