package deliveries_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// TestPut writes rows that are new, and again over them.
func TestPut(t *testing.T) {
	t.Parallel()
	d := testdb.New(t, testdb.Tables{})
	d.Exec(`INSERT INTO outbox_events (event_type, payload, available_at) VALUES ('a', '1', NULL), ('a', '1', '2030-01-02 03:04:05.678901+00')`)
	stored := func() string {
		return strings.Join(testdb.List[string](t, d.Conn, `SELECT concat_ws(' ', event_id, destination, event_type, state, attempts, ordering_key, error_class, last_error, replays,
			CASE WHEN available_at = '2030-01-02 03:04:05.678901+00' THEN 'own' ELSE round(extract(epoch FROM available_at - now()) / 60) || 'm' END,
			lease_owner, lease_token, round(extract(epoch FROM lease_until - now()))) FROM outbox_deliveries ORDER BY event_id`), "\n")
	}
	put := func(what, statement string, entries []deliveries.Entry, want ...string) {
		t.Helper()
		args := deliveries.Args(entries, "UTF8", 42, time.Hour)
		if statement != deliveries.SQLPut {
			args = append(args, 3) // the shard
		}
		d.Exec(statement, args...)
		if got := stored(); got != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", what, got, strings.Join(want, "\n"))
		}
	}
	entry := func(id int64, state deliveries.State) deliveries.Entry {
		return deliveries.Entry{Ref: deliveries.Ref{EventID: id, Destination: "x"}, EventType: "a", State: state}
	}
	retry, own, running := entry(1, deliveries.Retry), entry(2, deliveries.Retry), entry(3, deliveries.Running)
	retry.Failures, retry.Delay, retry.Key, retry.Class, retry.Err, retry.Replays = 1<<40, 10*time.Minute, "k", "event", "no\x00", 2
	own.Own, own.Delay, own.Key = true, time.Hour, "k"
	running.Token = 7
	put("new", deliveries.SQLPutNew, []deliveries.Entry{retry, own, running},
		fmt.Sprintf("1 x a retry %d k event no 2 10m", 1<<30), "2 x a retry 0 k 0 own", "3 x a running 0 0 0m 42 7 3600")
	put("again", deliveries.SQLPutNew, []deliveries.Entry{entry(1, deliveries.Dead), entry(3, deliveries.Dead)},
		fmt.Sprintf("1 x a retry %d k event no 2 10m", 1<<30), "2 x a retry 0 k 0 own", "3 x a running 0 0 0m 42 7 3600")

	dead := entry(3, deliveries.Dead)
	dead.Class, dead.Err, dead.Failures = "relay", "gone", 3
	again := entry(1, deliveries.Retry)
	again.Own, again.Replays = true, 9 // its event has no available_at
	put("keyed", deliveries.SQLPutKeyed, []deliveries.Entry{again, dead},
		"1 x a retry 0 event no 2 0m", "2 x a retry 0 k 0 own", "3 x a dead 3 relay gone 0 0m")

	leased := entry(2, deliveries.Running)
	leased.Token, leased.Replays = 8, 9
	put("over", deliveries.SQLPut, []deliveries.Entry{leased},
		"1 x a retry 0 event no 2 0m", "2 x a running 0 k 0 0m 42 8 3600", "3 x a dead 3 relay gone 0 0m")
	put("over again", deliveries.SQLPut, []deliveries.Entry{own},
		"1 x a retry 0 event no 2 0m", "2 x a retry 0 k 0 own", "3 x a dead 3 relay gone 0 0m")

	forever := entry(1, deliveries.Retry)
	forever.Delay = 1<<63 - 1
	d.Exec(deliveries.SQLPutKeyed, append(deliveries.Args([]deliveries.Entry{forever}, "UTF8", 0, 0), 0)...)
	if !testdb.One[bool](t, d.Conn, `SELECT available_at BETWEEN now() + interval '99 years' AND now() + interval '101 years' FROM outbox_deliveries WHERE event_id = 1`) {
		t.Error("a long delay is not bounded")
	}
	d.Exec(deliveries.SQLAcknowledged, []int64{1, 2}, []string{"x", "x"})
	if got := testdb.List[int64](t, d.Conn, `SELECT event_id FROM outbox_audit WHERE action = 'delivered'`); len(got) != 1 || got[0] != 1 {
		t.Errorf("acknowledged replays are recorded of %v", got)
	}
	d.Exec(deliveries.SQLRemove, []int64{1, 2, 3}, []string{"x", "y", "x"})
	if got := stored(); got != "2 x a retry 0 k 0 own" {
		t.Errorf("left are %s", got)
	}
}
