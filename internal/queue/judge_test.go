package queue

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// TestJudgements: a judgement holds for one payload of an event, until it is used, and the number of judgements is bounded.
func TestJudgements(t *testing.T) {
	t.Parallel()
	_, d, slow := newTestScheduler(t)
	lanes := d.QueueLanes()
	var j judge
	knows := func(id int64, payload string, l dispatch.QueueLane) bool {
		known, ok := j.of(&delivery.Event{ID: id, Payload: []byte(payload)}, l)
		return ok && known.drops
	}
	add := func(id int64) {
		j.add(&delivery.Event{ID: id, Payload: []byte("a")}, slow, judgement{drops: true})
	}

	if knows(1, "a", slow) {
		t.Error("knows an event that was not judged")
	}
	add(1)
	if !knows(1, "a", slow) || knows(1, "edited", slow) {
		t.Error("a judgement does not hold for exactly the payload that was judged")
	}
	for _, l := range lanes {
		if l != slow && knows(1, "a", l) {
			t.Error("a judgement holds for another destination")
		}
	}

	j.used(&delivery.Event{ID: 1, Payload: []byte("a")}, slow)
	if knows(1, "a", slow) || j.n.Load() != 0 {
		t.Error("a judgement was used twice")
	}

	for id := range int64(maxJudgements + 5) {
		add(id)
	}
	if n := j.n.Load(); n != maxJudgements || knows(4, "a", slow) || !knows(5, "a", slow) {
		t.Errorf("%d judgements after an overflow, want %d without the oldest", n, maxJudgements)
	}
}
