package integration

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/listener"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// suppressor is another relay, which suppresses the trigger.
type suppressor struct{ kill, freeze, thaw func() }

// silence makes another relay suppress the trigger. Writers and other relays see only its lock.
func (e *env) silence() suppressor {
	e.t.Helper()
	s := e.startSuppressor()
	e.until("notifications suppressed", suppressed)
	return s
}

func (e *env) startSuppressor() suppressor {
	e.t.Helper()
	notify := listener.NewTrigger(func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, e.url) }, slog.New(slog.DiscardHandler))
	notify.Announce(pgschema.Channel(outboxsql.DefaultSchema))
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.ctx))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = notify.Run(ctx) }() // the end of ctx
	end := func() { cancel(); <-ended }
	e.t.Cleanup(end)
	notify.Suppress()
	return suppressor{kill: end, freeze: func() {}, thaw: end}
}

// rings returns the notifications of events, without those of relays.
func rings(payloads []string) []string {
	return slices.DeleteFunc(payloads, func(p string) bool {
		return slices.Contains([]string{pgschema.WordPolling, pgschema.WordShards, pgschema.WordDeliveries}, p)
	})
}

// TestNotifyAfterARelayIsKilled commits events that writers had written silently
// when the only relay that knew of them was killed. A stream needs no poll for
// that.
func TestNotifyAfterARelayIsKilled(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for mode, poll := range map[outboxsql.Mode]time.Duration{outboxsql.ModeQueue: 200 * time.Millisecond, outboxsql.ModeStream: never} {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			for _, survivor := range []string{"started before", "started after"} {
				t.Run(string(mode)+"/"+string(level)+"/"+survivor, func(t *testing.T) {
					t.Parallel()
					e, h := newEnvIn(t, mode), newRecorder(t)
					victim := e.silence()
					config := notifyd.Config{PollInterval: poll}
					if survivor == "started before" {
						e.relay(handleAll(t, h, delivery.Lane{}), config)
						e.untilDone()
					}
					commit, check := e.writeSilently(level)
					victim.kill()
					e.until("notifications released", `SELECT NOT (`+suppressed+`)`)
					if survivor == "started before" {
						e.letSettle()
					}
					commit()
					if survivor == "started after" {
						e.relay(handleAll(t, h, delivery.Lane{}), config)
					}
					e.untilDone()
					check()
					if n := scan[int](e, `SELECT count(*) FROM outbox_events WHERE event_type = 'b'`); n != 4+2+65+1 {
						t.Errorf("%d events were written", n)
					}
				})
			}
		}
	}
}

// letSettle waits until the relay of a stream has renewed its lease three times, so that it
// has had time to begin to listen. A later event would make it search for ids that
// were drawn before.
func (e *env) letSettle() {
	e.t.Helper()
	if e.mode != outboxsql.ModeStream {
		return
	}
	const shown = `SELECT max(query_start)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'notifyd/leases'`
	for range 3 {
		e.until("a sign of life of a relay", `SELECT (`+shown+`) > $1::text`, scan[string](e, shown))
	}
}

// TestNotifyAfterARelayDied commits, without any poll to find them, events
// that writers had written silently for a relay that died before this one
// started.
func TestNotifyAfterARelayDied(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := notifyEnv(t, mode), newRecorder(t)
			// To writers, a dead relay is only its lock. A real one that had left events
			// behind would make this one sweep for other reasons.
			dead := e.startSuppressor()
			e.until("notifications suppressed", suppressed)
			heard := e.listen()
			writer, err := e.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = writer.Rollback(context.WithoutCancel(t.Context())) }()
			if _, err := writer.Exec(t.Context(), `INSERT INTO outbox_events (event_type, payload) VALUES ('b', '1')`); err != nil {
				t.Fatal(err)
			}
			dead.kill()
			e.until("notifications released", `SELECT NOT (`+suppressed+`)`)
			e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never})
			e.letSettle()
			if err := writer.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			e.untilDone()
			h.next()
			e.exec(`NOTIFY outbox_events, 'end'`)
			if payloads := rings(heard("end")); len(payloads) > 0 {
				t.Errorf("the writer was not silent, which proves nothing: %v", payloads)
			}
		})
	}
}

