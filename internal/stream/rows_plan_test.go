package stream

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// TestRowStatementsAreBounded: no statement that reads the stored deliveries of a destination walks over delayed
// events, over dead letters or over other destinations, with statistics of the table or without.
func TestRowStatementsAreBounded(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.Exec(`ALTER TABLE outbox_deliveries SET (autovacuum_enabled = off)`)
	l.Exec(`ALTER TABLE outbox_deliveries DISABLE TRIGGER ALL`)
	const many = 30_000
	for _, rows := range []string{
		`SELECT i, 'x', 'a', 'retry', NULL, now() + interval '1 day', 0 FROM generate_series(1, $1::int) AS i`,
		`SELECT $1 + i, 'x', 'a', 'dead', 'order/1', now(), 0 FROM generate_series(1, $1::int) AS i`,
		`SELECT i, 'y', 'a', 'parked', 'order/1', now(), 0 FROM generate_series(1, $1::int) AS i`,
		`SELECT i, 'z', 'a', 'retry', NULL, now(), 1 FROM generate_series(1, $1::int) AS i`,
		`SELECT 2 * $1 + i, d, 'a', CASE i % 2 WHEN 0 THEN 'retry' ELSE 'parked' END, 'order/' || i % 3, now(), s FROM generate_series(1, 50) AS i, (VALUES ('x', 0), ('z', 2)) AS of(d, s)`,
	} {
		l.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, available_at, shard) `+rows, pgx.QueryExecModeSimpleProtocol, many)
	}
	pages := regexp.MustCompile(`Buffers: shared (?:hit=(\d+))? ?(?:read=(\d+))?`)
	relay := l.Relay()
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			l.Exec(`ANALYZE outbox_deliveries`)
		}
		for _, o := range []*order{{kept: true}, {kept: true, total: true}, {kept: true, shard: 2}} {
			names := []string{"order/0", "order/1", "order/2"}
			destination := "x"
			if o.shard > 0 {
				destination = "z" // another shard of it has many due rows
			}
			statements := map[string][]any{
				sqlDue(1000, o):        {destination, deliveries.BeforeAll().At, deliveries.BeforeAll().ID, 100, false, time.Now().Add(time.Hour)},
				sqlNextDue(o):          {destination, deliveries.BeforeAll().At, deliveries.BeforeAll().ID, time.Hour.Microseconds()},
				sqlQueueHeads(1000, o): {destination, names, 20, false},
				sqlUnblocked(o):        {destination, names, false},
				sqlWalk(liveKind()):    {destination, "", 100},
				sqlWalk(deadKind(3)):   {destination, "", 100},
				sqlHeads(liveKind()):   {destination, "", 100},
				sqlHeads(deadKind(3)):  {destination, "", 100},
				sqlUnname:              {destination, 100, int64(math.MinInt64), []int64(nil)},
				totalPage:              {destination, 100, int64(math.MinInt64), []int64(nil)},
				sqlUnpark:              {destination, "", int64(math.MinInt64), 100, o.shard, []int64(nil)},
				sqlParked:              {destination, "", int64(math.MinInt64), 100, o.shard, []int64(nil)},
				sqlIgnored:             {destination, []int64{-1, -2}, []int64{-3, -4}, []int64{-5, -6}},
				deliveries.SQLRemove:   {[]int64{-1, -2}, []string{destination, destination}},
			}
			if o.shard > 0 {
				for _, page := range movePages() {
					statements[sqlMove(page)] = []any{"x", deliveries.BeforeAll().ID, deliveries.BeforeAll().At, 20, 3, []int64(nil)}
				}
			}
			if o.total {
				statements[sqlTotal(o)] = []any{"x", 100, true}
				statements[sqlFirstOfTotal(o)] = []any{"x"}
			}
			for query, args := range statements {
				plan := testdb.List[string](l.DB, relay, `EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) `+query, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
				read := 0
				for _, line := range plan { // the first line includes all others
					if m := pages.FindStringSubmatch(line); m != nil {
						hit, _ := strconv.Atoi(m[1])
						miss, _ := strconv.Atoi(m[2])
						read = hit + miss
						break
					}
				}
				if read == 0 || read > 1000 { // 20 rows move, each in all indexes; all 30,000 would be some 10,000
					t.Errorf("analyzed %t, total %t: %d pages\n%s\n%s", analyzed, o.total, read, query, strings.Join(plan, "\n"))
				}
			}
		}
	}
}
