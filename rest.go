package notifyd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// quietFor is how long nothing must have been delivered, and nothing have been due, before a rest, and how far
// away the next stored delivery must be for one to be worth it.
const quietFor = 5 * time.Second

// errRests is the cause of the end of an awake phase that a rest follows.
var errRests = errors.New("nothing is left to do")

// rest makes the pauses in which a relay holds no connection. Between two of them the relay is as it is without
// any: it is built anew each time, but for the destinations.
type rest struct {
	longest time.Duration // 0: the relay never rests
	quiet   time.Duration // see quietFor
	hints   chan struct{} // capacity 1: events may wait, which an awake relay finds by itself
	purger  *purger       // lasts from one awake phase to the next, as limits do
	limits  *store.Limits

	mu     sync.Mutex // guards the fields below; taken before any lock of an engine
	agreed span       // on what the awake phase has ended
	since  time.Time  // beginning and end of the rest; zero while the relay is awake
	until  time.Time
	past   observe.Stats // counters of the engines before
}

// span is how long a rest may be, and what waited at its beginning.
type span struct {
	long  time.Duration
	waits Backlog
}

func newRest(s *settings) *rest {
	return &rest{longest: s.rest, quiet: s.quiet, hints: make(chan struct{}, 1)}
}

// Wake ends a rest of the relay, if [WithRest] allows any: it looks for events at once. A relay that is awake
// stays so for a while. Call it after the commit of an event; it never blocks.
func (r *Relay) Wake() {
	select {
	case r.rest.hints <- struct{}{}:
	default: // the relay has not heard of the hint before yet
	}
}

// known returns what waited when the rest began, and how long ago that was; false if the relay is awake. A relay that rests
// asks the database nothing, whoever asks the relay.
func (z *rest) known() (b Backlog, ago time.Duration, rests bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.until.IsZero() {
		return Backlog{}, 0, false
	}
	return z.agreed.waits, time.Since(z.since), true
}

// note writes down for people that the relay rests, and until when.
func (z *rest) note(ctx context.Context, r *Relay) {
	z.mu.Lock()
	long := z.agreed.long
	z.mu.Unlock()
	if err := r.keeper.Rest(context.WithoutCancel(ctx), long); err != nil {
		r.log.DebugContext(ctx, "it cannot be written down that the relay rests", "err", err)
	}
}

// addTo adds the figures of the engine, and of those before it.
func (z *rest) addTo(s *Stats, r *Relay) {
	z.mu.Lock()
	defer z.mu.Unlock()
	s.Mode, s.Bell = z.past.Mode, z.past.Bell
	if e := r.engine.Load(); e != nil {
		(*e).Stats(s)
	}
	s.AddWork(&z.past)
	s.RestsUntil = z.until
}

// keep keeps the figures of the engine that has ended, and lets go of all else of it: the next one may be of another mode.
func (z *rest) keep(r *Relay) {
	z.mu.Lock()
	defer z.mu.Unlock()
	var s Stats
	(*r.engine.Load()).Stats(&s)
	s.AddWork(&z.past)
	z.past = Stats{Mode: s.Mode, Bell: "asleep", Claims: s.Claims, Claimed: s.Claimed, Fenced: s.Fenced, ByID: s.ByID, Sweeps: s.Sweeps, Due: s.Due, Leases: s.Leases}
	r.engine.Store(nil)
	r.queue.Store(nil)
	r.sessions, r.keeper = nil, nil
	select {
	case <-r.refused: //nolint:errcheck // the next phase finds out for itself what the table is
	default:
	}
}

// sleep rests until the agreed time, a hint, or the end of ctx.
func (z *rest) sleep(ctx context.Context, r *Relay) {
	z.mu.Lock()
	z.since = time.Now()
	z.until = z.since.Add(z.agreed.long)
	until := z.until
	z.mu.Unlock()
	r.log.InfoContext(ctx, "the relay rests: it has no connection to the database", "until", until.UTC().Truncate(time.Second))
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	why := "the rest is over"
	select {
	case <-ctx.Done():
		why = "it stops"
	case <-z.hints:
		why = "it was told to"
	case <-timer.C:
	}
	z.mu.Lock()
	rested := time.Since(z.since)
	z.since, z.until = time.Time{}, time.Time{}
	z.mu.Unlock()
	r.log.InfoContext(ctx, "the relay wakes", "why", why, "rested", rested.Round(time.Millisecond))
}

