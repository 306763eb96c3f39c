package notifyd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/exactly"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

const (
	// hangAfter is how long due work may stay untouched although nothing holds it back, and how long the check itself may take.
	// The relay waits for the database less than half as long, at worst, and writes its positions as often.
	hangAfter = 2 * time.Minute
	// lostAfter is how long a hang must last after that until only a restart is likely to end it.
	lostAfter = 5 * time.Minute
	// checkEvery is the interval of the check.
	checkEvery = hangAfter / 2
	// lockedWithin bounds the search for sessions that have locked what hangs.
	lockedWithin = hangAfter / 4
)

// hangCheck detects hangs. It runs outside the relay's loops and compares two readings of the tables: a hang is work that was due
// in both, that nothing holds back, and that has not moved. The age of an event and the clocks play no part. Progress
// that other relays make shows in the tables, too.
//
// The check counts time in ticks, in its own goroutine, so time stops while the process is frozen or the machine is suspended.
type hangCheck struct {
	relay *Relay
	ticks atomic.Int64 // seconds

	mu      sync.Mutex
	running bool          // find has not returned
	began   time.Duration // of that call
	found   []observe.Hang
	over    bool // the relay stops: its other parts have timeouts of their own

	// Only find uses these.
	lanes  map[string]stillness // by destination
	seen   map[string]sighting  // by suspicion.what
	failed int                  // calls in a row that could not read the tables
}

// stillness is since when a lane has been well and has answered nothing.
type stillness struct {
	answers uint64
	since   time.Duration
	within  time.Duration // of its calls
}

// sighting is a suspicion that earlier calls of find have had too.
type sighting struct {
	key   string
	since time.Duration
}

// suspicion is a state of affairs that must not last.
type suspicion struct {
	what   string // the part of the relay: "mail", or "shard of mail"
	key    string // changes whenever anything moves
	reason func(lasted time.Duration) string
	within time.Duration // how long it may last beyond hangAfter
	work   *store.Overdue
	own    bool // a restart of this relay is likely to help, unless another session has locked work
}

func newHangCheck(r *Relay) *hangCheck {
	return &hangCheck{relay: r, lanes: make(map[string]stillness), seen: make(map[string]sighting)}
}

// now returns the time since the start, in which the process ran.
func (a *hangCheck) now() time.Duration { return time.Duration(a.ticks.Load()) * time.Second }

// count makes a second pass at each interval, until ctx ends. It calls ticked after each second, which must not block.
func (a *hangCheck) count(ctx context.Context, interval time.Duration, ticked func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()

	for {
		select {
		case <-ctx.Done():
			a.mu.Lock()
			defer a.mu.Unlock()
			a.over = true
			return
		case <-tick.C:
			a.ticks.Add(1)
			ticked()
		}
	}
}

// run calls find and keeps the result.
func (a *hangCheck) run(ctx context.Context) {
	a.mu.Lock()
	a.running = true
	a.began = a.now()
	a.mu.Unlock()

	found := a.find(ctx)

	a.mu.Lock()
	defer a.mu.Unlock()

	a.running = false
	a.found = found
}

// hangs returns the current hangs, the longest first. The check itself hangs if find does not return: it takes the locks
// that the loops of the relay take. hangs takes no lock that anything else holds for longer than a moment.
func (a *hangCheck) hangs() []observe.Hang {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.over {
		return nil
	}

	all := slices.Clone(a.found)
	if lasts := a.now() - a.began; a.running && lasts > hangAfter {
		reason := fmt.Sprintf("the hang check has not come back for %v: a lock is held, or a query does not end", lasts)
		all = append(all, hang("hang check", reason, lasts, true))
	}

	slices.SortStableFunc(all, func(x, y observe.Hang) int { return cmp.Compare(y.For, x.For) })
	return all
}

func hang(part, reason string, lasts time.Duration, restart bool) observe.Hang {
	return observe.Hang{Part: part, Reason: reason, For: lasts, Restart: restart, Lost: restart && lasts >= hangAfter+lostAfter}
}

