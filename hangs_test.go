package notifyd

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// never is a second of an check whose time a test makes pass.
const never = time.Hour

// checked returns what an check has found after the given time, in which the relay may do what it wants.
func (p *patient) checked(long time.Duration) (hangs []observe.Hang) {
	p.Helper()
	a := newHangCheck(p.Relay)
	for range long / checkEvery {
		a.find(p.Context())
		a.ticks.Add(int64(checkEvery / time.Second))
	}
	return a.find(p.Context())
}

// TestHangsOutlastWrites: a relay that writes its positions as late as it may does not hang.
func TestHangsOutlastWrites(t *testing.T) {
	t.Parallel()
	if hangAfter <= 2*position.LongestUnwritten {
		t.Errorf("a hang is due after %v, and an acknowledgement may be unwritten for %v", hangAfter, position.LongestUnwritten)
	}
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
func busy(t *testing.T, pool *pgxpool.Pool, insert string, answer func(ctx context.Context) error, lane delivery.Lane) *patient {
	t.Helper()
	h, called := errands(answer)
	p := newPatient(t, pool, never, h, lane)
	execute(t, pool, insert)
	p.start()
	<-called
	return p
}

// paused starts a relay with events for a destination that is paused, and which gets all, or those of a type.
func paused(t *testing.T, pool *pgxpool.Pool, name string) *patient {
	t.Helper()
	p := newPatient(t, pool, never, delivery.HandlerFunc(works), delivery.Lane{})
	if name != "mail" {
		if err := errors.Join(p.Add(Destination{Name: name, Handler: delivery.HandlerFunc(works)}), p.Route("x", name)); err != nil {
			t.Fatal(err)
		}
	}
	p.start()
	if err := p.Ops().Pause(t.Context(), name, ops.Action{Actor: "a test"}); err != nil {
		t.Fatal(err)
	}
	execute(t, pool, insertThree)
	return p
}

// TestNoHang: what waits for another reason than a hang is none, for however long, and in both modes.
func TestNoHang(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const later = `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id, available_at)
		SELECT 'x', '{}', 'a', '1', CASE WHEN i = 3 THEN now() + interval '1 day' END FROM generate_series(1, 3) AS i`
	for name, prepare := range map[string]func(t *testing.T, pool *pgxpool.Pool) *patient{
		"idle": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			p := newPatient(t, pool, never, delivery.HandlerFunc(works), delivery.Lane{})
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
			return busy(t, pool, insertThree, func(context.Context) error { return delivery.Unavailable(errors.New("away")) }, delivery.Lane{})
		},
		"a destination that throttles": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(context.Context) error { return delivery.Throttled(time.Hour, errors.New("later")) }, delivery.Lane{})
		},
		"a lane full of slow handlers": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(context.Context) error {
				<-t.Context().Done() // when the relay ends, too, which would wait for the call
				return nil
			}, delivery.Lane{Concurrency: 1, Timeout: time.Hour})
		},
		"events that are delayed, and others that wait for their next attempt": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, later, func(context.Context) error { return delivery.RetryAfter(time.Hour, errors.New("no")) }, delivery.Lane{})
		},
		"an order of all events whose first one waits for its next attempt": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(context.Context) error { return delivery.RetryAfter(time.Hour, errors.New("no")) }, inTotalOrder(t, pool))
		},
		"an order of all events that waits for an open transaction": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			lane := inTotalOrder(t, pool)
			p := newPatient(t, pool, never, delivery.HandlerFunc(works), lane)
			p.start()
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
			testdb.Exec(t, tx, insertThree)
			execute(t, pool, insertThree)
			if lane.Order == delivery.OrderTotal {
				testenv.Await(t, "the events behind the transaction are read", func() bool {
					return slices.ContainsFunc(p.Stats().Positions, func(s observe.PositionStats) bool { return s.Destination == "mail" && s.Gaps > 0 && s.Open > 0 })
				})
			}
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
				t.Helper()
				if hangs := prepare(t, pool).checked(10 * time.Minute); len(hangs) > 0 {
					t.Errorf("%+v", hangs)
				}
			})
		})
	}
}

// inTotalOrder returns the lane of a destination in total order, which only a stream has.
func inTotalOrder(t *testing.T, pool *pgxpool.Pool) delivery.Lane {
	t.Helper()
	var mode string
	if err := pool.QueryRow(t.Context(), `SELECT mode FROM outbox_mode`).Scan(&mode); err != nil {
		t.Fatal(err)
	}
	if mode != string(outboxsql.ModeStream) {
		return delivery.Lane{}
	}
	return delivery.Lane{Order: delivery.OrderTotal}
}

