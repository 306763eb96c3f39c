package relaytest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
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
	unsure    int  // commits whose success the relay did not learn
	fenced    int
	largest   int // ranges in a position
	late      sync.WaitGroup
}

// committed is an event as a consumer sees it.
type committed struct {
	id          int64
	replay      int
	aggregate   string
	destination string
}

func newCluster() *cluster {
	return &cluster{clients: make(map[string]int), positions: make(map[string][]byte), died: make(map[int64]bool)}
}

// addTo adds the destination to a relay.
func (c *cluster) addTo(r *notifyd.Relay, lane delivery.Lane) error {
	return c.add(r, &client{cluster: c}, lane)
}

func (c *cluster) add(r *notifyd.Relay, h delivery.Handler, lane delivery.Lane) error {
	lane.Concurrency, lane.Batch, lane.MaxAttempts = cmp.Or(lane.Concurrency, 1), 30, 1000
	lane.Timeout, lane.LongestPause = 100*time.Millisecond, 20*time.Millisecond
	lane.Backoff = delivery.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond, Multiplier: 2}
	return r.Add(notifyd.Destination{Name: exactly, Handler: h, Lane: lane})
}

// client is a relay's way to the cluster. It implements delivery.PositionStore.
type client struct {
	cluster *cluster
	id      string // in place of the name of the shard
	opening func() // called when a position is opened; nil for nothing

	mu    sync.Mutex
	links map[int]*link // by shard
}

// link is what a client has opened for one shard.
type link struct {
	mu       sync.Mutex
	shard    string
	number   int
	progress delivery.Progress
	broken   bool
}

func (c *client) link(ctx context.Context) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.links == nil {
		c.links = make(map[int]*link)
	}
	part := delivery.CallOf(ctx).Shard
	if c.links[part] == nil {
		c.links[part] = &link{broken: true}
	}
	return c.links[part]
}

func (*client) StoresPosition() bool { return true }

func (*client) KeepsOrder() bool { return true }

func (c *client) OpenPosition(ctx context.Context, shard string, p delivery.Progress) ([]byte, error) {
	if c.opening != nil {
		c.opening()
	}
	shard = cmp.Or(c.id, shard)
	l := c.link(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	c.cluster.mu.Lock()
	defer c.cluster.mu.Unlock()
	if !c.cluster.calm && rand.IntN(5) == 0 {
		return nil, errors.New("not there")
	}
	c.cluster.clients[shard]++
	l.shard, l.number, l.progress, l.broken = shard, c.cluster.clients[shard], p, false
	return c.cluster.positions[shard], nil
}

func (c *client) Deliver(ctx context.Context, e *delivery.Event) error {
	if errs := c.DeliverBatch(ctx, []*delivery.Event{e}); errs != nil {
		return errs[0]
	}
	return nil
}

// DeliverBatch fails in all ways in which a transaction can fail.
func (c *client) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	l := c.link(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return slices.Repeat([]error{delivery.ErrReopen}, len(events))
	}
	errs := make([]error, len(events))
	some := c.cluster.refuse(events, errs)
	if len(some) == 0 {
		return errs
	}
	shard, number, value := l.shard, l.number, l.progress.With(some)
	fate := rand.IntN(15)
	if c.cluster.isCalm() {
		fate = -1
	}
	switch fate {
	case 0:
		l.broken = true
		return slices.Repeat([]error{delivery.ErrReopen}, len(events))
	case 1, 2, 3:
		l.broken = true
		c.cluster.commit(shard, number, some, value)
		c.cluster.unheard()
		if fate == 2 {
			panic("after the commit")
		}
		return slices.Repeat([]error{fmt.Errorf("no answer: %w", delivery.ErrReopen)}, len(events))
	case 4:
		l.broken = true
		<-ctx.Done()
		c.cluster.late.Go(func() { c.cluster.commit(shard, number, some, value) }) // it may be too late
		return slices.Repeat([]error{context.Cause(ctx)}, len(events))
	}
	if !c.cluster.commit(shard, number, some, value) {
		l.broken = true
		return slices.Repeat([]error{fmt.Errorf("fenced: %w", delivery.ErrReopen)}, len(events))
	}
	l.progress.Committed()
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
func (c *cluster) refuse(events []*delivery.Event, errs []error) (some []*delivery.Event) {
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
			errs[i] = delivery.Permanent(errors.New("dies"))
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
func (c *cluster) commit(shard string, number int, events []*delivery.Event, position []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clients[shard] != number {
		c.fenced++
		return false
	}
	for _, e := range events {
		c.committed = append(c.committed, committed{e.ID, e.Replay, e.AggregateID, e.Destination})
	}
	c.positions[shard], c.largest = position, max(c.largest, bytes.Count(position, []byte("[")))
	return true
}

// verdict checks that all written events arrived, each once, and each aggregate in order except for events that were dead
// letters first.
func (c *cluster) verdict(t *testing.T, written map[string][]int64) {
	t.Helper()
	c.late.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, last := make(map[int64]int), make(map[string]int64)
	for _, e := range c.committed {
		if e.replay >= replayStep {
			continue
		}
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
	all := make(map[int64]bool) // an event may be in several lines
	for line, ids := range written {
		for _, id := range ids {
			if all[id] = true; seen[id] == 0 {
				t.Errorf("%d of %s is lost", id, line)
			}
		}
	}
	n := len(all)
	if len(seen) != n {
		t.Errorf("%d events are there, %d were written", len(seen), n)
	}
	t.Logf("%d events, %d opened, %d commits unheard of, %d fenced, %d dead first", n, slices.Max(slices.Collect(maps.Values(c.clients))), c.unsure, c.fenced, len(c.died))
}

// TestStreamSimulationExactly: writers commit and roll back, destinations fail in every way, relays stop, are
// cut off and come back. No event is lost, the order of each aggregate is kept, and only a suffix
// of each aggregate's deliveries repeats. Beside those destinations, one that keeps its position gets
// each event once, and in order, whatever becomes of its transactions and of the relays.
func TestStreamSimulationExactly(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for seed := range 3 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := newSimulation(t, 1+seed)
			p.exact = newCluster()
			p.run(2000)
			p.exact.verdict(t, p.checker.written)
		})
	}
}

