package dispatch

import (
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/guard"
	"github.com/notifyd/notifyd/observe"
)

// Stats returns the current figures, without those of the engine. It is cheap and queries no
// server.
func (d *Dispatcher) Stats() observe.Stats {
	s := observe.Stats{DatabaseDown: d.database.down(), DatabaseCure: d.database.refusal(), Refusals: d.refusals.now()}
	for _, l := range d.firsts() {
		all := l.stats()
		for _, other := range d.byName[l.dest.Name][1:] {
			one := other.stats()
			merge(&all, &one)
		}
		s.Destinations = append(s.Destinations, all)
	}
	return s
}

// stats returns the figures of the lane, see [merge].
func (l *lane) stats() observe.DestinationStats {
	now := time.Now()
	l.mu.Lock()
	s := observe.DestinationStats{
		Name: l.dest.Name, Running: l.running, Queued: len(l.queue) - l.head, Stuck: l.crew.stuck, Paused: l.paused, Throttled: l.health.Throttles(),
	}
	counts := l.countsLocked()
	if counts {
		is := l.health.Snapshot(now)
		s.State, s.Gap, s.Trouble.DownSince, s.Trouble.NextProbe = is.State, is.Gap, is.DownSince, is.NextProbe
		s.Room, s.Pace, s.RateLimited = l.roomLocked(now), l.tempo.pace, l.limitWaitsLocked(now)
		s.Unavailable = l.health.Down() || l.crew.staffLocked() <= 0
		if l.agg != nil {
			s.Aggregates = l.agg.Len() + l.agg.Blocked()
		}
	}
	l.mu.Unlock()
	l.figures.read(&s)
	if counts {
		l.figures.readTrouble(&s.Trouble)
	}
	if r := l.target.reporter; r != nil {
		var report delivery.Report
		if err := guard.Call("Report", func() { report = r.Report() }); err == nil {
			report.Reason = guard.Clean(report.Reason)
			s.Report = &report
		} else if !l.figures.reported.Swap(true) { // not with each scrape
			l.log.Error("the handler cannot tell how its destination is", "err", err)
		}
	}
	return s
}

// Progress shows whether the lanes of a destination make progress.
type Progress struct {
	Name string // of the destination
	// Answers counts the deliveries that have got a verdict, of any kind, begun or not.
	Answers uint64
	// Well says that only a lack of work or capacity can keep a lane from beginning deliveries: no lane that an engine owns
	// waits for the end of a pause, a limit, an outage or a throttle. One such lane is enough to make Well false,
	// because due work is known by destination, not by shard: the due work may be that of the lane that waits.
	Well bool
	// Within bounds the calls that are under way, from their beginning until they are given up; 0 if there is none.
	Within time.Duration
}

// Progress shows which destinations make progress, in the order in which they were added.
func (d *Dispatcher) Progress() []Progress {
	firsts := d.firsts()
	all := make([]Progress, len(firsts))
	for i, l := range firsts {
		all[i] = progressOf(d.byName[l.dest.Name])
	}
	return all
}

// progress returns the progress of the lane, and whether its health counts for the destination.
func (l *lane) progress() (p Progress, counts bool) {
	p.Name, p.Answers = l.dest.Name, l.figures.answers()
	l.mu.Lock()
	defer l.mu.Unlock()
	p.Well = !l.stopped && !l.limitWaitsLocked(time.Now()) && !l.restingLocked() && l.health.Available() && !l.health.Throttled()
	if l.running > 0 {
		p.Within = l.crew.patience() + patrolAgain
	}
	return p, l.countsLocked()
}
