package routes

import (
	"slices"

	"github.com/notifyd/notifyd/internal/tail"
)

// Types are the event types that one reader has met: those that its destination gets, and those that it skips. A reader needs no
// more than the ids of the latter. One goroutine uses it.
type Types struct {
	// Skip has the types of which only the ids are read. Its elements never change.
	Skip []string
	// Former are routes that have ended, by which the destination still has to read.
	Former []Span
	// Before is what the destination reads by Former alone: another shard passed it before the routes of today began.
	Before tail.Watermark

	known map[string]bool // all types that were read: whether they are skipped
	names []string        // the same, as a list that only grows; MaxTypes+1 of them are too many
}

// NewTypes returns the types of a reader that has read nothing.
func NewTypes() Types { return Types{known: make(map[string]bool)} }

// MaxTypes bounds lists of event types. Types are few; if they are not, the rest of their rows is read in vain.
const MaxTypes = 500

// Wants reports whether the destination gets events of a type by the routes of today. gets answers that for a type that was not met before.
func (t *Types) Wants(eventType string, gets func(eventType string) bool) bool {
	skipped, known := t.known[eventType]
	if skipped {
		return false
	}
	if !known && len(t.names) <= MaxTypes {
		t.known[eventType], t.names = false, append(t.names, eventType)
	}
	if gets(eventType) {
		return true
	}
	everGot := slices.ContainsFunc(t.Former, func(s Span) bool { return s.Gets(eventType) })
	if len(t.Skip) < MaxTypes && !everGot {
		t.known[eventType] = true
		t.Skip = append(t.Skip, eventType)
	}
	return false
}

// Formerly reports whether the destination gets an event by routes that have ended.
func (t *Types) Formerly(eventType string, id int64) bool {
	return slices.ContainsFunc(t.Former, func(s Span) bool { return s.Reads(eventType, id) })
}

// Met returns the types of all events that were read, nil if they are too many. Its elements never change.
func (t *Types) Met() []string {
	if len(t.names) > MaxTypes {
		return nil
	}
	return t.names
}

// Forget drops the routes by which nothing is left to read above a position.
func (t *Types) Forget(head int64, gaps tail.Ranges) {
	t.Former = slices.DeleteFunc(t.Former, func(s Span) bool { return s.Until.Within(head, gaps) })
}
