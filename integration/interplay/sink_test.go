package interplay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// note is what a destination saw, or what a person did about its events.
type note int

const (
	began note = iota
	accepted
	failed
	died      // the attempt that made a dead letter, unless its relay ended first
	discarded // by a person
)

// call is an entry of the record of all destinations. Its index is the time of the test.
type call struct {
	note        note
	destination string
	id          int64
	replay      int
}

// key is an event at a destination.
type key struct {
	destination string
	id          int64
}

// sink stands for all destinations: it decides the result of each call, and records the calls.
type sink struct {
	plan *plan

	mu       sync.Mutex
	calls    []call
	down     map[string]bool
	healed   map[key]bool // accepted from now on
	troubled map[key]int  // attempts that did not count
	clusters map[string]*cluster
}

func newSink(p *plan) *sink {
	s := &sink{plan: p, down: make(map[string]bool), healed: make(map[key]bool), troubled: make(map[key]int), clusters: make(map[string]*cluster)}
	for _, d := range p.destinations {
		s.clusters[d.name] = &cluster{clients: make(map[string]int), positions: make(map[string][]byte)}
	}
	return s
}

// clock returns the time of the test.
func (s *sink) clock() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// record adds entries.
func (s *sink) record(n note, destination string, replay int, ids ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.calls = append(s.calls, call{n, destination, id, replay})
	}
}

// heal makes a destination accept all events.
func (s *sink) heal(destination string, ids ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.healed[key{destination, id}] = true
	}
}

// setDown makes a destination unavailable, or available.
func (s *sink) setDown(destination string, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[destination] = down
}

// calm makes all destinations available.
func (s *sink) calm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.down)
}

// number returns the number of an event in the plan.
func number(e *delivery.Event) int {
	var payload struct{ N int }
	if err := json.Unmarshal(e.Payload, &payload); err != nil {
		panic(fmt.Errorf("the payload is not the test's: %w", err))
	}
	return payload.N
}

// try decides the result of an event. It records everything except the acceptance.
func (s *sink) try(ctx context.Context, d *destination, e *delivery.Event) error {
	k, f := key{d.name, e.ID}, s.plan.fate(d.name, number(e))
	end := func(n note, err error) error {
		s.record(n, d.name, e.Replay, e.ID)
		return err
	}
	s.record(began, d.name, e.Replay, e.ID)
	s.mu.Lock()
	down, healed, troubled := s.down[d.name], s.healed[k], s.troubled[k]
	if !down {
		s.troubled[k]++
	}
	s.mu.Unlock()
	fails := func() error {
		if e.Attempt >= d.attempts {
			return end(died, errors.New("fails for the last time"))
		}
		return end(failed, errors.New("fails"))
	}
	switch {
	case down:
		return end(failed, delivery.Unavailable(errors.New("down")))
	case healed:
		return nil
	}
	switch f {
	case failsOnce:
		if e.Attempt == 1 {
			return fails()
		}
	case doomed:
		return fails()
	case throttles:
		if troubled == 0 {
			return end(failed, delivery.Throttled(time.Millisecond, errors.New("slower")))
		}
	case shaky:
		if troubled < 2 {
			return end(failed, delivery.Unavailable(errors.New("shaky")))
		}
	case panics:
		if troubled == 0 {
			panic(end(failed, errors.New("panics")))
		}
	case slow:
		timer := time.NewTimer(15 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return end(failed, context.Cause(ctx))
		}
	case poison:
		return end(died, delivery.Permanent(errors.New("poison")))
	case accepts:
	}
	return nil
}

// deliver is a call for one event.
func (s *sink) deliver(ctx context.Context, d *destination, e *delivery.Event) error {
	if err := s.try(ctx, d, e); err != nil {
		return err
	}
	s.record(accepted, d.name, e.Replay, e.ID)
	return nil
}

// handler returns the handler of a destination for a relay of a stream, or of a queue.
func (s *sink) handler(d *destination, stream bool) delivery.Handler {
	one := delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error { return s.deliver(ctx, d, e) })
	switch {
	case d.exactly && stream:
		return &client{sink: s, cluster: s.clusters[d.name], destination: d}
	case d.batch == 0:
		return one
	}
	return batchHandler{HandlerFunc: one, keeps: d.keepsOrder, ordered: stream && d.order != none}
}

