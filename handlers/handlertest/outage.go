package handlertest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/sleep"
)

// outage makes the destination unavailable, by the network if there is one.
func (p *probe) outage() {
	p.Helper()
	if p.d.Network == nil {
		p.d.Stop(p)
		return
	}
	p.d.Network.Refuse()
	p.d.Network.Cut()
}

// recovery ends an outage.
func (p *probe) recovery() {
	p.Helper()
	if p.d.Network == nil {
		p.d.Start(p)
		return
	}
	p.d.Network.Heal()
}

// checkNobodyListens: an unavailable destination costs no event an attempt,
// neither when the relay starts nor later.
func checkNobodyListens(p *probe) {
	p.outage()
	up := false
	p.Cleanup(func() { // before finish, which closes the handler
		if !up {
			p.recovery()
		}
	})

	s := p.open()
	for _, err := range s.deliver(p.events(batchOf(s))...) {
		p.wantOutage(err)
	}

	p.recovery()
	up = true
	if p.Failed() {
		return
	}

	p.recovers(s)
	p.outage()
	up = false

	for range 2 { // the first one may find out that a connection is gone
		for _, err := range s.deliver(p.events(batchOf(s))...) {
			p.wantOutage(err)
		}
	}

	p.recovery()
	up = true
	if !p.Failed() {
		p.recovers(s)
	}
}

// checkCutBeforeAnswer: it is unknown whether the event has arrived, so it is tried
// again.
func checkCutBeforeAnswer(p *probe) {
	s := p.warm()

	events := p.events(batchOf(s))
	var l ledger
	l.send(events)
	dl := s.mutedDelivery(p.ctx(), events...)
	p.d.Network.Cut()

	if p.within(p.d.Prompt, dl.isDone) {
		for _, err := range dl.given() {
			if err == nil {
				p.Error("delivered, though the connection was cut before the destination had answered")
			}
		}
	} else {
		p.Logf("Deliver goes on %v after the cut: the handler tries again by itself", p.d.Prompt)
	}

	p.heal()
	left := l.failing(dl)

	p.until("the events of the cut delivery are delivered", func() bool {
		for _, err := range dl.errs {
			p.wantRetriable(err)
		}
		if len(left) == 0 || p.Failed() {
			return true
		}
		dl = s.start(p.ctx(), left...)
		left = l.failing(dl)
		return len(left) == 0
	})

	if !p.Failed() {
		p.checkArrived(&l, len(events))
	}
}

// checkOutageInStream cuts deliveries under way and refuses connections for a while.
func checkOutageInStream(p *probe) {
	p.stream(p.outage, p.recovery)
}

func checkRestartInStream(p *probe) {
	p.stream(func() { p.d.Stop(p) }, func() { p.d.Start(p) })
}

// spell is how many batches are delivered before a fault, and after it.
const spell = 10

// stream delivers without a break, makes a fault in the middle, and wants
// everything to arrive.
func (p *probe) stream(fault, repair func()) {
	p.Helper()
	s := p.warm()
	size := 1
	if s.batch != nil {
		size = batchSize
	}

	// Each step has all of Patience: a real server takes its time.
	ctx, cancel := context.WithCancel(p.Context())
	defer cancel()
	r := &relay{p: p, s: s, size: size}
	running := start(func() { r.run(ctx) })

	down := false
	p.Cleanup(func() {
		if down {
			repair()
		}
		cancel()
		<-running.done
	})

	p.until("the stream begins", func() bool { return running.isDone() || r.batches.Load() >= spell })
	down = true
	fault()

	// The first failure belongs to the delivery under way, the second one shows the
	// handler's error for an outage. A handler that retries within a delivery shows
	// none; then the fault lasts as long as a delivery may take to notice.
	p.within(p.d.Prompt, func() bool { return running.isDone() || r.ledger.failures() >= 2 })
	repair()
	down = false

	mark := r.batches.Load()
	p.until("the stream goes on", func() bool { return running.isDone() || r.batches.Load() >= mark+spell })
	r.enough.Store(true)
	p.until("the stream ends", running.isDone)

	if running.panicked != "" {
		p.Fatalf("the handler panics: %s", running.panicked)
	}
	if r.end != "" {
		p.Fatal(r.end)
	}

	p.checkArrived(&r.ledger, size)
}

// relay delivers events as the dispatcher would: batch after batch, and failed events
// again until they are delivered.
type relay struct {
	p       *probe
	s       *subject
	size    int
	ledger  ledger
	batches atomic.Int64 // delivered
	enough  atomic.Bool  // no more of them
	end     string       // why it ended early, valid when it has
}

const (
	// between keeps a stream from filling the memory while a server takes its
	// time to stop.
	between = time.Millisecond
	// firstPause and longestPause are the backoff after a failure.
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

func (r *relay) run(ctx context.Context) {
	for !r.enough.Load() && r.end == "" && ctx.Err() == nil {
		events := r.p.events(r.size)
		r.ledger.send(events)
		r.deliver(ctx, events)
		r.batches.Add(1)
		sleep.For(ctx, between)
	}
	if ctx.Err() != nil && r.end == "" {
		r.end = fmt.Sprintf("the stream was ended: %v", context.Cause(ctx))
	}
}

// deliver delivers a batch, however often it takes.
func (r *relay) deliver(ctx context.Context, events []*delivery.Event) {
	for wait := firstPause; len(events) > 0 && ctx.Err() == nil; wait = min(2*wait, longestPause) {
		dl := &call{events: events, errs: make([]error, len(events))}
		r.s.call(ctx, dl)

		if dl.bug != "" {
			r.end = dl.bug
			return
		}

		var failed []*delivery.Event
		for i, err := range dl.errs {
			if err == nil {
				continue
			}
			r.p.note(err)
			r.ledger.fail(events[i].ID)
			failed = append(failed, events[i])

			if delivery.IsPermanent(err) {
				r.end = fmt.Sprintf("an outage has made event %d a dead letter: %v", events[i].ID, err)
				return
			}
		}

		events = failed
		if len(events) > 0 {
			sleep.For(ctx, wait)
		}
	}
}
