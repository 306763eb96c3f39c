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

// Admit takes from the rate limit for deliveries that are about to be handed over. It returns how long each has to wait, 0 for
// those that may go; nil if all may. Without keys all that comes after one that waits waits, too. It is called in the order in which
// deliveries are handed over, and may ask the database.
//
// What the lane will not begin needs nothing: it is behind a failure, must not be delivered, or is too old.
func (l *lane) Admit(all []Delivery) (waits []time.Duration) {
	places := l.begins(all)
	wants := make([]limit.Want, len(places))
	for i, at := range places {
		wants[i] = limit.Want{Key: l.rateKey(all[at].Event), Waited: all[at].Waited}
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
func (l *lane) begins(all []Delivery) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	places := make([]int, 0, len(all))
	a := l.agg
	for i := range all {
		d := &all[i]
		held := a != nil && a.Held(d.entry(a))
		if held || d.Refused != nil || d.late(now) {
			continue
		}
		places = append(places, i)
	}
	return places
}

// rateKey returns the key of an event, as it is stored.
func (l *lane) rateKey(e *delivery.Event) string {
	if l.dest.RateKey == nil {
		return ""
	}
	key, err := keyOf(l.dest.RateKey, &delivery.Candidate{Event: e})
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

// limitWaitsLocked reports whether deliveries wait for the rate limit.
func (l *lane) limitWaitsLocked(now time.Time) bool {
	if l.limiter == nil {
		return false
	}
	return l.hungry && l.limiter.Wait(now) > 0 || now.UnixNano() < l.figures.passings.limitedUntil.Load()
}