// find reads the tables, compares them with the previous reading, and returns the hangs. A relay that starts no delivery because
// the database refuses to record outcomes is not hanging.
func (a *hangCheck) find(ctx context.Context) []observe.Hang {
	now := a.now()
	still := a.stillLanes(now)

	if a.relay.dispatcher.DatabaseDown() {
		return a.lasting(ctx, now, []suspicion{a.untried()})
	}

	refused := a.relay.dispatcher.Refused()
	if refused {
		still = nil
	}

	b, err := a.relay.Waiting(ctx)
	if a.readFailed(ctx, err) {
		return nil
	}

	var all []suspicion
	if a.relay.stream {
		all = a.unheld(&b, refused)
	} else {
		all = a.unleased(ctx, &b, refused)
	}

	if refused {
		return a.lasting(ctx, now, all)
	}

	unrouted, err := a.unrouted(ctx)
	if a.readFailed(ctx, err) {
		return nil
	}

	if a.relay.stream {
		all = append(all, a.unread(&b, still, unrouted)...)
	} else {
		all = append(append(all, a.unclaimed(&b, still)...), a.rerouted(unrouted)...)
	}

	return a.lasting(ctx, now, all)
}

// readFailed discards the previous reading if err says that the tables could not be read. After two failures in a row it also
// reports that the check detects no hangs.
func (a *hangCheck) readFailed(ctx context.Context, err error) bool {
	if err == nil {
		a.failed = 0
		return false
	}

	clear(a.seen)

	a.failed++
	if a.failed == 2 && ctx.Err() == nil {
		a.relay.log.WarnContext(ctx, "hang check failed: the tables cannot be read", "err", err)
	}

	return true
}

// stillLanes returns the lanes that are well, and have answered nothing since the call before.
func (a *hangCheck) stillLanes(now time.Duration) []string {
	var still []string
	for _, p := range a.relay.dispatcher.Progress() {
		before, known := a.lanes[p.Name]
		if !known || !p.Well || p.Answers != before.answers {
			a.lanes[p.Name] = stillness{answers: p.Answers, since: now, within: p.Within}
			delete(a.seen, p.Name)
			continue
		}

		before.within = max(before.within, p.Within)
		a.lanes[p.Name] = before
		still = append(still, p.Name)
	}

	return still
}

// lasting returns those suspicions that have lasted for too long, and forgets the earlier ones that are not among them.
func (a *hangCheck) lasting(ctx context.Context, now time.Duration, all []suspicion) (hangs []observe.Hang) {
	ctx, cancel := context.WithTimeout(ctx, lockedWithin)
	defer cancel()

	seen := make(map[string]sighting, len(all))
	for _, s := range all {
		one := a.seen[s.what]
		if one.key != s.key {
			one = sighting{key: s.key, since: now}
		}

		seen[s.what] = one
		lasts := now - one.since - s.within
		if lasts < hangAfter {
			continue
		}

		reason := s.reason(now - one.since)
		if s.work != nil {
			switch locked, err := a.relay.watch.Locked(ctx, *s.work); {
			case err != nil: // it may be
				s.own = false
			case locked:
				reason += "; another session has locked it"
				s.own = false
			}
		}

		hangs = append(hangs, hang(s.what, reason, lasts, s.own))
	}

	a.seen = seen
	return hangs
}

// untried returns the suspicion that no part of the relay tries to reach a database that did not answer. Parts try again every few
// seconds, however long that lasts.
func (a *hangCheck) untried() suspicion {
	return suspicion{
		what: "database",
		key:  fmt.Sprint(a.relay.dispatcher.DatabaseReports()),
		own:  true,
		reason: func(lasted time.Duration) string {
			return fmt.Sprintf("the database did not answer, and no part of the relay has tried it again, for %v at least", lasted)
		},
	}
}

// undone returns the reason of work that is due for a destination and not begun.
func undone(what, destination, not string) func(time.Duration) string {
	return func(lasted time.Duration) string {
		return fmt.Sprintf("%s is due for %s and not %s, for %v at least, "+
			"though the destination works and has received nothing in that time", what, destination, not, lasted)
	}
}

// isDue reports whether a time has come at the moment of a backlog.
func isDue(b *observe.Backlog, at *time.Time) bool { return at != nil && !at.After(b.At) }

