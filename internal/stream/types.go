package stream

import (
	"slices"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/tail"
)

// types are the event types that a destination skips, and those that it gets by routes that have
// ended.
type types struct {
	skip   []string        // event types for other destinations
	known  map[string]bool // the types of all events that were read: whether they are skipped
	names  []string        // the same, as a list that only grows; maxSkip+1 of them are too many
	former []routes.Span   // routes that have ended, by which it still has to read
	before tail.Watermark  // what it reads by these alone: another shard has passed it before the routes of today began
}

func newTypes() types { return types{known: make(map[string]bool)} }

// maxSkip bounds the list of event types of which only the ids are read. Types are few; if they are
// not, the rest of their rows is read in vain.
const maxSkip = 500

// wants reports whether the destination gets events of the type, by the routes of today, and where
// only has patterns, by one of them, too.
func (t *types) wants(c *common, eventType string, only []string) bool {
	skipped, known := t.known[eventType]
	if skipped {
		return false
	}
	if !known && len(t.names) <= maxSkip {
		t.known[eventType], t.names = false, append(t.names, eventType)
	}
	if c.e.d.Wanted(c.name, eventType) && (len(only) == 0 || delivery.BestPattern(only, eventType) >= 0) {
		return true
	}
	if len(t.skip) < maxSkip && !t.everGot(eventType) {
		t.known[eventType] = true
		t.skip = append(t.skip, eventType)
	}
	return false
}

// all returns the types of all events that were read, nil if they are too many.
func (t *types) all() []string {
	if len(t.names) > maxSkip {
		return nil
	}
	return t.names
}

// formerly reports whether the destination gets the event by routes that have ended.
func (t *types) formerly(eventType string, id int64) bool {
	return slices.ContainsFunc(t.former, func(s routes.Span) bool { return s.Reads(eventType, id) })
}

// everGot reports whether the destination may get events of the type by routes that have ended.
func (t *types) everGot(eventType string) bool {
	return slices.ContainsFunc(t.former, func(s routes.Span) bool { return s.Gets(eventType) })
}

// forget drops the routes by which nothing is left to read.
func (t *types) forget(head int64, gaps tail.Ranges) {
	t.former = slices.DeleteFunc(t.former, func(s routes.Span) bool { return s.Until.Within(head, gaps) })
}
