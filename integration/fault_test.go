package integration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// suppressed is true while a relay suppresses the trigger: 1853122162 is the
// upper half of the advisory lock's number.
const suppressed = `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
	AND classid = 1853122162 AND objid = 'outbox_events'::regclass::oid
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

func TestKilledInTheMiddleOfAHandler(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		mode   outboxsql.Mode
		budget time.Duration
		state  string // of the event while the handler runs
	}{
		// The claim's transaction is open: its locks end with the process.
		"holding locks": {outboxsql.ModeQueue, 2 * time.Second, "fresh"},
		// The lock budget is over: the lease ends with the process too.
		"holding a lease": {outboxsql.ModeQueue, time.Millisecond, "deferred"},
		// The lease of the destination expires within 2 s.
		"holding a shard": {outboxsql.ModeStream, time.Second, "fresh"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, test.mode), newRecorder(t)
			cmd, lines := e.startVictim(test.budget)
			begin := time.Now()
			id := e.insert("order.created", `{}`)
			if line := testenv.Receive(t, patience, "a line of the relay that is to be killed", lines); line != strconv.FormatInt(id, 10) {
				t.Fatalf("the relay to be killed got event %s, want %d", line, id)
			}
			if test.state == "deferred" {
				e.untilState(id, test.state)
			}
			// The budget begins when the event has been written.
			if state := scan[string](e, `SELECT state FROM outbox_events WHERE id = $1`, id); state != test.state && time.Since(begin) < test.budget {
				t.Errorf("the event is %s %v after it was written, want %s", state, time.Since(begin), test.state)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Lease: time.Hour}) // not because a lease ran out
			if got := h.next(); got.ID != id || got.Attempt != 1 {
				t.Errorf("got event %d, attempt %d; want %d, attempt 1", got.ID, got.Attempt, id)
			}
			e.untilDone()
		})
	}
}

func TestLeaseThatRunsOutIsClaimedAgain(t *testing.T) {
	t.Parallel()
	e, h := newEnv(t), newRecorder(t)
	id := e.insert("order.created", `{}`)
	e.exec(`UPDATE outbox_events SET state = 'deferred'`)
	// A relay that is alive, according to its lock, but does not renew.
	conn, err := e.pool.Acquire(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(e.ctx, `SELECT pg_advisory_lock(1853122159::bigint << 32 | 7)`); err != nil {
		t.Fatal(err)
	}
	e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
		VALUES ($1, 'all', 'order.created', 'running', 1853122159::bigint << 32 | 7, 1, clock_timestamp() + interval '300 ms')`, id)
	e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
	h.next()
	e.untilDone()
	if late := scan[bool](e, `SELECT clock_timestamp() > (SELECT created_at + interval '300 ms' FROM outbox_events)`); !late {
		t.Error("claimed before the lease had run out")
	}
}

func TestSlowHandlerHoldsNoTransactionOpen(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			release := make(chan struct{})
			h.answer = func(ctx context.Context, _ *delivery.Event) error {
				select {
				case <-release:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			id := e.insert("order.created", `{}`)
			h.next()
			kept := `EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1 AND state = 'running' AND lease_until > clock_timestamp())`
			if mode == outboxsql.ModeStream {
				kept = `EXISTS (SELECT FROM outbox_positions WHERE destination = 'all' AND $1::bigint <@ open)`
			}
			e.until("transaction ended, lease or position written", `SELECT NOT EXISTS (
					SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%' AND xact_start IS NOT NULL)
				AND `+kept, id)
			close(release)
			e.untilState(id, "done")
			if n := h.times(id); n != 1 {
				t.Errorf("delivered %d times, want once", n)
			}
		})
	}
}

