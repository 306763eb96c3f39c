package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestFailover kills the primary and promotes its standby, twice, there and back. The relay has the addresses of both and
// continues without a restart, even if the URL does not ask for the server that accepts writes.
func TestFailover(t *testing.T) {
	t.Parallel()
	for attrs, mode := range map[string]outboxsql.Mode{"": outboxsql.ModeStream, "&target_session_attrs=read-write": outboxsql.ModeQueue} {
		t.Run(string(mode)+attrs, func(t *testing.T) {
			t.Parallel()
			if mode == outboxsql.ModeQueue {
				testenv.Long(t)
			}
			e, primary, standby := newPair(t, mode)
			h := newRecorder(t)
			r := e.through(either(standby, primary)+attrs).relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			e = e.failOver(primary, standby)

			if err := primary.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			back := testenv.Standby(t, standby, primary.Port())
			e.pool.Reset()
			e = e.failOver(standby, back)
			if n := scan[int](e, `SELECT count(*) FROM outbox_events`); n != 4*300 {
				t.Errorf("%d events are done, want 1200", n)
			}
			h.all(e, 4*300)
			testenv.Await(t, "the return of the listener", func() bool { s := r.Stats().Listener; return s.Listening && s.Trouble == nil })
		})
	}
}

// newPair creates a database on a server that only this test uses, and a standby of that server.
func newPair(t *testing.T, mode outboxsql.Mode) (e *env, primary, standby *pgserver.Server) {
	t.Helper()
	primary = testenv.OwnPostgres(t, nil)
	e = envAt(t, primary.URL("")).become(mode)
	standby = testenv.Standby(t, primary, 0)
	e.pool.Reset()
	return e, primary, standby
}

// either is the URL of two servers. The standby comes first, so that the relay
// has to refuse it.
func either(standby, primary *pgserver.Server) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", standby.Port(), primary.Port())
}

// on returns e as seen on another server.
func (e *env) on(server *pgserver.Server) *env {
	e.t.Helper()
	pool := testdb.Pool(e.t, server.URL(""))
	return &env{t: e.t, ctx: e.ctx, url: server.URL(""), pool: pool, mode: e.mode}
}

// failOver kills one server and promotes the other, with events written before
// and after, and returns e as seen on the other.
func (e *env) failOver(from, to *pgserver.Server) *env {
	e.t.Helper()
	const insert = `INSERT INTO outbox_events (event_type, payload) SELECT 'n', '1' FROM generate_series(1, 300)`
	e.exec(insert)
	next := e.on(to)
	next.untilFollowed(e)
	e.killAndPromote(from, to)
	next.exec(insert)
	next.untilDone()
	return next
}

// untilFollowed waits until the standby has received all current data of its
// primary. Later data is lost with the primary.
func (e *env) untilFollowed(primary *env) {
	e.t.Helper()
	e.until("the standby has all data", `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, scan[string](primary, `SELECT pg_current_wal_flush_lsn()::text`))
}

func (e *env) killAndPromote(from, to *pgserver.Server) {
	e.t.Helper()
	if err := from.Kill(e.ctx); err != nil {
		e.t.Fatal(err)
	}
	if err := to.Promote(e.ctx); err != nil {
		e.t.Fatal(err)
	}
}

// TestStandbyBehindAPooler: a relay that a pooler leads to a standby waits, as for a database that is down, and works once that
// is the primary.
func TestStandbyBehindAPooler(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	e, primary, standby := newPair(t, outboxsql.ModeStream)
	h := newRecorder(t)
	pooled := e.through(testenv.PgBouncer(t, standby.URL(""), "transaction"))
	r := pooled.start(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: 50 * time.Millisecond})
	testenv.Await(t, "the standby is noticed", func() bool { return r.count("database does not answer") == 1 })
	next := e.failOver(primary, standby)
	next.untilDone()
	if n := r.count("database refuses"); n != 0 {
		t.Errorf("the log is:\n%s", r.log.text())
	}
}
