package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// claimer claims, hands out, waits and settles, one claim after the other, on its own session. Several claimers keep
// the database busy while handlers run.
type claimer struct {
	e       *Engine
	i       int
	session Claimer
	log     *slog.Logger
	shares  map[dispatch.QueueLane]*share // shares of finished claims, for reuse
	query   *Query                        // the query that the scheduler waits for; nil for none
	held    *claim                        // the claim that is handed out and not settled; nil for none

	unjudged []unjudged // returned by the last claim

	claims, answers string       // names in reports
	pauses          store.Pauses // after refused settlements; they grow until one is accepted at once
}

func newClaimer(e *Engine, session Claimer, i int) *claimer {
	return &claimer{
		e: e, i: i, session: session, log: e.Log.With("claimer", i), shares: make(map[dispatch.QueueLane]*share),
		claims: fmt.Sprintf("claims of claimer %d", i), answers: fmt.Sprintf("answers of claimer %d", i), pauses: store.NewPauses(),
	}
}

// run claims until the scheduler stops. It still settles a claim that is open then, and waits at most the lock budget
// for its handlers.
func (c *claimer) run(ctx context.Context) {
	// An empty claim connects, prepares and plans, so that the first event does not wait for that. After an error the
	// first real claim connects again.
	err := c.claimNothing(ctx)
	c.e.sched.warmed()
	pauses := store.NewPauses()

	c.untilAccepted(ctx, pauses, err)
	for more := true; more; {
		err := engine.Protected("a claimer", func() error {
			more = c.work(ctx, pauses)
			return nil
		})
		if err != nil {
			c.abandon(ctx, pauses, err)
		}
	}
}

// work claims until the scheduler stops, and then returns false.
func (c *claimer) work(ctx context.Context, pauses store.Pauses) bool {
	for {
		q, ok := c.e.sched.next()
		if !ok {
			return false
		}
		c.claimOnce(ctx, pauses, q)
	}
}

// claimOnce makes one claim, and delivers its events.
func (c *claimer) claimOnce(ctx context.Context, pauses store.Pauses, q Query) {
	c.e.claiming.Add(1)
	defer c.e.claiming.Add(-1)

	c.query = &q
	q.skip(slices.Concat(c.e.withheld.except(), c.e.judge.except()))

	claimed, err := c.session.Claim(ctx, q)
	c.report(ctx, err)
	if q.Source != SourceSweep {
		slices.SortStableFunc(claimed.Work, func(a, b Work) int { return cmp.Compare(a.Event.ID, b.Event.ID) })
	}

	anew := c.e.sched.claimed(&q, &claimed, err)
	c.query = nil
	if anew != nil {
		c.e.idsBeginAgain(ctx, anew)
	}

	if err != nil {
		c.untilAccepted(ctx, pauses, err)
		return
	}

	pauses.Reset()
	if len(claimed.Work) > 0 {
		c.deliver(ctx, &claimed)
	}
}

// abandon ends the claim that a panic has interrupted. Nothing of it is recorded: its rows are unlocked as they were, and
// its events are delivered again.
func (c *claimer) abandon(ctx context.Context, pauses store.Pauses, err error) {
	c.report(ctx, err)
	c.e.settling[c.i].Store(nil)
	c.e.judge.evaluating[c.i].Store(nil)
	if c.query != nil {
		c.e.sched.claimed(c.query, &Claimed{}, err)
		c.query = nil
	}

	if held := c.held; held != nil {
		c.held = nil
		c.shares = make(map[dispatch.QueueLane]*share)
		held.withdraw()
		c.awaitRunning(held)
		c.e.leases.hold(held, err)
	}

	for isPanic := true; isPanic && ctx.Err() == nil; {
		sleep.For(ctx, pauses.After(err))
		unlocked := engine.Protected("a claimer", func() error {
			_, err := c.session.Settle(context.WithoutCancel(ctx), &Settlement{})
			return err
		})
		isPanic = errors.Is(unlocked, engine.ErrPanicked)
	}
	c.e.sched.again()
}