func TestSlowDestinationDoesNotHoldBackAnother(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, slow, fast := newEnvIn(t, mode), newRecorder(t), newRecorder(t)
			release := make(chan struct{})
			slow.answer = func(ctx context.Context, _ *delivery.Event) error {
				select {
				case <-release:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
			e.relay(func(r *notifyd.Relay) {
				if err := r.Handle("slow", notifyd.Destination{Name: "slow", Handler: slow, Lane: delivery.Lane{Concurrency: 2}}); err != nil {
					t.Fatal(err)
				}
				if err := r.Handle("fast", notifyd.Destination{Name: "fast", Handler: fast}); err != nil {
					t.Fatal(err)
				}
			}, notifyd.Config{})
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'slow', '1' FROM generate_series(1, 5000)`)
			for range 2 {
				slow.next()
			}
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'fast', '1' FROM generate_series(1, 5000)`)
			e.untilAll("fast ones delivered", "fast", `e.event_type = 'fast'`)
			if n := e.untouched("slow", "slow"); n < 4990 {
				t.Errorf("only %d of the slow destination's events are untouched", n)
			}
			close(release)
			e.untilDone()
		})
	}
}

func TestTwoRelaysShareTheWork(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			first, second := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{}), e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			const n = 3000
			for i := range n / 10 {
				if i%30 == 0 {
					e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'n', '1' FROM generate_series(1, $1)`, n*9/100)
				}
				e.insert("n", `1`)
			}
			e.untilDone()
			h.each(scan[int](e, `SELECT count(*) FROM outbox_events`), first, second)
		})
	}
}

func TestOneInsertOfAHundredThousandRows(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			var count atomic.Int64
			r := e.relay(handleAll(t, delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
				count.Add(1)
				return nil
			}), delivery.Lane{}), notifyd.Config{PollInterval: never})
			heard := e.listen()
			began := time.Now()
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'n', to_json(n) FROM generate_series(1, 100000) n`)
			e.untilDone()
			if n := count.Load(); n < 100000 || n > 100000 && !r.lostClaim() {
				t.Errorf("%d deliveries, want 100000", n)
			}
			e.exec(`NOTIFY outbox_events, 'end'`)
			payloads := heard("end")
			all := len(payloads)
			payloads = slices.DeleteFunc(payloads, func(payload string) bool { return payload == pgschema.WordPolling })
			if len(payloads) > 1 {
				t.Errorf("%d notifications for one statement: %q", len(payloads), payloads[:min(20, len(payloads))])
			}
			// In a stream the relay also announces that it suppresses the trigger, and does
			// not let it ring at every stall of the machine, of which a slow run has more.
			took := time.Since(began)
			if n := all - len(payloads); n > 5+int(took/time.Second) {
				t.Errorf("notifications were suppressed %d times for one statement in %v", n, took)
			}
		})
	}
}

// listen listens in addition to the relay. The returned function returns the
// payloads heard before the given one.
func (e *env) listen() (until func(payload string) []string) {
	e.t.Helper()
	conn, err := pgx.Connect(e.ctx, e.url)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(e.ctx)) })
	if _, err := conn.Exec(e.ctx, `LISTEN outbox_events`); err != nil {
		e.t.Fatal(err)
	}
	return func(payload string) (before []string) {
		e.t.Helper()
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		defer cancel()
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				e.t.Fatal(err)
			}
			if n.Payload == payload {
				return before
			}
			before = append(before, n.Payload)
		}
	}
}

func TestListenerTerminated(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never})
			// While the connection is gone, so is the notification: the look that
			// follows each LISTEN has to find the event.
			n := scan[int](e, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'notifyd/listen'`)
			if n != 1 {
				t.Fatalf("%d listening connections", n)
			}
			id := e.insert("order.created", `{}`)
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			// The old session may stay visible until it has noticed that it was ended.
			testenv.Await(t, "the loss of the listener", func() bool { return r.count("not listening") > 0 })
			testenv.Await(t, "the return of the listener", func() bool { s := r.Stats().Listener; return s.Listening && s.Trouble == nil })
			id = e.insert("order.created", `{}`)
			if got := h.next(); got.ID != id {
				t.Errorf("got event %d, want %d", got.ID, id)
			}
			e.untilDone()
			if n := r.count("not listening"); n != 1 && r.Stats().Listener.Overdue == 0 {
				t.Errorf("the loss was reported %d times, want once", n)
			}
		})
	}
}

func TestEveryConnectionTerminated(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			for round := range 5 {
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'n', '1' FROM generate_series(1, 500)`)
				e.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%'`)
				e.insert("n", strconv.Itoa(round))
				e.untilDone()
			}
			// At most the events in flight come twice: all of them in each round.
			if copies := h.all(e, 5*501); copies > 5*501 {
				t.Errorf("%d copies of %d events", copies, 5*501)
			}
		})
	}
}

