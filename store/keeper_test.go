package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
)

// lease writes a running delivery for an event of its own and returns its entry.
func (d *db) lease(owner, token int64, until string) dispatch.Entry {
	d.Helper()
	id := d.insert("a", 1)[0]
	d.exec(`UPDATE outbox_events SET state = 'deferred' WHERE id = $1`, id)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, lease_owner, lease_token, lease_until)
		VALUES ($1, 'x', 'a', 'running', 2, $2, $3, `+until+`)`, id, owner, token)
	e := entry(id, "x", dispatch.EntryRunning)
	e.Token = token
	return e
}

const soon = `now() + interval '1 min'`

func (d *db) hold(k *Keeper) {
	d.Helper()
	if err := k.Hold(d.Context()); err != nil {
		d.Fatal(err)
	}
}

func TestFinish(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			d.Config.DefaultQueryExecMode = mode
			o := options()
			k := d.keeper(o)
			done := d.lease(o.Owner, 1, soon)
			retry := d.lease(o.Owner, 2, soon)
			dead := d.lease(o.Owner, 3, soon)
			retry.State, retry.Failures, retry.Delay, retry.Class, retry.Err = dispatch.EntryRetry, 3, time.Hour, "event", `odd '{"\,} text`
			dead.State, dead.Failures = dispatch.EntryDead, 20
			fenced, err := k.Finish(t.Context(), []dispatch.Entry{done}, []dispatch.Entry{retry, dead})
			if err != nil || fenced != 0 {
				t.Fatalf("%d fenced, %v", fenced, err)
			}
			d.expect("events", events, "1 done t", "2 deferred f", "3 done t")
			d.expect("deliveries", deliveries, "2/x retry 3", "3/x dead 20")
			d.expect("no lease is left", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE num_nonnulls(lease_owner, lease_token, lease_until) > 0`)
			d.expect("texts", `SELECT concat_ws(' ', error_class, last_error, available_at > now() + interval '59 min') FROM outbox_deliveries WHERE event_id = 2`, `event odd '{"\,} text t`)
			if err := k.Renew(t.Context(), []int64{1, 2}); err != nil {
				t.Error(err)
			}
			if _, err := k.TakeOver(t.Context(), none); err != nil {
				t.Error(err)
			}
			if _, err := k.Reroute(t.Context(), func(string) bool { return true }); err != nil {
				t.Error(err)
			}
			if _, _, err := k.Purge(t.Context(), Range{0, math.MaxInt64}, time.Hour, 10); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFencing: a lease that is somebody else's by now, or none any more, is not
// settled.
func TestFencing(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	mine, theirs := options(), options()
	k := d.keeper(mine)
	entries := []dispatch.Entry{
		d.lease(mine.Owner, 1, soon),
		d.lease(theirs.Owner, 2, soon), // same token, other owner
		d.lease(mine.Owner, 3, soon),   // another token by now
		d.lease(mine.Owner, 4, soon),   // taken over and due
		d.lease(mine.Owner, 5, soon),   // gone
	}
	d.exec(`UPDATE outbox_deliveries SET lease_token = 99 WHERE event_id = 3`)
	d.exec(`UPDATE outbox_deliveries SET state = 'retry', lease_owner = NULL, lease_token = NULL, lease_until = NULL WHERE event_id = 4`)
	d.exec(`DELETE FROM outbox_deliveries WHERE event_id = 5`)
	want := []string{"2/x running 2", "3/x running 2", "4/x retry 2"}

	put := slices.Clone(entries)
	for i := range put {
		put[i].State, put[i].Failures = dispatch.EntryRetry, 7
	}
	if fenced, err := k.Finish(t.Context(), nil, put[1:]); err != nil || fenced != 4 {
		t.Errorf("%d fenced, %v; want 4", fenced, err)
	}
	d.expect("put", deliveries, append([]string{"1/x running 2"}, want...)...)
	if fenced, err := k.Finish(t.Context(), entries, nil); err != nil || fenced != 4 {
		t.Errorf("%d fenced, %v; want 4", fenced, err)
	}
	d.expect("done", deliveries, want...)
	d.expect("state", `SELECT state FROM outbox_events WHERE id < 4 ORDER BY id`, "done", "deferred", "deferred")
	if fenced, err := k.Finish(t.Context(), nil, nil); err != nil || fenced != 0 {
		t.Errorf("nothing: %d fenced, %v", fenced, err)
	}
}

func TestFinishDeletes(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	o.Delete = true
	k := d.keeper(o)
	done, dead := d.lease(o.Owner, 1, soon), d.lease(o.Owner, 2, soon)
	dead.State = dispatch.EntryDead
	if fenced, err := k.Finish(t.Context(), []dispatch.Entry{done}, []dispatch.Entry{dead}); err != nil || fenced != 0 {
		t.Fatalf("%d fenced, %v", fenced, err)
	}
	d.expect("events", events, "2 done t")
}

func TestRenew(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	mine, theirs := options(), options()
	k := d.keeper(mine)
	d.lease(mine.Owner, 1, soon)
	d.lease(mine.Owner, 2, `now() - interval '1 s'`)
	d.lease(mine.Owner, 3, `now() + interval '1 s'`)
	d.lease(theirs.Owner, 1, `now() + interval '1 s'`)
	k.options.Lease = time.Hour
	if err := k.Renew(t.Context(), []int64{1, 2, 42}); err != nil {
		t.Fatal(err)
	}
	d.expect("renewed", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE lease_until > now() + interval '59 min' ORDER BY 1`, "1", "2")
	if err := k.Renew(t.Context(), nil); err != nil {
		t.Errorf("renewing nothing: %v", err)
	}
}

// TestTakeOverMany: the leases of a relay that had more than one statement takes
// over are all taken over by one call, but for those that somebody is settling.
func TestTakeOverMany(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	k := d.keeper(o)
	d.hold(k)
	const gone, many = 7, 2*takeOverBatch + 500
	d.exec(fmt.Sprintf(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
		SELECT i, 'x', 'a', 'running', %d, i, now() + interval '1 h' FROM generate_series(1001, 1000 + %d) AS i`, gone, many))
	d.lease(o.Owner, 1, soon)
	if _, err := d.conn.Exec(t.Context(), `BEGIN; SELECT FROM outbox_deliveries WHERE event_id = 1003 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if n := d.takeOver(k); n != many-1 {
		t.Errorf("%d of %d were taken over beside the one that is locked", n, many)
	}
	d.exec(`ROLLBACK`)
	if n := d.takeOver(k); n != 1 {
		t.Errorf("%d were taken over, want the one that was locked", n)
	}
	d.expect("left", `SELECT format('%s %s', state, count(*)) FROM outbox_deliveries GROUP BY state ORDER BY state`, fmt.Sprint("retry ", many), "running 1")
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

func TestReroute(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	for i, eventType := range []string{"a", "b", "b", "c", "a.b"} {
		d.exec(`INSERT INTO outbox_deliveries (event_id, event_type, state, available_at) VALUES ($1, $2, 'unrouted', now() + interval '1 hour')`, i+1, eventType)
	}
	k := d.keeper(options())
	var asked []string
	n, err := k.Reroute(t.Context(), func(eventType string) bool {
		asked = append(asked, eventType)
		return eventType == "b" || eventType == "a.b"
	})
	if err != nil || n != 2 || !slices.Equal(asked, []string{"a", "a.b", "b", "c"}) {
		t.Errorf("%d types rerouted, asked for %v, %v", n, asked, err)
	}
	d.expect("rerouted", deliveries, "1/ unrouted 0", "2/ retry 0", "3/ retry 0", "4/ unrouted 0", "5/ retry 0")
	d.expect("due at once", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE state = 'retry' AND available_at > clock_timestamp()`)
	if n, err := k.Reroute(t.Context(), func(string) bool { return false }); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

const remaining = `SELECT e.id::text FROM outbox_events AS e ORDER BY e.id`

// purgeAll purges as the relay does, and returns how many batches it took.
func (d *db) purgeAll(k *Keeper, keep time.Duration, batch int) (batches int) {
	d.Helper()
	var after int64
	for more := true; more; batches++ {
		next, m, err := k.Purge(d.Context(), Range{after, math.MaxInt64}, keep, batch)
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
	k := d.keeper(options())
	next, more, err := k.Purge(t.Context(), Range{0, math.MaxInt64}, time.Hour, 3)
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
	if next, more, err := k.Purge(t.Context(), Range{1000, math.MaxInt64}, 0, 3); next != 1000 || more || err != nil {
		t.Errorf("at the end: %d %t %v", next, more, err)
	}
	if _, _, err := k.Purge(t.Context(), Range{0, math.MaxInt64}, 0, 0); !errors.Is(err, ErrNoProgress) {
		t.Errorf("batch of 0: %v", err)
	}
}

// TestPurgeGoesOn behind events that have to stay, however many they are, and
// stops where the young ones begin.
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
			batches := d.purgeAll(d.keeper(options()), time.Hour, 10)
			if n := one[int](d, `SELECT count(*) FROM outbox_events WHERE event_type = 'old'`); n != 0 {
				t.Errorf("%d old events are left behind 50 that stay", n)
			}
			if batches != 7 {
				t.Errorf("%d batches, want 5 of those that stay, 1 with the old ones and 1 of young ones", batches)
			}
		})
	}
}

