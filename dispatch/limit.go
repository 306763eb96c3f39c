package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/guard"
	"github.com/notifyd/notifyd/internal/limit"
)

// Engines take from the rate limit before they hand anything over: what may not go yet takes no room in the lane, and
// waits where it costs least. Without keys that is the table, as for a lane that is full. With keys it is a row, or one key would
// hold up the others.

// ErrLimited is why a delivery waits that the rate limit of its destination holds back.
var ErrLimited = errors.New(limit.Waits)

// maxRateKey is up to how many bytes a key is stored as it is.
const maxRateKey = 128

// Limits says what is too much for a destination, what comes too late, and what has been overtaken.
type Limits struct{ l *lane }

// HasRate reports whether there is a rate limit. Then Admit comes before Deliver.
func (m Limits) HasRate() bool { return m.l.limiter != nil }

// ByKey reports whether each key has a rate of its own.
func (m Limits) ByKey() bool { return m.l.limiter != nil && m.l.limiter.Keyed() }

// Admit takes from the rate limit for deliveries that are about to be handed over. It returns how long each has to wait, 0 for
// those that may go; nil if all may. Without keys all that comes after one that waits waits, too. It is called in the order in which
// deliveries are handed over, and may ask the database.
//
// What the lane will not begin needs nothing: it is behind a failure, must not be delivered, or is too old.
func (m Limits) Admit(all []Delivery) (waits []time.Duration) {
	l := m.l
	places := m.begins(all)
	wants := make([]limit.Want, len(places))
	for i, at := range places {
		wants[i] = limit.Want{Key: m.rateKey(all[at].Event), Waited: all[at].Waited}
	}
	some, err := l.limiter.Take(l.ctx, wants)
	if some == nil {
		return nil
	}
	if err != nil {
		l.log.Debug("the rate limit cannot be asked; events wait", "err", err)
	}
	now := time.Now()
	waits = make([]time.Duration, len(all))
	held := uint64(0)
	for i, at := range places {
		d := &all[at]
		if waits[at] = some[i]; some[i] > 0 {
			held++
			if !d.Expires.IsZero() {
				waits[at] = max(min(waits[at], d.Expires.Sub(now)), time.Millisecond)
			}
			l.figures.passings.limitedFor(now.Add(waits[at]))
		}
	}
	if !l.limiter.Keyed() {
		for i := 1; i < len(waits); i++ {
			waits[i] = max(waits[i], waits[i-1])
		}
	}
	l.figures.passings.limited.Add(held)
	return waits
}

// begins returns the places of the deliveries that would be called. Those that lead know from then on what they lead:
// others may fail before they go.
func (m Limits) begins(all []Delivery) []int {
	l := m.l
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	places := make([]int, 0, len(all))
	a := l.agg
	for i := range all {
		d := &all[i]
		if a != nil && d.Leads && d.Since == 0 {
			d.Since = a.fails
		}
		if d.Refused != nil || d.late(now) || a != nil && (a.spilled || a.blocked.has(d.Key) && !a.leads(d)) {
			continue
		}
		places = append(places, i)
	}
	return places
}

// rateKey returns the key of an event, as it is stored.
func (m Limits) rateKey(e *delivery.Event) string {
	if m.l.cfg.RateKey == nil {
		return ""
	}
	key, err := keyOf(m.l.cfg.RateKey, &delivery.Candidate{Event: e})
	switch {
	case err != nil:
		return "" // together with all others of which it cannot be told: limited, and not lost
	case len(key) > maxRateKey || !utf8.ValidString(key) || strings.ContainsRune(key, 0):
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:])
	}
	return key
}

// keyOf calls a function for keys, which may panic.
func keyOf(f delivery.RateKey, c *delivery.Candidate) (key string, err error) {
	defer guard.Recover("it", &err)
	return f(c)
}

// Hold records that a delivery is stored to wait for its turn: later ones of the aggregate are parked, as
// behind one that has failed.
func (m Limits) Hold(key Key) {
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	m.l.agg.fails++
	m.l.agg.blocked.mark(key, m.l.agg.fails)
}

// waitLocked reports whether deliveries wait for the rate limit.
func (m Limits) waitLocked(now time.Time) bool {
	l := m.l
	if l.limiter == nil {
		return false
	}
	return l.hungry && l.limiter.Wait(now) > 0 || now.UnixNano() < l.figures.passings.limitedUntil.Load()
}

// Expires returns when an event that was written, or became available, at a time of the database is
// too old to be delivered: see [Delivery.Expires]. It is zero where events do not expire.
func (m Limits) Expires(since time.Time) time.Time {
	if m.l.cfg.ExpiresAfter == 0 {
		return time.Time{}
	}
	return m.l.clock.here(since.Add(m.l.cfg.ExpiresAfter))
}

// ExpiresFrom is Expires for an event that was written at a time of the database, and became available at one of this
// relay's clock. The later one counts: a writer may make an event available before it exists.
func (m Limits) ExpiresFrom(written, here time.Time) time.Time {
	at := m.Expires(written)
	if later := here.Add(m.l.cfg.ExpiresAfter); !at.IsZero() && later.After(at) {
		return later
	}
	return at
}
