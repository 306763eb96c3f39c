package integration

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
)

// silence starts a relay in a process of its own that keeps the bell silent:
// its handler does not answer, and there is more to do than it has room for.
func (e *env) silence(cmd *exec.Cmd) {
	e.t.Helper()
	e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 3000)`)
	e.run(cmd)
	e.until("bell silent", holdsBell)
}

// TestBellOfARelayThatIsKilled commits what writers had written silently when
// the one relay that knew of it was killed.
func TestBellOfARelayThatIsKilled(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, survivor := range []string{"started before", "started after"} {
			t.Run(string(level)+"/"+survivor, func(t *testing.T) {
				t.Parallel()
				e, h := newEnv(t), newRecorder(t)
				victim := e.victim(50 * time.Millisecond)
				e.silence(victim)
				poll := notifyd.WithPollInterval(200 * time.Millisecond)
				if survivor == "started before" {
					e.relay(handleAll(t, h), poll)
					e.until("all but the victim's own delivered", `SELECT NOT EXISTS (SELECT FROM outbox_events WHERE state = 'fresh')`)
				}
				commit := e.writeSilently(level)
				if err := victim.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				e.until("bell rings again", `SELECT NOT (`+holdsBell+`)`)
				commit()
				if survivor == "started after" {
					e.relay(handleAll(t, h), poll)
				}
				e.untilDone()
				if n := scan[int](e, `SELECT count(*) FROM outbox_events WHERE event_type = 'b'`); n != 4+2+65+1 {
					t.Errorf("%d events were written", n)
				}
			})
		}
	}
}

// TestBellOfARelayThatDiedBefore commits, without any poll to find it, what
// writers had written silently for a relay that was dead before this one came.
func TestBellOfARelayThatDiedBefore(t *testing.T) {
	t.Parallel()
	e, h := ownEnv(t), newRecorder(t) // a server of its own, or foreign transactions would keep the relay drowsy
	// The lock is all that is left of a relay to writers. One that had left
	// events behind would make this one sweep for reasons of its own.
	dead, err := pgx.Connect(t.Context(), e.url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dead.Exec(t.Context(), `SELECT pg_advisory_lock(1853122162::bigint << 32 | 'outbox_events'::regclass::oid::bigint)`); err != nil {
		t.Fatal(err)
	}
	heard := e.listen()
	writer, err := e.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Rollback(t.Context()) }()
	if _, err := writer.Exec(t.Context(), `INSERT INTO outbox_events (event_type, payload) VALUES ('b', '1')`); err != nil {
		t.Fatal(err)
	}
	if err := dead.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.until("bell rings again", `SELECT NOT (`+holdsBell+`)`)
	e.relay(handleAll(t, h), notifyd.WithPollInterval(never))
	if err := writer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.untilDone()
	e.exec(`NOTIFY outbox_events, 'end'`)
	if payloads := heard("end"); len(payloads) > 0 {
		t.Errorf("the writer was not silent, which proves nothing: %v", payloads)
	}
}

// writeSilently leaves transactions of all kinds open, and proves that none
// will ring. commit ends them.
func (e *env) writeSilently(level pgx.TxIsoLevel) (commit func()) {
	e.t.Helper()
	heard := e.listen()
	y := newPlayer(e, patience)
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
	e.until("bell still silent", holdsBell)
	return func() {
		e.t.Helper()
		for w := range 4 {
			do(w, step{kind: stepCommit})
		}
		e.exec(`NOTIFY outbox_events, 'end'`)
		if payloads := heard("end"); len(payloads) > 0 {
			e.t.Errorf("the writers were not silent, which proves nothing: %v", payloads)
		}
	}
}

// TestBellOfARelayThatIsFrozen writes while a relay that does not move keeps
// the bell silent. The other relay finds out by polling, and polls fast then.
func TestBellOfARelayThatIsFrozen(t *testing.T) {
	t.Parallel()
	for name, poll := range map[string]time.Duration{"found by the poll": 200 * time.Millisecond, "found by fast ones": never} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, h := newEnv(t), newRecorder(t)
			frozen := e.victim(50 * time.Millisecond)
			frozen.Env = append(frozen.Env, envVictimAnswers+"=1")
			answer, err := frozen.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			e.silence(frozen)
			e.relay(handleAll(t, h), notifyd.WithPollInterval(poll))
			e.until("all but the frozen relay's own delivered", `SELECT NOT EXISTS (SELECT FROM outbox_events WHERE state = 'fresh')`)
			if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			heard := e.listen()
			e.untilFoundFast()
			e.exec(`NOTIFY outbox_events, 'end'`)
			for _, payload := range heard("end") {
				if payload != "" {
					t.Errorf("a writer was not silent, which proves nothing: %s", payload)
				}
			}
			if err := frozen.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if err := answer.Close(); err != nil {
				t.Fatal(err)
			}
			e.untilDone()
			e.until("bell rings again", `SELECT NOT (`+holdsBell+`)`)
		})
	}
}

// foundWithin is short beside a poll that is an hour off, and long beside those
// that are to find an event.
const foundWithin = 5 * time.Second

// untilFoundFast writes one event after the other until ten in a row were
// found though nobody told of them. Where the poll is far off, a look at the
// table has to make the relay suspicious; it may take several, because they
// count only once it is asleep, and nobody tells when.
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
	y := &player{env: e, ctx: e.ctx, patience: d}
	return y.until("delivery", `SELECT state = 'done' FROM outbox_events WHERE id = $1`, id) == nil
}
