package health

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

const (
	// suspectAfter is how many different events of a type have to fail in a row before the type is suspected.
	suspectAfter = 3
	// othersWithin is how recently the destination must have taken an event of another type. Otherwise the
	// destination may be down, and the events stay in the table.
	othersWithin = 10 * time.Second
	// maxKinds bounds the remembered types.
	maxKinds = 100
	// perProbe is how many waiting events of a suspected type are due per pause. Only one of them is tried.
	perProbe = 8
)

// kinds finds event types that the destination fails over while it takes events of other types. One event at a time of
// such a type is tried. The others wait, so that they do not occupy the workers. The zero value has no types.
type kinds map[string]*kind

// kind is an event type with failures since the last answer.
type kind struct {
	events   map[int64]struct{} // different events that failed, at most suspectAfter
	since    time.Time          // the first failure
	othersAt time.Time          // when the destination last took an event of another type; zero for never
	until    time.Time          // when the next event is tried
	pause    time.Duration
	waiting  int // events that wait for the end of the pause
	err      error
}

// fails records that a call for an event failed after it took some time.
func (k *kinds) fails(now time.Time, e *delivery.Event, took time.Duration, longest time.Duration, err error) {
	one := (*k)[e.Type]
	if one == nil {
		if *k == nil || len(*k) >= maxKinds {
			*k = make(kinds)
		}
		one = &kind{events: make(map[int64]struct{}), since: now}
		(*k)[e.Type] = one
	}

	if len(one.events) < suspectAfter {
		one.events[e.ID] = struct{}{}
	}

	share := min(now.Sub(one.since)/outageShare, longest*2/3)
	one.pause = max(share, min(firstPause, longest), took)
	one.until = now.Add(one.pause)
	one.waiting = 0
	one.err = err
}

// answered records that the destination answered an event of a type; taken means that it took the event.
func (k kinds) answered(now time.Time, name string, taken bool) {
	delete(k, name)

	if !taken {
		return
	}
	for _, one := range k {
		one.othersAt = now
	}
}

// has reports whether events of a type failed, and none was answered since.
func (k kinds) has(name string) bool { return k[name] != nil }

// suspects reports whether events of a type fail while the destination takes others.
func (k kinds) suspects(now time.Time, name string) bool {
	one := k[name]
	if one == nil || one.othersAt.IsZero() {
		return false
	}
	return len(one.events) >= suspectAfter && now.Sub(one.othersAt) < othersWithin
}

// holds returns how long an event waits because its type is suspected, and why. It reports false if the event may be
// tried: the next one of its type then waits for another pause.
func (k kinds) holds(now time.Time, name string) (delay time.Duration, why error, ok bool) {
	if !k.suspects(now, name) {
		return 0, nil, false
	}

	one := k[name]
	if !now.Before(one.until) {
		one.until = now.Add(one.pause)
		one.waiting = 0
		return 0, nil, false
	}

	one.waiting++
	before := one.waiting / perProbe // pauses until it is due
	delay = max(one.until.Sub(now), time.Second) + time.Duration(before)*max(one.pause, time.Second)

	return min(delay, longestWait), fmt.Errorf("waits because other events of its type failed: %w", one.err), true
}

// longestWait bounds how long an event waits because its type is suspected.
const longestWait = time.Minute
