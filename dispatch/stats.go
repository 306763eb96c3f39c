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
	s := observe.Stats{DatabaseDown: d.health.down(), DatabaseCure: d.health.refusal(), Refusals: d.refusals.now()}
	for _, l := range d.lanes {
		s.Destinations = append(s.Destinations, l.stats())
	}
	return s
}

func (l *lane) stats() observe.DestinationStats {
	now := time.Now()
	l.mu.Lock()
	s := observe.DestinationStats{
		Name: l.name, Delivered: l.figures.total[delivered], Failed: l.figures.total[failed], Dead: l.figures.total[dead], Released: l.figures.total[released] + l.figures.total[aside],
		Parked: l.figures.total[parked], Classes: l.figures.classes, Begun: l.figures.begun, Acked: l.figures.acked, Room: l.roomLocked(now),
		Running: l.running, Queued: len(l.queue) - l.head, Unavailable: l.ease.breaker.open() || l.crew.staffLocked() <= 0, Stuck: l.crew.stuck, Paused: l.paused, Pace: l.tempo.pace,
		State: l.ease.stateLocked(now), RateLimited: Limits{l}.waitLocked(now), Trouble: l.troubleLocked(), Throttled: l.ease.refusals, Gap: l.ease.pacer.gap,
	}
	s.Expired = l.figures.total[expired]
	if l.agg != nil {
		s.Aggregates = len(l.agg.lines) + l.agg.blocked.len()
	}
	l.mu.Unlock()
	s.Refused, s.Withdrawn, s.Withheld = l.figures.passings.refused.Load(), l.figures.passings.withdrawn.Load(), l.figures.passings.withheld.Load()
	s.Filtered = l.figures.passings.filtered.Load()
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