// TestKeeperReconnects and is somebody again.
func TestKeeperReconnects(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	k := d.keeper(o)
	d.hold(k)
	d.expect("alive", fmt.Sprintf(`SELECT (NOT pg_try_advisory_lock(%d))::text`, o.Owner), "true")
	d.terminate(k.conn)
	if err := k.Hold(t.Context()); err == nil {
		t.Error("held on a dead connection")
	}
	d.hold(k)
	d.expect("alive again", fmt.Sprintf(`SELECT (NOT pg_try_advisory_lock(%d))::text`, o.Owner), "true")
}

// TestKeeperStaysAlive: neither an error of the server nor a caller who gives
// up makes a relay look dead while it works on leased deliveries.
func TestKeeperStaysAlive(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	k := d.keeper(o)
	d.hold(k)
	alive := fmt.Sprintf(`SELECT (NOT (pg_try_advisory_lock(%[1]d) AND pg_advisory_unlock(%[1]d)))::text`, o.Owner)

	d.exec(`ALTER TABLE outbox_events RENAME TO elsewhere`)
	if _, _, err := k.Purge(t.Context(), Range{0, math.MaxInt64}, 0, 1); err == nil {
		t.Error("purged a table that is not there")
	}
	if _, err := k.Finish(t.Context(), []dispatch.Entry{entry(1, "x", dispatch.EntryRunning)}, nil); err == nil {
		t.Error("settled in a table that is not there")
	}
	d.expect("after an error", alive, "true")
	d.exec(`ALTER TABLE elsewhere RENAME TO outbox_events`)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d.exec(`BEGIN`)
	d.exec(`LOCK TABLE outbox_events`)
	done := make(chan error, 1)
	go func() {
		_, _, err := k.Purge(ctx, Range{0, math.MaxInt64}, 0, 1)
		done <- err
	}()
	for one[int](d, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox_events'::regclass`) == 0 {
		continue
	}
	cancel()
	d.exec(`COMMIT`)
	if err := <-done; err != nil {
		t.Errorf("the statement under way was given up: %v", err)
	}
	d.expect("after the caller gave up", alive, "true")
	if _, _, err := k.Purge(ctx, Range{0, math.MaxInt64}, 0, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("purged for a caller who had given up: %v", err)
	}
	d.expect("after that", alive, "true")
}

// TestKeeperLeavesAServerThatTakesNoWrites: after a failover the old primary may
// keep its sessions, and answer each write with 25006. Other errors cost nothing.
func TestKeeperLeavesAServerThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	k := NewKeeper(d.Connector, Options{Owner: NewOwner(), Lease: time.Minute})
	defer k.Close(context.WithoutCancel(t.Context()))
	for code, kept := range map[string]bool{"25006": false, "22012": true} {
		if err := k.Hold(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := k.conn
		err := k.do(t.Context(), "write", func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, `DO $$ BEGIN RAISE SQLSTATE '`+code+`'; END $$`)
			return err
		})
		if err == nil || (k.conn == before) != kept {
			t.Errorf("after %s: kept %t, %v", code, k.conn == before, err)
		}
	}
}
