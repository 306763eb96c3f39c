package console

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// sampleEvery is how often the relay's figures are taken. They are in its
	// memory, so this goes on while nobody looks.
	sampleEvery = time.Second
	// samples are kept: five minutes.
	samples = 300
	// askEvery is the shortest time between two questions to the database, which
	// are asked only while somebody looks.
	askEvery = 3 * time.Second
	// askShare bounds the time that the database is kept busy: the next question
	// comes no earlier than this many times as long as the last one took.
	askShare = 10
	// askTimeout bounds a question.
	askTimeout = 5 * time.Second
)

// latency is how long events take from being written to being done, in seconds.
// NaN where none was done lately.
type latency struct{ median, p99 float64 }

// point is one sample. What is not known is NaN.
type point struct {
	delivered, failed float64 // per second
	waiting           float64 // events
	latency
}

// lanePoint is one sample of one destination, per second.
type lanePoint struct{ delivered, failed float64 }

// snapshot is what all viewers see at one moment. Nobody changes it.
type snapshot struct {
	at    time.Time
	stats observe.Stats
	// points and lanes are oldest first.
	points []point
	lanes  map[string][]lanePoint
	asked  asked
}

// asked is what the database has said.
type asked struct {
	at      time.Time // zero if it was never asked
	took    time.Duration
	backlog observe.Backlog
	latency latency
	err     error
}

// sampler takes the figures once for all who look.
type sampler struct {
	relay   Watched
	latency func(context.Context) (latency, error)
	every   time.Duration

	asking sync.Mutex // held while the database is asked

	mu      sync.Mutex // guards what follows
	last    snapshot
	changed chan struct{} // closed, and made anew, with each sample
	looking int           // streams
}

func newSampler(relay Watched, ask func(context.Context) (latency, error)) *sampler {
	return &sampler{relay: relay, latency: ask, every: sampleEvery, changed: make(chan struct{})}
}

// run samples until ctx ends.
func (s *sampler) run(ctx context.Context) {
	var asker sync.WaitGroup
	defer asker.Wait()
	asker.Go(func() { s.ask(ctx) })
	s.sample(time.Now())
	ticker := time.NewTicker(s.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s.sample(now)
		}
	}
}

// ask asks the database while there are streams.
func (s *sampler) ask(ctx context.Context) {
	ticker := time.NewTicker(s.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		looking := s.looking > 0
		s.mu.Unlock()
		if looking {
			s.refresh(ctx)
		}
	}
}

// refresh asks the database unless that was done a moment ago. It waits for
// whoever does it already.
func (s *sampler) refresh(ctx context.Context) {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	last := s.last.asked
	s.mu.Unlock()
	if !last.at.IsZero() && time.Since(last.at) < max(askEvery, askShare*last.took) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	begin := time.Now()
	answer := asked{latency: latency{math.NaN(), math.NaN()}}
	answer.backlog, answer.err = s.relay.Backlog(ctx)
	if answer.err == nil && answer.backlog.Mode != string(outboxsql.ModeStream) {
		answer.latency, answer.err = s.latency(ctx)
	}
	answer.at, answer.took = time.Now(), time.Since(begin)
	s.mu.Lock()
	s.last.asked = answer
	s.mu.Unlock()
}

// sample takes the figures of the moment.
func (s *sampler) sample(now time.Time) {
	stats := s.relay.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.last
	next := snapshot{at: now, stats: stats, lanes: make(map[string][]lanePoint, len(stats.Destinations)), asked: before.asked}
	p := point{waiting: math.NaN(), latency: latency{math.NaN(), math.NaN()}}
	old := make(map[string]observe.DestinationStats, len(before.stats.Destinations))
	for _, d := range before.stats.Destinations {
		old[d.Name] = d
	}
	seconds := now.Sub(before.at).Seconds()
	for _, d := range stats.Destinations {
		var lp lanePoint
		if o, ok := old[d.Name]; ok && seconds > 0 {
			lp = lanePoint{
				delivered: rate(o.Delivered, d.Delivered, seconds),
				failed:    rate(o.Failed+o.Dead, d.Failed+d.Dead, seconds),
			}
		}
		p.delivered, p.failed = p.delivered+lp.delivered, p.failed+lp.failed
		next.lanes[d.Name] = keep(before.lanes[d.Name], lp)
	}
	// What the database said is true for a while, and unknown then.
	if a := before.asked; !a.at.IsZero() && a.err == nil && now.Sub(a.at) < max(askEvery, askShare*a.took)+2*s.every {
		p.waiting, p.latency = float64(waiting(a.backlog, stats.Destinations).N), a.latency
	}
	if stats.Mode == string(outboxsql.ModeStream) {
		p.latency = latencyBetween(before.stats.Destinations, stats.Destinations)
	}
	next.points = keep(before.points, p)
	s.last = next
	close(s.changed)
	s.changed = make(chan struct{})
}