// exactLife is a relay with the destination that keeps its position, and the incidents of the relay.
type exactLife struct {
	t         *testing.T
	pool      *pgxpool.Pool
	cluster   *cluster
	incidents chan delivery.Incident
	lane      delivery.Lane
	breaks    bool   // some transactions are not committed
	opening   func() // of the client
}

// Observe implements delivery.Observer.
func (l *exactLife) Observe(i delivery.Incident) {
	select {
	case l.incidents <- i:
	default:
	}
}

func newExactLife(t *testing.T) *exactLife {
	t.Helper()
	c := newCluster()
	c.calm = true
	return &exactLife{t: t, pool: streamPool(t), cluster: c, incidents: make(chan delivery.Incident, 100)}
}

func (l *exactLife) exec(query string, args ...any) {
	l.t.Helper()
	if _, err := l.pool.Exec(l.t.Context(), query, args...); err != nil {
		l.t.Fatal(err)
	}
}

// write writes n events of an aggregate each.
func (l *exactLife) write(n int) {
	l.t.Helper()
	l.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'one', 'a', i::text, '{}' FROM generate_series(1, $1::int) i`, n)
}

// run runs a relay until n events are committed in all and its position is written. If the relay ends before, run returns
// its error.
func (l *exactLife) run(n int) error {
	l.t.Helper()
	r, err := notifyd.New(l.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(l.t.Output(), nil)), Observer: l})
	if err != nil {
		l.t.Fatal(err)
	}
	var h delivery.Handler = &client{cluster: l.cluster, opening: l.opening}
	if l.breaks {
		h = &breaking{client: &client{cluster: l.cluster}}
	}
	if err := errors.Join(l.cluster.add(r, h, l.lane), r.Route("*", exactly)); err != nil {
		l.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(l.t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
		}
		var written bool
		if err := l.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = $1 AND open = '{}' AND head >= (SELECT max(id) FROM outbox_events))`,
			exactly).Scan(&written); err != nil {
			l.t.Fatal(err)
		}
		l.cluster.mu.Lock()
		all := len(l.cluster.committed)
		l.cluster.mu.Unlock()
		if written && all >= n {
			stop()
			return <-done
		}
	}
}

// ids returns the ids committed since the given number of events, in order.
func (l *exactLife) ids(from int) (ids []int64) {
	l.cluster.mu.Lock()
	defer l.cluster.mu.Unlock()
	for _, e := range l.cluster.committed[from:] {
		ids = append(ids, e.id)
	}
	slices.Sort(ids)
	return ids
}

