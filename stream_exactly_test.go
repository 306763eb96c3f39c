package notifyd_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

const exactly = "exactly"

// cluster is a destination with transactions, which keeps positions: all of one, or nothing, is
// committed, and by the newest client alone. It belongs to all relays.
type cluster struct {
	mu        sync.Mutex
	clients   map[string]int // by unit: the number of the newest
	positions map[string][]byte
	committed []committed
	died      map[int64]bool
	calm      bool // nothing fails any more
	unsure    int  // commits of which the relay did not hear
	fenced    int
	late      sync.WaitGroup
}

// committed is an event as a consumer sees it.
type committed struct {
	id        int64
	replay    int
	aggregate string
}

func newCluster() *cluster {
	return &cluster{clients: make(map[string]int), positions: make(map[string][]byte), died: make(map[int64]bool)}
}

// addTo adds the destination to a relay.
func (c *cluster) addTo(r *notifyd.Relay) error {
	return r.Destination(exactly, &client{cluster: c}, notifyd.WithConcurrency(1), notifyd.WithBatchSize(30), notifyd.WithTimeout(100*time.Millisecond),
		notifyd.WithBackoff(notifyd.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond, Multiplier: 2}),
		notifyd.WithLongestPause(20*time.Millisecond), notifyd.WithMaxAttempts(1000))
}

// client is a relay's way to the cluster. It implements delivery.PositionKeeper.
type client struct {
	cluster *cluster

	mu       sync.Mutex
	unit     string
	number   int
	progress delivery.Progress
	broken   bool
}

func (*client) KeepsPosition() bool { return true }

func (*client) KeepsOrder() bool { return true }

func (c *client) OpenPosition(_ context.Context, unit string, p delivery.Progress) ([]byte, error) {
	c.cluster.mu.Lock()
	defer c.cluster.mu.Unlock()
	if !c.cluster.calm && rand.IntN(5) == 0 {
		return nil, errors.New("not there")
	}
	c.cluster.clients[unit]++
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unit, c.number, c.progress, c.broken = unit, c.cluster.clients[unit], p, false
	return c.cluster.positions[unit], nil
}

func (c *client) Deliver(ctx context.Context, e *notifyd.Event) error {
	if errs := c.DeliverBatch(ctx, []*notifyd.Event{e}); errs != nil {
		return errs[0]
	}
	return nil
}

// DeliverBatch fails in all ways in which a transaction can fail.
func (c *client) DeliverBatch(ctx context.Context, events []*notifyd.Event) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return slices.Repeat([]error{delivery.ErrReopen}, len(events))
	}
	errs := make([]error, len(events))
	some := c.cluster.refuse(events, errs)
	if len(some) == 0 {
		return errs
	}
	unit, number, value := c.unit, c.number, c.progress.With(some)
	fate := rand.IntN(15)
	if c.cluster.isCalm() {
		fate = -1
	}
	switch fate {
	case 0:
		c.broken = true
		return slices.Repeat([]error{delivery.ErrReopen}, len(events))
	case 1, 2, 3:
		c.broken = true
		c.cluster.commit(unit, number, some, value)
		c.cluster.unheard()
		if fate == 2 {
			panic("after the commit")
		}
		return slices.Repeat([]error{fmt.Errorf("no answer: %w", delivery.ErrReopen)}, len(events))
	case 4:
		c.broken = true
		<-ctx.Done()
		c.cluster.late.Go(func() { c.cluster.commit(unit, number, some, value) }) // it may be too late
		return slices.Repeat([]error{context.Cause(ctx)}, len(events))
	}
	if !c.cluster.commit(unit, number, some, value) {
		c.broken = true
		return slices.Repeat([]error{fmt.Errorf("fenced: %w", delivery.ErrReopen)}, len(events))
	}
	c.progress.Committed()
	return errs
}

func (c *cluster) isCalm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calm
}

// wantsMore reports whether no transaction has been lost from sight yet: relays may begin late.
func (c *cluster) wantsMore() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsure == 0
}

func (c *cluster) unheard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsure++
}

// refuse fails some events for their content, and those behind them, and returns the others.
func (c *cluster) refuse(events []*notifyd.Event, errs []error) (some []*notifyd.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	broken := make(map[string]bool)
	for i, e := range events {
		n := rand.IntN(100)
		switch {
		case broken[e.AggregateID]:
			errs[i] = errors.New("behind")
		case e.Replay == 0 && (c.died[e.ID] || n == 0 && !c.calm):
			c.died[e.ID] = true
			errs[i] = notifyd.Permanent(errors.New("dies"))
		case n < 4 && !c.calm:
			broken[e.AggregateID] = true
			errs[i] = errors.New("fails")
		default:
			some = append(some, e)
		}
	}
	return some
}

// commit reports whether the client is still the newest.
func (c *cluster) commit(unit string, number int, events []*notifyd.Event, position []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clients[unit] != number {
		c.fenced++
		return false
	}
	for _, e := range events {
		c.committed = append(c.committed, committed{e.ID, e.Replay, e.AggregateID})
	}
	c.positions[unit] = position
	return true
}

// verdict checks that what was written is there, each event once, and each aggregate in order
// except for what was dead first.
func (c *cluster) verdict(t *testing.T, written map[string][]int64) {
	t.Helper()
	c.late.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, last := make(map[int64]int), make(map[string]int64)
	for _, e := range c.committed {
		if seen[e.id]++; seen[e.id] > 1 {
			t.Errorf("%d of %s is there %d times", e.id, e.aggregate, seen[e.id])
		}
		if e.replay > 0 {
			continue
		}
		if e.id < last[e.aggregate] {
			t.Errorf("%d of %s comes after %d", e.id, e.aggregate, last[e.aggregate])
		}
		last[e.aggregate] = e.id
	}
	n := 0
	for aggregate, ids := range written {
		for _, id := range ids {
			n++
			if seen[id] == 0 {
				t.Errorf("%d of %s is lost", id, aggregate)
			}
		}
	}
	if len(seen) != n {
		t.Errorf("%d events are there, %d were written", len(seen), n)
	}
	t.Logf("%d events, %d opened, %d commits unheard of, %d fenced, %d dead first", n, slices.Max(slices.Collect(maps.Values(c.clients))), c.unsure, c.fenced, len(c.died))
}

// TestStreamPlayExactly: beside the other destinations of a play, one that keeps its position gets
// each event once, and in order, whatever becomes of its transactions and of the relays.
func TestStreamPlayExactly(t *testing.T) {
	t.Parallel()
	for seed := range 3 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, 1+seed)
			p.exact = newCluster()
			p.run(2000)
			p.exact.verdict(t, p.judge.written)
		})
	}
}
