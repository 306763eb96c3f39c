package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
)

// lease writes a running delivery for a new event and returns its entry.
func (d *db) lease(owner, token int64, until string) deliveries.Entry {
	d.Helper()
	id := d.Insert("a", 1)[0]
	d.Exec(`UPDATE outbox_events SET state = 'deferred' WHERE id = $1`, id)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, lease_owner, lease_token, lease_until)
		VALUES ($1, 'x', 'a', 'running', 2, $2, $3, `+until+`)`, id, owner, token)
	e := entry(id, "x", deliveries.Running)
	e.Token = token
	return e
}

const soon = `now() + interval '1 min'`

func (d *db) hold(k *Maintenance) {
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
			k := d.maintenance(o)
			done := d.lease(o.Owner, 1, soon)
			retry := d.lease(o.Owner, 2, soon)
			dead := d.lease(o.Owner, 3, soon)
			retry.State, retry.Failures, retry.Delay, retry.Class, retry.Err = deliveries.Retry, 3, time.Hour, "event", `odd '{"\,} text`
			dead.State, dead.Failures = deliveries.Dead, 20
			fenced, err := k.Finish(t.Context(), []deliveries.Entry{done}, []deliveries.Entry{retry, dead})
			if err != nil || fenced != 0 {
				t.Fatalf("%d fenced, %v", fenced, err)
			}
			d.expect("events", events, "1 done t", "2 deferred f", "3 done t")
			d.expect("deliveries", stored, "2/x retry 3", "3/x dead 20")
			d.expect("no lease is left", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE num_nonnulls(lease_owner, lease_token, lease_until) > 0`)
			d.expect("texts", `SELECT concat_ws(' ', error_class, last_error, available_at > now() + interval '59 min') FROM outbox_deliveries WHERE event_id = 2`, `event odd '{"\,} text t`)
			if err := k.Renew(t.Context(), []int64{1, 2}); err != nil {
				t.Error(err)
			}
			if _, err := k.TakeOver(t.Context(), none); err != nil {
				t.Error(err)
			}
			if _, _, err := k.Reroute(t.Context(), func(string) bool { return true }); err != nil {
				t.Error(err)
			}
			if _, _, _, err := k.Purge(t.Context(), store.AllIDs(), time.Hour, 10); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFencing: a lease that another relay has taken over, or that no longer exists, is not settled.
func TestFencing(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	mine, theirs := options(), options()
	k := d.maintenance(mine)
	entries := []deliveries.Entry{
		d.lease(mine.Owner, 1, soon),
		d.lease(theirs.Owner, 2, soon), // same token, other owner
		d.lease(mine.Owner, 3, soon),   // another token
		d.lease(mine.Owner, 4, soon),   // taken over and due
		d.lease(mine.Owner, 5, soon),   // gone
	}
	d.Exec(`UPDATE outbox_deliveries SET lease_token = 99 WHERE event_id = 3`)
	d.Exec(`UPDATE outbox_deliveries SET state = 'retry', lease_owner = NULL, lease_token = NULL, lease_until = NULL WHERE event_id = 4`)
	d.Exec(`DELETE FROM outbox_deliveries WHERE event_id = 5`)
	want := []string{"2/x running 2", "3/x running 2", "4/x retry 2"}

	put := slices.Clone(entries)
	for i := range put {
		put[i].State, put[i].Failures = deliveries.Retry, 7
	}
	if fenced, err := k.Finish(t.Context(), nil, put[1:]); err != nil || fenced != 4 {
		t.Errorf("%d fenced, %v; want 4", fenced, err)
	}
	d.expect("put", stored, append([]string{"1/x running 2"}, want...)...)
	if fenced, err := k.Finish(t.Context(), entries, nil); err != nil || fenced != 4 {
		t.Errorf("%d fenced, %v; want 4", fenced, err)
	}
	d.expect("done", stored, want...)
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
	k := d.maintenance(o)
	done, dead := d.lease(o.Owner, 1, soon), d.lease(o.Owner, 2, soon)
	dead.State = deliveries.Dead
	if fenced, err := k.Finish(t.Context(), []deliveries.Entry{done}, []deliveries.Entry{dead}); err != nil || fenced != 0 {
		t.Fatalf("%d fenced, %v", fenced, err)
	}
	d.expect("events", events, "2 done t")
}

func TestRenew(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	mine, theirs := options(), options()
	k := d.maintenance(mine)
	d.lease(mine.Owner, 1, soon)
	d.lease(mine.Owner, 2, `now() - interval '1 s'`)
	d.lease(mine.Owner, 3, `now() + interval '1 s'`)
	d.lease(theirs.Owner, 1, `now() + interval '1 s'`)
	k.rows.Length = time.Hour
	if err := k.Renew(t.Context(), []int64{1, 2, 42}); err != nil {
		t.Fatal(err)
	}
	d.expect("renewed", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE lease_until > now() + interval '59 min' ORDER BY 1`, "1", "2")
	if err := k.Renew(t.Context(), nil); err != nil {
		t.Errorf("renewing nothing: %v", err)
	}
}

// TestTakeOverMany: one call takes over all leases of a relay that had more than one statement
// takes over, except those that are being settled.
func TestTakeOverMany(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	k := d.maintenance(o)
	d.hold(k)
	const gone, many = 7, 2*deliveries.TakeOverBatch + 500
	d.Exec(fmt.Sprintf(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
		SELECT i, 'x', 'a', 'running', %d, i, now() + interval '1 h' FROM generate_series(1001, 1000 + %d) AS i`, gone, many))
	d.lease(o.Owner, 1, soon)
	if _, err := d.Conn.Exec(t.Context(), `BEGIN; SELECT FROM outbox_deliveries WHERE event_id = 1003 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if n := d.takeOver(k); n != many-1 {
		t.Errorf("%d of %d were taken over beside the one that is locked", n, many)
	}
	d.Exec(`ROLLBACK`)
	if n := d.takeOver(k); n != 1 {
		t.Errorf("%d were taken over, want the one that was locked", n)
	}
	d.expect("left", `SELECT format('%s %s', state, count(*)) FROM outbox_deliveries GROUP BY state ORDER BY state`, fmt.Sprint("retry ", many), "running 1")
}

func TestReroute(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	for i, eventType := range []string{"a", "b", "b", "c", "a.b"} {
		d.Exec(`INSERT INTO outbox_deliveries (event_id, event_type, state, available_at) VALUES ($1, $2, 'unrouted', now() + interval '1 hour')`, i+1, eventType)
	}
	k := d.maintenance(options())
	var asked []string
	n, more, err := k.Reroute(t.Context(), func(eventType string) bool {
		asked = append(asked, eventType)
		return eventType == "b" || eventType == "a.b"
	})
	if err != nil || n != 3 || more || !slices.Equal(asked, []string{"a", "a.b", "b", "c"}) {
		t.Errorf("%d events rerouted, asked for %v, %v", n, asked, err)
	}
	d.expect("rerouted", stored, "1/ unrouted 0", "2/ retry 0", "3/ retry 0", "4/ unrouted 0", "5/ retry 0")
	d.expect("due at once", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE state = 'retry' AND available_at > clock_timestamp()`)
	if n, more, err := k.Reroute(t.Context(), func(string) bool { return false }); n != 0 || more || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestRerouteManyTypes: rerouting reads any number of types, each once, a page per statement.
func TestRerouteManyTypes(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	const types = 2500
	d.Exec(`INSERT INTO outbox_deliveries (event_id, event_type, state) SELECT i, 't' || i, 'unrouted' FROM generate_series(1, $1::int) AS i`, types)
	k := d.maintenance(options())
	asked, total := 0, 0
	for more := true; more; {
		n, again, err := k.Reroute(t.Context(), func(eventType string) bool {
			asked++
			return strings.HasSuffix(eventType, "7")
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(k.walk.types) > 1000 {
			t.Errorf("%d types in one statement", len(k.walk.types))
		}
		total, more = total+n, again
	}
	if asked != types || total != types/10 {
		t.Errorf("asked for %d types, rerouted %d events; want %d and %d", asked, total, types, types/10)
	}
}

// TestRerouteMany: rerouting continues in pages that are small enough for the server, whatever else is in the table, and
// reads each row once.
func TestRerouteMany(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	const many = 600
	d.Exec(`INSERT INTO outbox_deliveries (event_id, event_type, destination, state)
		SELECT i, CASE WHEN i % 3 = 0 THEN 'b' ELSE 'a' END, CASE WHEN i % 2 = 0 THEN '' ELSE 'x' END, CASE WHEN i % 2 = 0 THEN 'unrouted' ELSE 'retry' END
		FROM generate_series(1, 2 * $1::int) AS i`, many)
	d.Exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END';
		CREATE TRIGGER slow BEFORE UPDATE ON outbox_deliveries FOR EACH ROW EXECUTE FUNCTION slow()`)
	k := d.maintenance(options())
	err := k.Do(t.Context(), "shorten the timeout", func(ctx context.Context, c *session.Conn) error {
		_, err := c.Exec(ctx, `SET statement_timeout = '150ms'`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	total, canceled := 0, 0
	for more := true; more; {
		var n int
		after := k.walk.after
		if n, more, err = k.Reroute(t.Context(), func(eventType string) bool { return eventType == "a" }); store.IsCanceled(err) {
			canceled++
		} else if err != nil {
			t.Fatal(err)
		}
		if total += n; more && k.walk.after < after {
			t.Fatalf("the walk goes back from %d to %d", after, k.walk.after)
		}
	}
	if total != many*2/3 || canceled == 0 {
		t.Errorf("%d events were rerouted, want %d; %d statements took too long", total, many*2/3, canceled)
	}
	d.expect("left", `SELECT format('%s %s', state, count(*)) FROM outbox_deliveries GROUP BY state ORDER BY state`,
		fmt.Sprint("retry ", many+many*2/3), fmt.Sprint("unrouted ", many/3))
}

// TestOneRowIsRefused: the database refuses to take one lease over, and to make one unrouted event due. The others are.
func TestOneRowIsRefused(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.Insert("a", 10)
	d.Exec(`UPDATE outbox_events SET state = 'deferred'`)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
		SELECT id, 'x', 'a', 'running', 1, id, now() - interval '1 min' FROM outbox_events`)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, '', 'a', 'unrouted' FROM outbox_events`)
	d.Exec(`ALTER TABLE outbox_deliveries ADD CONSTRAINT mine CHECK (event_id <> 3) NOT VALID`)
	k := d.maintenance(options())
	n, err := k.TakeOver(t.Context(), func() deliveries.Tokens { return deliveries.Tokens{} })
	if n != 9 || !session.IsConstraint(err) || !strings.Contains(err.Error(), "event 3") {
		t.Errorf("took over %d: %v", n, err)
	}
	made := 0
	for range 20 {
		n, _, err := k.Reroute(t.Context(), func(string) bool { return true })
		if made += n; err != nil && !session.IsConstraint(err) {
			t.Fatal(err)
		}
		if made == 9 {
			break
		}
	}
	d.expect("the refused rows", `SELECT format('%s %s', event_id, state) FROM outbox_deliveries WHERE state <> 'retry' ORDER BY state`, "3 running", "3 unrouted")
}