// TestOtherRelayDoesTheWork: a relay without anything to do, beside one that does all, does not hang.
func TestOtherRelayDoesTheWork(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		entered, leave := make(chan struct{}, 10), make(chan struct{})
		worker := newPatient(t, pool, never, delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
			entered <- struct{}{}
			<-leave
			return nil
		}), delivery.Lane{Timeout: time.Hour})
		worker.start()
		execute(t, pool, insertThree)
		<-entered
		idle := newPatient(t, pool, never, delivery.HandlerFunc(works), delivery.Lane{Concurrency: 1})
		idle.run()
		<-idle.listens // in a stream it is ready only when the other one has given a shard away
		if hangs := append(idle.checked(30*time.Minute), worker.checked(30*time.Minute)...); len(hangs) > 0 {
			t.Errorf("%+v", hangs)
		}
		close(leave)
	})
}

// TestStandstill: of a relay that does nothing at all, the check finds each kind of due work, and that a restart is likely to help.
func TestStandstill(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const mine = `INSERT INTO outbox_positions (destination, head, owner) VALUES ('mail', 0, $1), ('', 100, $1)`
	for name, c := range map[string]struct {
		mode   outboxsql.Mode
		tables string
		owned  bool   // the relay owns the shards
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
		"a shard": {
			mode: outboxsql.ModeStream, want: "no relay holds the shard of mail",
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
		"the unrouted scanner": {
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
			if p.Relay, err = New(pool, Config{}); err != nil {
				t.Fatal(err)
			}
			if err := p.Handle("x", Destination{Name: "mail", Handler: delivery.HandlerFunc(works)}); err != nil {
				t.Fatal(err)
			}
			p.stream = c.mode == outboxsql.ModeStream
			execute(t, pool, c.tables)
			if c.owned {
				p.owns(mine)
			}
			hangs := p.checked(2*checkEvery + hangAfter) // the first check finds out what lanes do; and a poll may find it
			if len(hangs) != 1 || !strings.Contains(hangs[0].Reason, c.want) || !hangs[0].Restart {
				t.Errorf("%+v, want one: %s", hangs, c.want)
			}
			if hangs := p.checked(hangAfter - checkEvery); len(hangs) > 0 {
				t.Errorf("too early: %+v", hangs)
			}
		})
	}
}

// owns makes the tables show that the relay owns all shards until the end of the test.
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

// TestStandstillOfAReplay: so does a shard that has begun and does not continue a replay.
func TestStandstillOfAReplay(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeStream)
	p := newPatient(t, pool, never, delivery.HandlerFunc(works), delivery.Lane{})
	p.stream = true
	var begun eventEngine = loaded{}
	p.engine.Store(&begun)
	execute(t, pool, insertThree)
	p.owns(`INSERT INTO outbox_positions (destination, head, owner) VALUES ('mail', 3, $1)`)
	execute(t, pool, `INSERT INTO outbox_replays (destination, from_id, to_id, head, number, created_by) VALUES ('mail', 1, 3, 0, 1, 'a test')`)
	if hangs := p.checked(checkEvery + hangAfter); len(hangs) != 1 || !strings.Contains(hangs[0].Reason, "replay 1 is due for mail and not continued") {
		t.Errorf("%+v", hangs)
	}
}

// loaded is an engine whose shard of mail has begun.
type loaded struct{ eventEngine }

func (loaded) Stats(s *observe.Stats) { s.Positions = []observe.PositionStats{{Destination: "mail"}} }

