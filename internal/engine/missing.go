package engine

import (
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// ClassMissing is the error class of a stored delivery whose event was missing at the last look.
	ClassMissing = "missing"
	// MissingCure says what a person can do about such deliveries.
	MissingCure = "attach the partition or restore the events, and they are delivered; to give the deliveries up: notifyd dlq discard --missing"

	// missingFirst and missingLongest bound the pause between two looks at such a delivery.
	missingFirst, missingLongest = time.Second, 5 * time.Minute
	// missingRate bounds the looks per second, however many such deliveries there are.
	missingRate = 1000
)

// ErrMissing is the last error of a stored delivery whose event is not in outbox_events. Its partition may
// be detached for a moment, or a restore may not have come to it yet: the delivery waits for it.
var ErrMissing = errors.New("the event is missing from outbox_events: the delivery waits until it is back")

// Missing paces the looks at stored deliveries whose events are missing. Each look is a write: the more
// there are, and the longer they have been missing, the later comes the next look.
type Missing struct {
	log *slog.Logger

	mu    sync.Mutex
	since time.Time // when the first one was met
	last  time.Time // when the last one was met
	next  time.Time // the latest time that was given out
}

// NewMissing returns the pace of one engine.
func NewMissing(log *slog.Logger) *Missing { return &Missing{log: log} }

// Met returns the pause until the next look at a delivery whose event is missing. It logs the first of
// an incident.
func (m *Missing) Met(destination string, eventID int64) time.Duration {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.last) > 2*missingLongest && now.After(m.next) {
		m.since = now
		m.log.Warn("the events of stored deliveries are missing", "destination", destination, "event_id", eventID, "cure", MissingCure)
	}
	m.last = now
	least := now.Add(min(max(now.Sub(m.since), missingFirst), missingLongest))
	m.next = m.next.Add(time.Second / missingRate)
	if m.next.Before(least) {
		m.next = least
	}
	return m.next.Sub(now)
}
