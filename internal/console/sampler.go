package console

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// sampleEvery is the interval between samples of the relay's figures. The figures are in memory, so the console
	// samples them also without viewers.
	sampleEvery = time.Second
	// samples are kept: five minutes.
	samples = 300
	// queryEvery is the shortest time between two queries of the database while there
	// are viewers, and idleEvery without any: the charts have their five minutes when
	// a page is opened.
	queryEvery = 3 * time.Second
	idleEvery  = 15 * time.Second
	// queryShare bounds the load on the database: the pause before the next query is
	// at least this many times the duration of the last one.
	queryShare = 10
	// forgetAfter is a pause between two samples after which the charts begin anew.
	forgetAfter = time.Minute
	// queryTimeout bounds a query.
	queryTimeout = 5 * time.Second
)

// latency is the time from the write of an event until it is done, in seconds; NaN if
// none was done recently.
type latency struct{ median, p99 float64 }

// point is one sample. Unknown values are NaN.
type point struct {
	delivered, failed float64 // per second
	waiting           float64 // events
	latency
}

// lanePoint is one sample of one destination, per second.
type lanePoint struct{ delivered, failed float64 }

// snapshot holds the figures of one moment for all viewers. It is immutable.
type snapshot struct {
	at    time.Time
	stats observe.Stats
	// points and lanes are oldest first.
	points  []point
	lanes   map[string][]lanePoint
	reading reading
}

// reading is the last answer of the database.
type reading struct {
	at      time.Time // zero before the first query
	took    time.Duration
	backlog observe.Backlog
	latency latency
	// schema is the version of the tables, and relays are those that are alive.
	schema outboxsql.State
	relays []store.RelaySession
	err    error
}

// sampler takes the figures once for all viewers.
type sampler struct {
	relay  Watched
	tables func() *tables
	every  time.Duration
	// unrelayed: each query updates the figures, which have no counters.
	unrelayed bool

	querying sync.Mutex // held during a query

	mu      sync.Mutex // guards the fields below
	last    snapshot
	changed chan struct{} // closed and replaced with each sample
	stale   bool          // the last answer of the database is out of date
	viewers int           // streams
}

func newSampler(relay Watched, current func() *tables) *sampler {
	return &sampler{relay: relay, tables: current, every: sampleEvery, changed: make(chan struct{})}
}

// run samples until ctx ends, or until unused returns true. It expects that a sample has just been taken.
func (s *sampler) run(ctx context.Context, unused func() bool) {
	ctx, cancel := context.WithCancel(ctx)

	var queries sync.WaitGroup
	defer queries.Wait()
	defer cancel()
	queries.Go(func() { s.queryLoop(ctx) })

	ticker := time.NewTicker(s.every)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if unused() {
				return
			}
			s.sample(now)
		}
	}
}

// queryLoop queries the database, more often while there are viewers.
func (s *sampler) queryLoop(ctx context.Context) {
	ticker := time.NewTicker(s.every)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}

		s.mu.Lock()
		every := idleEvery
		if s.viewers > 0 {
			every = queryEvery
		}
		s.mu.Unlock()

		s.refresh(ctx, every)
	}
}

