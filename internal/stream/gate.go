package stream

import (
	"slices"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/flight"
)

// gate is where a unit's deliveries leave for the lane. It owns those in memory, and knows how many
// may go, in which parcels, and behind which seal. Only the goroutine of the unit uses it; answers
// come by way of the parcels.
type gate struct {
	*common

	flight flight.Events
	keep   func(*dispatch.Answer) // makes a delivery a row that the rate limit of its key holds back
	seals  bool                   // the destination keeps its position: a parcel waits for a seal
	staged []staged               // parcels that do
	stuck  bool                   // the lane has no room, or there is too much in memory: the lane or an answer wakes the unit
	unsure bool                   // nothing was begun because the lease was not valid: by the time of wait it may be again
}

// staged is a parcel that waits for a seal.
type staged struct {
	parcel  *dispatch.Parcel
	unblock []dispatch.Key
}

// shut reports whether nothing may go that is not in memory yet.
func (g *gate) shut() bool {
	g.unsure = !g.pos.Valid()
	g.stuck = g.unsure || g.flight.Bytes >= g.e.memory()
	return g.stuck
}

// feedAgain hands over returned deliveries, in the order of ids: up to n from the i-th on.
func (g *gate) feedAgain(i, n int) bool {
	g.unsure = !g.pos.Valid()
	if g.stuck = g.unsure; g.stuck {
		return false
	}
	if n = g.grant(min(n, g.e.limits.Batch)); n == 0 {
		return false
	}
	p := g.parcel()
	some := append(p.Room(n), g.flight.Returned[i:i+n]...)
	g.flight.Returned = slices.Delete(g.flight.Returned, i, i+n)
	g.deliver(p, some, nil, n)
	return true
}

// grant reserves room in the lane; if there is none, the lane reports when there is.
func (g *gate) grant(n int) int {
	granted := g.lane.Reserve(dispatch.Request{N: n, Once: true})
	g.stuck = granted == 0
	return granted
}

// deliver hands over deliveries in a parcel, for which room was granted.
func (g *gate) deliver(p *dispatch.Parcel, all []dispatch.Delivery, unblock []dispatch.Key, granted int) {
	to := admitted{all: all, unblock: unblock}
	if g.limit != nil && len(all) > 0 {
		to = g.limit.admit(g, all, unblock)
	}
	g.lane.Return(granted - len(to.all))
	if len(to.all) == 0 {
		g.flight.Keep(p)
	} else {
		p.Fill(to.all)
		g.flight.Begin(p, to.all)
		g.pass(p, to.unblock)
	}
	for _, key := range to.held {
		g.lane.SetRows(key, dispatch.NewRow)
	}
}

// pass gives a parcel to the lane, behind a seal if the destination keeps its position.
func (g *gate) pass(p *dispatch.Parcel, unblock []dispatch.Key) {
	if g.seals {
		g.staged = append(g.staged, staged{p, unblock})
		return
	}
	g.lane.Deliver(p, unblock)
}

// release gives the parcels that waited for a seal to the lane.
func (g *gate) release() {
	for _, s := range g.staged {
		g.lane.Deliver(s.parcel, s.unblock)
	}
	g.staged = nil
}

// parcel returns an empty parcel.
func (g *gate) parcel() *dispatch.Parcel { return g.flight.Parcel() }