const savePosition = `CREATE TABLE kept AS SELECT head, open, sealed, void FROM outbox_positions WHERE destination = 'exactly'`

// restorePosition restores the position in the database to an earlier state.
const restorePosition = `UPDATE outbox_positions AS p SET head = k.head, open = k.open, sealed = k.sealed, void = k.void FROM kept AS k WHERE p.destination = 'exactly'`

// TestExactlyOnceRestored: a database has lost events that the destination knows. The relay stops while the database
// would assign ids again. Once it would not, the events above the database's position are delivered again, with an
// incident, and none are skipped. After that the relay works as usual.
func TestExactlyOnceRestored(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.write(10)
	if err := l.run(10); err != nil {
		t.Fatal(err)
	}
	l.exec(savePosition)
	l.write(10)
	if err := l.run(20); err != nil {
		t.Fatal(err)
	}
	l.exec(restorePosition)
	l.exec(`UPDATE outbox_positions SET head = 10, open = '{}' WHERE destination = ''`)
	l.exec(`DELETE FROM outbox_events WHERE id > 10`)
	l.exec(`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 10)`)
	l.write(5)
	err := l.run(21)
	if err == nil || !strings.Contains(err.Error(), "has given out ids up to 15") || !strings.Contains(err.Error(), "SELECT setval('public.outbox_events_id_seq', 20)") {
		t.Fatalf("the relay ended with: %v", err)
	}
	l.write(15) // 16 to 30: as if no relay had started before
	if err := l.run(40); err != nil {
		t.Fatal(err)
	}
	var want []int64
	for id := int64(11); id <= 30; id++ {
		want = append(want, id)
	}
	if got := l.ids(20); !slices.Equal(got, want) {
		t.Errorf("after the loss %v came", got)
	}
	repeats := false
	for len(l.incidents) > 0 {
		repeats = repeats || (<-l.incidents).Kind == delivery.IncidentRepeats
	}
	if !repeats {
		t.Error("no incident")
	}
	l.write(3)
	if err := l.run(43); err != nil {
		t.Fatal(err)
	}
	if got := l.ids(40); !slices.Equal(got, []int64{31, 32, 33}) {
		t.Errorf("then %v came", got)
	}
}

// TestExactlyOnceMoved: a position that was moved by hand, or forgotten, wins over the one that the
// destination keeps; and one that a crash has taken back does not.
func TestExactlyOnceMoved(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.write(10)
	if err := l.run(10); err != nil {
		t.Fatal(err)
	}
	l.exec(`UPDATE outbox_positions SET head = 3 WHERE destination = 'exactly'`) // the checkpoint is on disk
	l.write(1)
	if err := l.run(11); err != nil {
		t.Fatal(err)
	}
	if got := l.ids(10); !slices.Equal(got, []int64{11}) {
		t.Errorf("%v came", got)
	}
	store, err := ops.New(l.pool, ops.Config{Schema: "public"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Seek(t.Context(), exactly, "9", ops.Action{}); err != nil {
		t.Fatal(err)
	}
	if err := l.run(14); err != nil {
		t.Fatal(err)
	}
	if got := l.ids(11); !slices.Equal(got, []int64{9, 10, 11}) {
		t.Errorf("after a seek %v came", got)
	}
	if _, err := store.Forget(t.Context(), exactly, ops.Action{}); err != nil {
		t.Fatal(err)
	}
	if err := l.run(25); err != nil {
		t.Fatal(err)
	}
	if got := l.ids(14); len(got) != 11 {
		t.Errorf("after it was forgotten %v came", got)
	}
}

// TestExactlyOnceRefused: a handler that keeps its position needs one call at a time, order, and a
// stream.
func TestExactlyOnceRefused(t *testing.T) {
	t.Parallel()
	pool := streamPool(t)
	r, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, lane := range []delivery.Lane{{Concurrency: 2}, {Concurrency: 1, Order: delivery.OrderNone}, {}} {
		if err := r.Add(notifyd.Destination{Name: "x", Handler: &client{cluster: newCluster()}, Lane: lane}); !errors.Is(err, notifyd.ErrDestination) {
			t.Errorf("%v", err)
		}
	}
	if _, err := pool.Exec(t.Context(), `UPDATE outbox_mode SET mode = 'queue'`); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(newCluster().addTo(r, delivery.Lane{}), r.Run(t.Context())); !errors.Is(err, notifyd.ErrNeedsStream) {
		t.Errorf("a queue: %v", err)
	}
}
