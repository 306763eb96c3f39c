package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"
)

func (d *db) keep(p *Partitions, at time.Time, keep time.Duration) Upkeep {
	d.Helper()
	u, err := p.Keep(d.Context(), at, keep)
	if err != nil {
		d.Fatal(err)
	}
	return u
}

// dayNames returns the days of partitions, without the year.
func dayNames(names []string) string {
	short := []string{}
	for _, name := range names {
		short = append(short, strings.TrimPrefix(name, "outbox_events_p2031"))
	}
	return strings.Join(short, " ")
}

// TestKeepPartitions: with the clock of the test, partitions are made ahead, and dropped when they
// have expired, no earlier.
func TestKeepPartitions(t *testing.T) {
	t.Parallel()
	d := newPartitionedDB(t)
	p := NewPartitions(d.Connector)
	const keep = 48 * time.Hour
	if u := d.keep(p, partitionDay(0), keep); !u.Partitioned || len(u.Made)+len(u.Dropped)+len(u.Kept) != 0 {
		t.Errorf("at first: %+v", u)
	}
	// An event a day, all done at once except that of the second day.
	for n := range 8 {
		u := d.keep(p, partitionDay(n), keep)
		want := ""
		if n > 0 {
			want = fmt.Sprintf("%02d%02d", partitionDay(n+3).Month(), partitionDay(n+3).Day())
		}
		if got := dayNames(u.Made); got != want {
			t.Errorf("day %d: made %q, want %q", n, got, want)
		}
		d.insert("a", 1)
		d.exec(`UPDATE outbox_events SET state = 'done', processed_at = $1 WHERE state = 'fresh' AND id <> $2`, partitionDay(n), int64(1)<<32)
		dropped := ""
		if n >= 3 && n != 4 {
			dropped = fmt.Sprintf("03%02d", n-2)
		}
		if got := dayNames(u.Dropped); got != dropped {
			t.Errorf("day %d: dropped %q, want %q", n, got, dropped)
		}
		if n == 4 && u.Kept["outbox_events_p20310302"] != fmt.Sprintf("event %d is waiting", int64(1)<<32) {
			t.Errorf("day %d: kept %v", n, u.Kept)
		}
	}
	// Events that have to stay are purged one by one, as are those outside of all partitions.
	u := d.keep(p, partitionDay(7).Add(time.Minute), keep)
	if len(u.Kept) != 0 {
		t.Errorf("checked again after a minute: %v", u.Kept)
	}
	high := one[int64](d, `SELECT max(high) FROM outbox_partitions()`)
	open := one[int64](d, `SELECT low FROM outbox_partitions() WHERE name = 'outbox_events_p20310306'`)
	if want := []Range{{math.MinInt64, open - 1}, {high - 1, math.MaxInt64}}; !slices.Equal(u.Purge, want) {
		t.Errorf("to be purged: %v, want %v", u.Purge, want)
	}
	// The waiting one is done, and its partition goes once that was long enough ago.
	d.exec(`UPDATE outbox_events SET state = 'done', processed_at = $1 WHERE state = 'fresh'`, partitionDay(7))
	if u := d.keep(p, partitionDay(8), keep); len(u.Kept) != 1 || !strings.Contains(u.Kept["outbox_events_p20310302"], "long enough ago") {
		t.Errorf("done a day ago: %+v", u)
	}
	if u := d.keep(p, partitionDay(10), keep); !slices.Contains(u.Dropped, "outbox_events_p20310302") {
		t.Errorf("done three days ago: %+v", u)
	}
}

// TestKeepPartitionsAtOnce: several relays make each partition once.
func TestKeepPartitionsAtOnce(t *testing.T) {
	t.Parallel()
	d := newPartitionedDB(t)
	const relays = 4
	type outcome struct {
		made []string
		err  error
	}
	results := make(chan outcome, relays)
	for range relays {
		go func() {
			p, o := NewPartitions(d.Connector), outcome{}
			for n := range 5 {
				u, err := p.Keep(context.WithoutCancel(d.Context()), partitionDay(n), 0)
				o.made = append(o.made, u.Made...)
				if err != nil {
					o.err = err
				}
			}
			results <- o
		}()
	}
	made := make(map[string]int)
	for range relays {
		o := <-results
		if o.err != nil {
			t.Error(o.err)
		}
		for _, name := range o.made {
			made[name]++
		}
	}
	for name, n := range made {
		if n != 1 {
			t.Errorf("%s was made %d times", name, n)
		}
	}
	d.keep(NewPartitions(d.Connector), partitionDay(4), 0)
	d.expect("the last one", `SELECT name FROM outbox_partitions() ORDER BY low DESC LIMIT 1`, "outbox_events_p20310308")
}

// TestKeepPlain: a plain table is left alone.
func TestKeepPlain(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	if u := d.keep(NewPartitions(d.Connector), time.Time{}, time.Hour); u.Partitioned || u.Purge != nil {
		t.Errorf("%+v", u)
	}
}

// TestKeepCures: if the relay lacks privileges, or another role has made the partitions, the error
// names the remedy.
func TestKeepCures(t *testing.T) {
	t.Parallel()
	d := newPartitionedDB(t)
	role := pgx.Identifier{d.Config.Database + "_r"}.Sanitize()
	d.exec("CREATE ROLE " + role + " LOGIN")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := d.conn.Exec(ctx, "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	c := &Connector{Config: d.Config.Copy(), Schema: "public"}
	c.Config.RuntimeParams["role"] = d.Config.Database + "_r"
	_, err := NewPartitions(c).Keep(t.Context(), time.Time{}, time.Hour)
	if err == nil || !strings.Contains(err.Error(), "--print-grants") {
		t.Errorf("without rights: %v", err)
	}
	grants, err := outboxsql.Grants("public", outboxsql.Roles{Relay: d.Config.Database + "_r"})
	if err != nil {
		t.Fatal(err)
	}
	d.exec(grants)
	if _, err := NewPartitions(c).Keep(t.Context(), time.Time{}, time.Hour); err != nil {
		t.Errorf("with rights: %v", err)
	}
	d.exec(`DROP FUNCTION outbox_partitions_extend`)
	_, err = NewPartitions(d.Connector).Keep(t.Context(), time.Time{}, time.Hour)
	if err == nil || !strings.Contains(err.Error(), "migrate --partitions daily") {
		t.Errorf("made by others: %v", err)
	}
}

// TestPurgeRange: rows outside of the range stay untouched.
func TestPurgeRange(t *testing.T) {
	t.Parallel()
	d := newPartitionedDB(t)
	d.exec(`INSERT INTO outbox_events (id, event_type, payload, state, processed_at)
		SELECT i, 'a', '1', 'done', now() - interval '2 hours' FROM unnest(ARRAY[-3, 1, 2, 3, 4294967299, 1099511627776]) i`)
	k := d.relaySession(options())
	for _, in := range []Range{{math.MinInt64, 0}, {1, 2}, {1 << 33, math.MaxInt64}} {
		if _, _, _, err := k.Purge(t.Context(), in, time.Hour, 10); err != nil {
			t.Fatal(err)
		}
	}
	d.expect("left", `SELECT id::text FROM outbox_events ORDER BY id`, "1", "3", "4294967299")
}
