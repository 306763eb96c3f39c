package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// through returns e with another URL, which its relays use.
func (e *env) through(url string) *env {
	e.t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		e.t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(e.ctx, cfg) // it does not connect, and a relay does not use it
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(pool.Close)
	return &env{t: e.t, ctx: e.ctx, url: url, pool: pool, mode: e.mode}
}

func listenAt(t *testing.T, url string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// count returns how often the relay has logged a message.
func (r *running) count(message string) int {
	return strings.Count(r.log.text(), `msg="`+message)
}

// TestListenThroughAPooler: if LISTEN alone leads through a pooler in transaction
// mode, the relay reports that once, with the cure, and polls fast.
func TestListenThroughAPooler(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never, ListenConfig: listenAt(t, testenv.PgBouncer(t, e.url, "transaction"))})
			for range 20 {
				id := e.insert("order.created", `{}`)
				if got := h.next(); got.ID != id {
					t.Fatalf("got event %d, want %d", got.ID, id)
				}
			}
			e.untilDone()
			s := r.Stats().Listener
			if s == nil || s.Listening || r.Listening() || !errors.Is(s.Trouble, store.ErrPooler) {
				t.Errorf("the listener is %+v", s)
			}
			text := r.log.text()
			if r.count("not listening") != 1 || !strings.Contains(text, "pooler in transaction mode") || !strings.Contains(text, "connect to PostgreSQL directly") {
				t.Errorf("the pooler is not reported once, with its cure:\n%s", text)
			}
		})
	}
}

// TestListenThroughALatePooler: another error begins the incident.
func TestListenThroughALatePooler(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			pooler, through := testenv.OwnPgBouncer(t, e.url, "transaction")
			if err := pooler.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			r := e.start(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never, ListenConfig: listenAt(t, through)})
			testenv.Await(t, "the loss of the listener", func() bool { return r.count("not listening") == 1 })
			if err := pooler.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.waitReady()
			if text := r.log.text(); !strings.Contains(text, "pooler in transaction mode") || !strings.Contains(text, "connect to PostgreSQL directly") {
				t.Errorf("the pooler is not reported with its cure:\n%s", text)
			}
			id := e.insert("order.created", `{}`)
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			e.untilDone()
		})
	}
}

// TestQueueThroughAPooler: no part of a relay of a queue works with a pooler in transaction
// mode, so the relay ends with an error that names the pooler and the cure, and
// leaves no state on the pooled connections.
func TestQueueThroughAPooler(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	pooled := e.through(testenv.PgBouncer(t, e.url, "transaction"))
	endsBehindAPooler(pooled)
	e.leavesNothing(e.through(pooled.url + "&default_query_exec_mode=exec"))
}

// TestStatementMode: a pooler that refuses transactions is as good as none, in both modes.
func TestStatementMode(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			pooled := e.through(testenv.PgBouncer(t, e.url, "statement"))
			endsBehindAPooler(pooled)
			pooled.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never, ListenConfig: listenAt(t, e.url)})
			id := e.insert("order.created", `{}`)
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			e.untilDone()
		})
	}
}

func endsBehindAPooler(pooled *env) {
	t := pooled.t
	t.Helper()
	for _, cfg := range []notifyd.Config{{}, {PollingOnly: true}} {
		r, err := notifyd.New(pooled.pool, cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = r.Run(t.Context())
		if !errors.Is(err, notifyd.ErrPooler) || !strings.Contains(err.Error(), "listen_url") {
			t.Errorf("Run returned %v", err)
		}
	}
}

// leavesNothing checks that the sessions behind a pooler in transaction mode have no locks and no settings of a relay.
func (e *env) leavesNothing(pooled *env) {
	e.t.Helper()
	if n := scan[int](e, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); n != 0 {
		e.t.Errorf("%d advisory locks are left with the pooler's connections", n)
	}
	for name, want := range map[string]string{"synchronous_commit": "on", "enable_seqscan": "on", "jit": "on", "statement_timeout": "0"} {
		if got := scan[string](pooled, `SELECT current_setting($1)`, name); got != want {
			e.t.Errorf("%s is %s for other clients of the pooler", name, got)
		}
	}
}

// TestStreamThroughAPooler: a relay of a stream needs no session but for LISTEN. Two of them share the destinations, and polls
// find the events. Nothing of them stays with the sessions, which other clients get.
func TestStreamThroughAPooler(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	e := newEnvIn(t, outboxsql.ModeStream)
	pooled := e.through(testenv.PgBouncer(t, e.url, "transaction") + "&default_query_exec_mode=exec")
	h := newRecorder(t)
	var relays []*running
	for range 2 {
		relays = append(relays, pooled.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: 50 * time.Millisecond}))
	}
	e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'n', 'a', i % 7, '1' FROM generate_series(1, 3000) AS i`)
	e.untilDone()
	h.each(3000, relays...)
	for _, r := range relays {
		if r.count("database.url leads through a pooler") != 1 || r.count("not listening") != 1 || r.Listening() {
			t.Errorf("the log is:\n%s", r.log.text())
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
	}
	if n := scan[int](e, `SELECT count(*) FROM outbox_members`); n != 0 {
		t.Errorf("%d relays are left", n)
	}
	purges := pooled.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Retention: notifyd.Retention{Keep: notifyd.None, Batch: 1000}})
	testenv.Await(t, "the purge of delivered events", func() bool { return scan[int](e, `SELECT count(*) FROM outbox_events`) == 0 })
	if err := purges.end(); err != nil || purges.count("database does not answer") != 0 {
		t.Errorf("%v, and the log is:\n%s", err, purges.log.text())
	}
	e.leavesNothing(pooled)
}

// TestPastAPooler: a direct URL for LISTEN is used by a queue for all connections, and by a stream for LISTEN.
func TestPastAPooler(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			pooled := e.through(testenv.PgBouncer(t, e.url, "transaction"))
			r := pooled.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never, ListenConfig: listenAt(t, e.url)})
			id := e.insert("order.created", `{}`)
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			// Writers work through the pooler, with the notify trigger.
			id = e.through(pooled.url+"&default_query_exec_mode=exec").insert("order.created", `{}`)
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			e.untilDone()
			testenv.Await(t, "proof", func() bool { return !r.Stats().Listener.Proven.IsZero() })
			if r.count("database.url leads through a pooler") != 1 || r.count("not listening") != 0 && r.Stats().Listener.Overdue == 0 {
				t.Errorf("the log is:\n%s", r.log.text())
			}
			sessions := scan[int](e, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1853122159
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) // ntfo: the life of a relay
			if (sessions == 0) != (mode == outboxsql.ModeStream) {
				t.Errorf("%d sessions show the life of a relay of a %s", sessions, mode)
			}
		})
	}
}

// TestPoolInSessionMode is as good as a direct connection.
func TestPoolInSessionMode(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			pooled := e.through(testenv.PgBouncer(t, e.url, "session"))
			r := pooled.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never})
			testenv.Await(t, "proof", func() bool { return !r.Stats().Listener.Proven.IsZero() })
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'n', '1' FROM generate_series(1, 3000)`)
			id := e.insert("order.created", `{}`)
			e.untilState(id, "done")
			e.untilDone()
			h.each(3001, r)
			if r.count("not listening") != 0 && r.Stats().Listener.Overdue == 0 {
				t.Errorf("the log is:\n%s", r.log.text())
			}
		})
	}
}
