package queue

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// days is how many partitions the tests of plans have.
const days = 30

// partitionDay is the day of a partition of the tests.
func partitionDay(n int) time.Time {
	return time.Date(2031, 3, 1, 12, 0, 0, 0, time.UTC).AddDate(0, 0, n)
}

// newPartitionedDB is newDB with partitions. The first one gets events.
func newPartitionedDB(tb testing.TB) *db {
	tb.Helper()
	d := newDB(tb)
	if err := outboxsql.Partition(tb.Context(), d.Conn, "public", outboxsql.PartitionOptions{Now: partitionDay(0)}); err != nil {
		tb.Fatal(err)
	}
	return d
}

var (
	// byIndex matches a scan of a partition by one of the two good indexes.
	byIndex = regexp.MustCompile(`Index (Only )?Scan using outbox_events_(p\d+|default)_(id_idx|pkey) on`)
	anyScan = regexp.MustCompile(`(Seq|Bitmap Heap|Tid|Index|Index Only) Scan[^\n]* on outbox_events[^\n]*|-> +(Incremental )?Sort`)
	removed = regexp.MustCompile(`Subplans Removed: (\d+)`)
)

// TestPlansPartitioned: with thirty partitions, each statement reaches events by index, in order
// without a sort, and a statement with ids searches only the partitions of these ids.
func TestPlansPartitioned(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, fill := range []string{"empty", "never analysed", "analysed"} {
		t.Run(fill, func(t *testing.T) {
			t.Parallel()
			d := newPartitionedDB(t)
			for n := range days {
				d.Exec(`SELECT outbox_partitions_extend($1, 3)`, partitionDay(n))
				if fill != "empty" {
					d.Exec(`INSERT INTO outbox_events (event_type, payload, state, processed_at)
						SELECT 'a', '1', CASE WHEN $1 >= 28 AND i % 2 = 0 THEN 'fresh' ELSE 'done' END, now() FROM generate_series(1, 2000) i`, n)
				}
			}
			if fill == "analysed" {
				d.Exec(`VACUUM ANALYZE outbox_events`)
			}
			d.plansPartitioned()
		})
	}
}

func (d *db) plansPartitioned() {
	d.Helper()
	parts := testdb.One[int](d, d.Conn, `SELECT count(*)::int FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass`)
	low := testdb.One[int64](d, d.Conn, `SELECT low FROM outbox_partitions() ORDER BY low OFFSET 29 LIMIT 1`)
	s := d.session(options())
	if err := s.connect(d.Context()); err != nil {
		d.Fatal(err)
	}
	list, bounds := fmt.Sprintf("'{%d,%d}'", low+5, low+9), fmt.Sprintf("%d, %d", low+5, low+9)
	for _, c := range []struct {
		call string
		left int // partitions searched, 0 where the plan does not show it
	}{
		{"by_ids(" + list + ", " + bounds + ")", 1},
		{fmt.Sprintf("sweep(%d, 100, %d)", low, int64(1)<<62), 5}, // those ahead, and the default one
		{fmt.Sprintf("sweep_skip(%d, 100, %d, '{a}', '{}')", low, int64(1)<<62), 5},
		{fmt.Sprintf("sweep(%d, 100, %d)", -int64(1)<<62, int64(1)<<62), parts},
		{"due('{x,y}', '{1,2}', '{0,5}', 3, '{}')", 0},
		{"done(" + list + ", " + bounds + ")", 1},
		{`"delete"(` + list + ", " + bounds + ")", 1},
		{"bury(" + list + ", " + bounds + ")", 1},
		{"defer(" + list + ", " + bounds + ")", 1},
		{`"lock"(` + list + ", " + bounds + ")", 1},
		{"finish(" + list + ", " + bounds + ")", 1},
		{"finished(" + list + ", " + bounds + ")", 1},
		{"forget(" + list + ", " + bounds + ")", 1},
		{"remove(" + list + ", '{x,y}')", 0},
	} {
		results, err := s.conn.PgConn().Exec(d.Context(), "EXPLAIN (COSTS off) EXECUTE "+c.call).ReadAll()
		if err != nil {
			d.Errorf("%s: %v", c.call, err)
			continue
		}
		var plan strings.Builder
		for _, row := range results[0].Rows {
			fmt.Fprintf(&plan, "%s\n", row[0])
		}
		scans := anyScan.FindAllString(plan.String(), -1)
		if len(scans) == 0 {
			d.Errorf("%s: no scan in\n%s", c.call, plan.String())
		}
		for _, scan := range scans {
			if !byIndex.MatchString(scan) {
				d.Errorf("%s: %s", c.call, scan)
			}
		}
		if c.left > 0 {
			left := parts
			if m := removed.FindStringSubmatch(plan.String()); m != nil {
				n, err := strconv.Atoi(m[1])
				if err != nil {
					d.Fatal(err)
				}
				left -= n
			}
			if left != c.left {
				d.Errorf("%s: %d partitions are searched, want %d\n%s", c.call, left, c.left, plan.String())
			}
		}
	}
}
