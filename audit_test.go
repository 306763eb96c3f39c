package notifyd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// never is a second of an audit whose time a test makes pass.
const never = time.Hour

// audited returns what an audit has found after the given time, in which the relay may do what it wants.
func (p *patient) audited(long time.Duration) (hangs []observe.Hang) {
	p.Helper()
	a := newAudit(p.Relay)
	for range long / auditEvery {
		a.find(p.Context())
		a.ticks.Add(int64(auditEvery / time.Second))
	}
	return a.find(p.Context())
}

const insertThree = `INSERT INTO outbox_events (event_type, payload) SELECT 'x', '{}' FROM generate_series(1, 3)`

// errands is a handler that tells the test of each call.
func errands(answer func(ctx context.Context) error) (h delivery.Handler, called chan struct{}) {
	called = make(chan struct{}, 100)
	return delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error {
		called <- struct{}{}
		return answer(ctx)
	}), called
}

// busy starts a relay over events for which the handler is called.
func busy(t *testing.T, pool *pgxpool.Pool, insert string, answer func(ctx context.Context) error, options ...HandleOption) *patient {
	t.Helper()
	h, called := errands(answer)
	p := newPatient(t, pool, never, h, options...)
	execute(t, pool, insert)
	p.start()
	<-called
	return p
}

// paused starts a relay with events for a destination that is paused, and which gets all, or those of a type.
func paused(t *testing.T, pool *pgxpool.Pool, name string) *patient {
	t.Helper()
	p := newPatient(t, pool, never, delivery.HandlerFunc(works))
	if name != "mail" {
		if err := errors.Join(p.Destination(name, delivery.HandlerFunc(works)), p.Route("x", name)); err != nil {
			t.Fatal(err)
		}
	}
	p.start()
	if err := p.Pause(t.Context(), name, "a test", ""); err != nil {
		t.Fatal(err)
	}
	execute(t, pool, insertThree)
	return p
}

// TestNoHang: what waits for another reason than a hang is none, for however long, and in both modes.
func TestNoHang(t *testing.T) {
	t.Parallel()
	const later = `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id, available_at)
		SELECT 'x', '{}', 'a', '1', CASE WHEN i = 3 THEN now() + interval '1 day' END FROM generate_series(1, 3) AS i`
	for name, prepare := range map[string]func(t *testing.T, pool *pgxpool.Pool) *patient{
		"idle": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			p := newPatient(t, pool, never, delivery.HandlerFunc(works))
			p.start()
			return p
		},
		"paused": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return paused(t, pool, "mail")
		},
		"events that another destination has to get": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return paused(t, pool, "other")
		},
		"a destination that is down": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(context.Context) error { return delivery.Unavailable(errors.New("away")) })
		},
		"a destination that throttles": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(context.Context) error { return delivery.Throttled(time.Hour, errors.New("later")) })
		},
		"a lane full of slow handlers": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(context.Context) error {
				<-t.Context().Done() // when the relay ends, too, which would wait for the call
				return nil
			}, WithConcurrency(1), WithTimeout(time.Hour))
		},
		"events that are delayed, and others that wait for their next attempt": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, later, func(context.Context) error { return delivery.RetryAfter(time.Hour, errors.New("no")) })
		},
		"an order of all events whose first one waits for its next attempt": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(context.Context) error { return delivery.RetryAfter(time.Hour, errors.New("no")) }, inTotalOrder(t, pool)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
				t.Helper()
				if hangs := prepare(t, pool).audited(10 * time.Minute); len(hangs) > 0 {
					t.Errorf("%+v", hangs)
				}
			})
		})
	}
}

// inTotalOrder is the option of a destination in total order, which only a stream has.
func inTotalOrder(t *testing.T, pool *pgxpool.Pool) []HandleOption {
	t.Helper()
	var mode string
	if err := pool.QueryRow(t.Context(), `SELECT mode FROM outbox_mode`).Scan(&mode); err != nil {
		t.Fatal(err)
	}
	if mode != string(outboxsql.ModeStream) {
		return nil
	}
	return []HandleOption{WithTotalOrder()}
}

