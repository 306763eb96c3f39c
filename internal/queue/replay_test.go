package queue

import (
	"testing"

	"github.com/notifyd/notifyd/internal/deliveries"
)

// TestReplayIsClaimed: a replayed event is marked as such for its handler, also after it has
// failed, or died again.
func TestReplayIsClaimed(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	s := d.session(options())
	id := d.Insert("a", 1)[0]
	d.claim(s, Query{Source: SourceIDs, IDs: []int64{id}})
	d.settle(s, &Settlement{DeadLettered: []int64{id}, Put: []deliveries.Entry{entry(id, "x", deliveries.Dead)}})
	d.Exec(`UPDATE outbox_events SET state = 'deferred', processed_at = NULL`)
	d.Exec(`UPDATE outbox_deliveries SET state = 'retry', attempts = 0, available_at = now(), replays = 2`)
	c := d.claim(s, dueFor("x"))
	if len(c.Work) != 1 || c.Work[0].Event.Replay != 2 || c.Work[0].Failures != 0 {
		t.Fatalf("claimed %+v", c.Work)
	}
	failed := entry(id, "x", deliveries.Retry)
	failed.Failures = 1
	d.settle(s, &Settlement{Put: []deliveries.Entry{failed}})
	c = d.claim(s, dueFor("x"))
	if len(c.Work) != 1 || c.Work[0].Event.Replay != 2 || c.Work[0].Failures != 1 {
		t.Fatalf("claimed %+v", c.Work)
	}
	d.settle(s, &Settlement{Put: []deliveries.Entry{entry(id, "x", deliveries.Dead)}})
	d.expect("replays of the dead letter", `SELECT format('%s %s', state, replays) FROM outbox_deliveries`, "dead 2")
}
