package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// width is the width of a partition, in ids.
const width = 4294967296

// newStream is newDB with a table that is a stream, plain or partitioned.
func newStream(tb testing.TB, partitioned bool) *db {
	tb.Helper()
	d := newDB(tb)
	if partitioned {
		if err := outboxsql.Partition(tb.Context(), d.conn, "public", outboxsql.PartitionOptions{}); err != nil {
			tb.Fatal(err)
		}
	}
	d.exec(`UPDATE outbox_mode SET mode = 'stream'`)
	d.exec(`DROP INDEX outbox_events_fresh`)
	return d
}

// bothTables runs f with a plain table and with a partitioned one.
func bothTables(t *testing.T, f func(t *testing.T, d *db)) {
	t.Helper()
	for name, partitioned := range map[string]bool{"plain": false, "partitioned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newStream(t, partitioned))
		})
	}
}

func (d *db) position(destination string, head int64, open string) {
	d.Helper()
	d.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ($1, $2, $3::text::int8multirange)`, destination, head, open)
}

// describeStream is the backlog of a stream as text.
func describeStream(b *observe.Backlog) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: fresh %v delayed %v oldest %s\n", b.Mode, b.Fresh, b.Delayed, hours(b.Oldest))
	for _, p := range b.Positions {
		fmt.Fprintf(&text, "%q head %d open %d lag %d lowest %d oldest %s", p.Destination, p.Head, p.Open, p.Lag, p.Lowest, hours(p.Oldest))
		if p.HoldsBack {
			text.WriteString(" holds back")
		}
		text.WriteString("\n")
	}
	for _, x := range b.Destinations {
		fmt.Fprintf(&text, "%s: fresh %v retry %v running %v parked %v dead %v blocked %v oldest %s\n",
			x.Name, x.Fresh, x.Retry, x.Running, x.Parked, x.Dead, x.Blocked, hours(x.Oldest))
	}
	return text.String()
}

// TestBacklogOfStream: of the rows of events only the age is read.
func TestBacklogOfStream(t *testing.T) {
	t.Parallel()
	bothTables(t, func(t *testing.T, d *db) {
		t.Helper()
		d.exec(`INSERT INTO outbox_events (event_type, payload, created_at, available_at) VALUES
			('order.placed', '1', now() - interval '9 h', NULL),
			('user.gone', '1', now() - interval '8 h', NULL),
			('order.placed', '1', now() - interval '7 h', NULL),
			('user.gone', '1', now() - interval '6 h', now() + interval '1 h'),
			('order.placed', '1', now() - interval '5 h', NULL)`)
		d.exec(`SELECT nextval(pg_get_serial_sequence('outbox_events', 'id'))`) // of a transaction that is open
		d.exec(`INSERT INTO outbox_events (event_type, payload, created_at) VALUES
			('order.placed', '1', now() - interval '4 h'), ('user.gone', '1', now() - interval '3 h')`)
		d.position("", 7, "{[6,7)}")
		d.position("gone", 1, "{}")
		d.position("mail", 5, "{[3,4),[5,6)}")
		d.position("queue", 7, "{[6,7)}")
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, ordering_key, last_error) VALUES
			(1, 'queue', 'order.placed', 'retry', 3, now() + interval '1 h', 'a', 'no'), (3, 'queue', 'order.placed', 'parked', 0, now(), 'a', NULL),
			(5, 'queue', 'order.placed', 'dead', 5, now(), 'b', 'no'), (4, 'mail', 'user.gone', 'retry', 0, now() + interval '1 h', NULL, NULL)`)
		b := d.backlog(BacklogOptions{Route: bothRoutes})
		const want = `stream: fresh 7 delayed 1 oldest 1/9h0m0s
"" head 7 open 1 lag 2 lowest 5 oldest none
"gone" head 1 open 0 lag 7 lowest 1 oldest none holds back
"mail" head 5 open 2 lag 5 lowest 2 oldest 3/7h0m0s
"queue" head 7 open 1 lag 2 lowest 5 oldest none
gone: fresh 7 retry 0 running 0 parked 0 dead 0 blocked 0 oldest none
mail: fresh 5 retry 0 running 0 parked 0 dead 0 blocked 0 oldest 3/7h0m0s
queue: fresh 2 retry 1 running 0 parked 1 dead 1 blocked 1 oldest 1/9h0m0s
`
		if got := describeStream(&b); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		age, err := NewWatch(d.Connector).Oldest(t.Context(), BacklogOptions{Route: bothRoutes})
		if err != nil || age.Round(time.Minute) != 9*time.Hour {
			t.Errorf("oldest %v, %v", age, err)
		}
		if text, err := json.Marshal(b); err != nil || !strings.Contains(string(text), `"holds_back_retention":true`) {
			t.Errorf("%s, %v", text, err)
		}
		b = d.backlog(BacklogOptions{})
		if gone := b.Destination("gone"); hours(gone.Oldest) != "2/8h0m0s" {
			t.Errorf("without routes: %+v", gone)
		}
	})
}