// TestOtherRelayDoesTheWork: a relay without anything to do, beside one that does all, does not hang.
func TestOtherRelayDoesTheWork(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		entered, leave := make(chan struct{}, 10), make(chan struct{})
		worker := newPatient(t, pool, never, delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
			entered <- struct{}{}
			<-leave
			return nil
		}), WithTimeout(time.Hour))
		worker.start()
		execute(t, pool, insertThree)
		<-entered
		idle := newPatient(t, pool, never, delivery.HandlerFunc(works), WithConcurrency(1))
		idle.run()
		<-idle.listens // in a stream it is ready only when the other one has given a unit away
		if hangs := append(idle.audited(30*time.Minute), worker.audited(30*time.Minute)...); len(hangs) > 0 {
			t.Errorf("%+v", hangs)
		}
		close(leave)
	})
}

// TestStandstill: of a relay that does nothing at all, the audit finds each kind of due work, and that a restart is likely to help.
func TestStandstill(t *testing.T) {
	t.Parallel()
	const mine = `INSERT INTO outbox_positions (destination, head, owner) VALUES ('mail', 0, $1), ('', 100, $1)`
	for name, c := range map[string]struct {
		mode   outboxsql.Mode
		tables string
		owned  bool   // the relay owns the units
		want   string // part of the reason
	}{
		"a fresh event": {
			mode: outboxsql.ModeQueue, tables: insertThree, want: "event 1 is due for mail and not claimed",
		},
		"a stored delivery": {
			mode: outboxsql.ModeQueue, want: "a stored delivery is due for mail and not begun",
			tables: `WITH e AS (INSERT INTO outbox_events (event_type, payload, state) VALUES ('x', '{}', 'deferred') RETURNING id)
				INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, 'mail', 'x', 'retry' FROM e`,
		},
		"a delayed event": {
			mode: outboxsql.ModeQueue, want: "an event whose delay has passed is not claimed",
			tables: `WITH e AS (INSERT INTO outbox_events (event_type, payload, state) VALUES ('x', '{}', 'deferred') RETURNING id)
				INSERT INTO outbox_deliveries (event_id, event_type, state) SELECT id, 'x', 'retry' FROM e`,
		},
		"a gained route": {
			mode: outboxsql.ModeQueue, want: "event 1 of type \"x\" has gained a route and is not made due",
			tables: `WITH e AS (INSERT INTO outbox_events (event_type, payload, state) VALUES ('x', '{}', 'deferred') RETURNING id)
				INSERT INTO outbox_deliveries (event_id, event_type, state) SELECT id, 'x', 'unrouted' FROM e`,
		},
		"a lease": {
			mode: outboxsql.ModeQueue, want: "the lease of event 1 for mail has ended",
			tables: `WITH e AS (INSERT INTO outbox_events (event_type, payload, state) VALUES ('x', '{}', 'deferred') RETURNING id)
				INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
				SELECT id, 'mail', 'x', 'running', 1, 1, now() - interval '1 hour' FROM e`,
		},
		"a unit": {
			mode: outboxsql.ModeStream, want: "no relay holds the unit of mail",
			tables: `INSERT INTO outbox_positions (destination, head) VALUES ('mail', 0)`,
		},
		"an event of a stream": {
			mode: outboxsql.ModeStream, owned: true, tables: insertThree, want: "event 1 is due for mail and not read or not answered",
		},
		"a stored delivery of a stream": {
			mode: outboxsql.ModeStream, owned: true, want: "a stored delivery is due for mail and not begun",
			tables: `INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (1, 'mail', 'x', 'retry')`,
		},
		"a gained route of a stream": {
			mode: outboxsql.ModeStream, owned: true, want: "event 1, which has gained a route, is due for mail and not handed out",
			tables: `INSERT INTO outbox_deliveries (event_id, event_type, state) VALUES (1, 'x', 'unrouted')`,
		},
		"the search for types without a route": {
			mode: outboxsql.ModeStream, owned: true, want: "event 101 has no route and is not stored",
			tables: `INSERT INTO outbox_events (id, event_type, payload) OVERRIDING SYSTEM VALUE VALUES (101, 'y', '{}')`,
		},
		"a delayed event from the time as a queue": {
			mode: outboxsql.ModeStream, owned: true, want: "an event whose delay has passed is not handed out",
			tables: `INSERT INTO outbox_deliveries (event_id, event_type, state) VALUES (1, 'x', 'retry')`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := tables(t, c.mode)
			p := &patient{T: t, pool: pool}
			var err error
			if p.Relay, err = New(pool); err != nil {
				t.Fatal(err)
			}
			if err := p.Handle("mail", "x", delivery.HandlerFunc(works)); err != nil {
				t.Fatal(err)
			}
			p.stream = c.mode == outboxsql.ModeStream
			execute(t, pool, c.tables)
			if c.owned {
				p.owns(mine)
			}
			hangs := p.audited(2*auditEvery + hangAfter) // the first audit finds out what lanes do; and a poll may find it
			if len(hangs) != 1 || !strings.Contains(hangs[0].Reason, c.want) || !hangs[0].Restart {
				t.Errorf("%+v, want one: %s", hangs, c.want)
			}
			if hangs := p.audited(hangAfter - auditEvery); len(hangs) > 0 {
				t.Errorf("too early: %+v", hangs)
			}
		})
	}
}