// insertWhenUp inserts as soon as the server accepts it.
func (e *env) insertWhenUp(eventType string) (id int64) {
	e.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		err := e.pool.QueryRow(e.ctx, `INSERT INTO outbox_events (event_type, payload) VALUES ($1, '1') RETURNING id`, eventType).Scan(&id)
		if err == nil {
			return id
		}
	}
	e.t.Fatal("server did not come back")
	return 0
}

func TestStartsBeforeTheDatabase(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, nil)
			e, h := envAt(t, server.URL("")).become(mode), newRecorder(t)
			id := e.insert("order.created", `{}`)
			if err := server.Halt(t.Context(), pgserver.Fast); err != nil {
				t.Fatal(err)
			}
			seen := make(incidents, 1000)
			r := e.start(handleAll(t, h, delivery.Lane{}), notifyd.Config{Observer: seen})
			if i := seen.until(t, delivery.IncidentDatabaseLost); i.Err == nil || !r.Stats().DatabaseDown {
				t.Errorf("incident %+v, stats %+v", i, r.Stats())
			}
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			seen.until(t, delivery.IncidentDatabaseBack)
			r.waitReady()
			if got := h.next(); got.ID != id || r.Stats().DatabaseDown {
				t.Errorf("got event %d, want %d; stats %+v", got.ID, id, r.Stats())
			}
		})
	}
}

// TestStopsBeforeItIsReady: a relay that never started work leaves no connection.
func TestStopsBeforeItIsReady(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			e.exec(`ALTER TABLE outbox_deliveries RENAME TO hidden`)
			seen := make(incidents, 1000)
			r := e.start(handleAll(t, newRecorder(t), delivery.Lane{}), notifyd.Config{Observer: seen})
			seen.until(t, delivery.IncidentRefused)
			if err := r.end(); err != nil {
				t.Error(err)
			}
			e.until("all connections closed", `SELECT NOT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND application_name LIKE 'notifyd/%')`)
		})
	}
}

func TestStopsWithoutCountingAnAttempt(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			h.answer = func(ctx context.Context, _ *delivery.Event) error {
				<-ctx.Done()
				return fmt.Errorf("interrupted: %w", context.Cause(ctx))
			}
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{ShutdownTimeout: 50 * time.Millisecond})
			id := e.insert("order.created", `{}`)
			h.next()
			if err := r.end(); err != nil {
				t.Fatal(err)
			}
			second := newRecorder(t)
			e.relay(handleAll(t, second, delivery.Lane{}), notifyd.Config{})
			if got := second.next(); got.ID != id || got.Attempt != 1 {
				t.Errorf("got event %d, attempt %d; want %d, attempt 1", got.ID, got.Attempt, id)
			}
			e.untilDone()
		})
	}
}

func TestRunReturnsForASchemaThatDoesNotFit(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ before, want string }{
		"not migrated": {`DROP TABLE outbox_migrations`, "run `notifyd migrate`"},
		"too new":      {`INSERT INTO outbox_migrations (version, name) VALUES (999, 'from the future')`, "upgrade notifyd"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.exec(test.before)
			relay, err := notifyd.New(e.pool, notifyd.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if err := relay.Run(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Run returned %v, want a hint to %q", err, test.want)
			}
		})
	}
}
