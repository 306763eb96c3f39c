package webhook

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxRate keeps the space between two requests above the resolution of timers.
	maxRate = 100_000
	// maxPlaces is how many hosts are remembered before those at rest are
	// forgotten.
	maxPlaces = 1024
)

// places are the hosts that requests go to, each with its own limits.
type places struct {
	rate  rate.Limit // rate.Inf for no limit
	slots int        // 0 for no limit

	mu  sync.Mutex
	all map[string]*place
}

// place is a host. Its fields below users are guarded by the lock of places.
type place struct {
	limiter *rate.Limiter
	slots   chan struct{} // nil for no limit

	users  int       // requests that hold it
	closed time.Time // the server wants no request before
}

func newPlaces(perSecond float64, slots int) *places {
	limit := rate.Inf
	if perSecond > 0 {
		limit = rate.Limit(perSecond)
	}
	return &places{rate: limit, slots: slots, all: make(map[string]*place)}
}

// busyError is the error of a request that got no turn in time.
type busyError struct {
	text string
	wait time.Duration // until there is one, 0 if unknown
	shut bool          // the host has asked for it
}

// Error says why.
func (e *busyError) Error() string { return e.text }

// enter waits for a turn to send to host, but not longer than until latest,
// which is zero for no limit. The caller calls leave when the request is done,
// unless there is an error: a [*busyError], or the cause of ctx.
func (p *places) enter(ctx context.Context, host string, latest time.Time) (leave func(), err error) {
	at := p.hold(host)

	if err := p.closedFor(at); err != nil {
		p.drop(at)
		return nil, err
	}

	if err := at.takeSlot(ctx, latest); err != nil {
		p.drop(at)
		return nil, err
	}

	leave = func() {
		at.giveSlot()
		p.drop(at)
	}

	if err := at.takeToken(ctx, latest); err != nil {
		leave()
		return nil, err
	}

	if err := p.closedFor(at); err != nil { // the server may have asked for it during the wait
		leave()
		return nil, err
	}

	return leave, nil
}

// hold returns the place of a host and keeps it from being forgotten.
func (p *places) hold(host string) *place {
	p.mu.Lock()
	defer p.mu.Unlock()

	at := p.all[host]
	if at == nil {
		if len(p.all) >= maxPlaces {
			p.forget()
		}
		at = &place{limiter: rate.NewLimiter(p.rate, 1)}
		if p.slots > 0 {
			at.slots = make(chan struct{}, p.slots)
		}
		p.all[host] = at
	}

	at.users++
	return at
}

func (p *places) drop(at *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at.users--
}

// forget drops the places that hold no state.
func (p *places) forget() {
	now := time.Now()
	for host, at := range p.all {
		if at.users == 0 && !now.Before(at.closed) && at.limiter.TokensAt(now) >= 1 {
			delete(p.all, host)
		}
	}
}

// shut records that a server wants no request for a while.
func (p *places) shut(host string, wait time.Duration) {
	at := p.hold(host)
	p.mu.Lock()
	defer p.mu.Unlock()
	at.users--
	if until := time.Now().Add(wait); until.After(at.closed) {
		at.closed = until
	}
}

func (p *places) closedFor(at *place) error {
	p.mu.Lock()
	defer p.mu.Unlock()

	if rest := time.Until(at.closed); rest > 0 {
		text := fmt.Sprintf("its Retry-After forbids requests for %v more", rest.Round(time.Second))
		return &busyError{text: text, wait: rest, shut: true}
	}

	return nil
}

func (at *place) takeSlot(ctx context.Context, latest time.Time) error {
	if at.slots == nil {
		return nil
	}

	select {
	case at.slots <- struct{}{}:
		return nil
	default:
	}

	var late <-chan time.Time
	if !latest.IsZero() {
		t := time.NewTimer(time.Until(latest))
		defer t.Stop()
		late = t.C
	}

	select {
	case at.slots <- struct{}{}:
		return nil
	case <-late:
		return &busyError{text: "host_concurrency requests are under way, and none ended in time"}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (at *place) giveSlot() {
	if at.slots != nil {
		<-at.slots
	}
}

func (at *place) takeToken(ctx context.Context, latest time.Time) error {
	token := at.limiter.Reserve() // of one, the size of the bucket
	wait := token.Delay()
	if wait <= 0 {
		return nil
	}

	if !latest.IsZero() && time.Now().Add(wait).After(latest) {
		token.Cancel()
		return &busyError{text: "host_rate_limit leaves no turn in time: lower concurrency, or raise timeout", wait: wait}
	}

	t := time.NewTimer(wait)
	defer t.Stop()

	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		token.Cancel()
		return context.Cause(ctx)
	}
}