// tired waits until the relay may rest, or ctx ends, and reports whether it may. It does not before the table was read and
// retention was looked after.
func (z *rest) tired(ctx context.Context, r *Relay) bool {
	answers, _ := progress(r.dispatcher)
	since := time.Now()
	for _, first := range []<-chan struct{}{(*r.engine.Load()).Ready(), z.purger.once} {
		if !await(ctx, first) {
			return false
		}
	}
	tick := time.NewTicker(z.quiet / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-z.hints:
			since = time.Now()
		case <-tick.C:
		}
		sum, busy := progress(r.dispatcher)
		if busy || sum != answers {
			answers, since = sum, time.Now()
		}
		if time.Since(since) < z.quiet {
			continue
		}
		if long, waits, is := z.look(ctx, r); is {
			z.mu.Lock()
			z.agreed = span{long, waits}
			z.mu.Unlock()
			return true
		}
		since = time.Now()
	}
}

// progress returns how many deliveries were answered so far, and whether any is under way.
func progress(d *dispatch.Dispatcher) (answers uint64, busy bool) {
	for _, l := range d.Lanes() {
		p := l.Progress()
		answers += p.Answers
		busy = busy || p.Within > 0
	}
	return answers, busy
}

// look asks the database whether anything is left to do, and how long the relay may rest if not.
func (z *rest) look(ctx context.Context, r *Relay) (long time.Duration, b Backlog, is bool) {
	stuck := func(d observe.DestinationStats) bool { return d.Stuck > 0 } // an engine that ends would wait for the call
	if r.dispatcher.DatabaseDown() || r.dispatcher.Refused() || slices.ContainsFunc(r.dispatcher.Stats().Destinations, stuck) {
		return 0, b, false
	}
	b, err := r.watch.Backlog(ctx, backlogOptions(r))
	if err != nil {
		return 0, b, false
	}
	d := duties{relay: r, backlog: &b}
	if d.now() {
		return 0, b, false
	}
	long = z.longest
	if due := d.next(); due != nil {
		long = min(long, due.Sub(b.At))
	}
	return long, b, long > z.quiet
}

// duties are what a backlog leaves to do to this relay. What waits for a person is none: events of paused destinations, of types
// without a route, behind dead letters.
type duties struct {
	relay   *Relay
	backlog *Backlog
}

// minds reports whether this relay has the destination, and nobody has paused it.
func (d duties) minds(name string) bool {
	of := d.backlog.Destination(name)
	return d.relay.dispatcher.Has(name) && of.Pause == nil
}

// now reports whether there is anything to do.
func (d duties) now() bool {
	b := d.backlog
	for _, t := range b.Types {
		// An event without a route is fresh until a relay has said so, and a delayed one until it is stored.
		if to := d.relay.DestinationsOf(t.EventType); len(to) == 0 || slices.ContainsFunc(to, d.minds) {
			return true
		}
	}
	for i := range b.Positions {
		if d.reads(&b.Positions[i]) {
			return true
		}
	}
	return slices.ContainsFunc(b.Destinations, func(of observe.DestinationBacklog) bool { return of.Running.N > 0 && d.minds(of.Name) })
}

// reads reports whether there is something to read at a position, or nobody who would.
func (d duties) reads(p *observe.Position) bool {
	switch {
	case p.Destination != "" && !d.minds(p.Destination):
		return false
	case p.Session == nil:
		return true
	case p.Owner == nil || *p.Owner != d.relay.owner:
		return false // another relay does
	}
	return p.Lag > 0 || p.Replay != nil
}

// next returns when the first stored delivery is due, nil if there is none.
func (d duties) next() (first *time.Time) {
	sooner := func(due *time.Time) {
		if due != nil && (first == nil || due.Before(*first)) {
			first = due
		}
	}
	sooner(d.backlog.NextDelayed)
	for i := range d.backlog.Destinations {
		if of := &d.backlog.Destinations[i]; d.minds(of.Name) {
			sooner(of.NextDue)
		}
	}
	return first
}
