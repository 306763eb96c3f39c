package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// claimer claims, hands out, waits and settles, one claim after the other, on
// a session of its own. A few of them keep the database busy while handlers run.
type claimer struct {
	d       *Dispatcher
	session Session
	log     *slog.Logger
	spare   spare
}

// run claims until the scheduler is stopped. What is claimed then is brought
// to its end: the batch is never left waiting for longer than the lock budget.
func (c *claimer) run(ctx context.Context) {
	// A claim of nothing connects, prepares and plans, so that the first event
	// does not wait for it. Without a database there is time for that later.
	_, err := c.session.Claim(ctx, Query{Source: SourceIDs})
	c.report(ctx, err)
	c.d.sched.warmed()
	pause := reconnectPauses()
	for {
		q, ok := c.d.sched.next()
		if !ok {
			return
		}
		claimed, err := c.session.Claim(ctx, q)
		c.report(ctx, err)
		if q.Source != SourceSweep {
			// Now, because the scheduler shows the work to those who claim after us.
			slices.SortStableFunc(claimed.Work, func(a, b Work) int { return cmp.Compare(a.Event.ID, b.Event.ID) })
		}
		turn := c.d.sched.claimed(&q, &claimed, err)
		if err != nil {
			c.d.sched.ended()
			c.d.waitStopped(pause.NextBackOff())
			continue
		}
		pause.Reset()
		c.deliver(ctx, &q, &claimed, turn)
		c.d.sched.ended()
	}
}

// report takes word of how a claim went. One that was cut off because the relay
// stops says nothing about the database.
func (c *claimer) report(ctx context.Context, err error) {
	if err == nil || ctx.Err() == nil {
		c.d.health.report(err)
	}
}

// deliver brings a claim to its end.
func (c *claimer) deliver(ctx context.Context, q *Query, claimed *Claimed, turn uint64) {
	b := c.handOut(q, claimed, turn) //nolint:contextcheck // deliveries may outlive their claim
	defer c.d.sched.closed(turn)
	if b == nil {
		return
	}
	leased, hurried := c.await(b)
	s, left := b.settlement()
	s.Turn = c.d.turnOf(b, turn, hurried)
	// The answers of a relay that stops are written like any others.
	err := c.settle(context.WithoutCancel(ctx), s, func(err error) {
		b.adrift.Store(true)
		c.d.sched.lost(b.lost(), err)
	}, func() *Settlement {
		c.d.leases.reclaim(leased)
		s, _ := b.settlement()
		s.Turn = c.d.turnOf(b, turn, false)
		return s
	})
	if len(leased) > 0 {
		c.d.leases.written(leased, err)
	}
	if err != nil {
		b.doubt()
	}
	b.settled()
	if err != nil || claimed.Cut {
		c.d.sched.again()
	}
	if err != nil {
		return
	}
	c.d.sched.moved()
	for i := range s.Put {
		if s.Put[i].State == EntryRetry {
			c.d.sched.dueIn(s.Put[i].Delay)
		}
	}
	// Only now are the rows that were given back free to be claimed again.
	c.d.passOver(b, left)
	if len(leased) == 0 {
		c.spare.keep(b)
	}
}

// handOut gives what was claimed to the lanes. Claims are handed out in the
// order in which they came back, because that is what keeps the events of an
// aggregate in order.
func (c *claimer) handOut(q *Query, claimed *Claimed, turn uint64) *batch {
	c.d.sched.await(turn)
	defer c.d.sched.pass()
	switch {
	case q.lane != nil:
		defer c.d.sched.caughtUp(q, claimed)
	case q.Source == SourceSweep:
		defer c.d.sched.met(q)
	case q.Source == SourceDue:
		q.bounds = c.d.sched.bounds()
	}
	var b *batch
	if len(claimed.Work) > 0 {
		b = c.d.plan(q, claimed.Work, &c.spare)
	}
	if claimed.Cut && b != nil {
		// What was read beyond the bytes is locked until the settlement, so that
		// the next sweep does not see it.
		for _, l := range c.d.lanes {
			l.refuse(b, claimed.Work[len(claimed.Work)-1].Event.ID+1)
		}
	}
	if q.Source == SourceLines {
		c.d.looked(q, claimed)
	}
	if b != nil {
		slices.Sort(b.trail)
		c.d.sched.leaves(turn, b.trail)
	}
	return b
}

