package dispatch

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/routing"
)

func newTestRouter(tb testing.TB, patterns ...string) *router {
	tb.Helper()
	r := newRouter()
	for _, p := range patterns {
		if err := r.add(p, []*lane{{dest: Destination{Name: p}}}, nil); err != nil {
			tb.Fatal(err)
		}
	}
	return r
}

func TestRouterTakesTheMostExactPattern(t *testing.T) {
	t.Parallel()
	r := newTestRouter(t, "*", "order.*", "order.line.*", "order.line.added", "order")
	for typ, want := range map[string]string{
		"order.line.added": "order.line.added", "order.line.gone": "order.line.*", "order.created": "order.*",
		"order": "order", "order.": "order.*", "orders": "*", "": "*", "order.line": "order.*", "*": "*",
	} {
		for range 2 { // the second time from the cache
			if w, _ := r.routeOf(typ); w.lanes[0].dest.Name != want {
				t.Errorf("%q goes to %q, want %q", typ, w.lanes[0].dest.Name, want)
			}
		}
	}
	for _, p := range []string{"*", "order.*", "order"} {
		if err := r.add(p, []*lane{{}}, nil); !errors.Is(err, delivery.ErrPattern) {
			t.Errorf("a second %q: %v", p, err)
		}
	}
}

// TestBestPattern: it agrees with the router, whatever the order of the patterns.
func TestBestPattern(t *testing.T) {
	t.Parallel()
	all := []string{"*", "order.*", "order.line.*", "order.line.added", "order", "a.*", "a"}
	rapid.Check(t, func(t *rapid.T) {
		patterns := rapid.Permutation(all).Draw(t, "patterns")[:rapid.IntRange(0, len(all)).Draw(t, "n")]
		r := newRouter()
		for _, p := range patterns {
			if err := r.add(p, []*lane{{dest: Destination{Name: p}}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		typ := rapid.SampledFrom([]string{"order.line.added", "order.line.gone", "order.x", "order", "orders", "a", "a.b", "", "*", "b", "order.*"}).Draw(t, "type")
		want, got := "none", "none"
		if lanes := r.find(typ).lanes; lanes != nil {
			want = lanes[0].dest.Name
		}
		if i := routing.Best(patterns, typ); i >= 0 {
			got = patterns[i]
		}
		if got != want {
			t.Fatalf("%q goes by %q, want %q", typ, got, want)
		}
	})
}

func TestRouterTellsTheFirstTime(t *testing.T) {
	t.Parallel()
	r := newTestRouter(t, "a")
	for _, typ := range []string{"a", "none"} {
		if _, first := r.routeOf(typ); !first {
			t.Errorf("%q: not the first time", typ)
		}
		if _, first := r.routeOf(typ); first {
			t.Errorf("%q: again the first time", typ)
		}
	}
	if names := r.types(func([]QueueLane) bool { return true }); len(names) != 1 || names[0] != "a" {
		t.Errorf("types with a route: %v", names)
	}
}

func TestRouterCacheIsBounded(t *testing.T) {
	t.Parallel()
	r := newTestRouter(t, "*")
	for i := range maxSeen + 100 {
		if w, _ := r.routeOf(fmt.Sprint("type-", i)); w.lanes == nil {
			t.Fatal("no route")
		}
	}
	if n := len(r.seen); n != maxSeen {
		t.Errorf("%d types remembered", n)
	}
	if _, first := r.routeOf("one-more"); first {
		t.Error("types beyond the bound are reported each time")
	}
}

// naive is a second implementation of the routing rule.
func naive(patterns []string, typ string) (best string) {
	for _, p := range patterns {
		prefix := strings.TrimSuffix(p, "*")
		switch {
		case p == typ && !strings.HasSuffix(p, "*"):
			return p
		case strings.HasSuffix(p, "*") && strings.HasPrefix(typ, prefix) && len(p) > len(best):
			best = p
		}
	}
	return best
}

func TestRouterMatchesLikeANaiveOne(t *testing.T) {
	t.Parallel()
	word := rapid.StringMatching(`[ab]{0,2}(\.[ab]{0,2}){0,2}`)
	pattern := rapid.OneOf(word, rapid.Map(word, func(s string) string { return s + ".*" }), rapid.Just("*"))
	rapid.Check(t, func(t *rapid.T) {
		r := newRouter()
		var patterns []string
		for _, p := range rapid.SliceOfDistinct(pattern, rapid.ID[string]).Draw(t, "patterns") {
			if routing.Check(p) != nil {
				continue
			}
			patterns = append(patterns, p)
			if err := r.add(p, []*lane{{dest: Destination{Name: p}}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		typ := word.Draw(t, "type")
		got, want := "", naive(patterns, typ)
		if w, _ := r.routeOf(typ); w.lanes != nil {
			got = w.lanes[0].dest.Name
		}
		if got != want {
			t.Fatalf("%q goes to %q, want %q of %q", typ, got, want, patterns)
		}
	})
}

func FuzzPattern(f *testing.F) {
	for _, seed := range []string{"*", "order.*", "order.created", "", ".*", "a b", "..*", "ä.*"} {
		f.Add(seed, "order.created")
	}
	f.Fuzz(func(t *testing.T, pattern, typ string) {
		if routing.Check(pattern) != nil {
			return
		}
		r := newRouter()
		if err := r.add(pattern, []*lane{{}}, nil); err != nil {
			t.Fatalf("%q is checked and cannot be added: %v", pattern, err)
		}
		if got, want := r.find(typ).lanes != nil, naive([]string{pattern}, typ) != ""; got != want {
			t.Fatalf("%q matches %q: %t, want %t", pattern, typ, got, want)
		}
		if !strings.HasSuffix(pattern, "*") && r.find(pattern).lanes == nil {
			t.Fatalf("%q does not match itself", pattern)
		}
	})
}