// untilAccepted pauses after a failed claim. After a refusal it sends empty claims until the database accepts one:
// without them an idle claimer would keep reporting the refusal.
func (c *claimer) untilAccepted(ctx context.Context, pauses store.Pauses, err error) {
	for err != nil && ctx.Err() == nil {
		sleep.For(ctx, pauses.After(err))
		if store.IsDown(err) {
			return
		}
		err = c.claimNothing(ctx)
	}
}

// claimNothing sends an empty claim, and reports its result.
func (c *claimer) claimNothing(ctx context.Context) error {
	err := engine.Protected("a claimer", func() error {
		_, err := c.session.Claim(ctx, Query{Source: SourceIDs})
		return err
	})
	c.report(ctx, err)
	return err
}

// report records whether the database answered. A claim that the stopping relay cut off says nothing about the
// database.
func (c *claimer) report(ctx context.Context, err error) {
	if err == nil || ctx.Err() == nil {
		c.e.report(c.claims, err)
	}
}

// deliver hands out a claim, waits for it and settles it.
func (c *claimer) deliver(ctx context.Context, claimed *Claimed) {
	work, passed := c.e.settling.exclude(c.i, claimed.Work)
	held := c.handOut(work)

	c.await(held)
	s, left, rows := held.settlement(c.e.lanesOf)

	c.e.settling[c.i].Store(held)
	err := c.settle(ctx, held, s)
	c.e.settling[c.i].Store(nil)

	c.held = nil
	if held.detached.Load() {
		c.e.leases.hold(held, err)
	} else {
		held.release()
	}

	if passed {
		sleep.For(ctx, excludePause)
	}

	if err != nil {
		c.e.judge.evaluating[c.i].Store(nil)
		c.e.sched.again()
		return
	}

	if claimed.Cut || passed {
		c.e.sched.again()
	}
	c.e.judge.evaluateAll(ctx, c.unjudged)
	c.e.judge.evaluating[c.i].Store(nil)

	for i := range s.Put {
		if e := &s.Put[i]; e.State == deliveries.Retry || e.ReportTo != "" {
			c.e.sched.dueIn(e.Delay)
		}
	}
	if slices.ContainsFunc(held.work, func(w Work) bool { return w.Event.DeadLetter != nil }) {
		c.e.sched.dueIn(0) // the next report of the row
	}

	c.e.sched.passedOver(left) // the rows are free now
	if rows {
		c.e.sched.dueNow() // or once their lanes have capacity
	}
}

// handOut distributes the claimed work to the lanes.
func (c *claimer) handOut(work []Work) *claim {
	held := &claim{work: work, leases: c.e.leases, ready: make(chan struct{}, 1), lateAnswers: make(chan struct{}, 1)}
	c.held = held
	c.unjudged = nil

	passed := make(map[dispatch.QueueLane]int64)
	for i := range work {
		c.plan(held, i, passed)
	}

	for _, p := range held.shares {
		if len(p.events) > 0 && p.lane.Destination().Limited() {
			c.admit(held, p, passed)
		}
	}

	c.unjudged = c.e.judge.begin(c.i, c.unjudged)
	c.e.sched.passedOver(passed)

	for _, p := range held.shares {
		p.lane.Return(p.reserved)
		p.reserved = 0
		p.fast = len(p.works) > 0 && !p.lane.Slow()
		if p.fast {
			held.waiting.Add(1)
		}
	}

	for _, p := range held.shares {
		for _, i := range p.works {
			c.e.judge.used(&held.work[i], p.lane)
		}
		p.batch.Fill(p.events)
		p.handed = true
		if len(p.events) > 0 {
			p.lane.Deliver(p.batch, nil)
		}
	}

	return held
}

