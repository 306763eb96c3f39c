// Package withheld keeps outcomes of deliveries that PostgreSQL refuses to record while it accepts others. They are written
// again after a pause. Both engines use it.
package withheld

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/internal/backoff"

	"github.com/notifyd/notifyd/internal/store"
)

const (
	// Max bounds the withheld outcomes of an engine: with more, the refusal has another reason than the rows.
	Max = 1000
	// first and longest bound the pause until an outcome is written again.
	first   = time.Second
	longest = 5 * time.Minute
)

// ErrTooMany means that [Max] is reached.
var ErrTooMany = errors.New("the outcomes of too many events are refused")

// Error is the refusal of the outcomes of single events.
type Error struct {
	// Event is one of the events, and N their number.
	Event int64
	N     int
	// Err is the refusal of Event.
	Err error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("event %d, one of %d: %v", e.Event, e.N, e.Err) }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Outcomes returns N, for [store.Report].
func (e *Error) Outcomes() int { return e.N }

// Pauses returns the pauses until an outcome is written again.
func Pauses() backoff.Pauses { return backoff.NewPauses(first, longest, 2) }

// Log names an event whose outcome is refused. Call it once for each.
func Log(ctx context.Context, log *slog.Logger, eventID int64, destination string, err error) {
	log.ErrorContext(ctx, "the outcome of an event cannot be recorded", "event_id", eventID, "destination", destination,
		"err", err, "cure", store.CureOf(err))
}

// Set has the withheld outcomes of one shard of a stream, which are written again together. Rows has their rows. Only one
// goroutine uses a Set.
type Set[W any] struct {
	Rows W

	until  time.Time
	pauses backoff.Pauses
	lowest map[string]int64 // the first withheld event of each aggregate, by name
	named  map[int64]bool   // events that are logged
}

// NewSet returns an empty Set.
func NewSet[W any]() Set[W] {
	return Set[W]{pauses: Pauses(), lowest: make(map[string]int64), named: make(map[int64]bool)}
}

// Name logs an event, once.
func (s *Set[W]) Name(ctx context.Context, log *slog.Logger, eventID int64, destination string, err error) {
	if !s.named[eventID] {
		Log(ctx, log, eventID, destination, err)
	}
	s.named[eventID] = true
}

// Hold records that the outcome of an event of an aggregate is withheld.
func (s *Set[W]) Hold(name string, eventID int64) {
	if lowest, is := s.lowest[name]; name != "" && (!is || eventID < lowest) {
		s.lowest[name] = eventID
	}
}

// Holds reports whether an event of an aggregate must wait for an earlier one, whose outcome is withheld.
func (s *Set[W]) Holds(name string, eventID int64) bool {
	lowest, is := s.lowest[name]
	return is && lowest < eventID
}

// Wait begins the next pause.
func (s *Set[W]) Wait() { s.until = time.Now().Add(s.pauses.Next()) }

// Until returns when the pause ends.
func (s *Set[W]) Until() time.Time { return s.until }

// Take empties the set. It returns the rows and the names of their aggregates.
func (s *Set[W]) Take() (rows W, names []string) {
	rows = s.Rows

	for name := range s.lowest {
		names = append(names, name)
	}

	var none W
	s.Rows = none
	clear(s.lowest)
	return rows, names
}

// Ended records that all outcomes are written. It reports whether any were withheld before.
func (s *Set[W]) Ended() bool {
	if len(s.named) == 0 {
		return false
	}
	clear(s.named)
	s.pauses.Reset()
	return true
}