// TestFrozenProcess: time in which the process was frozen, or the machine suspended, is not the time of a hang. The goroutine that
// counts is frozen like all others; here it alone is.
func TestFrozenProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newHangCheck(nil)
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
			t.Errorf("after the freeze: %+v", all)
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
	if _, err := outboxsql.Migrate(t.Context(), conn.Conn(), "public", outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto}); err != nil {
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

// short is a second of an check in a hurry: two minutes are six seconds, longer than any wait for the database.
const short = 50 * time.Millisecond

// shorter is one where a real hang lasts until it is found: seven minutes, after which only a restart helps, are six seconds.
const shorter = 15 * time.Millisecond

// newPatient returns a relay in which a second lasts for beat, with the destination mail for everything.
func newPatient(t *testing.T, pool *pgxpool.Pool, beat time.Duration, h delivery.Handler, lane delivery.Lane) *patient {
	t.Helper()
	p := &patient{T: t, pool: pool, hangs: make(chan delivery.Incident, 100), held: make(chan struct{}), free: make(chan struct{})}
	var err error
	p.Relay, err = New(pool, Config{Observer: p, Canary: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	p.beat = beat
	if err := p.Handle("*", Destination{Name: "mail", Handler: h, Lane: lane}); err != nil {
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
		p := newPatient(t, pool, short, delivery.HandlerFunc(works), delivery.Lane{})
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
		p := newPatient(t, pool, shorter, delivery.HandlerFunc(works), delivery.Lane{})
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

// TestHangCheckHangs: an observer does not return, and keeps a lock that the check takes like the loops of the relay.
func TestHangCheckHangs(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		p := newPatient(t, pool, short, delivery.HandlerFunc(works), delivery.Lane{})
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
		p.hears(delivery.IncidentHang, "the hang check has not come back")
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
	testenv.Long(t)
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		h, called := errands(func(context.Context) error { return nil })
		p := newPatient(t, pool, short, h, delivery.Lane{})
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
	testenv.Long(t)
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		p := newPatient(t, pool, shorter, delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			if e.Type == "bad" {
				return delivery.Permanent(errors.New("no"))
			}
			return nil
		}), delivery.Lane{Concurrency: 1, Timeout: time.Second, Order: delivery.OrderNone})
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
	testenv.Long(t)
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
			p := newPatient(t, pool, short, delivery.HandlerFunc(works), delivery.Lane{})
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
	p := newPatient(t, pool, short, delivery.HandlerFunc(works), delivery.Lane{})
	p.start()
	p.hears(delivery.IncidentHang, "no relay has taken it over")
	if h := p.Health(); h.Ready() == nil || h.Hangs[0].Restart {
		t.Errorf("%+v", h)
	}
	unlock()
	p.waitsUntil("all is well", func(h *observe.Health) bool { return h.Ready() == nil })
}

// TestShardIsNotHeld: no relay can take the shard of a destination, because another session has locked its position.
func TestShardIsNotHeld(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	pool := tables(t, outboxsql.ModeStream)
	execute(t, pool, `INSERT INTO outbox_positions (destination, head) VALUES ('mail', 0)`)
	unlock := lock(t, pool, `SELECT FROM outbox_positions WHERE destination = 'mail' FOR UPDATE`)
	p := newPatient(t, pool, short, delivery.HandlerFunc(works), delivery.Lane{})
	p.start()
	p.hears(delivery.IncidentHang, "no relay holds the shard of mail")
	if h := p.Health(); h.Ready() == nil || h.Hangs[0].Restart {
		t.Errorf("%+v", h)
	}
	unlock()
	p.waitsUntil("all is well", func(h *observe.Health) bool { return h.Ready() == nil })
}

// passes waits until some of the check's time is over, and returns whether anything hung in it.
func (p *patient) passes(long time.Duration) (hung bool) {
	p.Helper()
	end := p.hangCheck.now() + long
	p.waitsUntil("time passes", func(h *observe.Health) bool {
		hung = hung || len(h.Hangs) > 0
		return p.hangCheck.now() >= end
	})
	return hung
}

// TestOutageIsNoHang: while the database is down, a relay is not ready and lives. It is ready again soon after the
// database is back.
func TestOutageIsNoHang(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, nil)
			cfg, err := pgxpool.ParseConfig(server.URL("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			// A server that dies may let a connection wait, for up to five real seconds: those would be
			// minutes of the check.
			cfg.ConnConfig.ConnectTimeout = 500 * time.Millisecond
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			migrate(t, pool, mode)
			delivered := make(chan struct{}, 100)
			p := newPatient(t, pool, short, delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
				delivered <- struct{}{}
				return nil
			}), delivery.Lane{})
			p.start()
			execute(t, pool, insertThree)
			<-delivered
			if err := server.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.waitsUntil("the database is down", func(h *observe.Health) bool { return h.DatabaseDown })
			if p.passes(4 * time.Minute) {
				t.Errorf("an outage is a hang: %+v", p.Health())
			}
			if h := p.Health(); h.Ready() == nil || h.Live() != nil {
				t.Errorf("during the outage: %+v", h)
			}
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.waitsUntil("the database is back", func(h *observe.Health) bool { return h.Ready() == nil })
			if p.passes(3 * time.Minute) {
				t.Errorf("after the outage: %+v", p.Health())
			}
		})
	}
}

// TestRefusalIsNoHang: a relay that stands still because the database refuses to record what it delivers does not
// hang: a restart would not help, and the refusal has a report of its own.
func TestRefusalIsNoHang(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for mode, table := range map[outboxsql.Mode]string{outboxsql.ModeQueue: "outbox_events", outboxsql.ModeStream: "outbox_positions"} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			pool, err := pgxpool.New(t.Context(), testenv.Database(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			migrate(t, pool, mode)
			p := newPatient(t, pool, short, delivery.HandlerFunc(works), delivery.Lane{})
			p.start()
			execute(t, pool, insertThree)
			p.waitsUntil("it works", func(h *observe.Health) bool { return h.Ready() == nil && p.Stats().Destinations[0].Delivered == 3 })
			execute(t, pool, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
			execute(t, pool, `CREATE TRIGGER no BEFORE UPDATE ON `+table+` FOR EACH ROW EXECUTE FUNCTION no()`)
			execute(t, pool, insertThree)
			p.waitsUntil("database refuses", func(*observe.Health) bool { return len(p.Stats().Refusals) > 0 })
			if p.passes(4 * time.Minute) {
				t.Errorf("a refusal is a hang: %+v", p.Health())
			}
		})
	}
}
