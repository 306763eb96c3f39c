package engine

import (
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// ClassMissing is the error class of a stored delivery whose event was missing at the last check.
	ClassMissing = "missing"
	// MissingCure is the action for an operator of such deliveries.
	MissingCure = "attach the partition or restore the events; to discard the deliveries: notifyd dlq discard --missing"

	// missingFirst and missingLongest bound the pause between two checks of such a delivery.
	missingFirst, missingLongest = time.Second, 5 * time.Minute
	// missingRate bounds the checks per second, however many such deliveries there are.
	missingRate = 1000
)

// ErrMissing is the last error of a stored delivery whose event is not in outbox_events. The partition may be detached
// for a moment, or a restore may not have reached the event: the delivery waits.
var ErrMissing = errors.New("the event is missing from outbox_events")

// Missing paces the checks of stored deliveries whose events are missing. Each check is a write. The more such
// deliveries there are, and the longer their events have been missing, the later comes the next check.
type Missing struct {
	log *slog.Logger

	mu    sync.Mutex
	since time.Time // when the first one of the incident was found
	last  time.Time // when the last one was found
	next  time.Time // the latest time that Met has returned
}

// NewMissing returns the pace of one engine.
func NewMissing(log *slog.Logger) *Missing { return &Missing{log: log} }

// Met returns the pause until the next check of a delivery whose event is missing. It logs the first one of an
// incident.
func (m *Missing) Met(destination string, eventID int64) time.Duration {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()

	if now.Sub(m.last) > 2*missingLongest && now.After(m.next) {
		m.since = now
		m.log.Warn("the events of stored deliveries are missing",
			"destination", destination, "event_id", eventID, "cure", MissingCure)
	}

	m.last = now
	least := now.Add(min(max(now.Sub(m.since), missingFirst), missingLongest))
	m.next = m.next.Add(time.Second / missingRate)
	if m.next.Before(least) {
		m.next = least
	}

	return m.next.Sub(now)
}
