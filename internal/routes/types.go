package routes

import (
	"slices"

	"github.com/notifyd/notifyd/internal/idset"
)

// Types are the event types that one reader has met: the types that its destination gets, and the types that it skips.
// Of skipped types a reader needs only the ids. One goroutine uses it.
type Types struct {
	// Skip has the types whose ids alone are read. Its elements never change.
	Skip []string
	// Former are ended routes by which the destination still has to read.
	Former []Range
	// Before has the ids that the destination reads only by Former: another shard passed them before the current routes
	// began.
	Before idset.Watermark

	known map[string]bool // all types that were read, and whether they are skipped
	names []string        // the same, as a list that only grows; more than MaxTypes are too many
}

// NewTypes returns the types of a reader that has read nothing.
func NewTypes() Types { return Types{known: make(map[string]bool)} }

// MaxTypes bounds lists of event types. A reader reads rows of further types in full.
const MaxTypes = 500

// Wants reports whether the destination gets events of a type by the current routes. It calls gets for a type that it
// has not met.
func (t *Types) Wants(eventType string, gets func(eventType string) bool) bool {
	skipped, known := t.known[eventType]
	if skipped {
		return false
	}
	if !known && len(t.names) <= MaxTypes {
		t.known[eventType] = false
		t.names = append(t.names, eventType)
	}
	if gets(eventType) {
		return true
	}

	everGot := slices.ContainsFunc(t.Former, func(s Range) bool { return s.Gets(eventType) })
	if len(t.Skip) < MaxTypes && !everGot {
		t.known[eventType] = true
		t.Skip = append(t.Skip, eventType)
	}

	return false
}

// Formerly reports whether the destination gets an event by ended routes.
func (t *Types) Formerly(eventType string, id int64) bool {
	return slices.ContainsFunc(t.Former, func(s Range) bool { return s.Reads(eventType, id) })
}

// Met returns the types of all events that were read, nil if there are too many. Its elements never change.
func (t *Types) Met() []string {
	if len(t.names) > MaxTypes {
		return nil
	}
	return t.names
}

// Forget drops the routes by which a reader with this watermark has no id left to read.
func (t *Types) Forget(read idset.Watermark) {
	t.Former = slices.DeleteFunc(t.Former, func(s Range) bool { return s.Until.Within(read) })
}
