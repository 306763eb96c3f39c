package notifyd

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// patient is a relay whose seconds are short, with an observer that may be made to hang.
type patient struct {
	*testing.T
	*Relay

	pool  *pgxpool.Pool
	hangs chan delivery.Incident // IncidentHang and IncidentHangOver
	block delivery.IncidentKind
	held  chan struct{} // closed when the observer hangs
	free  chan struct{} // closed to let it return
}

// Observe implements Observer.
func (p *patient) Observe(i delivery.Incident) {
	switch i.Kind {
	case delivery.IncidentHang, delivery.IncidentHangOver:
		p.hangs <- i
	case p.block:
		close(p.held)
		<-p.free
	default:
	}
}

// inBothModes runs a test on the two kinds of table.
func inBothModes(t *testing.T, f func(t *testing.T, pool *pgxpool.Pool)) {
	t.Helper()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f(t, tables(t, mode))
		})
	}
}

func tables(t *testing.T, mode outboxsql.Mode) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.URL(t, testdb.Tables{Mode: mode}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// migrate makes tables of the given mode.
func migrate(t *testing.T, pool *pgxpool.Pool, mode outboxsql.Mode) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := outboxsql.Migrate(t.Context(), conn.Conn(), "public", outboxsql.BellAuto); err != nil {
		t.Fatal(err)
	}
	if mode == outboxsql.ModeStream {
		execute(t, pool, `UPDATE outbox_mode SET mode = 'stream'; DROP INDEX outbox_events_fresh`)
	}
}

func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// short is a second of an audit in a hurry: two minutes are six seconds, longer than any wait for the database.
const short = 50 * time.Millisecond

// shorter is one where a real hang lasts until it is found: seven minutes, after which only a restart helps, are six seconds.
const shorter = 15 * time.Millisecond

// newPatient returns a relay in which a second lasts for beat, with the destination mail for everything.
func newPatient(t *testing.T, pool *pgxpool.Pool, beat time.Duration, h delivery.Handler, options ...HandleOption) *patient {
	t.Helper()
	p := &patient{T: t, pool: pool, hangs: make(chan delivery.Incident, 100), held: make(chan struct{}), free: make(chan struct{})}
	var err error
	tick := func(s *settings) { s.tick = beat }
	p.Relay, err = New(pool, tick, WithObserver(p), WithCanary(100*time.Millisecond), WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil))))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Destination("mail", h, options...); err != nil {
		t.Fatal(err)
	}
	if err := p.Route("*", "mail"); err != nil {
		t.Fatal(err)
	}
	return p
}

// start runs the relay until the end of the test, and returns when it is ready.
func (p *patient) start() {
	p.Helper()
	ended := p.run()
	select {
	case <-p.Ready():
	case err := <-ended:
		ended <- err
		p.Fatal("the relay has ended")
	}
}

// run runs the relay until the end of the test.
func (p *patient) run() (ended chan error) {
	p.Helper()
	ctx, stop := context.WithCancel(p.Context())
	ended = make(chan error, 1)
	go func() { ended <- p.Relay.Run(ctx) }()
	p.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			p.Error(err)
		}
	})
	return ended
}

// hears waits for an incident with this text.
func (p *patient) hears(kind delivery.IncidentKind, text string) {
	p.Helper()
	for {
		select {
		case i := <-p.hangs:
			if i.Kind == kind && (i.Err == nil || strings.Contains(i.Err.Error(), text)) {
				return
			}
		case <-p.Context().Done():
			p.Fatalf("no %v with %q: %+v", kind, text, p.Health())
		}
	}
}

// waitsUntil looks at the health until it is as wanted; incidents say when it has changed for the better or worse.
func (p *patient) waitsUntil(what string, is func(h *observe.Health) bool) {
	p.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		h := p.Health()
		if is(&h) {
			return
		}
		select {
		case <-tick.C:
		case <-p.Context().Done():
			p.Fatalf("it never came true that %s: %+v", what, h)
		}
	}
}