// TestBacklogAtTheTip: no event waits.
func TestBacklogAtTheTip(t *testing.T) {
	t.Parallel()
	bothTables(t, func(t *testing.T, d *db) {
		t.Helper()
		b := d.backlog(BacklogOptions{Route: bothRoutes})
		if got := describeStream(&b); got != "stream: fresh 0 delayed 0 oldest none\n" {
			t.Errorf("of nothing:\n%s", got)
		}
		ids := d.insert("a", 10)
		d.position("mail", ids[9], "{}")
		b = d.backlog(BacklogOptions{Route: bothRoutes})
		if got := describeStream(&b); got != "stream: fresh 0 delayed 0 oldest none\n\"mail\" head 10 open 0 lag 0 lowest 10 oldest none\n" {
			t.Errorf("at the tip:\n%s", got)
		}
	})
}

// TestLagLeavesOutTheNight: ids jump by 2^32 with each partition, which is not lag.
func TestLagLeavesOutTheNight(t *testing.T) {
	t.Parallel()
	d := newStream(t, true)
	d.insert("a", 10)
	jump := func(to int64) {
		t.Helper()
		d.exec(`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), $1, false)`, to)
	}
	jump(width)
	d.insert("a", 5)
	jump(3 * width) // nothing was written on a day
	d.insert("a", 3)
	for name, at := range map[string]struct {
		head int64
		open string
	}{
		"a, first day":         {7, "{}"},
		"b, end of it":         {10, "{}"},
		"c, second day":        {width + 1, fmt.Sprintf("{[5,6),[11,%d)}", width)},
		"d, over two nights":   {3 * width, fmt.Sprintf("{[11,%d),[%d,%d)}", width, width+4, 3*width)},
		"e, last":              {3*width + 2, "{}"},
		"f, ahead, as by hand": {3*width + 9, "{}"},
	} {
		d.position(name, at.head, at.open)
	}
	b := d.backlog(BacklogOptions{})
	var got []string
	for _, p := range b.Positions {
		got = append(got, fmt.Sprintf("%s: %d open, lag %d", p.Destination, p.Open, p.Lag))
	}
	want := []string{
		"a, first day: 0 open, lag 11", "b, end of it: 0 open, lag 8", "c, second day: 1 open, lag 7",
		"d, over two nights: 1 open, lag 3", "e, last: 0 open, lag 0", "f, ahead, as by hand: 0 open, lag 0",
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// TestHoldersOfShards: the owner of a position delivers while its lease lasts.
func TestHoldersOfShards(t *testing.T) {
	t.Parallel()
	d := newStream(t, false)
	d.position("mail", 0, "{}")
	d.exec(`UPDATE outbox_positions SET owner = 7`)
	who := func() string {
		t.Helper()
		p := d.backlog(BacklogOptions{}).Positions[0]
		if p.Session == nil {
			return fmt.Sprintf("%d, nobody", *p.Owner)
		}
		return fmt.Sprintf("%d, %s", *p.Owner, p.Session.Application)
	}
	if got := who(); got != "7, nobody" {
		t.Error(got)
	}
	conn := d.leased("mail")
	if got := who(); got != "7, notifyd/leases" {
		t.Error(got)
	}
	relays, err := ReadMembers(t.Context(), d.conn, "public")
	if err != nil || len(relays) != 1 || relays[0].Owner != 7 || relays[0].PID != int32(conn.PgConn().PID()) || relays[0].Application != "notifyd/leases" {
		t.Errorf("%+v, %v", relays, err)
	}
	d.terminate(conn) // it may be about to connect again
	if got := who(); got != "7, " {
		t.Error(got)
	}
	d.exec(`UPDATE outbox_members SET alive_until = now()`)
	if got := who(); got != "7, nobody" {
		t.Error(got)
	}
	if relays, err := ReadMembers(t.Context(), d.conn, "public"); err != nil || len(relays) != 0 {
		t.Errorf("%+v, %v", relays, err)
	}
}

// leased makes a session that of the owner of a position.
func (d *db) leased(destination string) *pgx.Conn {
	d.Helper()
	conn, err := d.Connect(d.Context(), RoleLeases)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { Close(context.WithoutCancel(d.Context()), conn) })
	_, err = conn.Exec(d.Context(), `INSERT INTO outbox_members (owner, renewals, alive_until, pid, wants)
		SELECT owner, 1, 'infinity', pg_backend_pid(), '{}' FROM outbox_positions WHERE destination = $1`, destination)
	if err != nil {
		d.Fatal(err)
	}
	return conn
}

// TestPlanOfStream: events counted by type are above the lowest position, or open.
func TestPlanOfStream(t *testing.T) {
	t.Parallel()
	bothTables(t, func(t *testing.T, d *db) {
		t.Helper()
		d.insert("a", 20)
		d.insert("b", 5)
		count := func(limit int) string {
			t.Helper()
			conn, err := d.Connect(t.Context(), "plan")
			if err != nil {
				t.Fatal(err)
			}
			defer Close(context.WithoutCancel(t.Context()), conn)
			all, err := CountWaiting(t.Context(), conn, limit)
			if err != nil {
				t.Fatal(err)
			}
			var text []string
			for _, w := range all {
				text = append(text, fmt.Sprintf("%s %s %d %t", w.State, w.EventType, w.Count, w.More))
			}
			slices.Sort(text)
			return strings.Join(text, ", ")
		}
		if got, want := count(100), "fresh a 20 false, fresh b 5 false"; got != want {
			t.Errorf("without positions: %s, want %s", got, want)
		}
		d.position("mail", 22, "{[3,5),[18,19)}")
		d.position("queue", 24, "{[4,5),[24,25)}")
		if got, want := count(100), "fresh a 3 false, fresh b 3 false, position * 3 false, position * 6 false"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got, want := count(4), "fresh a 3 true, fresh b 1 true, position * 3 false, position * 6 false"; got != want {
			t.Errorf("with a limit: %s, want %s", got, want)
		}
	})
}

// TestStreamPlans is TestBacklogPlans of a stream.
func TestStreamPlans(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	bothTables(t, func(t *testing.T, d *db) {
		t.Helper()
		if _, err := d.conn.Exec(t.Context(), `LOAD 'auto_explain'`); err != nil {
			testenv.Need(t, "auto_explain", err)
		}
		d.exec(`ALTER TABLE outbox_deliveries SET (autovacuum_enabled = off)`)
		d.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 't' || i % 7, '1' FROM generate_series(1, 300000) i`)
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, last_error)
			SELECT i, 'd' || i % 5, 't', (ARRAY['retry', 'dead', 'parked', 'unrouted'])[1 + i % 4], CASE i % 4 WHEN 2 THEN 'k' || i END, 'error ' || i
			FROM generate_series(1, 100000) i`)
		d.exec(`INSERT INTO outbox_positions (destination, head, open)
			SELECT 'd' || i, 20000, (SELECT range_agg(int8range(3 * r, 3 * r + 1)) FROM generate_series(1, 5000) r) FROM generate_series(0, 4) i`)
		for _, statistics := range []string{"never analysed", "analysed"} {
			if statistics == "analysed" {
				d.exec(`ANALYZE outbox_events, outbox_deliveries, outbox_positions`)
			}
			plans := append(d.explain(pgx.ConnectConfig, func(conn *pgx.Conn) {
				b, err := ReadBacklog(t.Context(), conn, BacklogOptions{Route: bothRoutes})
				if err != nil || b.Fresh.N != 285_000 || len(b.Positions) != 5 || b.Destination("d1").Blocked.N == 0 {
					t.Errorf("what waits: %+v, %v", b, err)
				}
			}), d.explain(d.connectPinned, func(conn *pgx.Conn) {
				if _, err := CountWaiting(t.Context(), conn, DefaultBacklogLimit); err != nil {
					t.Error(err)
				}
			})...)
			if len(plans) < 16 {
				t.Errorf("%s: %d plans were seen", statistics, len(plans))
			}
			for _, plan := range plans {
				if scans := unboundedScans(plan); len(scans) > 0 {
					t.Errorf("%s: %v in\n%s", statistics, scans, plan)
				}
			}
		}
	})
}
