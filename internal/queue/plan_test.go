package queue

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/store"
)

// forEachFill runs a test on each state that the tables may be in when a plan is made.
func forEachFill(t *testing.T, f func(t *testing.T, d *db)) {
	t.Helper()
	for name, statements := range testenv.Fills() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			for _, statement := range statements {
				d.Exec(statement)
			}
			f(t, d)
		})
	}
}

var scan = regexp.MustCompile(`(Index(?: Only)? Scan(?: Backward)? using \w+|(?:Seq|Bitmap Heap|Tid) Scan) on \w+|(?:Incremental )?Sort`)

// TestPlans: the prepared statements of a session reach rows by the index that was made for them,
// whatever the statistics say.
func TestPlans(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const (
		fresh  = "Index Scan using outbox_events_fresh on outbox_events"
		byID   = "Index Scan using outbox_events_pkey on outbox_events"
		due    = "Index Scan using outbox_deliveries_due on outbox_deliveries"
		dueIDs = "Index Only Scan using outbox_deliveries_due on outbox_deliveries"
		byKey  = "Index Scan using outbox_deliveries_pkey on outbox_deliveries"
	)
	// One of several lists of scans; each in the order of the plan.
	statements := []struct {
		call string
		want []string
	}{
		{"by_ids('{1,2,3}')", []string{fresh, byID}},
		{"sweep(5, 100, 2000)", []string{fresh}},
		{"sweep_skip(5, 100, 2000, '{a}', '{}')", []string{fresh}},
		{"due('{x,y}', '{1,2}', '{0,5}', 3, '{}')", []string{due + "; " + byID}},
		{"next_due('{x,y}')", []string{due, dueIDs}},
		{"done('{1,2,3}')", []string{byID, fresh}},
		{`"delete"('{1,2,3}')`, []string{byID, fresh}},
		{"bury('{1,2,3}')", []string{byID, fresh}},
		{"defer('{1,2,3}')", []string{byID, fresh}},
		{"remove('{1,2}', '{x,y}')", []string{byKey + "; Index Only Scan using outbox_events_pkey on outbox_events"}},
		{`"lock"('{1,2,3}')`, []string{byID}},
		{"finish('{1,2,3}')", []string{byID + "; " + byKey}},
		{"finished('{1,2,3}')", []string{byID + "; " + byKey}},
		{"forget('{1,2,3}')", []string{byID + "; " + byID + "; " + byKey, byID + "; " + byID + "; " + "Index Only Scan using outbox_deliveries_pkey on outbox_deliveries"}},
	}
	forEachFill(t, func(t *testing.T, d *db) {
		t.Helper()
		s := d.session(options())
		if err := s.connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, c := range statements {
			results, err := s.conn.PgConn().Exec(t.Context(), "EXPLAIN (COSTS off) EXECUTE "+c.call).ReadAll()
			if err != nil {
				t.Errorf("%s: %v", c.call, err)
				continue
			}
			var plan strings.Builder
			for _, row := range results[0].Rows {
				fmt.Fprintf(&plan, "%s\n", row[0])
			}
			got := strings.Join(scan.FindAllString(plan.String(), -1), "; ")
			if !slices.Contains(c.want, got) {
				t.Errorf("%s: %s\nwant %s\n%s", c.call, got, strings.Join(c.want, "\n  or "), plan.String())
			}
		}
	})
}

// TestPlansAsRun checks every statement that a claim, its settlement and the maintenance session really run,
// with auto_explain.
func TestPlansAsRun(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forEachFill(t, func(t *testing.T, d *db) {
		t.Helper()
		if _, err := d.Conn.Exec(t.Context(), `LOAD 'auto_explain'`); err != nil {
			testenv.Need(t, "auto_explain", err)
		}
		var mu sync.Mutex
		var plans []string
		d.Config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(n.Message, "duration:") {
				plans = append(plans, n.Message)
			}
		}
		name := d.Config.Database
		for _, setting := range []string{"session_preload_libraries = auto_explain", "auto_explain.log_min_duration = 0", "auto_explain.log_level = notice"} {
			d.Exec(`ALTER DATABASE "` + name + `" SET ` + setting)
		}
		o := options()
		s, k := d.session(o), d.maintenance(o)
		ids := d.Insert("a", 4)
		d.claim(s, Query{Source: SourceSweep, After: ids[0] - 1, Limit: 4})
		running := entry(ids[3], "x", deliveries.Running)
		d.settle(s, &Settlement{
			Done: ids[:1], DeadLettered: ids[1:2], Deferred: ids[2:],
			Put: []deliveries.Entry{entry(ids[1], "x", deliveries.Dead), entry(ids[2], "x", deliveries.Retry), running},
		})
		d.claim(s, dueFor("x", "y"))
		d.settle(s, &Settlement{Remove: []deliveries.Ref{ref(ids[2], "x")}})
		_, err := k.Finish(t.Context(), []deliveries.Entry{running}, []deliveries.Entry{entry(-1, "x", deliveries.Dead)})
		if err == nil {
			err = k.Renew(t.Context(), []int64{1, 2})
		}
		if err == nil {
			_, err = k.TakeOver(t.Context(), none)
		}
		if err == nil {
			_, _, err = k.Reroute(t.Context(), func(string) bool { return true })
		}
		if err == nil {
			_, _, _, err = k.Purge(t.Context(), store.AllIDs(), time.Hour, 100)
		}
		if err != nil {
			t.Fatal(err)
		}
		s.Close(t.Context())
		k.Close(t.Context())
		mu.Lock()
		defer mu.Unlock()
		if len(plans) < 15 {
			t.Errorf("%d plans were seen", len(plans))
		}
		for _, plan := range plans {
			if strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Sort") || strings.Contains(plan, "Bitmap") {
				t.Errorf("%s", plan)
			}
			// By their key: otherwise each of a thousand answers would search thousands of rows,
			// all leases of this relay.
			if strings.Contains(plan, "p.token") && strings.Contains(plan, "outbox_deliveries_running") {
				t.Errorf("%s", plan)
			}
		}
	})
}
