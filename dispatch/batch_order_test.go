package dispatch

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
)

// finish makes every later delivery succeed, and waits until all work has ended.
func (m *batchModel) finish(t *rapid.T) {
	m.t, m.draw, m.healthy, m.valid = t, t, true, true
	m.l.resume()
	for range 10 * len(m.events) {
		for _, r := range m.rows {
			r.due = true
		}
		if m.feed() && m.feedLines() {
			if m.feedDue(); m.next < len(m.events) {
				m.read(50)
			}
		}
		for m.begin(); len(m.taken) > 0; m.begin() {
			m.deliverOne(0)
		}
		m.collect()
		m.settleDead(m.next%2 == 0)
		if m.next == len(m.events) && len(m.rows) == 0 && len(m.again) == 0 && len(m.batches) == 0 && len(m.ready) == 0 {
			break
		}
	}
	if len(m.rows) > 0 || len(m.again) > 0 || len(m.batches) > 0 || len(m.got) < len(m.events) {
		var stuck []string
		for id, r := range m.rows {
			stuck = append(stuck, fmt.Sprintf("%d of %q: %d", id, m.events[id-1].AggregateID, r.state))
		}
		t.Fatalf("%d of %d are delivered, %d released, %d batches under way; rows: %v", len(m.got), len(m.events), len(m.again), len(m.batches), stuck)
	}
	if m.l.load != 0 || m.l.agg.Waiting() != 0 || m.l.agg.Len() != 0 || len(m.l.queue) > m.l.head {
		t.Fatalf("load %d, %d followers, %d lines, %d queued", m.l.load, m.l.agg.Waiting(), m.l.agg.Len(), len(m.l.queue)-m.l.head)
	}
}

// TestBatchsKeepOrder drives a lane as an engine does that keeps positions, with every kind of
// answer: each delivery has one answer, the order of an aggregate is kept, and nothing is left in
// the end.
func TestBatchsKeepOrder(t *testing.T) {
	t.Parallel()
	for name, configure := range map[string]func(*LaneConfig){
		"ordered": func(*LaneConfig) {},
		"blocks":  func(c *LaneConfig) { c.OnDead.Then = delivery.OnDeadBlock },
		"none":    func(c *LaneConfig) { c.Order = delivery.OrderNone },
		"total":   func(c *LaneConfig) { c.Order = delivery.OrderTotal },
		"both":    func(c *LaneConfig) { c.Order, c.OnDead.Then = delivery.OrderTotal, delivery.OnDeadBlock },
	} {
		for _, kind := range []string{"one", "batch", "keeper"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				rapid.Check(t, func(t *rapid.T) {
					m := newBatchModel(t, kind, configure)
					t.Repeat(m.actions())
					m.finish(t)
					m.l.drop() // stops its timer
				})
			})
		}
	}
}

func newBatchModel(t *rapid.T, kind string, configure func(*LaneConfig)) *batchModel {
	m := &batchModel{
		t: t, keys: NewKeys(), rows: make(map[int64]*modelRow), held: make(map[int64]bool), ready: make(map[Key]bool), valid: true,
		out: make(map[int64]*Batch), got: make(map[int64]bool), latest: make(map[string]int64), replayed: make(map[int64]bool),
	}
	one := modelOneHandler{m}
	var h delivery.Handler = &one
	switch kind {
	case "batch":
		h = &modelBatchHandler{one}
	case "keeper":
		h = &modelKeepingHandler{modelBatchHandler{one}}
	}
	cfg := testLane()
	cfg.Concurrency, cfg.Batch = rapid.IntRange(1, 4).Draw(t, "workers"), 10
	configure(&cfg)
	m.l = newTestLane(h, cfg)
	m.l.running = cfg.Concurrency // as many as there may be: the test is the workers
	m.lane = m.l
	m.lane.Own(func() {})
	keys := rapid.IntRange(0, 5).Draw(t, "aggregates")
	for i := range rapid.IntRange(1, 600).Draw(t, "events in all") {
		e := &delivery.Event{ID: int64(i + 1), Type: "x", Attempt: 1}
		if k := i % (keys + 1); k > 0 {
			e.AggregateID = fmt.Sprint(k)
		}
		m.events = append(m.events, e)
	}
	return m
}
