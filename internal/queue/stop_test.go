package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
)

func TestRunStopLetsRunningDeliveriesFinish(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		cfg := testLane()
		cfg.Concurrency = 2
		r.to(t, "a", c.handler(takes(4*time.Second)), cfg, "x")
		r.start()
		<-r.Ready()
		db.write("x", 20)
		after(10 * time.Millisecond)
		begin := time.Now()
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		r.cancel = nil
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("stopping took %v", took)
		}
		if n := len(c.delivered()); n != 2 || c.n() != 2 {
			t.Errorf("%d calls, %d delivered, want the two that ran", c.n(), n)
		}
		if n := db.unfinished(); n != 18 {
			t.Errorf("%d events left of 20", n)
		}
		for _, id := range db.deferred() {
			t.Errorf("event %d left a row behind", id)
		}
		var rest calls
		next := newRelay(t, db, 2, testConfig())
		next.to(t, "a", rest.handler(nil), testLane(), "x")
		next.start()
		eventually(t, "the next relay delivers the rest", db.empty)
		if err := next.stop(); err != nil {
			t.Error(err)
		}
		if rest.n() != 18 {
			t.Errorf("the next relay made %d calls", rest.n())
		}
	})
}

func TestRunStopCancelsWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db := t.db
		cfg := testConfig()
		cfg.ShutdownTimeout = 3 * time.Second
		r := newRelay(t, db, 1, cfg)
		causes := make(chan error, 10)
		var c calls
		lane := testLane()
		lane.Timeout = time.Hour
		r.to(t, "a", c.handler(func(ctx context.Context, _ *delivery.Event) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return delivery.Permanent(errors.New("whatever"))
		}), lane, "x")
		r.start()
		id := db.write("x", 1)[0]
		after(time.Second)
		begin := time.Now()
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("stopping took %v", took)
		}
		if err := <-causes; !errors.Is(err, dispatch.ErrStopping) {
			t.Errorf("cause %v", err)
		}
		if row, _ := db.row(id, "a"); row.State != deliveries.Retry || row.Failures != 0 || row.Class != "relay" {
			t.Errorf("row %+v", row.Entry)
		}
	})
}

func TestRunReportsHandlersThatIgnoreTheirContext(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		release := make(chan struct{})
		defer close(release)
		r.to(t, "deaf", delivery.HandlerFunc(func(context.Context, *delivery.Event) error { <-release; return nil }), testLane(), "x")
		r.to(t, "good", delivery.HandlerFunc(takes(time.Millisecond)), testLane(), "y")
		r.start()
		db.write("x", 1)
		db.write("y", 1)
		after(time.Second)
		begin := time.Now()
		err := r.stop()
		r.cancel = nil
		if !errors.Is(err, dispatch.ErrShutdownIncomplete) || err.Error() != dispatch.ErrShutdownIncomplete.Error()+": [deaf]" {
			t.Errorf("Run returned %v", err)
		}
		if took := time.Since(begin); took > testConfig().ShutdownTimeout+5*time.Second+lastWrite {
			t.Errorf("stopping took %v", took)
		}
	})
}

func TestRunStopWritesLateAnswersThroughABrokenConnection(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		r.to(t, "a", c.handler(takes(2*time.Second)), testLane(), "x")
		r.start()
		ids := db.write("x", 4)
		after(time.Second)
		broken := 0
		db.set(func() {
			db.faults = func(op string) faultKind {
				if op == "finish" && broken < 2 {
					broken++
					return lostBefore
				}
				return noFault
			}
		})
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		r.cancel = nil
		if !db.empty() {
			t.Error("late answers are lost")
		}
		c.once(t, ids)
	})
}

func TestRunStopSavesAnswersOfALostClaim(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		db, r := t.db, t.r
		var c calls
		r.to(t, "a", c.handler(takes(50*time.Millisecond)), testLane(), "x")
		r.start()
		<-r.Ready()
		ids := db.write("x", 8)
		after(10 * time.Millisecond)
		lost := false
		db.set(func() {
			db.faults = func(op string) faultKind {
				if op == "settle" && !lost {
					lost = true
					return lostBefore
				}
				return noFault
			}
		})
		begin := time.Now()
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		r.cancel = nil
		if took := time.Since(begin); took > time.Second || !lost {
			t.Errorf("stopping took %v, lost %t", took, lost)
		}
		if !db.empty() {
			t.Error("a delivery is not recorded")
		}
		c.once(t, ids)
	})
}

// TestStopWhileItStartsIsNoOutage: the relay stops while its first query has no answer yet.
func TestStopWhileItStartsIsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFakeDB()
		db.roundTrip = time.Second
		r := newRelay(t, db, 1, testConfig())
		r.start()
		after(time.Millisecond)
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if n := r.log.count("database does not answer"); n != 0 {
			t.Errorf("an outage is reported %d times", n)
		}
	})
}
