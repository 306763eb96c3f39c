package outboxtest

import (
	"fmt"
	"strings"
	"testing"
)

// Wrote ends the test unless an event was written that all matches match, and returns the first such
// event. The failure lists the written events, each with its difference from the expected one.
func Wrote(tb testing.TB, s Source, matches ...Match) *Event {
	tb.Helper()
	all := s.Events(tb)
	for _, e := range all {
		if All(matches...)(e) == nil {
			return e
		}
	}
	tb.Fatalf("outboxtest: no such event was written%s", list(all, All(matches...)))
	return nil
}

// WroteNone ends the test if an event was written that all matches match; without matches, if any was.
func WroteNone(tb testing.TB, s Source, matches ...Match) {
	tb.Helper()
	var found []*Event
	for _, e := range s.Events(tb) {
		if All(matches...)(e) == nil {
			found = append(found, e)
		}
	}
	if len(found) > 0 {
		tb.Fatalf("outboxtest: what should not be was written%s", list(found, nil))
	}
}

// InOrder ends the test unless events were written that the matches match, one each, in this order; there
// may be others before, between and behind them. It returns the matched events. Use [All] to require
// several properties of one event.
func InOrder(tb testing.TB, s Source, matches ...Match) []*Event {
	tb.Helper()

	all := s.Events(tb)
	found := make([]*Event, 0, len(matches))
	rest := all

	for i, m := range matches {
		at := 0
		for at < len(rest) && m(rest[at]) != nil {
			at++
		}

		if at == len(rest) {
			tb.Fatalf("outboxtest: event %d of %d was not written%s%s", i+1, len(matches), behind(found), list(rest, m))
		}

		found = append(found, rest[at])
		rest = rest[at+1:]
	}

	return found
}

// Exactly ends the test unless as many events were written as there are matches, and each matches its
// event, in this order. It returns the events.
func Exactly(tb testing.TB, s Source, matches ...Match) []*Event {
	tb.Helper()
	all := s.Events(tb)
	if len(all) != len(matches) {
		tb.Fatalf("outboxtest: %d events were written, want %d%s", len(all), len(matches), list(all, nil))
	}
	for i, m := range matches {
		if err := m(all[i]); err != nil {
			tb.Fatalf("outboxtest: event %d of %d: %v%s", i+1, len(matches), err, list(all, nil))
		}
	}
	return all
}

func behind(found []*Event) string {
	if len(found) == 0 {
		return ""
	}
	return fmt.Sprintf(" behind #%d", found[len(found)-1].ID)
}

// most is how many events a failure lists.
const most = 20

// list returns the end of a failure: the written events, each with its difference from the
// expected one.
func list(all []*Event, want Match) string {
	if len(all) == 0 {
		return "; none was"
	}

	var b strings.Builder
	for i, e := range all {
		if i == most {
			fmt.Fprintf(&b, "\n  and %d more", len(all)-most)
			break
		}
		fmt.Fprintf(&b, "\n  %s", e)
		if want == nil {
			continue
		}
		if err := want(e); err != nil {
			fmt.Fprintf(&b, ": %v", err)
		}
	}
	return b.String()
}