func works(context.Context, *delivery.Event) error { return nil }

// TestFiguresFromTheStart: figures are asked for at any time, also while the relay finds out what the
// table is.
func TestFiguresFromTheStart(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		p := newPatient(t, pool, short, delivery.HandlerFunc(works))
		ended := p.run()
		for ready := false; !ready; {
			select {
			case <-p.Ready():
				ready = true
			case err := <-ended:
				ended <- err
				t.Fatal("the relay has ended")
			default:
				p.settledBelow() // and nothing that a lock would put in order with the start
			}
		}
		if _, err := p.Waiting(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestRelayHangs: an observer does not return, while the relay tells it that a connection is lost. Nothing of the relay can report
// the database any more, or use it: not ready, with an alert that says what hangs; after a longer time not live; and all is well
// when the observer returns.
func TestRelayHangs(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		p := newPatient(t, pool, shorter, delivery.HandlerFunc(works))
		p.block = delivery.IncidentDatabaseLost
		p.start()
		testenv.Await(t, "a lost connection that the relay uses", func() bool { // one that it opens at the moment is none yet
			execute(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name IN ('notifyd/claim', 'notifyd/stream')`)
			select {
			case <-p.held:
				return true
			default:
				return false
			}
		})
		const want = "no part of the relay has tried it again"
		p.hears(delivery.IncidentHang, want)
		h := p.Health()
		if err := h.Ready(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ready: %v", err)
		}
		p.waitsUntil("only a restart helps", func(h *observe.Health) bool { return h.Live() != nil })
		close(p.free)
		p.hears(delivery.IncidentHangOver, "")
		p.waitsUntil("all is well", func(h *observe.Health) bool { return h.Ready() == nil && h.Live() == nil })
	})
}

// TestAuditHangs: an observer does not return, and keeps a lock that the audit takes like the loops of the relay.
func TestAuditHangs(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		p := newPatient(t, pool, short, delivery.HandlerFunc(works))
		p.block = delivery.IncidentRefused
		p.start()
		table := "outbox_events"
		if p.stream {
			table = "outbox_positions"
		}
		execute(t, pool, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
		execute(t, pool, `CREATE TRIGGER no BEFORE UPDATE ON `+table+` FOR EACH ROW EXECUTE FUNCTION no()`)
		execute(t, pool, insertThree)
		<-p.held
		p.hears(delivery.IncidentHang, "the audit of the relay has not come back")
		execute(t, pool, `DROP TRIGGER no ON `+table)
		close(p.free)
		p.hears(delivery.IncidentHangOver, "")
		p.waitsUntil("all is well", func(h *observe.Health) bool { return h.Ready() == nil && h.Live() == nil })
	})
}

// TestListenerHangs: an observer does not return, while the listener tells it that notifications are not heard. The relay polls, so
// that no work is late: it does not hang.
func TestListenerHangs(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		h, called := errands(func(context.Context) error { return nil })
		p := newPatient(t, pool, short, h)
		p.block = delivery.IncidentListenerLost
		p.start()
		execute(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'notifyd/listen'`)
		<-p.held
		execute(t, pool, insertThree)
		for range 3 {
			<-called
		}
		if p.passes(4 * time.Minute) {
			t.Errorf("%+v", p.Health())
		}
		close(p.free)
	})
}

// TestDueWorkIsNotBegun: the only worker of a lane hangs, not in a call, which would be given up, but in an observer of what has come of it.
// Events wait.
func TestDueWorkIsNotBegun(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		p := newPatient(t, pool, shorter, delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			if e.Type == "bad" {
				return delivery.Permanent(errors.New("no"))
			}
			return nil
		}), WithConcurrency(1), WithTimeout(time.Second), WithOrder(false))
		p.block = delivery.IncidentDead
		p.start()
		execute(t, pool, `INSERT INTO outbox_events (event_type, payload) VALUES ('bad', '{}')`)
		<-p.held
		execute(t, pool, `INSERT INTO outbox_events (event_type, payload) SELECT 'good', '{}' FROM generate_series(1, 3)`)
		p.hears(delivery.IncidentHang, "is due for mail and not ")
		p.waitsUntil("only a restart helps", func(h *observe.Health) bool { return h.Live() != nil })
		close(p.free)
		p.hears(delivery.IncidentHangOver, "")
		p.waitsUntil("all is well", func(h *observe.Health) bool { return h.Ready() == nil })
	})
}