// owns makes the tables show that the relay owns all units until the end of the test.
func (p *patient) owns(insert string) {
	p.Helper()
	conn, err := p.pool.Acquire(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(conn.Release)
	if _, err := conn.Exec(p.Context(), insert, p.owner); err != nil {
		p.Fatal(err)
	}
	if _, err := conn.Exec(p.Context(), `INSERT INTO outbox_members (owner, renewals, alive_until, pid, wants) VALUES ($1, 1, 'infinity', pg_backend_pid(), '{}')`, p.owner); err != nil {
		p.Fatal(err)
	}
}

// TestStandstillOfAReplay: so does a unit that has begun and does not continue a replay.
func TestStandstillOfAReplay(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeStream)
	p := newPatient(t, pool, never, delivery.HandlerFunc(works))
	p.stream = true
	var begun anEngine = loaded{}
	p.engine.Store(&begun)
	execute(t, pool, insertThree)
	p.owns(`INSERT INTO outbox_positions (destination, head, owner) VALUES ('mail', 3, $1)`)
	execute(t, pool, `INSERT INTO outbox_replays (destination, from_id, to_id, head, number, created_by) VALUES ('mail', 1, 3, 0, 1, 'a test')`)
	if hangs := p.audited(auditEvery + hangAfter); len(hangs) != 1 || !strings.Contains(hangs[0].Reason, "replay 1 is due for mail and not continued") {
		t.Errorf("%+v", hangs)
	}
}

// loaded is an engine whose unit of mail has begun.
type loaded struct{ anEngine }

func (loaded) Stats(s *observe.Stats) { s.Positions = []observe.PositionStats{{Destination: "mail"}} }

// TestFrozenProcess: time in which the process was frozen, or the machine suspended, is not the time of a hang. The goroutine that
// counts is frozen like all others; here it alone is.
func TestFrozenProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(nil)
		a.running = true // and never comes back
		frozen := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			a.count(ctx, time.Second, func() { <-frozen })
		}()
		<-time.After(24 * time.Hour)
		close(frozen)
		synctest.Wait()
		if a.now() > 2*time.Second || len(a.hangs()) > 0 {
			t.Errorf("after a day frozen: %v have passed, %+v", a.now(), a.hangs())
		}
		<-time.After(hangAfter + time.Second)
		synctest.Wait()
		if all := a.hangs(); len(all) != 1 || !all[0].Restart || all[0].Lost {
			t.Errorf("awake again: %+v", all)
		}
		<-time.After(lostAfter)
		synctest.Wait()
		if all := a.hangs(); len(all) != 1 || !all[0].Lost {
			t.Errorf("much later: %+v", all)
		}
		stop()
		<-ended
		if all := a.hangs(); all != nil {
			t.Errorf("a relay that stops hangs: %+v", all)
		}
	})
}