// unclaimed returns the due work of a queue whose lanes are idle. A delayed event is claimed before its destinations are
// known, by any lane with capacity.
func (a *hangCheck) unclaimed(b *observe.Backlog, still []string) (all []suspicion) {
	var longest time.Duration
	for _, name := range still {
		longest = max(longest, a.lanes[name].within)
		s := suspicion{what: name, within: a.lanes[name].within, own: true}

		if due := b.Destination(name).NextDue; isDue(b, due) {
			s.key = due.String()
			s.work = &store.Overdue{Destination: name}
			s.reason = undone("a stored delivery", name, "begun")
			all = append(all, s)
			continue
		}

		for _, t := range b.Types {
			if t.Oldest != nil && slices.Contains(a.relay.DestinationsOf(t.EventType), name) {
				s.within += a.relay.config.PollInterval
				s.key = fmt.Sprint(t.Oldest.EventID)
				s.work = &store.Overdue{EventID: t.Oldest.EventID}
				s.reason = undone(fmt.Sprintf("event %d", t.Oldest.EventID), name, "claimed")
				all = append(all, s)
				break
			}
		}
	}

	if len(still) > 0 && isDue(b, b.NextDelayed) {
		all = append(all, suspicion{
			what:   "delayed events",
			key:    b.NextDelayed.String(),
			within: longest + a.relay.config.PollInterval,
			work:   &store.Overdue{},
			own:    true,
			reason: func(lasted time.Duration) string {
				return fmt.Sprintf("an event whose delay has passed is not claimed, for %v at least", lasted)
			},
		})
	}

	return all
}

// unleased returns a lease of a queue that has ended, and that no relay takes over.
func (a *hangCheck) unleased(ctx context.Context, b *observe.Backlog, refused bool) []suspicion {
	if !slices.ContainsFunc(b.Destinations, func(d observe.DestinationBacklog) bool { return d.Running.N > 0 }) {
		return nil
	}

	o, ok, err := a.relay.watch.LostLease(ctx, hangAfter)
	if err != nil || !ok {
		return nil
	}

	return []suspicion{{
		what: "leases",
		key:  fmt.Sprint(o),
		work: &o,
		own:  !refused,
		reason: func(lasted time.Duration) string {
			return fmt.Sprintf("the lease of event %d for %s has ended, and no relay has taken it over, for %v at least",
				o.EventID, o.Destination, lasted)
		},
	}}
}

// unrouted returns the first stored event of a type that has gained a route, or nil. A relay that does not have the route yet
// stores the row again each time another relay has removed it.
func (a *hangCheck) unrouted(ctx context.Context) (*store.Unrouted, error) {
	all, err := a.relay.watch.Unrouted(ctx)
	if err != nil {
		return nil, err
	}

	for i := range all {
		if a.relay.dispatcher.Routed(all[i].EventType) {
			return &all[i], nil
		}
	}

	return nil, nil
}

// rerouted returns an event of a queue that has gained a route, and that housekeeping does not make due.
func (a *hangCheck) rerouted(u *store.Unrouted) []suspicion {
	if u == nil {
		return nil
	}

	return []suspicion{{
		what: "housekeeping",
		key:  fmt.Sprint(u.EventID, u.UpdatedAt),
		own:  true,
		reason: func(lasted time.Duration) string {
			return fmt.Sprintf("event %d of type %q has gained a route and is not made due, for %v at least",
				u.EventID, u.EventType, lasted)
		},
	}}
}

// unheld returns the shards of a stream that no relay holds, of those that this relay wants.
func (a *hangCheck) unheld(b *observe.Backlog, refused bool) (all []suspicion) {
	for i := range b.Positions {
		p := &b.Positions[i]
		if p.Destination != "" && !a.relay.dispatcher.Has(p.Destination) {
			continue
		}

		if p.Session != nil {
			continue
		}

		all = append(all, suspicion{
			what: "shard of " + nameOf(p),
			key:  p.UpdatedAt.String(), // each take writes updated_at
			work: &store.Overdue{Destination: p.Destination, Position: true},
			own:  !refused,
			reason: func(lasted time.Duration) string {
				return fmt.Sprintf("no relay holds the shard of %s, for %v at least: nothing is delivered from there", nameOf(p), lasted)
			},
		})
	}
	return all
}

// nameOf names the owner of a position.
func nameOf(p *observe.Position) string {
	if p.Destination == "" {
		return "the unrouted scanner"
	}
	return p.Name()
}