// lock locks rows until the returned function is called.
func lock(t *testing.T, pool *pgxpool.Pool, sql string) (unlock func()) {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	if tag, err := tx.Exec(t.Context(), sql); err != nil || tag.RowsAffected() == 0 {
		t.Fatalf("%s: %v, %v", sql, tag, err)
	}
	return func() { _ = tx.Rollback(t.Context()) }
}

// TestLockedWork: rows locked by another session are passed over by every relay. That is reported, and no reason for a restart.
func TestLockedWork(t *testing.T) {
	t.Parallel()
	for name, rows := range map[string]struct{ insert, lock string }{
		"fresh": {`INSERT INTO outbox_events (event_type, payload) VALUES ('x', '{}')`, `SELECT FROM outbox_events FOR UPDATE`},
		"stored": {`WITH e AS (INSERT INTO outbox_events (event_type, payload, state) VALUES ('x', '{}', 'deferred') RETURNING id)
			INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, 'mail', 'x', 'retry' FROM e`, `SELECT FROM outbox_deliveries FOR UPDATE`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := tables(t, outboxsql.ModeQueue)
			execute(t, pool, rows.insert)
			unlock := lock(t, pool, rows.lock)
			p := newPatient(t, pool, short, delivery.HandlerFunc(works))
			p.start()
			p.hears(delivery.IncidentHang, "another session has locked it")
			if h := p.Health(); h.Ready() == nil || h.Hangs[0].Restart {
				t.Errorf("%+v", h)
			}
			unlock()
			p.waitsUntil("all is well", func(h *observe.Health) bool { return h.Ready() == nil })
		})
	}
}

// TestLostLease: no relay takes over a lease that has ended, because its row is locked.
func TestLostLease(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeQueue)
	execute(t, pool, `WITH e AS (INSERT INTO outbox_events (event_type, payload, state) VALUES ('x', '{}', 'deferred') RETURNING id)
		INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
		SELECT id, 'mail', 'x', 'running', 1, 1, now() - interval '1 hour' FROM e`)
	unlock := lock(t, pool, `SELECT FROM outbox_deliveries FOR UPDATE`)
	p := newPatient(t, pool, short, delivery.HandlerFunc(works))
	p.start()
	p.hears(delivery.IncidentHang, "no relay has taken it over")
	if h := p.Health(); h.Ready() == nil || h.Hangs[0].Restart {
		t.Errorf("%+v", h)
	}
	unlock()
	p.waitsUntil("all is well", func(h *observe.Health) bool { return h.Ready() == nil })
}

// TestUnitIsNotHeld: no relay can take the unit of a destination, because another session has locked its position.
func TestUnitIsNotHeld(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeStream)
	execute(t, pool, `INSERT INTO outbox_positions (destination, head) VALUES ('mail', 0)`)
	unlock := lock(t, pool, `SELECT FROM outbox_positions WHERE destination = 'mail' FOR UPDATE`)
	p := newPatient(t, pool, short, delivery.HandlerFunc(works))
	p.start()
	p.hears(delivery.IncidentHang, "no relay holds the unit of mail")
	if h := p.Health(); h.Ready() == nil || h.Hangs[0].Restart {
		t.Errorf("%+v", h)
	}
	unlock()
	p.waitsUntil("all is well", func(h *observe.Health) bool { return h.Ready() == nil })
}