// plan routes a work, and adds it to the shares of its lanes that have capacity. An event that a filter drops is settled
// for that lane, as if delivered. If another lane has no capacity for such an event, the event becomes a row, so no
// sweep calls the filter again.
func (c *claimer) plan(held *claim, i int, passed map[dispatch.QueueLane]int64) {
	w := &held.work[i]
	if w.Missing {
		r := held.unfinishedOf(i)
		later := w.Entry(w.Destination, deliveries.Retry)
		later.Delay = c.e.missing.Met(w.Destination, w.Event.ID)
		later.Class = engine.ClassMissing
		later.Err = engine.ErrMissing.Error()
		r.put = append(r.put, later)
		return
	}

	if known := c.e.withheld.outcome(w.ref()); known != nil {
		held.unfinishedOf(i).outcome = known
		return
	}

	lanes := c.e.lanesOf(w)
	switch {
	case w.Fresh && w.Delay > 0:
		held.unfinishedOf(i).state = deliveries.Retry
		return
	case len(lanes) == 0:
		held.unfinishedOf(i).state = deliveries.Unrouted
		return
	}

	candidate := delivery.Candidate{Event: &w.Event}
	for _, l := range lanes {
		result, isKnown := c.e.judge.decide(held, w, l, &candidate)
		switch {
		case !isKnown:
			c.unjudged = append(c.unjudged, unjudged{work: w, lane: l})
			held.returnWork(i, l, passed)
			continue
		case result.drops:
			c.e.judge.used(w, l)
			c.e.d.Filtered(l.Destination().Name)
			continue
		}

		p := c.share(held, l, i)
		if p.reserved == 0 {
			l.Refused()
			held.returnWork(i, l, passed)
			continue
		}
		p.reserved--

		e := &w.Event
		if len(lanes) > 1 {
			each := w.Event // each destination gets its own copy of the event
			e = &each
		}
		e.Destination = l.Destination().Name
		e.Outbox = c.e.Outbox
		e.Attempt = w.Failures + 1
		p.works = append(p.works, int32(i)) //nolint:gosec // a claim is bounded far below
		p.events = append(p.events, dispatch.Delivery{
			Event:    e,
			Failures: w.Failures,
			Delayed:  !w.Fresh && w.Destination == "",
			Refused:  result.refused,
			RateKey:  result.rateKey,
			Expires:  w.expires(l),
			Waited:   !w.Fresh,
			Row:      e.Replay > 0,
		})
	}
}

// admit takes from a lane's rate limit for its share of the claim. Delayed events are returned, as if the lane had no
// capacity. If each key has its own limit, they become rows that are due when their turn may have come, and other
// keys continue.
func (c *claimer) admit(held *claim, p *share, passed map[dispatch.QueueLane]int64) {
	waits := p.lane.Admit(p.events, evaluateFor)
	if waits == nil {
		return
	}

	n := 0
	for i, wait := range waits {
		work := int(p.works[i])
		switch w := &held.work[work]; {
		case wait == 0:
			p.works[n] = p.works[i]
			p.events[n] = p.events[i]
			n++
			continue
		case wait == dispatch.NotEvaluated:
			c.unjudged = append(c.unjudged, unjudged{work: w, lane: p.lane})
			held.returnWork(work, p.lane, passed)
		case p.lane.Destination().RateKey != nil:
			r := held.unfinishedOf(work)
			later := w.Entry(p.lane.Destination().Name, deliveries.Retry)
			later.Delay = wait
			later.Class = delivery.ClassDestination.String()
			later.Err = dispatch.ErrLimited.Error()
			r.put = append(r.put, later)
		default:
			held.returnWork(work, p.lane, passed)
		}
		p.reserved++
	}

	clear(p.events[n:])
	p.works = p.works[:n]
	p.events = p.events[:n]
}

// share returns the claim's share for a lane. A new share reserves capacity for the rest of the claim, from the given
// work.
func (c *claimer) share(held *claim, l dispatch.QueueLane, from int) *share {
	p := c.shares[l]
	if p == nil {
		p = newShare(l)
		c.shares[l] = p
	}
	if p.claim != held {
		n := len(held.work) - from
		p.claim = held
		p.reserved = l.Reserve(dispatch.Request{N: n})
		p.works = p.works[:0]
		p.events = p.batch.Alloc(n)
		p.finished.Store(false)
		p.handed = false
		held.shares = append(held.shares, p)
	}
	return p
}

// await waits for fast lanes within the lock budget, and leases the deliveries that are still unanswered.
func (c *claimer) await(held *claim) {
	if held.waiting.Load() > 0 {
		c.wait(held)
	}

	if slices.ContainsFunc(held.shares, func(p *share) bool { return len(p.works) > 0 && !p.finished.Load() }) {
		for _, p := range held.shares {
			delete(c.shares, p.lane)
		}
		held.detach()
		return
	}
	held.collect()
}

