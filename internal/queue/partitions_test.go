package queue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/store"
)

func (d *db) keep(p *store.Partitions, at time.Time, keep time.Duration) {
	d.Helper()
	if _, err := p.Keep(d.Context(), at, keep); err != nil {
		d.Fatal(err)
	}
}

// TestSettlePartitioned: claims by id and sweeps, and all writes of a settlement, work across
// partitions, in the order of ids.
func TestSettlePartitioned(t *testing.T) {
	t.Parallel()
	for _, remove := range []bool{false, true} {
		d := newPartitionedDB(t)
		var all []int64
		for n := range 3 {
			d.keep(store.NewPartitions(d.Connector), partitionDay(n), time.Hour)
			all = append(all, d.Insert("a", 3)...)
		}
		o := options()
		o.Delete = remove
		s := d.session(o)
		if got := ids(d.claim(s, Query{Source: SourceIDs, IDs: []int64{all[8], all[0], all[4]}})); !slices.Equal(slices.Sorted(slices.Values(got)), []int64{all[0], all[4], all[8]}) {
			t.Errorf("by id: %v", got)
		}
		d.settle(s, &Settlement{
			Done: []int64{all[0]}, DeadLettered: []int64{all[4]}, Deferred: []int64{all[8]},
			Put: []deliveries.Entry{entry(all[4], "x", deliveries.Dead), entry(all[8], "x", deliveries.Retry)},
		})
		if got := d.sweep(s, 100); !slices.Equal(got, slices.DeleteFunc(slices.Clone(all), func(id int64) bool { return id == all[0] || id == all[4] || id == all[8] })) {
			t.Errorf("sweep: %v of %v", got, all)
		}
		d.settle(s, &Settlement{})
		d.claim(s, dueFor("x"))
		d.settle(s, &Settlement{Remove: []deliveries.Ref{ref(all[8], "x")}})
		want := []string{fmt.Sprint(all[4], " done"), fmt.Sprint(all[0], " done"), fmt.Sprint(all[8], " done")}
		if remove {
			want = want[:1]
		}
		slices.Sort(want)
		d.expect("done", `SELECT format('%s %s', id, state) FROM outbox_events WHERE state = 'done' ORDER BY 1`, want...)
	}
}

// TestSessionBesideExtension: a session that is older than a partition finds the events in it by
// every kind of query, and settles them.
func TestSessionBesideExtension(t *testing.T) {
	t.Parallel()
	d := newPartitionedDB(t)
	s := d.session(options())
	old := d.Insert("a", 2)
	if got := d.sweep(s, 100); !slices.Equal(got, old) {
		t.Errorf("sweep: %v, want %v", got, old)
	}
	d.settle(s, &Settlement{Done: old[:1]})
	d.claim(s, Query{Source: SourceIDs, IDs: old}) // with the plans made before
	d.settle(s, &Settlement{Done: old})
	d.keep(store.NewPartitions(d.Connector), partitionDay(20), time.Hour)
	fresh := d.Insert("a", 3)
	d.expect("their partition", `SELECT DISTINCT tableoid::regclass::text FROM outbox_events WHERE state = 'fresh'`, "outbox_events_p20310321")
	if got := ids(d.claim(s, Query{Source: SourceIDs, IDs: fresh[2:]})); !slices.Equal(got, fresh[2:]) {
		t.Errorf("by id: %v, want %v", got, fresh[2:])
	}
	d.settle(s, &Settlement{Deferred: fresh[2:], Put: []deliveries.Entry{entry(fresh[2], "x", deliveries.Retry)}})
	if got := d.sweep(s, 100); !slices.Equal(got, fresh[:2]) {
		t.Errorf("sweep: %v, want %v", got, fresh[:2])
	}
	d.settle(s, &Settlement{Done: fresh[:2]})
	if got := ids(d.claim(s, dueFor("x"))); !slices.Equal(got, fresh[2:]) {
		t.Errorf("due: %v, want %v", got, fresh[2:])
	}
	d.settle(s, &Settlement{Remove: []deliveries.Ref{ref(fresh[2], "x")}})
	d.expect("left", `SELECT count(*)::text FROM outbox_events WHERE state <> 'done'`, "0")
}

// TestSettleDetached: deliveries whose events are in a detached partition do not end, by a lease or after a lost
// connection of a claim. They are repeated once the partition is attached. An event without a delivery would be deferred
// forever.
func TestSettleDetached(t *testing.T) {
	t.Parallel()
	d := newPartitionedDB(t)
	o := options()
	k, s := d.maintenance(o), d.session(o)
	done, dead, retry := d.lease(o.Owner, 1, soon), d.lease(o.Owner, 2, soon), d.lease(o.Owner, 3, soon)
	dead.State, retry.State = deliveries.Dead, deliveries.Retry
	due := d.Insert("a", 1)[0]
	d.Exec(`UPDATE outbox_events SET state = 'deferred' WHERE id = $1`, due)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at) VALUES ($1, 'x', 'a', 'retry', 2, now())`, due)
	d.claim(s, dueFor("x"))
	d.terminate(s.conn)

	partition := testdb.One[string](d, d.Conn, `SELECT tableoid::regclass::text FROM outbox_events WHERE id = $1`, due)
	bounds := testdb.One[string](d, d.Conn, `SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = $1::text::regclass`, partition)
	d.Exec(`ALTER TABLE outbox_events DETACH PARTITION ` + partition)
	if fenced, err := k.Finish(t.Context(), []deliveries.Entry{done}, []deliveries.Entry{dead, retry}); err != nil || fenced != 2 {
		t.Errorf("%d fenced, %v; want 2", fenced, err)
	}
	// The first attempt finds that the connection is lost, the second one salvages.
	if _, err := s.Settle(t.Context(), &Settlement{Remove: []deliveries.Ref{ref(due, "x")}}); err == nil {
		t.Error("settled on a connection that is lost")
	}
	d.settle(s, &Settlement{Remove: []deliveries.Ref{ref(due, "x")}})
	d.Exec(`ALTER TABLE outbox_events ATTACH PARTITION ` + partition + ` ` + bounds)
	d.expect("deliveries", `SELECT state FROM outbox_deliveries ORDER BY event_id`, "running", "running", "retry", "retry")
	d.expect("events", `SELECT state FROM outbox_events ORDER BY id`, "deferred", "deferred", "deferred", "deferred")
	if fenced, err := k.Finish(t.Context(), []deliveries.Entry{done}, []deliveries.Entry{dead}); err != nil || fenced != 0 {
		t.Errorf("attached: %d fenced, %v", fenced, err)
	}
}
