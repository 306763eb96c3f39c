package bench

import (
	"context"
	"errors"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// running is a relay, or the floor in its place, that runs in this process.
type running struct {
	cancel context.CancelFunc
	ended  chan error
}

// start runs a task that returns when its context ends. The caller calls stop.
func start(ctx context.Context, run func(context.Context) error) *running {
	// The end of ctx must not end the task: events under way would count as lost.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- run(ctx) }()
	return r
}

// ready waits until the channel is closed. It returns an error if the task ends first.
func (r *running) ready(ctx context.Context, is <-chan struct{}) error {
	select {
	case <-is:
		return nil
	case err := <-r.ended:
		r.ended <- nil // for stop
		return errors.Join(errEndedEarly, err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// StartRelay runs a relay, and returns once it listens. stop ends it when everything is settled.
func StartRelay(ctx context.Context, relay *notifyd.Relay) (stop func() error, err error) {
	r := start(ctx, relay.Run)
	if err := r.ready(ctx, relay.Ready()); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r.stop, nil
}

// stop ends the task and returns when everything is settled.
func (r *running) stop() error {
	r.cancel()
	return <-r.ended
}

// endedBy returns the error of a task, and none if the end of ctx is the reason.
func endedBy(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // that is how a task ends
	}
	return err
}

// errEndedEarly is the error of a relay that ended before stop.
var errEndedEarly = errors.New("the relay ended early")

// Together runs tasks concurrently, ends all of them with the first error, and returns
// that error.
func Together(ctx context.Context, tasks ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		running sync.WaitGroup
		once    sync.Once
		first   error
	)
	for _, task := range tasks {
		running.Go(func() {
			if err := task(ctx); err != nil {
				once.Do(func() { first = err })
				cancel(err)
			}
		})
	}
	running.Wait()
	return first
}

// sightings records which events were handled: one bit per id from 1 to n, so that a million costs 125 kB.
type sightings struct {
	seen       []uint64
	distinct   atomic.Int64
	duplicates atomic.Int64
	unknown    atomic.Int64 // ids that were never inserted
	strays     atomic.Int64 // events that must not be handled
	first      atomic.Int64 // time of the first call, in ns since the epoch
	all        chan struct{}
	n          int64
	want       int64 // how many events are to be handled
	held       int64 // the ids up to this one must not be handled

	// last is the last event of each aggregate whose delivery has begun, by the aggregate's number; nil if order does not
	// matter.
	last       []atomic.Int64
	total      bool         // all events have one order, and last has one element
	disordered atomic.Int64 // events whose delivery began after a later event of their aggregate

	urgentFrom int64 // the first urgent id; 0 without urgent events
	wantUrgent int64
	urgent     atomic.Int64 // urgent events that were handled
	behind     atomic.Int64 // other events that were handled before the last urgent one
}

func newSightings(n int) *sightings {
	return &sightings{seen: make([]uint64, n/64+1), all: make(chan struct{}), n: int64(n), want: int64(n)}
}

// begin records that the delivery of an event begins.
func (s *sightings) begin(e *delivery.Event) {
	if s.total {
		if s.last[0].Swap(e.ID) >= e.ID {
			s.disordered.Add(1)
		}
		return
	}
	digits, ok := strings.CutPrefix(e.AggregateID, freeAggregate)
	if s.last == nil || !ok {
		return
	}
	key, err := strconv.Atoi(digits)
	if err != nil || key >= len(s.last) || s.last[key].Swap(e.ID) >= e.ID {
		s.disordered.Add(1)
	}
}

// note records the delivery of an event.
func (s *sightings) note(id int64) {
	switch {
	case id < 1 || id > s.n:
		s.unknown.Add(1)
		return
	case id <= s.held:
		s.strays.Add(1)
		return
	}
	bit := uint64(1) << (id % 64)
	if atomic.OrUint64(&s.seen[id/64], bit)&bit != 0 {
		s.duplicates.Add(1)
		return
	}
	n := s.distinct.Add(1)
	if n == 1 {
		s.first.Store(time.Now().UnixNano())
	}
	if s.urgentFrom > 0 && id >= s.urgentFrom {
		s.noteUrgent(n)
	}
	if n == s.want {
		close(s.all)
	}
}

// wait waits until all events were handled, or no event was handled for settleWithin. It returns an error if the relay
// ends first; ended is nil for relays that the caller watches.
func (s *sightings) wait(ctx context.Context, ended chan error) error {
	tick := time.NewTicker(settleWithin)
	defer tick.Stop()
	for last := int64(-1); ; {
		select {
		case <-s.all:
			return nil
		case err := <-ended:
			ended <- nil // for stop
			return errors.Join(errEndedEarly, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			now := s.distinct.Load()
			if now == last {
				return nil // missing events are counted
			}
			last = now
		}
	}
}

// missing counts the events that should have been handled and were not.
func (s *sightings) missing() int64 {
	var seen int
	for i := range s.seen {
		seen += bits.OnesCount64(atomic.LoadUint64(&s.seen[i]))
	}
	return s.want - int64(seen)
}

// faults returns what differs from one delivery of each event, in order.
func (s *sightings) faults() Faults {
	return Faults{Lost: s.missing(), Duplicates: s.duplicates.Load() + s.unknown.Load(), OutOfOrder: s.disordered.Load()}
}

// noteUrgent counts the urgent events. At the last of them it records how many other events were handled before.
func (s *sightings) noteUrgent(distinct int64) {
	if n := s.urgent.Add(1); n == s.wantUrgent {
		s.behind.Store(distinct - n)
	}
}