// refresh queries the database unless the last answer is younger than every. It
// waits for a query that is under way.
func (s *sampler) refresh(ctx context.Context, every time.Duration) {
	s.querying.Lock()
	defer s.querying.Unlock()

	s.mu.Lock()
	last := s.last.reading
	stale := s.stale
	s.stale = false
	s.mu.Unlock()

	if !stale && !last.at.IsZero() && time.Since(last.at) < max(every, queryShare*last.took) {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()

	begin := time.Now()
	answer := reading{latency: latency{math.NaN(), math.NaN()}}
	answer.backlog, answer.err = s.relay.Backlog(ctx)
	tables := s.tables()
	if answer.err == nil && answer.backlog.Mode != string(outboxsql.ModeStream) {
		answer.latency, answer.err = tables.latency(ctx)
	}

	if answer.err == nil {
		answer.schema, answer.relays, answer.err = tables.alive(ctx)
	}

	answer.at = time.Now()
	answer.took = time.Since(begin)

	s.mu.Lock()
	s.last.reading = answer
	if s.unrelayed {
		s.last.stats = s.relay.Stats()
	}
	s.mu.Unlock()
}

// sample takes the current figures.
func (s *sampler) sample(now time.Time) {
	stats := s.relay.Stats()

	s.mu.Lock()
	defer s.mu.Unlock()

	before := s.last
	if now.Sub(before.at) > forgetAfter { // after a time without viewers, or with a suspended machine
		before = snapshot{reading: before.reading}
	}

	next := snapshot{
		at:      now,
		stats:   stats,
		lanes:   make(map[string][]lanePoint, len(stats.Destinations)),
		reading: before.reading,
	}
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
				failed:    rate(failures(&o), failures(&d), seconds),
			}
		}
		p.delivered += lp.delivered
		p.failed += lp.failed
		next.lanes[d.Name] = keep(before.lanes[d.Name], lp)
	}
	if s.unrelayed {
		p.delivered = math.NaN()
		p.failed = math.NaN()
	}

	// An answer of the database is valid for a while, and unknown afterwards.
	answer := before.reading
	isAnswered := !answer.at.IsZero() && answer.err == nil
	validFor := max(idleEvery, queryShare*answer.took) + queryTimeout + 2*s.every
	if isAnswered && now.Sub(answer.at) < validFor {
		p.waiting = float64(waiting(answer.backlog, stats.Destinations).N)
		p.latency = answer.latency
	}

	if stats.Mode == string(outboxsql.ModeStream) {
		p.latency = latencyBetween(before.stats.Destinations, stats.Destinations)
	}

	next.points = keep(before.points, p)
	s.last = next
	close(s.changed)
	s.changed = make(chan struct{})
}

// failures counts the calls that failed, whether they cost an attempt or not.
func failures(d *observe.DestinationStats) uint64 {
	return d.Failed + d.Dead + d.Classes[delivery.ClassDestination]
}

// rate is the rate of a counter, which restarts with the relay.
func rate(from, to uint64, seconds float64) float64 {
	if to < from {
		return 0
	}
	return float64(to-from) / seconds
}

// keep returns a copy of list with another element, and without its oldest ones
// if there are too many.
func keep[T any](list []T, another T) []T {
	list = list[max(0, len(list)+1-samples):]
	return append(append(make([]T, 0, len(list)+1), list...), another)
}

// waiting is the backlog of all destinations, without dead letters. An event that
// waits for two destinations counts twice once it was tried. In a stream it is
// the lag of the last of these destinations: a position that no relay moves does
// not count.
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
			all.N += c.N
			all.More = all.More || c.More
		}
	}

	return all
}

// latencyBetween is computed from the acknowledgements between two samples. Rows
// of a stream do not hold the time at which they were done.
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

// quantile is the upper bound of the bucket that contains the quantile, in
// seconds; NaN for an empty histogram.
func quantile(h *observe.Histogram, q float64) float64 {
	if h.Count == 0 {
		return math.NaN()
	}

	bounds := observe.LatencyBounds()
	below := 0.0
	for i, n := range h.Buckets {
		below += float64(n)
		if below >= q*float64(h.Count) {
			return bounds[i].Seconds()
		}
	}

	return bounds[len(bounds)-1].Seconds() // beyond the last bound
}

// now returns the newest snapshot, with a recent answer of the database.
func (s *sampler) now(ctx context.Context) snapshot {
	s.refresh(ctx, queryEvery)

	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// viewed reports whether a browser has a stream open.
func (s *sampler) viewed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.viewers > 0
}

// addViewer counts a stream until remove is called.
func (s *sampler) addViewer() (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.viewers++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.viewers--
	}
}

// next returns the newest snapshot, and a channel that is closed when there is a newer one.
func (s *sampler) next() (snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.changed
}

// sampleNow shows a change at once: the newest snapshot gets the current states,
// without a new point, and the next page queries the database.
func (s *sampler) sampleNow() {
	stats := s.relay.Stats()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = true

	// The counters stay those of the sample, or the next rate would be too low.
	for i, old := range s.last.stats.Destinations {
		for _, d := range stats.Destinations {
			if d.Name == old.Name {
				list := slices.Clone(s.last.stats.Destinations)
				list[i].Paused = d.Paused
				list[i].Down = d.Down
				list[i].State = d.State
				list[i].Trouble = d.Trouble
				s.last.stats.Destinations = list
			}
		}
	}
}