// await waits for the answers of fast lanes, up to the lock budget, and leases
// what has none by then. It reports whether it was told to come.
func (c *claimer) await(b *batch) (leased []*job, hurried bool) {
	if b.fast > 0 {
		hurried = c.wait(b)
	}
	if b.complete() {
		return nil, hurried
	}
	return b.detach(c.d.leases.tokens.next), hurried
}

// hurryAfter is how long a claim waits for its handlers even while others have
// nobody to claim them: below it a lease would cost more than it brings.
const hurryAfter = time.Millisecond

// wait returns when the fast lanes have answered, when the lock budget is used
// up, or when this claimer is needed elsewhere: an event that has just been
// named must not wait for the handlers of another.
func (c *claimer) wait(b *batch) (hurried bool) {
	begin := time.Now()
	budget := time.NewTimer(c.d.cfg.LockBudget)
	defer budget.Stop()
	hurry := c.d.sched.hurry
	for {
		select {
		case <-b.ready:
			return hurried
		case <-hurry:
			hurry, hurried = nil, true
			budget.Reset(max(0, min(hurryAfter, c.d.cfg.LockBudget)-time.Since(begin)))
		case <-budget.C:
			for l := range b.overdue() {
				l.observe(min(time.Since(begin), c.d.cfg.LockBudget))
			}
			return hurried
		}
	}
}

// settle writes the settlement. If the claim was lost with its connection,
// what was delivered is still written, before anybody claims again; update
// adds what has been delivered meanwhile.
func (c *claimer) settle(ctx context.Context, s *Settlement, lost func(error), update func() *Settlement) error {
	err := c.session.Settle(ctx, s)
	if err == nil {
		return nil
	}
	level := slog.LevelWarn
	if IsDown(err) { // which is reported once, for everybody
		c.d.health.report(err)
		level = slog.LevelDebug
	}
	c.log.Log(ctx, level, "claim was lost before it could be settled", "err", err, "events", len(s.Done)+len(s.Deferred)+len(s.Buried))
	lost(err)
	c.d.sched.salvage(+1)
	defer c.d.sched.salvage(-1)
	pause := reconnectPauses()
	for tries := 1; ; tries++ {
		again := c.session.Settle(ctx, update())
		if again == nil {
			// The answers are safe; the leases and retries are not, and their
			// events will be met again.
			return err
		}
		c.d.health.report(again)
		if tries >= salvageTries && !IsDown(again) || c.d.workCtx.Err() != nil {
			return errors.Join(err, again)
		}
		c.d.waitWork(pause.NextBackOff())
	}
}

// salvageTries bounds how often a settlement that the database refuses is
// tried again; one that the database is not there for is tried until it is.
const salvageTries = 3

const (
	// lockNotAvailable is the SQLSTATE of a lock_timeout.
	lockNotAvailable = "55P03"
	// readOnly is that of a server that takes no writes: a standby, or a primary
	// that was replaced and keeps its sessions.
	readOnly = "25006"
)

// IsDown reports whether err says that the database could not be reached, as
// opposed to an answer from it.
func IsDown(err error) bool {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return true
	}
	switch class := answer.SQLState(); {
	case len(class) < 2:
		return false
	case class == lockNotAvailable, class == readOnly: // somebody has locked the table for a while; or a failover is under way
		return true
	default: // connection exception, insufficient resources, operator intervention
		return class[:2] == "08" || class[:2] == "53" || class[:2] == "57"
	}
}

