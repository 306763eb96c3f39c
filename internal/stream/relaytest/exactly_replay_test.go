package relaytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// breaking is a client that does not commit its eighth transaction, and must be opened again then.
type breaking struct {
	*client

	n int
}

func (b *breaking) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	if b.n++; b.n%8 > 0 {
		return b.client.DeliverBatch(ctx, events)
	}
	l := b.link(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = true
	return slices.Repeat([]error{delivery.ErrReopen}, len(events))
}

// TestExactlyOnceReplayGoesOn: when the position is read anew, what a replay has delivered by then does not come
// once more.
func TestExactlyOnceReplayGoesOn(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.write(300)
	if err := l.run(300); err != nil {
		t.Fatal(err)
	}
	s, err := ops.New(l.pool, ops.Config{Schema: "public"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartReplay(t.Context(), ops.ReplayRange{Destination: exactly}, ops.Action{}); err != nil {
		t.Fatal(err)
	}
	r, err := notifyd.New(l.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	err = r.Add(notifyd.Destination{Name: exactly, Handler: &breaking{client: &client{cluster: l.cluster}}, Lane: delivery.Lane{Concurrency: 1, Batch: 30, LongestPause: time.Millisecond}})
	if err := errors.Join(err, r.Route("*", exactly)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	p := &simulation{t: t, pool: l.pool}
	p.eventually("all have come again", `SELECT EXISTS (SELECT FROM outbox_replays WHERE state = 'done' AND delivered = 300)`)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	seen := make(map[int64]int)
	for _, id := range l.ids(300) {
		if seen[id]++; seen[id] > 1 {
			t.Errorf("%d has come again %d times", id, seen[id])
		}
	}
}

// TestExactlyOnceBehindManyGaps: a transaction that is open for long hides the results of many ids. The position that the
// destination keeps does not grow without bound. Once the transaction ends, all remaining events arrive.
func TestExactlyOnceBehindManyGaps(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	l := newExactLife(t)
	tx, err := l.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT nextval('outbox_events_id_seq')`); err != nil {
		t.Fatal(err)
	}
	const n = 40_000
	l.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'one', 'a', nextval('outbox_events_id_seq')::text, '{}' FROM generate_series(1, $1::int)`, n)
	r, err := notifyd.New(l.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	err = r.Add(notifyd.Destination{Name: exactly, Handler: &client{cluster: l.cluster}, Lane: delivery.Lane{Concurrency: 1, Batch: 2000}})
	if err := errors.Join(err, r.Route("*", exactly)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	p := &simulation{t: t, pool: l.pool}
	p.eventually("many have come", `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'exactly' AND delivered >= 16000)`)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.eventually("all have come", `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'exactly' AND open = '{}' AND delivered = 40000)`)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := l.ids(0); len(got) != n || len(slices.Compact(got)) != n {
		t.Errorf("%d events have come, %d of them once", len(got), len(slices.Compact(got)))
	}
	l.cluster.mu.Lock()
	defer l.cluster.mu.Unlock()
	if l.cluster.largest > 25_000 {
		t.Errorf("a position has %d ranges", l.cluster.largest)
	}
}

// TestStreamReplaySimulationExactly is TestStreamSimulationExactly with concurrent replays: each ends, and all of its
// range has arrived.
func TestStreamReplaySimulationExactly(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for seed := range 3 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := newSimulation(t, 1+seed)
			p.exact = newCluster()
			s, err := ops.New(p.pool, ops.Config{Schema: "public"})
			if err != nil {
				t.Fatal(err)
			}
			var all []observe.Replay
			p.also = func() {
				if r, err := s.StartReplay(t.Context(), ops.ReplayRange{Destination: exactly}, ops.Action{}); err == nil {
					all = append(all, r)
				}
				if len(all) > 0 && rand.IntN(10) == 0 {
					_, _ = s.StopReplay(t.Context(), all[len(all)-1].ID, ops.Action{})
				}
			}
			p.run(2000)
			p.exact.verdict(t, p.checker.written)
			if len(all) == 0 {
				t.Error("nothing was replayed")
			}
			for i := range all {
				p.checkExactReplay(s, all[i].ID)
			}
		})
	}
}

// checkExactReplay compares the expected events of a replay with the committed ones.
func (p *simulation) checkExactReplay(s *ops.Client, id int64) {
	p.t.Helper()
	r, o, err := s.Replay(p.t.Context(), id)
	if err != nil || r.State == observe.ReplayRunning || o.Waiting+o.Dead != 0 {
		p.t.Fatalf("%+v, %+v, %v", r, o, err)
	}
	came := make(map[int64]bool)
	for _, e := range p.exact.committed {
		if e.replay/replayStep*replayStep == r.Number {
			came[e.id] = true
		}
	}
	n := int64(len(came))
	p.t.Logf("%s, %d to %d: %d came, %d passed over, %d delivered, %d failed", r.State, r.From, r.To, n, r.Skipped, r.Delivered, r.Failed)
	if r.State == observe.ReplayDone && n != o.Delivered {
		p.t.Errorf("%d came of replay %d, and %d count as delivered", n, r.ID, o.Delivered)
	}
}
