package integration

import (
	"syscall"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// listenedTo is true while the trigger finds a relay that listens: 1853122163 is the listening lock of sql/triggers.sql.
const listenedTo = `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND objsubid = 2
	AND classid = 1853122163 AND objid = (hashtext('outbox_events')::bigint & 4294967295)::oid
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

// TestWriterThatFoundNoRelay commits, without any poll to find it, an event whose writer found no relay that listens, after
// the relay has begun to listen. A session that keeps the lock from relays holds back the relay until the event is written. The
// prepared transaction also shows that the trigger was silent: PostgreSQL prepares none that has notified.
func TestWriterThatFoundNoRelay(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, prepare := range map[string]bool{"open": false, "prepared": true} {
		for _, mode := range bothModes() {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				server := testenv.OwnPostgres(t, map[string]string{"max_prepared_transactions": "5"})
				e, h := envAt(t, server.URL("")).become(mode), newRecorder(t)
				foreign, writer := testdb.Connect(t, e.url), testdb.Connect(t, e.url)
				testdb.Exec(t, foreign, `SELECT pg_advisory_lock(1853122163, hashtext('outbox_events'))`)
				r := e.start(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never})
				testenv.Await(t, "a relay that has settled and cannot listen", func() bool {
					s := r.Stats()
					return s.WakeState == "listening" && s.Listener.Trouble != nil
				})

				heard := e.listen()
				testdb.Exec(t, writer, `BEGIN; INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`)
				commit := `COMMIT`
				if prepare {
					testdb.Exec(t, writer, `PREPARE TRANSACTION 'silent'`)
					commit = `COMMIT PREPARED 'silent'`
				}
				testdb.Exec(t, foreign, `SELECT pg_advisory_unlock_all()`)
				testenv.Await(t, "a relay that listens and waits for the writer", func() bool {
					s := r.Stats()
					return s.Listener.Listening && s.Listener.Trouble == nil && s.WakeState == "settling"
				})
				testdb.Exec(t, writer, commit)

				e.untilDone()
				h.next()
				e.exec(`NOTIFY outbox_events, 'end'`)
				if payloads := rings(heard("end")); len(payloads) > 0 {
					t.Errorf("the writer was not silent, which proves nothing: %v", payloads)
				}
			})
		}
	}
}

// TestWritersBesideAFrozenRelay: the server ends the session by which a frozen relay listens, so writers no longer notify.
// The relay finds their events when it continues.
func TestWritersBesideAFrozenRelay(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	e := newEnv(t)
	e.withLeases()
	v := e.startLeaseVictim()
	e.until("a relay that listens", listenedTo)
	v.signal(syscall.SIGSTOP)
	e.until("the end of the frozen session", `SELECT NOT (`+listenedTo+`)`)

	heard := e.listen()
	id := e.insert("fast", "1")
	e.exec(`NOTIFY outbox_events, 'end'`)
	if payloads := heard("end"); len(payloads) > 0 {
		t.Errorf("beside a frozen relay writers notified %v", payloads)
	}
	v.signal(syscall.SIGCONT)
	e.untilState(id, "done")
	e.until("a relay that listens again", listenedTo)
}

// TestWritersWhileRelaysComeAndGo writes around the moments at which relays begin to listen, without any poll. Each event
// is delivered before the next change.
func TestWritersWhileRelaysComeAndGo(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			var steps []step
			for trips := range 12 {
				steps = append(steps, step{kind: stepDeafen, key: 4, trips: 2 * trips}, step{kind: stepAwait})
			}
			if err := execute(notifyEnv(t, mode), plan{relays: 2, steps: steps}, patience, never); err != nil {
				t.Fatal(err)
			}
		})
	}
}
