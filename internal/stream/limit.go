package stream

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// admitted is what the rate limit of a destination makes of deliveries that are about to be handed over.
type admitted struct {
	all     []dispatch.Delivery // these may go
	unblock []dispatch.Key
	held    []dispatch.Key // aggregates of which a delivery has become a row, to be blocked behind those that go
}

// admit keeps what may not go yet. Where all events count together it is given back, and goes first when there is room.
// Where each key has its own limit it becomes a row that is due when its turn may have come, and what comes behind it in its
// aggregate waits for it, so that other keys go on.
func (g *gate) admit(all []dispatch.Delivery, unblock []dispatch.Key) admitted {
	if len(all) == 0 || !g.lane.Destination().Limited() {
		return admitted{all: all, unblock: unblock}
	}
	waits := g.lane.Admit(all)
	if waits == nil {
		return admitted{all: all, unblock: unblock}
	}
	to := admitted{all: all[:0]}
	stays := make(map[dispatch.Key]bool)
	for i := range all {
		d := all[i]
		behind := g.lane.Destination().RateKey != nil && d.Key != dispatch.Key{} && stays[d.Key]
		if waits[i] == 0 && !behind {
			to.all = append(to.all, d)
			continue
		}
		if !stays[d.Key] && d.Key != (dispatch.Key{}) {
			stays[d.Key] = true
			if g.lane.Destination().RateKey != nil {
				to.held = append(to.held, d.Key)
			}
		}
		g.holdBack(d, behind, waits[i])
	}
	for _, key := range unblock {
		if !stays[key] {
			to.unblock = append(to.unblock, key)
		}
	}
	return to
}

// holdBack makes a delivery wait for its rate limit, or behind one that does.
func (g *gate) holdBack(d dispatch.Delivery, behind bool, wait time.Duration) {
	if g.lane.Destination().RateKey == nil {
		g.flight.giveBack(d)
		return
	}
	a := dispatch.Answer{Delivery: d, Verdict: dispatch.VerdictParked}
	if !behind {
		a.Verdict, a.Delay, a.Class, a.Err = dispatch.VerdictAside, wait, delivery.ClassDestination, dispatch.ErrLimited
	}
	g.keep(&a)
}

// admit does so for a replay, and returns how many may go. One that has to wait holds up those behind it, and
// nothing that is live. Where each key has its own limit they are asked for one by one: what other keys gave to those behind
// would be lost.
func (s *aside) admit(all []dispatch.Delivery) int {
	if !s.lane.Destination().Limited() {
		return len(all)
	}
	n := len(all)
	if s.lane.Destination().RateKey != nil {
		n = 1
	}
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