// hurryAfter is the minimum wait for handlers when other events need the claimer: below it a lease would cost more
// than it saves.
const hurryAfter = time.Millisecond

// wait returns when the fast lanes have answered, when the lock budget ends, or when this claimer is needed
// elsewhere: an event that a notification has just named must not wait for the handlers of another event.
func (c *claimer) wait(held *claim) {
	begin := time.Now()
	lockBudget := c.e.limits.LockBudget
	budget := time.NewTimer(lockBudget)
	defer budget.Stop()
	hurry := c.e.sched.hurry

	for {
		select {
		case <-held.ready:
			return
		case <-hurry:
			hurry = nil
			budget.Reset(max(0, min(hurryAfter, lockBudget)-time.Since(begin)))
		case <-budget.C:
			held.observeSlow(min(time.Since(begin), lockBudget))
			return
		}
	}
}

// settle writes the settlement. If the connection was lost with the claim, settle still writes the delivered events,
// including later answers, before any claimer claims again.
//
// If the database refuses the settlement, no claimer claims until the database would accept it: later deliveries
// could not be recorded either, and would be repeated. A stopping relay also writes its answers, but does not retry
// refused ones. Rows that are refused alone are withheld.
func (c *claimer) settle(ctx context.Context, held *claim, s *Settlement) error {
	refused, err := c.session.Settle(context.WithoutCancel(ctx), s)
	isRolledBack := err != nil && !store.IsDown(err)

	if err == nil {
		var alone bool
		alone, err = c.e.withheld.settled(ctx, held, s, refused)
		if err == nil {
			c.accepted()
			c.slowDown(ctx, refused, alone)
			return nil
		}
	}

	c.e.report(c.answers, err)
	c.log.DebugContext(ctx, "claim lost before it was settled", "err", err, "events", len(s.Done)+len(s.Deferred)+len(s.DeadLettered))
	held.unwritten.Store(true)
	c.e.sched.pauseClaims(+1)
	defer c.e.sched.pauseClaims(-1)
	c.awaitRunning(held)

	unexplained := !store.IsDown(err)
	for {
		held.collect()
		s, _, _ = held.settlement(c.e.lanesOf)
		refused, again := c.session.Settle(context.WithoutCancel(ctx), s)
		if again == nil {
			_, again = c.e.withheld.settled(ctx, held, s, refused)
		}
		if again == nil {
			break
		}

		c.e.report(c.answers, again)
		until := c.e.work //nolint:contextcheck // until Drain cancels the deliveries
		if !store.IsDown(again) {
			until = ctx
			unexplained = false
		}
		if until.Err() != nil {
			c.log.ErrorContext(ctx, "results not recorded", "err", again, "events", len(held.work))
			return errors.Join(err, again)
		}
		sleep.For(until, c.pauses.After(again))
	}

	// The deliveries that succeeded are stored. The leases and retries are withheld after a refusal. They are lost with a
	// connection: their events will be claimed again.
	if isRolledBack {
		c.e.withheld.keep(ctx, held, s)
	}

	if unexplained {
		// The database would accept the refused settlement now, but may refuse the next one.
		sleep.For(ctx, c.pauses.After(err))
	}
	c.accepted()
	return err
}

// slowDown pauses all claims after a refusal, while none of the last rows was accepted: the reason may be one of all rows.
func (c *claimer) slowDown(ctx context.Context, refused []Refused, alone bool) {
	switch {
	case len(refused) == 0:
		c.pauses.Reset()
	case alone:
		c.e.sched.pauseClaims(+1)
		sleep.For(ctx, c.pauses.After(refused[0].Err))
		c.e.sched.pauseClaims(-1)
	}
}

// accepted records that the database accepts answers again.
func (c *claimer) accepted() { c.e.d.ReportRefusal(observe.Refusal{Part: c.answers}) }

// awaitRunning waits within the lock budget for the running deliveries of a lost claim: their leases were not
// written, so they would be delivered again.
func (c *claimer) awaitRunning(held *claim) {
	budget := time.NewTimer(c.e.limits.LockBudget)
	defer budget.Stop()
	for held.collect(); held.running(); held.collect() {
		select {
		case <-held.lateAnswers:
		case <-budget.C:
			return
		}
	}
}
