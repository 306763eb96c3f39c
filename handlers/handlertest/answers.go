package handlertest

import (
	"errors"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// verdict describes how the dispatcher would class err.
func verdict(err error) string {
	permanent := delivery.IsPermanent(err)
	unavailable := delivery.IsUnavailable(err)
	throttled := delivery.IsThrottled(err)

	switch {
	case err == nil:
		return "delivered"
	case delivery.IsUnclear(err):
		return "unclear, and then " + verdict(delivery.Proven(err))
	case permanent && unavailable:
		return "permanent and unavailable, which is a contradiction"
	case throttled && (permanent || unavailable):
		return "throttled and permanent or unavailable, which is a contradiction"
	case permanent:
		return "permanent"
	case unavailable:
		return "unavailable"
	case throttled:
		return "throttled"
	default:
		return "to be tried again"
	}
}

// pause returns the delay that [delivery.RetryAfter] or [delivery.Throttled] gave to err, zero if none.
func pause(err error) time.Duration {
	var r interface{ RetryAfter() time.Duration }
	if errors.As(err, &r) {
		return r.RetryAfter()
	}
	return 0
}

// wantRetriable wants an error after which the event is tried again.
func (p *probe) wantRetriable(err error) {
	p.Helper()
	if delivery.IsPermanent(err) {
		p.Errorf("a fault of the network has made the event a dead letter: %s: %v", verdict(err), err)
	}
}

// wantOutage wants an error that means that the destination is down.
func (p *probe) wantOutage(err error) {
	p.Helper()
	if err == nil {
		p.Error("delivered, though no server could have answered")
		return
	}

	if !delivery.IsUnavailable(err) || delivery.IsPermanent(err) {
		p.Errorf("the destination is down, and that has cost the event an attempt: want delivery.Unavailable, "+
			"got %s: %v", verdict(err), err)
	}
}

// wantEnded wants the error of a delivery whose context was done.
func (p *probe) wantEnded(err, cause error) {
	p.Helper()
	switch {
	case err == nil: // answerAwaited checks that
		p.Log("delivered, though no answer can have come")
	case !errors.Is(err, cause):
		p.Errorf("the error does not wrap context.Cause(ctx): %v", err)
	case delivery.IsPermanent(err) || delivery.IsUnavailable(err) || delivery.IsThrottled(err):
		p.Errorf("the context was done, which is the fault of neither the event nor the destination: %s: %v", verdict(err), err)
	}
}

// checkCase provokes one fault of the table.
func checkCase(p *probe, c Case) {
	err := c.Provoke(p)
	p.note(err)

	want := "delivered"
	switch {
	case c.Throttled && c.Class != delivery.ClassDestination:
		p.Fatalf("a Case that is Throttled is of ClassDestination, not %v", c.Class)
	case c.Throttled:
		want = verdict(delivery.Throttled(c.RetryAfter, errPatience))
	case c.Class == delivery.ClassDestination:
		want = verdict(delivery.Unavailable(errPatience))
	case c.Class == delivery.ClassEvent && c.Permanent:
		want = verdict(delivery.Permanent(errPatience))
	case c.Class == delivery.ClassEvent:
		want = verdict(errPatience)
	case c.Class != 0:
		p.Fatalf("the Class of a Case is ClassEvent, ClassDestination or zero, not %v", c.Class)
	}

	if c.Unclear {
		want = "unclear, and then " + want
	}

	if got := verdict(err); got != want {
		p.Fatalf("%s, want %s: %v", got, want, err)
	}
	if got := pause(err); got != c.RetryAfter {
		p.Errorf("to be tried again after %v, want %v: %v", got, c.RetryAfter, err)
	}

	if err != nil && !strings.Contains(err.Error(), c.Text) {
		p.Errorf("the error is %q, want %q in it", err, c.Text)
	}
}
