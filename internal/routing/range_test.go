package routing

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/idset"
)

// TestGets: the most specific pattern decides.
func TestGets(t *testing.T) {
	t.Parallel()
	r := Routes{Patterns: []string{"order.*", "a"}, Others: []string{"order.secret.*", "*"}}
	for eventType, want := range map[string]bool{"order.placed": true, "order.secret.x": false, "a": true, "a.b": false, "b": false} {
		if r.Gets(eventType) != want {
			t.Errorf("%s: %v", eventType, !want)
		}
	}
}

// TestGains: new routes bring types if some type goes there that did not before.
func TestGains(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, now Routes
		want        bool
	}{
		{Routes{}, Routes{Patterns: []string{"a"}}, true},
		{Routes{Patterns: []string{"*"}}, Routes{Patterns: []string{"a", "b.*"}}, false},
		{Routes{Patterns: []string{"a", "b.*"}}, Routes{Patterns: []string{"*"}}, true},
		{Routes{Patterns: []string{"*"}, Others: []string{"a"}}, Routes{Patterns: []string{"*"}}, true},
		{Routes{Patterns: []string{"*"}, Others: []string{"a.*"}}, Routes{Patterns: []string{"*"}, Others: []string{"a.*", "b"}}, false},
		{Routes{Patterns: []string{"a.*"}}, Routes{Patterns: []string{"a.*"}, Others: []string{"a.b"}}, false},
	} {
		if got := c.now.Gains(&c.before); got != c.want {
			t.Errorf("from %v to %v: %v", c.before, c.now, got)
		}
	}
}

// patterns are the patterns of the tests, and eventTypes has, for each set of these patterns that a type can match, a type
// that matches exactly these.
var (
	patterns   = []string{"*", "a", "a.*", "a.b", "a.b.*", "b", "b.*"}
	eventTypes = []string{"a", "a.b", "a.b.c", "a.c", "b", "b.c", "c"}
)

// drawRoutes draws routes. No pattern leads both to the destination and only to others.
func drawRoutes(t *rapid.T, name string) (r Routes) {
	for _, p := range patterns {
		switch rapid.IntRange(0, 2).Draw(t, name+" "+p) {
		case 0:
			r.Patterns = append(r.Patterns, p)
		case 1:
			r.Others = append(r.Others, p)
		}
	}
	return r
}

// gets reports what Gets must report, by another computation: the longest pattern decides, and a type is longer than
// every prefix of it.
func gets(r *Routes, eventType string) bool {
	matches := func(p string) bool {
		return p == eventType || strings.HasSuffix(p, "*") && strings.HasPrefix(eventType, p[:len(p)-1])
	}
	length := func(all []string) (n int) {
		for _, p := range all {
			if matches(p) {
				n = max(n, 1+len(strings.TrimSuffix(p, "*")))
			}
		}
		return n
	}
	return length(r.Patterns) > length(r.Others)
}

// TestRoutes: for each type the most specific pattern decides, and routes gain types exactly if some type goes to the
// destination that did not before.
func TestRoutes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := drawRoutes(t, "now")
		before := drawRoutes(t, "before")
		gains := false
		for _, eventType := range eventTypes {
			if now.Gets(eventType) != gets(&now, eventType) {
				t.Fatalf("%v gets %s: %v", now, eventType, now.Gets(eventType))
			}
			if anyMatches := Best(slices.Concat(now.Patterns, now.Others), eventType) >= 0; anyMatches != (now.Way(eventType) != Nowhere) {
				t.Fatalf("%v: the way of %s is %d", now, eventType, now.Way(eventType))
			}
			gains = gains || gets(&now, eventType) && !gets(&before, eventType)
		}
		if now.Gains(&before) != gains {
			t.Fatalf("from %v to %v: gains %v", before, now, now.Gains(&before))
		}
		if now.Equal(&before) != (slices.Equal(now.Patterns, before.Patterns) && slices.Equal(now.Others, before.Others)) {
			t.Fatalf("%v equals %v: %v", now, before, now.Equal(&before))
		}
	})
}

// TestRange: a destination reads an id once, whatever the watermarks at which its routes changed.
func TestRange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const span = 12
		at := idset.Watermark{Head: -1}
		var all []Range
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			if len(all) > 0 {
				last := &all[len(all)-1]
				last.Ended = true
				last.Until = at
			}
			all = append(all, Range{Routes: drawRoutes(t, "routes"), From: at})

			next := idset.Watermark{Head: rapid.Int64Range(at.Head, span).Draw(t, "head")}
			for id := int64(0); id <= next.Head; id++ {
				if !at.Has(id) && rapid.Bool().Draw(t, "open") {
					next.Open.Add(idset.Range{From: id, To: id})
				}
			}
			at = next
		}

		eventType := rapid.SampledFrom(eventTypes).Draw(t, "type")
		for id := range int64(span + 1) {
			var containing []*Range
			for i := range all {
				if all[i].Contains(id) {
					containing = append(containing, &all[i])
				}
			}
			if len(containing) != 1 {
				t.Fatalf("%d ranges contain %d: %v", len(containing), id, all)
			}
			if only := containing[0]; only.Reads(eventType, id) != gets(&only.Routes, eventType) {
				t.Fatalf("%v reads %s: %v", only, eventType, only.Reads(eventType, id))
			}
		}
	})
}
