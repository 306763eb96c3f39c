package dispatch

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// FuzzOrderingKey: the key of an aggregate has a bounded length, is text if the names are, and is the same wherever it is made. A
// hash of the key costs no memory per byte.
func FuzzOrderingKey(f *testing.F) {
	for _, seed := range [][2]string{
		{"order", "7"},
		{"", "7"},
		{"order", ""},
		{"a/b", "c"},
		{"a", "b/c"},
		{strings.Repeat("ä", 100), strings.Repeat("ö", 100)},
		{"x", strings.Repeat("y", 10_000)},
		{strings.Repeat("\x80", 300), "7"},
		{"x", strings.Repeat("\x80", 300)},
		{strings.Repeat("x", 127) + "\xff", "\x80\x00"},
	} {
		f.Add(seed[0], seed[1])
	}
	keys := NewKeys()
	f.Fuzz(func(t *testing.T, aggregateType, aggregateID string) {
		e := &delivery.Event{AggregateType: aggregateType, AggregateID: aggregateID}
		key := OrderingKey(e)
		if (key == "") != (aggregateID == "") || len(key) > maxKeyBytes {
			t.Errorf("%d bytes: %q", len(key), key)
		}
		if utf8.ValidString(aggregateType) && utf8.ValidString(aggregateID) && !utf8.ValidString(key) {
			t.Errorf("%q is not text", key)
		}
		hash, scratch := keys.Of(nil, e)
		if string(scratch) != key || key != "" && hash != keys.Named(key) {
			t.Errorf("%q and %q", scratch, key)
		}
		scratch = make([]byte, 0, 2*(len(aggregateType)+len(aggregateID)+maxKeyBytes))
		const noise = 4096 // of the runtime
		if n := testenv.Allocated(func() { _, _ = keys.Of(scratch, e) }); n > noise {
			t.Errorf("%d bytes are allocated for %d", n, len(aggregateType)+len(aggregateID))
		}
	})
}

// FuzzType: whatever the type of an event, one route is found, the longest pattern first, and the cache of types is bounded.
func FuzzType(f *testing.F) {
	for _, seed := range []string{"", "a", "a.", "a.b", "a.b.c", "a*", "*", ".", "..", "a.*", "\x00", "\xff", strings.Repeat("a.", 5000)} {
		f.Add(seed)
	}
	patterns := []string{"*", "a.*", "a.b.*", "a.b", "ä.*"}
	r := newRouter()
	for _, pattern := range patterns {
		if err := r.add(pattern, []*lane{{dest: Destination{Name: pattern}}}, nil); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, eventType string) {
		w, _ := r.routeOf(eventType)
		again, first := r.routeOf(eventType)
		if got, want := w.lanes[0].dest.Name, naive(patterns, eventType); got != want || again != w || first && len(r.seen) < maxSeen {
			t.Errorf("%q goes to %q, want %q", eventType, got, want)
		}
		if len(r.seen) > maxSeen {
			t.Errorf("%d types are cached", len(r.seen))
		}
	})
}