// unread returns the work that is due in the shards of a stream that this relay owns, according to the tables.
func (a *hangCheck) unread(b *observe.Backlog, still []string, unrouted *store.Unrouted) (all []suspicion) {
	var figures observe.Stats
	if e := a.relay.engine.Load(); e != nil {
		(*e).Stats(&figures)
	}

	// Shards that begin wait for the unrouted scanner, as long as it moves.
	var searched time.Time
	for i := range b.Positions {
		if p := &b.Positions[i]; p.Destination == "" {
			searched = p.UpdatedAt
		}
	}

	for i := range b.Positions {
		p := &b.Positions[i]
		mine := p.Session != nil && p.Owner != nil && *p.Owner == a.relay.owner
		switch {
		case !mine:
		case p.Destination == "":
			all = append(all, a.unsearched(b, p)...)
		case slices.Contains(still, p.Destination):
			begun := observe.PositionStats{Loading: true} // of a shard that is not there yet
			at := slices.IndexFunc(figures.Positions, func(f observe.PositionStats) bool {
				return f.Destination == p.Destination && f.Shard == p.Shard
			})
			if at >= 0 {
				begun = figures.Positions[at]
			}

			s, due := a.unsent(b, p, &begun, unrouted)
			if begun.Loading {
				s.key += fmt.Sprint(" ", p.UpdatedAt, begun.Blocked, searched)
			}
			if due {
				all = append(all, s)
			}
		}
	}

	return all
}

// unsearched returns the work that is due in the unrouted scanner.
func (a *hangCheck) unsearched(b *observe.Backlog, p *observe.Position) []suspicion {
	s := suspicion{what: nameOf(p), own: true, within: a.relay.config.PollInterval}
	switch {
	case p.Oldest != nil:
		s.key = fmt.Sprint(p.Oldest.EventID, p.UpdatedAt)
		s.reason = func(lasted time.Duration) string {
			return fmt.Sprintf("event %d has no route and is not stored, for %v at least", p.Oldest.EventID, lasted)
		}

	case isDue(b, b.NextDelayed):
		s.key = fmt.Sprint(b.NextDelayed, p.UpdatedAt)
		s.reason = func(lasted time.Duration) string {
			return fmt.Sprintf("an event whose delay has passed is not handed out, for %v at least", lasted)
		}

	default:
		return nil
	}

	return []suspicion{s}
}

// mayNotRead reports whether a shard begins nothing new on purpose: a total order waits for a stored delivery, an open
// transaction or a detached partition, or a destination that keeps its position waits for transactions that hide too
// many ids.
func (a *hangCheck) mayNotRead(d *observe.DestinationBacklog, f *observe.PositionStats) bool {
	to := a.relay.dispatcher.Destination(d.Name)
	if to == nil {
		return true
	}
	if to.Position != nil && f.Ranges >= exactly.MaxGaps {
		return true
	}

	isStored := d.Retry.N+d.Parked.N > 0 || to.Blocks() && d.Dead.N > 0
	waits := isStored || f.Blocked > 0 || f.Ranges > 0
	return to.Total && waits
}

// alone reports whether no other relay has a shard of the destination: the backlog does not say whose stored deliveries are due.
func (a *hangCheck) alone(b *observe.Backlog, destination string) bool {
	return !slices.ContainsFunc(b.Positions, func(p observe.Position) bool {
		return p.Destination == destination && (p.Owner == nil || *p.Owner != a.relay.owner)
	})
}

