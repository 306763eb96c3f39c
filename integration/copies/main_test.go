// Package copies tests what relays do on copies of a database, and under what people do to a database: upgrades, restores,
// replication, rewrites of tables, and a server at the end of its transaction ids.
package copies

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds each wait for an expected change; no test expects it to run out.
const patience = 4 * time.Minute

// bothModes runs f with each mode of a table.
func bothModes(t *testing.T, f func(t *testing.T, mode outboxsql.Mode)) {
	t.Helper()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f(t, mode)
		})
	}
}

// received counts the calls of a handler by event. Events of the type bad are refused for good.
type received struct {
	mu     sync.Mutex
	counts map[int64]int
	more   chan struct{} // capacity 1: there is another event
}

func newReceived() *received {
	return &received{counts: make(map[int64]int), more: make(chan struct{}, 1)}
}

// Deliver implements delivery.Handler.
func (r *received) Deliver(_ context.Context, e *delivery.Event) error {
	r.mu.Lock()
	r.counts[e.ID]++
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
	if e.Type == "bad" {
		return delivery.Permanent(errors.New("refused"))
	}
	return nil
}

// ids returns the events so far, in order.
func (r *received) ids() (all []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.counts {
		all = append(all, id)
	}
	slices.Sort(all)
	return all
}

// twice returns the events that came more than once.
func (r *received) twice() (all []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, n := range r.counts {
		if n > 1 {
			all = append(all, id)
		}
	}
	return all
}

// await waits for n events.
func (r *received) await(t *testing.T, n int) []int64 {
	t.Helper()
	late := time.After(patience)
	for len(r.ids()) < n {
		select {
		case <-r.more:
		case <-late:
			t.Fatalf("received %v, want %d events", r.ids(), n)
		}
	}
	return r.ids()
}

// newRelay returns a relay that delivers all events to a handler.
func newRelay(t *testing.T, url string, h delivery.Handler) *notifyd.Relay {
	t.Helper()
	relay, err := notifyd.New(testdb.Pool(t, url), notifyd.Config{})
	if err == nil {
		err = relay.Handle("*", notifyd.Destination{Name: "mail", Handler: h})
	}
	if err != nil {
		t.Fatal(err)
	}
	return relay
}

// start runs a relay until stop, or the end of the test.
func start(t *testing.T, relay *notifyd.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the relay ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// refused fails the test unless a relay refuses to deliver from a copy.
func refused(t *testing.T, url string) {
	t.Helper()
	if err := newRelay(t, url, newReceived()).Run(t.Context()); !errors.Is(err, notifyd.ErrCopy) {
		t.Fatalf("a relay on a copy: %v", err)
	}
}

// adopt makes the database of a URL the home of its outbox.
func adopt(t *testing.T, url string, discard bool) ops.Adoption {
	t.Helper()
	client, err := ops.New(testdb.Pool(t, url), ops.Config{})
	if err != nil {
		t.Fatal(err)
	}
	done, err := client.Adopt(t.Context(), discard, ops.Action{})
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// await waits until a query is true.
func await(t *testing.T, conn *pgx.Conn, query string) {
	t.Helper()
	testenv.Await(t, query, func() bool { return testdb.One[bool](t, conn, query) })
}

// settled is true when a relay has written down everything that it has delivered. An event of the type bad is a dead letter.
const settled = `SELECT CASE mode WHEN 'queue' THEN NOT EXISTS (SELECT FROM outbox_events WHERE state = 'fresh')
	ELSE coalesce((SELECT bool_and(head = outbox_last_id() AND open = '{}') FROM outbox_positions), false) END
	AND NOT EXISTS (SELECT FROM outbox_deliveries WHERE state <> 'dead') FROM outbox_mode`

// lived writes events to the outbox of a URL and has a relay deliver them, with one dead letter, and leaves others waiting. It
// returns those.
func lived(t *testing.T, url string) (waiting []int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is lost
	d := &testdb.DB{TB: t, URL: url, Conn: conn}
	got := newReceived()
	stop := start(t, newRelay(t, url, got))
	d.Insert("good", 20)
	d.Insert("bad", 1)
	got.await(t, 21)
	await(t, conn, settled)
	stop()
	return d.Insert("good", 10)
}

// continues has a relay deliver what waits at a URL, and one event more, and nothing twice.
func continues(t *testing.T, url string, waiting []int64) {
	t.Helper()
	conn := testdb.Connect(t, url)
	got := newReceived()
	stop := start(t, newRelay(t, url, got))
	defer stop()
	next := testdb.One[int64](t, conn, `INSERT INTO outbox_events (event_type, payload) VALUES ('good', '1') RETURNING id`)
	if all := got.await(t, len(waiting)+1); !slices.Equal(all, append(slices.Clone(waiting), next)) {
		t.Errorf("received %v, want %v and %d", all, waiting, next)
	}
	await(t, conn, settled)
	if again := got.twice(); len(again) > 0 {
		t.Errorf("received twice: %v", again)
	}
	if n := testdb.One[int](t, conn, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`); n != 1 {
		t.Errorf("%d dead letters, want 1", n)
	}
}
