package limit

import "time"

const (
	// longestWait bounds the wait that an event of a key is given: a limit that was raised, and events that were
	// discarded, are noticed by then.
	longestWait = 10 * time.Minute
	// unknownWait is the wait after a reservation that failed.
	unknownWait = time.Second
)

// bucket is what a relay knows of one key. Times are its own, by the monotonic clock.
type bucket struct {
	held  int       // taken and not used
	until time.Time // of held: later they are lost
	tat   time.Time // theoretical arrival time, as of the last answer
	line  time.Time // when the next event that has to wait may hope to go
	spent int       // since the time below
	since time.Time // of the last reservation
}

// idle reports whether the bucket says no more than a new one.
func (b *bucket) idle(now time.Time) bool {
	return !b.tat.After(now) && !b.line.After(now) && (b.held == 0 || now.After(b.until))
}

// stock returns how many were taken and may be used.
func (b *bucket) stock(now time.Time) int {
	if now.After(b.until) {
		b.held = 0
	}
	return b.held
}

// open returns how many the table would grant, as far as is known: other relays take from it, too.
func (b *bucket) open(now time.Time, t Terms) int {
	lead := max(0, b.tat.Sub(now))
	return max(0, int((t.span()-lead)/t.Gap))
}

// opens returns the time until the table would grant n, at most the burst.
func (b *bucket) opens(now time.Time, t Terms, n int) time.Duration {
	return max(0, b.tat.Sub(now)-t.span()+time.Duration(min(n, t.Burst))*t.Gap)
}

// place gives an event that cannot go now its turn behind those that wait already.
func (b *bucket) place(now time.Time, t Terms) time.Duration {
	first := now.Add(max(b.opens(now, t, 1), time.Millisecond))
	if b.line.Before(first) {
		b.line = first
	}
	wait := b.line.Sub(now)
	if wait >= longestWait {
		return longestWait
	}
	b.line = b.line.Add(t.Gap)
	return wait
}

// spend uses n that were taken.
func (b *bucket) spend(n int) {
	b.held -= n
	b.spent += n
}

// wants returns how many to reserve where n are missing: a key that is busy gets some ahead.
func (b *bucket) wants(now time.Time, p *plan, n int) int {
	spent := b.spent + n
	if since := now.Sub(b.since); since > p.hold {
		spent = int(float64(spent) * float64(p.hold) / float64(since))
	}
	want := n + min(p.ahead, 2*spent)
	b.since, b.spent = now, 0
	return want
}