// plan routes a claim and hands it to the lanes.
func (d *Dispatcher) plan(q *Query, work []Work, memory *spare) *batch {
	b := &batch{work: work, ready: make(chan struct{}, 1), late: d.leases, query: q}
	memory.give(b, len(work))
	room := make(map[*lane]int)
	for i := range work {
		d.planWork(b, i, room)
	}
	for l, n := range room {
		b.lanes = append(b.lanes, l)
		if n > 0 {
			l.giveBack(n)
		}
	}
	d.start(b)
	return b
}

func (d *Dispatcher) planWork(b *batch, i int, room map[*lane]int) {
	w, p := &b.work[i], &b.plans[i]
	p.from, p.to = len(b.jobs), len(b.jobs)
	lanes := d.lanesOf(w)
	switch {
	case w.Orphan:
		return
	case w.Withheld:
		for _, l := range lanes {
			if w.Fresh {
				l.passings.withheld.Add(1)
				l.refuse(b, w.Event.ID)
			}
		}
		return
	case w.Delay > 0:
		p.state = EntryRetry
		return
	case len(lanes) == 0:
		p.state = EntryUnrouted
		return
	}
	for _, l := range lanes {
		n, asked := room[l]
		if !asked {
			n = l.grant(len(b.work) - i)
		}
		if n == 0 {
			room[l] = 0
			l.passings.refused.Add(1)
			p.refused = append(p.refused, l)
			if w.Fresh {
				l.refuse(b, w.Event.ID)
			} else {
				l.refuseRow(b, w)
			}
			continue
		}
		room[l] = n - 1
		b.jobs = append(b.jobs, job{batch: b, work: i, lane: l})
	}
	p.to = len(b.jobs)
}

// lanesOf returns where a work goes, nothing if no route matches.
func (d *Dispatcher) lanesOf(w *Work) []*lane {
	if w.Destination != "" {
		return d.byName[w.Destination]
	}
	lanes, firstTime := d.router.route(w.Event.Type)
	if lanes == nil && firstTime {
		d.log.Warn("no route matches this event type; its events wait for one", "event_type", w.Event.Type, "event_id", w.Event.ID)
	}
	return lanes
}

// start queues the jobs of a batch, whose slice does not grow any more.
func (d *Dispatcher) start(b *batch) {
	perLane := make(map[*lane][]*job, len(b.lanes))
	slow := make(map[*lane]bool, len(b.lanes))
	for _, l := range b.lanes {
		slow[l] = l.slow()
	}
	for i := range b.jobs {
		j := &b.jobs[i]
		w := &b.work[j.work]
		j.event = &w.Event
		if p := &b.plans[j.work]; p.to-p.from > 1 {
			each := w.Event // a destination each, and so an event each
			j.event = &each
		}
		j.event.Destination, j.event.Attempt = j.lane.name, w.Failures+1
		if !slow[j.lane] {
			j.fast = true
			b.fast++
		}
		perLane[j.lane] = append(perLane[j.lane], j)
	}
	b.waiting, b.unanswered = b.fast, len(b.jobs)
	for l, jobs := range perLane {
		held := l.push(jobs)
		answerAll(held)
		if len(held) > 0 {
			l.heldBack(len(held))
		}
	}
}

// passOver tells the scheduler of works that are free again.
func (d *Dispatcher) passOver(b *batch, left []int) {
	for _, i := range left {
		if !b.work[i].Fresh {
			d.sched.due() // now, or when its lane has room
			break
		}
	}
}

// ErrShutdownIncomplete is returned by Run if handlers were still running some
// time after their contexts had been cancelled.
var ErrShutdownIncomplete = errors.New("handlers did not return after their contexts were cancelled")

func shutdownError(names []string) error {
	return fmt.Errorf("%w: %v", ErrShutdownIncomplete, names)
}
