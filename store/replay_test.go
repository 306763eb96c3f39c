package store

import (
	"testing"

	"github.com/notifyd/notifyd/dispatch"
)

// TestReplayIsClaimed: what was replayed says so to its handler, and goes on
// saying so after it has failed, or has died again.
func TestReplayIsClaimed(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	s := d.session(options())
	id := d.insert("a", 1)[0]
	d.claim(s, dispatch.Query{Source: dispatch.SourceIDs, IDs: []int64{id}})
	d.settle(s, &dispatch.Settlement{Buried: []int64{id}, Put: []dispatch.Entry{entry(id, "x", dispatch.EntryDead)}})
	d.exec(`UPDATE outbox_events SET state = 'deferred', processed_at = NULL`)
	d.exec(`UPDATE outbox_deliveries SET state = 'retry', attempts = 0, available_at = now(), replays = 2`)
	c := d.claim(s, due("x"))
	if len(c.Work) != 1 || c.Work[0].Event.Replay != 2 || c.Work[0].Failures != 0 {
		t.Fatalf("claimed %+v", c.Work)
	}
	failed := entry(id, "x", dispatch.EntryRetry)
	failed.Failures = 1
	d.settle(s, &dispatch.Settlement{Put: []dispatch.Entry{failed}})
	c = d.claim(s, due("x"))
	if len(c.Work) != 1 || c.Work[0].Event.Replay != 2 || c.Work[0].Failures != 1 {
		t.Fatalf("claimed %+v", c.Work)
	}
	d.settle(s, &dispatch.Settlement{Put: []dispatch.Entry{entry(id, "x", dispatch.EntryDead)}})
	d.expect("replays of the dead letter", `SELECT format('%s %s', state, replays) FROM outbox_deliveries`, "dead 2")
}
