package limit

import "time"

const (
	// longestWait bounds the wait of an event with a key. Within that time a raised limit, or discarded events, take
	// effect.
	longestWait = 10 * time.Minute
	// unknownWait is the wait after a failed reservation.
	unknownWait = time.Second
)

// bucket is a relay's knowledge of one key. Times are the relay's own, by the monotonic clock.
type bucket struct {
	held  int       // reserved and not used
	until time.Time // held expires then
	tat   time.Time // theoretical arrival time, as of the last answer
	next  time.Time // when the next waiting event may begin, at the earliest
	spent int       // used since the last reservation
	since time.Time // of the last reservation
}

// idle reports whether the bucket knows no more than a new one.
func (b *bucket) idle(now time.Time) bool {
	if b.tat.After(now) || b.next.After(now) {
		return false
	}
	return b.held == 0 || now.After(b.until)
}

// available returns the number reserved and usable.
func (b *bucket) available(now time.Time) int {
	if now.After(b.until) {
		b.held = 0
	}
	return b.held
}

// reservable estimates how many the table would reserve now; other relays reserve from it, too.
func (b *bucket) reservable(now time.Time, t Terms) int {
	lead := max(0, b.tat.Sub(now))
	return max(0, int((t.accrual()-lead)/t.Gap))
}

// reservableIn returns the time until the table would reserve n, at most the burst.
func (b *bucket) reservableIn(now time.Time, t Terms, n int) time.Duration {
	return max(0, b.tat.Sub(now)-t.accrual()+time.Duration(min(n, t.Burst))*t.Gap)
}

// enqueue returns the wait of an event that cannot begin now, behind the events that already wait.
func (b *bucket) enqueue(now time.Time, t Terms) time.Duration {
	first := now.Add(max(b.reservableIn(now, t, 1), time.Millisecond))
	if b.next.Before(first) {
		b.next = first
	}

	wait := b.next.Sub(now)
	if wait >= longestWait {
		return longestWait
	}

	b.next = b.next.Add(t.Gap)
	return wait
}

// spend uses n of the reserved events.
func (b *bucket) spend(n int) {
	b.held -= n
	b.spent += n
}

// wants returns how many to reserve if n are missing: a busy key reserves some ahead.
func (b *bucket) wants(now time.Time, p *plan, n int) int {
	spent := b.spent + n
	if since := now.Sub(b.since); since > p.hold {
		spent = int(float64(spent) * float64(p.hold) / float64(since))
	}

	want := n + min(p.ahead, 2*spent)
	b.since = now
	b.spent = 0
	return want
}