// batchHandler delivers the events of a batch one after the other.
type batchHandler struct {
	delivery.HandlerFunc
	keeps, ordered bool
}

// KeepsOrder implements delivery.OrderedBatchHandler.
func (b batchHandler) KeepsOrder() bool { return b.keeps }

// DeliverBatch implements delivery.BatchHandler.
func (b batchHandler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	errs := make([]error, len(events))
	broken := make(map[string]bool)
	for i, e := range events {
		line := lineOf(ctx, e)
		if b.ordered && line != "" && broken[line] {
			errs[i] = errors.New("behind")
			continue
		}
		errs[i] = b.Deliver(ctx, e)
		broken[line] = errs[i] != nil && !delivery.IsPermanent(errs[i])
	}
	return errs
}

// lineOf returns which events of a call have to keep their order.
func lineOf(ctx context.Context, e *delivery.Event) string {
	if delivery.CallOf(ctx).TotalOrder {
		return "*"
	}
	return e.AggregateID
}

// cluster is a destination with transactions. All of a transaction and its position are committed, or nothing, and by
// the newest client of a unit alone.
type cluster struct {
	mu        sync.Mutex
	clients   map[string]int
	positions map[string][]byte
	commits   int
}

// client is a relay's way to a cluster. It implements delivery.PositionStore.
type client struct {
	sink        *sink
	cluster     *cluster
	destination *destination

	mu    sync.Mutex
	links map[int]*link // by shard
}

// link is what a client has opened for one shard.
type link struct {
	mu       sync.Mutex
	unit     string
	number   int
	progress delivery.Progress
	broken   bool
}

// link returns the link of the shard that a call is about.
func (c *client) link(ctx context.Context) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	part := delivery.CallOf(ctx).Shard
	if c.links == nil {
		c.links = make(map[int]*link)
	}
	if c.links[part] == nil {
		c.links[part] = &link{broken: true}
	}
	return c.links[part]
}

// StoresPosition implements delivery.PositionStore.
func (*client) StoresPosition() bool { return true }

// KeepsOrder implements delivery.OrderedBatchHandler.
func (*client) KeepsOrder() bool { return true }

// OpenPosition implements delivery.PositionStore.
func (c *client) OpenPosition(ctx context.Context, unit string, p delivery.Progress) ([]byte, error) {
	l := c.link(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	c.cluster.mu.Lock()
	defer c.cluster.mu.Unlock()
	c.cluster.clients[unit]++
	l.unit, l.number, l.progress, l.broken = unit, c.cluster.clients[unit], p, false
	return c.cluster.positions[unit], nil
}

// Deliver implements delivery.Handler.
func (c *client) Deliver(ctx context.Context, e *delivery.Event) error {
	if errs := c.DeliverBatch(ctx, []*delivery.Event{e}); errs != nil {
		return errs[0]
	}
	return nil
}

// unsureEvery is how many transactions lead to one whose answer is lost.
const unsureEvery = 7

// DeliverBatch implements delivery.BatchHandler.
func (c *client) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	l := c.link(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	ended := false
	defer func() { l.broken = l.broken || !ended }() // by a panic
	errs := make([]error, len(events))
	unsure := func(why string) []error {
		l.broken, ended = true, true
		for i := range errs {
			errs[i] = fmt.Errorf("%s: %w", why, delivery.ErrReopen)
		}
		return errs
	}
	if l.broken {
		return unsure("broken")
	}
	var some []*delivery.Event
	broken := make(map[string]bool)
	for i, e := range events {
		line := lineOf(ctx, e)
		if line != "" && broken[line] {
			errs[i] = errors.New("behind")
			continue
		}
		if errs[i] = c.sink.try(ctx, c.destination, e); errs[i] == nil {
			some = append(some, e)
		}
		broken[line] = errs[i] != nil && !delivery.IsPermanent(errs[i])
	}
	ended = true
	if len(some) == 0 {
		return errs
	}
	c.cluster.mu.Lock()
	defer c.cluster.mu.Unlock()
	if c.cluster.clients[l.unit] != l.number {
		return unsure("fenced")
	}
	c.cluster.positions[l.unit] = l.progress.With(some)
	for _, e := range some {
		c.sink.record(accepted, c.destination.name, e.Replay, e.ID)
	}
	if c.cluster.commits++; c.cluster.commits%unsureEvery == 0 {
		return unsure("no answer")
	}
	l.progress.Committed()
	return errs
}
