package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/session"
)

func (d *db) hold(k *Session) {
	d.Helper()
	if err := k.Hold(d.Context()); err != nil {
		d.Fatal(err)
	}
}

// TestOwnersAreApart: a number from NewOwner fits the two halves of pg_locks.
func TestOwnersAreApart(t *testing.T) {
	t.Parallel()
	seen := make(map[int64]bool)
	for range 1000 {
		o := NewOwner()
		if o>>32 != ownerSpace || o < 0 {
			t.Fatalf("owner %x", o)
		}
		seen[o] = true
	}
	if len(seen) < 999 {
		t.Errorf("%d different owners of 1000", len(seen))
	}
}

const remaining = `SELECT e.id::text FROM outbox_events AS e ORDER BY e.id`

// purgeAll purges as the relay does, and returns the number of batches.
func (d *db) purgeAll(k *Session, keep time.Duration, batch int) (batches int) {
	d.Helper()
	var after int64
	for more := true; more; batches++ {
		next, m, _, err := k.Purge(d.Context(), Range{after, math.MaxInt64}, keep, batch)
		if err != nil {
			d.Fatal(err)
		}
		if m && next <= after {
			d.Fatalf("more from %d on, after %d", next, after)
		}
		after, more = next, m
	}
	return batches
}

func TestPurge(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.insert("a", 10)
	d.exec(`UPDATE outbox_events SET state = 'done', processed_at = now() - interval '2 hours' WHERE id IN (1, 2, 4, 5, 9, 10)`)
	d.exec(`UPDATE outbox_events SET state = 'done', processed_at = now() - interval '5 min' WHERE id = 8`)
	d.exec(`UPDATE outbox_events SET state = 'deferred' WHERE id = 3`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (5, 'x', 'a', 'dead'), (3, 'x', 'a', 'retry')`)
	k := d.relaySession(options())
	next, more, _, err := k.Purge(t.Context(), Range{0, math.MaxInt64}, time.Hour, 3)
	if err != nil || next != 3 || !more {
		t.Errorf("first batch: next %d, more %t, %v", next, more, err)
	}
	d.expect("first batch", remaining, "3", "4", "5", "6", "7", "8", "9", "10")
	d.purgeAll(k, time.Hour, 3)
	d.expect("up to a batch with young ones and no old one", remaining, "3", "5", "6", "7", "8", "9", "10")
	d.purgeAll(k, time.Hour, 5)
	d.expect("past the young one", remaining, "3", "5", "6", "7", "8")
	d.purgeAll(k, 0, 3)
	d.expect("nothing is kept", remaining, "3", "5", "6", "7")
	if next, more, _, err := k.Purge(t.Context(), Range{1000, math.MaxInt64}, 0, 3); next != 1000 || more || err != nil {
		t.Errorf("at the end: %d %t %v", next, more, err)
	}
	if _, _, _, err := k.Purge(t.Context(), Range{0, math.MaxInt64}, 0, 0); !errors.Is(err, ErrNoProgress) {
		t.Errorf("batch of 0: %v", err)
	}
}

// TestPurgeGoesOn past events that have to stay, however many there are, and stops where the young
// ones begin.
func TestPurgeGoesOn(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]string{
		"deferred": `state = 'deferred'`,
		"fresh":    `state = 'fresh'`,
		"dead":     `state = 'done', processed_at = now() - interval '2 hours'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			d.insert("a", 50)
			d.exec(`UPDATE outbox_events SET ` + state)
			d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, 'x', 'a', 'dead' FROM outbox_events`)
			d.insert("old", 5)
			d.exec(`UPDATE outbox_events SET state = 'done', processed_at = now() - interval '2 hours' WHERE event_type = 'old'`)
			d.insert("young", 50)
			d.exec(`UPDATE outbox_events SET state = 'done', processed_at = now() WHERE event_type = 'young'`)
			batches := d.purgeAll(d.relaySession(options()), time.Hour, 10)
			if n := one[int](d, `SELECT count(*) FROM outbox_events WHERE event_type = 'old'`); n != 0 {
				t.Errorf("%d old events are left behind 50 that stay", n)
			}
			if batches != 7 {
				t.Errorf("%d batches, want 5 of those that stay, 1 with the old ones and 1 of young ones", batches)
			}
		})
	}
}

// TestSessionReconnects and proves life again.
func TestSessionReconnects(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	k := d.relaySession(o)
	d.hold(k)
	d.expect("alive", fmt.Sprintf(`SELECT (NOT pg_try_advisory_lock(%d))::text`, o.Owner), "true")
	d.terminate(k.conn.Conn)
	if err := k.Hold(t.Context()); err == nil {
		t.Error("held on a dead connection")
	}
	d.hold(k)
	d.expect("alive again", fmt.Sprintf(`SELECT (NOT pg_try_advisory_lock(%d))::text`, o.Owner), "true")
}

// TestSessionWaitsForNobody: a pooler may keep an earlier session of the relay, with its lock, for
// hours. A session that is not a relay can take the lock, and the error says so.
func TestSessionWaitsForNobody(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	earlier, k := d.relaySession(o), d.relaySession(o)
	d.hold(earlier)
	d.hold(k)
	relays, err := ReadRelays(t.Context(), d.conn)
	if err != nil || len(relays) != 1 || uint32(relays[0].PID) != k.conn.PgConn().PID() {
		t.Errorf("relays %+v, %v; want the latest session of the one", relays, err)
	}
	d.terminate(earlier.conn.Conn)
	d.terminate(k.conn.Conn)
	d.exec(`SELECT pg_advisory_lock($1)`, o.Owner)
	if err := k.Hold(t.Context()); err == nil {
		t.Error("held on a dead connection")
	}
	err = k.Hold(t.Context())
	if e, ok := errors.AsType[*ForeignLockError](err); !ok || len(e.Who) != 1 || uint32(e.Who[0].PID) != d.conn.PgConn().PID() || !strings.Contains(err.Error(), "user "+d.Config.User) {
		t.Errorf("held %v beside a session that has the lock exclusively", err)
	}
	d.exec(`SELECT pg_advisory_unlock($1)`, o.Owner)
	d.hold(k)
}

// TestSessionStaysAlive: neither an error of the server nor a caller that gives up makes a relay
// look dead while it works on leased deliveries.
func TestSessionStaysAlive(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	k := d.relaySession(o)
	d.hold(k)
	alive := fmt.Sprintf(`SELECT (NOT (pg_try_advisory_lock(%[1]d) AND pg_advisory_unlock(%[1]d)))::text`, o.Owner)

	d.exec(`ALTER TABLE outbox_events RENAME TO elsewhere`)
	if _, _, _, err := k.Purge(t.Context(), Range{0, math.MaxInt64}, 0, 1); err == nil {
		t.Error("purged a table that is not there")
	}
	d.expect("after an error", alive, "true")
	d.exec(`ALTER TABLE elsewhere RENAME TO outbox_events`)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d.exec(`BEGIN`)
	d.exec(`LOCK TABLE outbox_events`)
	done := make(chan error, 1)
	go func() {
		_, _, _, err := k.Purge(ctx, Range{0, math.MaxInt64}, 0, 1)
		done <- err
	}()
	for one[int](d, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox_events'::regclass`) == 0 {
		continue
	}
	cancel()
	d.exec(`COMMIT`)
	if err := <-done; err != nil {
		t.Errorf("the running statement was given up: %v", err)
	}
	d.expect("after the caller gave up", alive, "true")
	if _, _, _, err := k.Purge(ctx, Range{0, math.MaxInt64}, 0, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("purged for a caller who had given up: %v", err)
	}
	d.expect("after that", alive, "true")
}

// TestSessionLeavesAServerThatTakesNoWrites: after a failover the old primary may keep its sessions,
// and answer each write with 25006. Other errors do not cost the connection.
func TestSessionLeavesAServerThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	k := NewSession(d.Connector, SessionOptions{Owner: NewOwner()})
	defer k.Close(context.WithoutCancel(t.Context()))
	for code, kept := range map[string]bool{"25006": false, "22012": true} {
		if err := k.Hold(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := k.conn
		err := k.Do(t.Context(), "write", func(ctx context.Context, c *session.Conn) error {
			_, err := c.Exec(ctx, `DO $$ BEGIN RAISE SQLSTATE '`+code+`'; END $$`)
			return err
		})
		if err == nil || (k.conn == before) != kept {
			t.Errorf("after %s: kept %t, %v", code, k.conn == before, err)
		}
	}
}
