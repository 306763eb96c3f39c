package integration

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// envReceivedVictim makes this test binary a relay on the given database, with a destination in the
	// database of envReceivedInbox.
	envReceivedVictim = "NOTIFYD_TEST_RECEIVED_VICTIM_URL"
	envReceivedInbox  = "NOTIFYD_TEST_RECEIVED_INBOX"
)

// receivedVictim runs a relay until it is killed, or asked to stop.
func receivedVictim(url string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test, however the test ends
		os.Exit(1)
	}()
	h, err := postgres.New(postgres.Config{URL: handlers.NewSecret(os.Getenv(envReceivedInbox)), Source: "shop"})
	if err != nil {
		panic(err)
	}
	relayTo(ctx, url, "inbox", h)
}

// received are relays under faults, and the database that they write to.
type received struct {
	*victims
	inbox *pgxpool.Pool
}

// write writes events until ctx ends. The inbox refuses one in 200. Each aggregate has one writer.
func (r *received) write(ctx context.Context, writer int) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		<-tick.C
		_, err := r.pool.Exec(r.ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT 'order.changed', 'order', $1::int || '-' || i % 7, json_build_object('refused', random() < 0.005) FROM generate_series(1, 10) i`, writer)
		if err != nil {
			r.t.Error(err)
			return
		}
	}
}

// strike kills one relay or both, or all sessions in the inbox.
func (r *received) strike(i int) {
	r.t.Helper()
	switch n := rand.IntN(len(r.relays)); i % 3 {
	case 0:
		r.end(n, syscall.SIGKILL)
		r.launch(n)
	case 1:
		for n := range r.relays {
			r.end(n, syscall.SIGKILL)
		}
		for n := range r.relays {
			r.launch(n)
		}
	case 2:
		if _, err := r.inbox.Exec(r.ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'notifyd'`); err != nil {
			r.t.Error(err)
		}
	}
}

// arrived returns how many rows the inbox has.
func (r *received) arrived() (n int) {
	r.t.Helper()
	if err := r.inbox.QueryRow(r.ctx, `SELECT count(*) FROM received_events`).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// TestReceivedOnce: relays and sessions are killed while events are written, and each event is one row of the inbox,
// in a stream in the order of its aggregate; one that the inbox refuses is a dead letter.
func TestReceivedOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeStream, outboxsql.ModeQueue} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			if mode == outboxsql.ModeQueue {
				testenv.Long(t)
			}
			url := testenv.Database(t)
			inbox := testdb.Pool(t, url)
			if _, err := inbox.Exec(t.Context(), postgres.Schema(postgres.Config{})+`
				ALTER TABLE received_events ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY, ADD CHECK (payload ->> 'refused' = 'false')`); err != nil {
				t.Fatal(err)
			}
			r := &received{&victims{env: newEnvIn(t, mode)}, inbox}
			r.environ = []string{envReceivedVictim + "=" + r.url, envReceivedInbox + "=" + url}
			t.Cleanup(func() {
				for n := range r.relays {
					r.end(n, syscall.SIGKILL)
				}
			})
			r.run()
			r.check(mode)
		})
	}
}

// run has events written and delivered under faults, and returns when all are delivered, or dead.
func (r *received) run() {
	r.t.Helper()
	for n := range r.relays {
		r.launch(n)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	var writing sync.WaitGroup
	for writer := range 2 {
		writing.Go(func() { r.write(ctx, writer) })
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := 0; i < 4 && !r.t.Failed(); i++ {
		for from := r.arrived(); r.arrived() < from+300 && r.ctx.Err() == nil; {
			<-tick.C
		}
		r.strike(i)
	}
	cancel()
	writing.Wait()
	for r.left() > 0 && r.ctx.Err() == nil && !r.t.Failed() {
		<-tick.C
	}

	for n := range r.relays {
		r.end(n, syscall.SIGTERM)
	}
}

// left returns how many events are neither delivered nor dead. While a refused event is not dead, it writes other
// events, one at a time: a destination that takes no others cannot show which events are at fault.
func (r *received) left() int {
	r.t.Helper()
	dead := scan[int](r.env, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`)
	arrived := r.arrived()
	written := scan[int](r.env, `SELECT count(*) FROM outbox_events`)
	refused := scan[int](r.env, `SELECT count(*) FROM outbox_events WHERE (payload ->> 'refused')::boolean`)

	var others int
	if err := r.inbox.QueryRow(r.ctx, `SELECT count(*) FROM received_events WHERE event_type = 'other'`).Scan(&others); err != nil {
		r.t.Fatal(err)
	}
	hasArrived := others == scan[int](r.env, `SELECT count(*) FROM outbox_events WHERE event_type = 'other'`)

	if dead < refused && hasArrived {
		r.exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('other', '{"refused": false}')`)
	}

	return written - arrived - dead
}

// check compares the inbox with the outbox.
func (r *received) check(mode outboxsql.Mode) {
	r.t.Helper()
	refused := scan[int](r.env, `SELECT count(*) FROM outbox_events WHERE (payload ->> 'refused')::boolean`)
	dead := scan[int](r.env, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`)
	written := scan[int](r.env, `SELECT count(*) FROM outbox_events`)
	var rows, disordered, repeats int
	if err := r.inbox.QueryRow(r.ctx, `SELECT count(*), count(*) FILTER (WHERE event_id < before), max(n) - count(*)
		FROM (SELECT *, lag(event_id) OVER (PARTITION BY aggregate_id ORDER BY n) AS before FROM received_events) AS r`).Scan(&rows, &disordered, &repeats); err != nil {
		r.t.Fatal(err)
	}
	if rows != written-refused || dead != refused || mode == outboxsql.ModeStream && disordered > 0 {
		r.t.Errorf("%d rows of %d events, %d refused, %d dead, %d out of order", rows, written, refused, dead, disordered)
	}
	r.t.Logf("%d rows of %d events, %d dead; %d numbers were drawn in vain, for repeats and for batches that were refused", rows, written, dead, repeats)
}
