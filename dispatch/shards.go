package dispatch

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// newLanes returns the lanes of a destination, one for each shard.
func newLanes(name string, h delivery.Handler, cfg LaneConfig, window time.Duration, log *slog.Logger) []*lane {
	lanes := make([]*lane, max(1, cfg.Shards))
	for i := range lanes {
		l := newLane(name, h, cfg, window, log)
		lanes[i] = l
		if len(lanes) > 1 {
			l.log = l.log.With("shard", i)
		}

		if i > 0 {
			l.dest.Shard = i
			l.outage = lanes[0].outage
			l.repeats = lanes[0].repeats
			l.target.reporter = nil // the handler reports once
		}
	}

	return lanes
}

// outage records which lanes of a destination are down, one bit per shard. A relay reports an outage once: when the
// first lane fails, and when the last one recovers. A lane updates its bit under its lock, together with its health.
type outage struct {
	down  atomic.Uint64
	since atomic.Pointer[time.Time] // begin of the newest outage; nil before the first
}

// begins records that the lane is down, and reports whether all other lanes are available.
func (o *outage) begins(l *lane) bool {
	old := o.down.Or(l.bit())
	if old == 0 {
		now := time.Now()
		o.since.Store(&now)
	}

	return old&^l.bit() == 0
}

// lasted returns how long the newest outage lasted, until its last lane was answered.
func (o *outage) lasted(answered time.Time) time.Duration {
	if since := o.since.Load(); since != nil {
		return max(0, answered.Sub(*since))
	}

	return 0
}

// ends records that the lane is available, and reports whether all other lanes are available, too.
func (o *outage) ends(l *lane) bool { return o.down.And(^l.bit())&^l.bit() == 0 }

// merge adds the figures of another lane of the same destination. The rules:
//
//   - Counters, histograms and numbers of deliveries, calls and aggregates are sums, also those of lanes that no engine owns.
//   - The other figures come from lanes that an engine owns. Lanes that no engine owns leave them at zero.
//   - A destination is unavailable, limited or paused if one of its lanes is.
//   - State is the worst one: open, then probing, ramping, throttled, closed. Pace and Gap are the longest.
//   - Trouble began with the lane that failed first, and its error is the newest one. The next probe is the earliest one.
func merge(all, one *observe.DestinationStats) {
	all.Delivered += one.Delivered
	all.Failed += one.Failed
	all.Dead += one.Dead
	all.Released += one.Released
	all.Parked += one.Parked

	for i, n := range one.Classes {
		all.Classes[i] += n
	}

	all.Refused += one.Refused
	all.Withdrawn += one.Withdrawn
	all.Withheld += one.Withheld
	all.Filtered += one.Filtered
	all.Expired += one.Expired
	all.RateLimits += one.RateLimits
	all.Started.Add(&one.Started)
	all.Acked.Add(&one.Acked)
	all.Capacity += one.Capacity
	all.Aggregates += one.Aggregates
	all.Running += one.Running
	all.Queued += one.Queued
	all.Stuck += one.Stuck
	all.Throttled += one.Throttled
	all.Down = all.Down || one.Down
	all.RateLimited = all.RateLimited || one.RateLimited
	all.Paused = all.Paused || one.Paused

	if all.State == observe.BreakerClosed || one.State != observe.BreakerClosed && one.State < all.State {
		all.State = one.State
	}

	all.Pace = max(all.Pace, one.Pace)
	all.Gap = max(all.Gap, one.Gap)

	t := &all.Trouble
	o := &one.Trouble
	t.Failures += o.Failures
	t.DownSince = earlier(t.DownSince, o.DownSince)
	t.FailingSince = earlier(t.FailingSince, o.FailingSince)
	t.NextProbe = earlier(t.NextProbe, o.NextProbe)

	if o.ThrottledUntil.After(t.ThrottledUntil) {
		t.ThrottledUntil = o.ThrottledUntil
		t.ThrottledBy = o.ThrottledBy
	}

	if o.LastErrorAt.After(t.LastErrorAt) {
		t.LastError = o.LastError
		t.LastErrorAt = o.LastErrorAt
	}
}

// earlier returns the earlier of two times, and ignores zero times.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// progressOf merges the progress of a destination's lanes. A destination whose lanes no engine owns is not well.
func progressOf(lanes []*lane) (all Progress) {
	counted := 0
	well := 0
	for _, l := range lanes {
		p, counts := l.progress()
		all.Name = p.Name
		all.Answers += p.Answers
		all.Within = max(all.Within, p.Within)

		if counts {
			counted++
		}
		if counts && p.Well {
			well++
		}
	}

	all.Well = counted > 0 && well == counted
	return all
}
