package limit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxKeys bounds the keys that a relay remembers for a destination. One that is forgotten is asked for again.
const maxKeys = 20_000

// Limiter keeps one destination to its rate. It is safe for concurrent use.
type Limiter struct {
	destination string
	plan        plan
	keyed       bool
	reserve     Reserve

	mu      sync.Mutex // a leaf
	buckets map[string]*bucket
	sweepAt int // the number of buckets at which those that are idle are forgotten
}

// New returns the limiter of a destination whose rate is valid and not zero. Without keys all its events
// are counted together.
func New(destination string, r Rate, keyed bool, reserve Reserve) *Limiter {
	return &Limiter{destination: destination, plan: planOf(r), keyed: keyed, reserve: reserve, buckets: make(map[string]*bucket), sweepAt: minSweep}
}

// Keyed reports whether each key has the rate for itself.
func (l *Limiter) Keyed() bool { return l.keyed }

// Want is an event that is about to be delivered.
type Want struct {
	// Key is empty without keys.
	Key string
	// Waited says that it has waited for its turn before: others of its key that have not go behind it.
	Waited bool
}

// Take lets events go, as many as the limit allows, the first ones first. It returns for each how long to
// wait, 0 for those that may go; nil if all may. An error says that the table could not be asked; then those
// that depend on it wait for a moment.
func (l *Limiter) Take(ctx context.Context, wants []Want) (waits []time.Duration, err error) {
	now := time.Now()
	left, asks := l.spend(now, wants)
	if len(left) == 0 {
		return nil, nil
	}
	var grants []Grant
	if len(asks) > 0 {
		grants, err = l.reserve(ctx, l.destination, l.plan.Terms, asks)
	}
	if err != nil {
		return l.unknown(wants, left), err
	}
	return l.settle(now, wants, left, grants), nil
}

// remaining is an event that what was taken ahead was not enough for.
type remaining struct {
	place int
	asked bool // the table is asked for it
}

// spend lets go what was taken ahead. It returns the others, and what is asked for them.
func (l *Limiter) spend(now time.Time, wants []Want) (left []remaining, asks []Ask) {
	l.mu.Lock()
	defer l.mu.Unlock()
	missing := make(map[string]int)
	for i := range wants {
		w := &wants[i]
		b := l.bucketLocked(now, w.Key)
		behind := l.keyed && !w.Waited && b.line.After(now)
		if !behind && missing[w.Key] == 0 && b.stock(now) > 0 {
			b.spend(1)
			continue
		}
		ask := !behind && b.open(now, l.plan.Terms) > missing[w.Key]
		if ask {
			missing[w.Key]++
		}
		left = append(left, remaining{i, ask})
	}
	for key, n := range missing {
		asks = append(asks, Ask{key, l.bucketLocked(now, key).wants(now, &l.plan, n)})
	}
	// In the order of keys, or two relays would wait for each other.
	slices.SortFunc(asks, func(a, b Ask) int { return strings.Compare(a.Key, b.Key) })
	return left, asks
}

// unknown makes what the table did not answer for wait for a moment, before it is asked again.
func (l *Limiter) unknown(wants []Want, left []remaining) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	waits := make([]time.Duration, len(wants))
	for _, r := range left {
		if r.asked {
			l.bucketLocked(now, wants[r.place].Key).tat = now.Add(l.plan.span() - l.plan.Gap + unknownWait)
		}
		waits[r.place] = unknownWait
	}
	return waits
}

// settle distributes what the table has granted to what was asked at a time, and gives all others their turns. What
// is left may be used for as long as if the table had answered at once.
func (l *Limiter) settle(asked time.Time, wants []Want, left []remaining, grants []Grant) (waits []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	fresh := make(map[string]int, len(grants))
	for _, g := range grants {
		l.bucketLocked(now, g.Key).tat = now.Add(g.Lead)
		fresh[g.Key] = g.Granted
	}
	for _, r := range left {
		key := wants[r.place].Key
		b := l.bucketLocked(now, key)
		if r.asked && fresh[key] > 0 {
			fresh[key]--
			b.spent++
			continue
		}
		if waits == nil {
			waits = make([]time.Duration, len(wants))
		}
		waits[r.place] = b.place(now, l.plan.Terms)
	}
	for key, n := range fresh {
		if n > 0 {
			b := l.bucketLocked(now, key)
			b.held, b.until = n, asked.Add(l.plan.hold) // what was held before is used up, or too old
		}
	}
	return waits
}

// minSweep is the number of buckets up to which it is not worth looking for idle ones.
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

// Room returns for how many events there is room now, as far as is known, without keys; n with them.
func (l *Limiter) Room(now time.Time, n int) int {
	if l.keyed {
		return n
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucketLocked(now, "")
	return min(n, b.stock(now)+b.open(now, l.plan.Terms))
}

// Bunch is the room that is worth a read or a claim.
func (l *Limiter) Bunch() int { return l.plan.bunch }

// Wait returns the time until there is room for a bunch, 0 if there is, or with keys.
func (l *Limiter) Wait(now time.Time) time.Duration {
	if l.keyed {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucketLocked(now, "")
	return b.opens(now, l.plan.Terms, max(1, l.plan.bunch-b.stock(now)))
}
