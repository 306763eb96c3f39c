package stream

import (
	"slices"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/flight"
)

// inFlight hands a shard's deliveries to the lane. It owns the deliveries in memory, and decides how many may leave, in
// which batches, and after which checkpoint. Only the goroutine of the shard uses it; answers arrive in the batches.
type inFlight struct {
	*common

	events       flight.Events
	store        func(*dispatch.Answer) // stores a delivery that the rate limit of its key delays
	checkpoints  bool                   // the destination keeps a copy of its position: a batch waits for a checkpoint
	staged       []staged               // batches that wait for a checkpoint
	full         bool                   // the lane has no capacity, or too much is in memory: the lane or an answer wakes the shard
	leaseInvalid bool                   // nothing began because the lease was not valid: it may be valid again by the time of wait
}

// staged is a batch that waits for a checkpoint.
type staged struct {
	batch   *dispatch.Batch
	unblock []dispatch.Key
}

// cannotSend reports whether no further event may be read into memory.
func (g *inFlight) cannotSend() bool {
	g.leaseInvalid = !g.pos.Valid()
	g.full = g.leaseInvalid || g.events.Bytes >= g.e.memory()
	return g.full
}

// deliverReturned hands over returned deliveries, in the order of ids: up to n from the i-th.
func (g *inFlight) deliverReturned(i, n int) bool {
	g.leaseInvalid = !g.pos.Valid()

	g.full = g.leaseInvalid
	if g.full {
		return false
	}

	n = g.reserve(min(n, g.e.limits.Batch))
	if n == 0 {
		return false
	}

	p := g.batch()
	some := append(p.Alloc(n), g.events.Returned[i:i+n]...)
	g.events.Returned = slices.Delete(g.events.Returned, i, i+n)
	g.deliver(p, some, nil, n)

	return true
}

// reserve reserves capacity of the lane. If it returns 0, the lane reports when it has capacity.
func (g *inFlight) reserve(n int) int {
	reserved := g.lane.Reserve(dispatch.Request{N: n, Once: true})
	g.full = reserved == 0
	return reserved
}

// deliver hands over a batch of deliveries, for which the lane has reserved capacity.
func (g *inFlight) deliver(p *dispatch.Batch, all []dispatch.Delivery, unblock []dispatch.Key, reserved int) {
	to := admitted{all: all, unblock: unblock}
	if g.limit != nil && len(all) > 0 {
		to = g.limit.admit(g, all, unblock)
	}

	g.lane.Return(reserved - len(to.all))

	if len(to.all) == 0 {
		g.events.Recycle(p)
	} else {
		p.Fill(to.all)
		g.events.Begin(p, to.all)
		g.send(p, to.unblock)
	}

	for _, key := range to.held {
		g.lane.SetRows(key, dispatch.NewRow)
	}
}

// send hands a batch to the lane, or stages it for a checkpoint if the destination keeps a copy of its position.
func (g *inFlight) send(p *dispatch.Batch, unblock []dispatch.Key) {
	if g.checkpoints {
		g.staged = append(g.staged, staged{p, unblock})
		return
	}
	g.lane.Deliver(p, unblock)
}

// release hands the staged batches to the lane.
func (g *inFlight) release() {
	for _, s := range g.staged {
		g.lane.Deliver(s.batch, s.unblock)
	}
	g.staged = nil
}

// batch returns an empty batch.
func (g *inFlight) batch() *dispatch.Batch { return g.events.Batch() }