// writeSilently leaves transactions of all kinds open. commit ends them, and
// check, which makes relays look, proves that none has rung.
func (e *env) writeSilently(level pgx.TxIsoLevel) (commit, check func()) {
	e.t.Helper()
	heard := e.listen()
	y := newPlanRun(e, patience)
	e.t.Cleanup(func() {
		if err := y.end(); err != nil {
			e.t.Error(err)
		}
	})
	do := func(w int, s step) {
		e.t.Helper()
		for len(y.sessions) <= w {
			if err := y.connect(); err != nil {
				e.t.Fatal(err)
			}
		}
		s.event, s.slot = "b", w
		if err := y.write(y.sessions[w], s); err != nil {
			e.t.Fatalf("%v: %v", s, err)
		}
	}
	for w := range 5 {
		do(w, step{kind: stepBegin, level: level, rows: 1})
	}
	do(0, step{kind: stepKeyed, rows: 2})
	do(0, step{kind: stepKeyed, rows: 1}) // in conflict
	do(1, step{kind: stepCopy, rows: 65})
	do(2, step{kind: stepSave, rows: 1000})
	do(2, step{kind: stepUnsave})
	do(3, step{kind: stepSave, rows: 1})
	do(3, step{kind: stepRelease})
	do(4, step{kind: stepRollback})
	e.until("notifications still suppressed", suppressed)
	commit = func() {
		e.t.Helper()
		for w := range 4 {
			do(w, step{kind: stepCommit})
		}
	}
	return commit, func() {
		e.t.Helper()
		e.exec(`NOTIFY outbox_events, 'end'`)
		if payloads := rings(heard("end")); len(payloads) > 0 {
			e.t.Errorf("the writers were not silent, which proves nothing: %v", payloads)
		}
	}
}

// besideFrozen reports whether writers were silent as long as they wrote.
func besideFrozen(t *testing.T, mode outboxsql.Mode, poll time.Duration) (silent bool) {
	t.Helper()
	e, h := newEnvIn(t, mode), newRecorder(t)
	frozen := e.silence()
	e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: poll})
	e.untilDone()
	frozen.freeze()
	heard := e.listen()
	e.untilFoundFast()
	e.exec(`NOTIFY outbox_events, 'end'`)
	silent = !slices.ContainsFunc(rings(heard("end")), func(payload string) bool { return payload != "" })
	frozen.thaw()
	e.untilDone()
	e.until("notifications released", `SELECT NOT (`+suppressed+`)`)
	return silent
}

// TestNotifyWhileARelayIsFrozen writes while a frozen relay suppresses the trigger.
// The other relay of a queue notices by polling, and then polls fast; that of a
// stream knows that the trigger does not notify.
func TestNotifyWhileARelayIsFrozen(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, poll := range map[string]time.Duration{"found by the poll": 200 * time.Millisecond, "found by fast polls": never} {
		for _, mode := range bothModes() {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				// On a busy machine the server may end the session of the frozen relay, after 5 s, while writers
				// still write: then it begins anew.
				for range 5 {
					if besideFrozen(t, mode, poll) {
						return
					}
				}
				t.Fatal("no writer was silent for long enough, which proves nothing")
			})
		}
	}
}

// foundWithin is short compared with a poll interval of an hour, and long
// compared with a fast poll.
const foundWithin = 5 * time.Second

// untilFoundFast writes one event after the other until ten in a row were found
// without a notification. With a long poll interval, a look at the table must
// make the relay poll first. That may take several looks, because they
// count only while the relay is listening, and no signal shows when it is.
func (e *env) untilFoundFast() {
	e.t.Helper()
	deadline := time.Now().Add(patience)
	for found := 0; found < 10; {
		if time.Now().After(deadline) {
			e.t.Fatalf("no ten events in a row were found; the tables:\n%s", e.dump())
		}
		id := e.insert("b", `1`)
		if e.doneWithin(foundWithin, id) {
			found++
			continue
		}
		found = 0
		e.exec(`NOTIFY outbox_events, ''`)
		e.untilState(id, "done")
	}
}

func (e *env) doneWithin(d time.Duration, id int64) bool {
	y := &planRun{env: e, ctx: e.ctx, patience: d}
	return y.until("delivery", doneWhere(e.mode, everyPlace, `e.id = $1`), id) == nil
}