// rate is that of a counter, which begins anew when the relay does.
func rate(from, to uint64, seconds float64) float64 {
	if to < from {
		return 0
	}
	return float64(to-from) / seconds
}

// keep returns a copy of list with another element, and without its first ones if there are too many.
func keep[T any](list []T, another T) []T {
	list = list[max(0, len(list)+1-samples):]
	return append(append(make([]T, 0, len(list)+1), list...), another)
}

// waiting is what waits for anybody, dead letters left out. An event that waits
// for two destinations counts twice once it was tried. Of a stream it is the lag of
// whichever of these destinations is last: a position that nobody moves any more counts
// for nothing.
func waiting(b observe.Backlog, mine []observe.DestinationStats) observe.Count {
	all := b.Fresh
	if b.Mode == string(outboxsql.ModeStream) {
		all = observe.Count{}
		for _, d := range mine {
			all.N = max(all.N, b.Destination(d.Name).Fresh.N)
		}
	}
	for _, d := range b.Destinations {
		for _, c := range []observe.Count{d.Retry, d.Running, d.Parked} {
			all.N, all.More = all.N+c.N, all.More || c.More
		}
	}
	return all
}

// latencyBetween is made of what was acknowledged between two samples. Rows of a stream do
// not tell when they were done.
func latencyBetween(before, now []observe.DestinationStats) latency {
	var sum observe.Histogram
	for _, d := range now {
		i := slices.IndexFunc(before, func(o observe.DestinationStats) bool { return o.Name == d.Name })
		if i < 0 || d.Acked.Count < before[i].Acked.Count {
			continue
		}
		sum.Count += d.Acked.Count - before[i].Acked.Count
		for b := range sum.Buckets {
			sum.Buckets[b] += d.Acked.Buckets[b] - before[i].Acked.Buckets[b]
		}
	}
	return latency{quantile(&sum, 0.5), quantile(&sum, 0.99)}
}

// quantile is the upper bound of the bucket that has it, in seconds; NaN for an empty
// histogram.
func quantile(h *observe.Histogram, q float64) float64 {
	if h.Count == 0 {
		return math.NaN()
	}
	bounds := observe.LatencyBounds()
	below := 0.0
	for i, n := range h.Buckets {
		if below += float64(n); below >= q*float64(h.Count) {
			return bounds[i].Seconds()
		}
	}
	return bounds[len(bounds)-1].Seconds() // it is more
}

// now returns the newest snapshot, with an answer of the database that is not old.
func (s *sampler) now(ctx context.Context) snapshot {
	s.refresh(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// look counts a stream, until leave is called.
func (s *sampler) look() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looking++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.looking--
	}
}

// next returns the newest snapshot, and a channel that is closed when there is a newer one.
func (s *sampler) next() (snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.changed
}

// sampleNow shows what somebody has just changed: the newest snapshot gets the
// figures of now, without being another point.
func (s *sampler) sampleNow() {
	stats := s.relay.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	// The counters stay those of the sample, or the next rate would be too low.
	for i, old := range s.last.stats.Destinations {
		for _, d := range stats.Destinations {
			if d.Name == old.Name {
				list := slices.Clone(s.last.stats.Destinations)
				list[i].Paused, list[i].Unavailable, list[i].State = d.Paused, d.Unavailable, d.State
				s.last.stats.Destinations = list
			}
		}
	}
}
