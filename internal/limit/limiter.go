package limit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxKeys bounds the keys that a relay remembers for a destination. A forgotten key is reserved again.
const maxKeys = 20_000

// Limiter enforces the rate of one destination. It is safe for concurrent use.
type Limiter struct {
	destination string
	plan        plan
	keyed       bool
	reserve     Reserve

	mu      sync.Mutex // a leaf lock
	buckets map[string]*bucket
	sweepAt int // number of buckets at which idle ones are removed
}

// New returns the limiter of a destination whose rate is valid and not zero. Without keys all events count together.
func New(destination string, r Rate, keyed bool, reserve Reserve) *Limiter {
	return &Limiter{
		destination: destination,
		plan:        planOf(r),
		keyed:       keyed,
		reserve:     reserve,
		buckets:     make(map[string]*bucket),
		sweepAt:     minSweep,
	}
}

// Keyed reports whether each key has its own rate.
func (l *Limiter) Keyed() bool { return l.keyed }

// Want is an event to deliver.
type Want struct {
	// Key is empty without keys.
	Key string
	// Waited means that the event has already waited for its turn: other events of its key go behind it.
	Waited bool
}

// Take takes from the limit, first events first. It returns how long each event must wait, 0 for those that may
// begin; nil if all may. An error means that the table could not be queried: the events that depend on it wait for a
// second.
func (l *Limiter) Take(ctx context.Context, wants []Want) (waits []time.Duration, err error) {
	now := time.Now()
	left, requests := l.spend(now, wants)
	if len(left) == 0 {
		return nil, nil
	}

	var reservations []Reservation
	if len(requests) > 0 {
		reservations, err = l.reserve(ctx, l.destination, l.plan.Terms, requests)
	}
	if err != nil {
		return l.unknown(wants, left), err
	}

	return l.settle(now, wants, left, reservations), nil
}

// remaining is an event that the reserved ones did not cover.
type remaining struct {
	index     int
	requested bool // part of the request to the table
}

// spend uses the events reserved ahead. It returns the remaining events, and the requests for them.
func (l *Limiter) spend(now time.Time, wants []Want) (left []remaining, requests []Request) {
	l.mu.Lock()
	defer l.mu.Unlock()

	missing := make(map[string]int)
	for i := range wants {
		w := &wants[i]
		b := l.bucketLocked(now, w.Key)
		behind := l.keyed && !w.Waited && b.next.After(now)
		if !behind && missing[w.Key] == 0 && b.available(now) > 0 {
			b.spend(1)
			continue
		}

		request := !behind && b.reservable(now, l.plan.Terms) > missing[w.Key]
		if request {
			missing[w.Key]++
		}

		left = append(left, remaining{i, request})
	}

	for key, n := range missing {
		requests = append(requests, Request{key, l.bucketLocked(now, key).wants(now, &l.plan, n)})
	}

	// Sorted by key: otherwise two relays could deadlock.
	slices.SortFunc(requests, func(a, b Request) int { return strings.Compare(a.Key, b.Key) })
	return left, requests
}

// unknown delays the events for which the table did not answer.
func (l *Limiter) unknown(wants []Want, left []remaining) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := time.Now()
	waits := make([]time.Duration, len(wants))
	for _, r := range left {
		if r.requested {
			l.bucketLocked(now, wants[r.index].Key).tat = now.Add(l.plan.accrual() - l.plan.Gap + unknownWait)
		}
		waits[r.index] = unknownWait
	}

	return waits
}

// settle distributes the reservations, requested at the given time, and computes the waits of all other events.
// Unused reservations expire as if the table had answered at once.
func (l *Limiter) settle(asked time.Time, wants []Want, left []remaining, reservations []Reservation) (waits []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := time.Now()
	fresh := make(map[string]int, len(reservations))
	for _, g := range reservations {
		l.bucketLocked(now, g.Key).tat = now.Add(g.Lead)
		fresh[g.Key] = g.N
	}

	for _, r := range left {
		key := wants[r.index].Key
		b := l.bucketLocked(now, key)
		if r.requested && fresh[key] > 0 {
			fresh[key]--
			b.spent++
			continue
		}

		if waits == nil {
			waits = make([]time.Duration, len(wants))
		}

		waits[r.index] = b.enqueue(now, l.plan.Terms)
	}

	for key, n := range fresh {
		if n > 0 {
			b := l.bucketLocked(now, key)
			b.held = n // earlier held events are used up or expired
			b.until = asked.Add(l.plan.hold)
		}
	}

	return waits
}

// minSweep is the number of buckets below which idle ones are not removed.
const minSweep = 1024

func (l *Limiter) bucketLocked(now time.Time, key string) *bucket {
	b := l.buckets[key]
	if b != nil {
		return b
	}

	if len(l.buckets) >= l.sweepAt {
		for k, b := range l.buckets {
			if b.idle(now) {
				delete(l.buckets, k)
			}
		}

		if len(l.buckets) >= maxKeys {
			clear(l.buckets)
		}

		l.sweepAt = min(max(minSweep, 2*len(l.buckets)), maxKeys)
	}

	b = &bucket{}
	l.buckets[key] = b

	return b
}

// Capacity estimates for how many events the limit has capacity now. With keys it returns n.
func (l *Limiter) Capacity(now time.Time, n int) int {
	if l.keyed {
		return n
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	b := l.bucketLocked(now, "")
	return min(n, b.available(now)+b.reservable(now, l.plan.Terms))
}

// Batch returns the capacity that is worth a read or a claim.
func (l *Limiter) Batch() int { return l.plan.batch }

// Wait returns the time until there is capacity for a batch. It is 0 if there is, and always with keys.
func (l *Limiter) Wait(now time.Time) time.Duration {
	if l.keyed {
		return 0
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	b := l.bucketLocked(now, "")
	return b.reservableIn(now, l.plan.Terms, max(1, l.plan.batch-b.available(now)))
}