// unsent returns the due work of a destination whose lane is idle. A shard that starts also gets the events that have gained a
// route.
func (a *hangCheck) unsent(b *observe.Backlog, p *observe.Position, f *observe.PositionStats, unrouted *store.Unrouted) (s suspicion, due bool) {
	s = suspicion{what: p.Name(), within: a.lanes[p.Destination].within, own: true}
	d := b.Destination(p.Destination)
	hasStored := f.Blocked > 0 || d.Retry.N > 0

	switch {
	case isDue(b, d.NextDue) && a.alone(b, p.Destination):
		s.key = d.NextDue.String()
		s.reason = undone("a stored delivery", p.Destination, "begun")
	case p.Oldest != nil && a.mayNotRead(&d, f):
		return s, false
	case p.Oldest != nil:
		s.key = fmt.Sprint(p.Oldest.EventID, p.Head, p.Lowest)
		s.within += a.relay.config.PollInterval
		s.reason = undone(fmt.Sprintf("event %d", p.Oldest.EventID), p.Destination, "read or not answered")

	case f.Loading && unrouted != nil && slices.Contains(a.relay.DestinationsOf(unrouted.EventType), p.Destination):
		s.key = fmt.Sprint(unrouted.EventID, unrouted.UpdatedAt)
		s.reason = undone(fmt.Sprintf("event %d, which has gained a route,", unrouted.EventID), p.Destination, "handed out")
	case p.Replay != nil && !f.Loading && !hasStored: // otherwise it may have to wait for stored deliveries
		s.key = fmt.Sprint(p.Replay.ID, p.Replay.UpdatedAt)
		s.reason = undone(fmt.Sprintf("replay %d", p.Replay.ID), p.Destination, "continued")
		if p.Replay.Rate > 0 {
			s.within += time.Duration(min(1/p.Replay.Rate, time.Hour.Seconds()) * float64(time.Second))
		}

	default:
		return s, false
	}

	return s, true
}

// Health says whether the relay works: whether the database answers, and whether the relay hangs. A hang is also an
// incident, and a line in the log. Health never blocks and makes no query.
func (r *Relay) Health() observe.Health {
	var stopped error
	if why := r.stopped.Load(); why != nil {
		stopped = *why
	}
	return observe.Health{
		Stopped:           stopped,
		DatabaseDown:      r.dispatcher.DatabaseDown(),
		DatabaseDownSince: r.dispatcher.DatabaseDownSince(),
		DatabaseCure:      r.dispatcher.DatabaseCure(),
		Hangs:             r.hangCheck.hangs(),
	}
}

// watchdog runs the check until ctx ends, and announces its findings.
func (r *Relay) watchdog(ctx context.Context) {
	seconds := make(chan struct{}, 1)
	checks := make(chan struct{}, 1)
	signal := func(to chan<- struct{}) {
		select {
		case to <- struct{}{}:
		default: // the one before is still under way
		}
	}

	var work sync.WaitGroup
	work.Go(func() {
		r.hangCheck.count(ctx, r.beat, func() {
			signal(seconds)
			if r.hangCheck.now()%checkEvery == 0 {
				signal(checks)
			}
		})
	})

	work.Go(func() { announceHangs(ctx, r.hangCheck, r.dispatcher, seconds, r.log) })
	work.Go(func() {
		for await(ctx, checks) {
			r.hangCheck.run(ctx)
		}
	})

	work.Wait()
}

// await reports false if ctx ends before c is ready.
func await(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
		return ctx.Err() == nil
	}
}

// announceHangs logs and reports the beginning of a hang, and its end. An observer may be what hangs, so
// nothing waits for one, except the next report to it.
func announceHangs(ctx context.Context, a *hangCheck, to delivery.Observer, seconds <-chan struct{}, log *slog.Logger) {
	told := make(chan struct{})
	close(told)

	known := make(map[string]bool)
	for await(ctx, seconds) {
		var news []delivery.Incident
		all := a.hangs()
		for _, h := range all {
			if known[h.Part] {
				continue
			}
			known[h.Part] = true
			log.ErrorContext(ctx, "relay hangs", "part", h.Part, "reason", h.Reason, "restart_helps", h.Restart)
			news = append(news, delivery.Incident{Kind: delivery.IncidentHang, Time: time.Now(), Err: hangError(h.Reason)})
		}

		if len(all) == 0 && len(known) > 0 {
			clear(known)
			log.InfoContext(ctx, "relay no longer hangs")
			news = append(news, delivery.Incident{Kind: delivery.IncidentHangOver, Time: time.Now()})
		}

		if len(news) > 0 {
			before := told
			done := make(chan struct{})
			told = done

			go func() {
				defer close(done)
				<-before
				for _, incident := range news {
					to.Observe(incident)
				}
			}()
		}
	}
}

// hangError is the reason of a hang as the error of an incident.
type hangError string

// Error implements error.
func (e hangError) Error() string { return string(e) }
