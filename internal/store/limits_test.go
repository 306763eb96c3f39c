package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/limit"
)

// TestReserve: the table grants the burst, then the rate. A session does not get the reserve of another one.
func TestReserve(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	var reported []error
	a, b := NewLimits(d.Connector, func(err error) { reported = append(reported, err) }), NewLimits(d.Connector, func(error) {})
	t.Cleanup(func() { a.Close(context.WithoutCancel(t.Context())); b.Close(context.WithoutCancel(t.Context())) })
	hour := limit.Terms{Gap: time.Hour, Burst: 5}
	ask := func(l *Limits, terms limit.Terms, asks ...limit.Request) (all []string) {
		t.Helper()
		grants, err := l.Reserve(t.Context(), "d", terms, asks)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range grants {
			all = append(all, fmt.Sprintf("%s %d %.0f", g.Key, g.N, g.Lead.Hours()))
		}
		slices.Sort(all)
		return all
	}
	for i, step := range []struct {
		who  *Limits
		asks []limit.Request
		want string
	}{
		{a, []limit.Request{{Key: "", N: 3}, {Key: "k", N: 9}}, "[ 3 3 k 5 5]"},
		{b, []limit.Request{{Key: "", N: 9}, {Key: "k", N: 1}}, "[ 2 5 k 0 5]"},
		{a, []limit.Request{{Key: "", N: 1}}, "[ 0 5]"},
	} {
		if got := fmt.Sprint(ask(step.who, hour, step.asks...)); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	// Two and a half hours later.
	d.exec(`UPDATE outbox_limits SET tat = tat - interval '150 minutes'`)
	if got := fmt.Sprint(ask(b, hour, limit.Request{Key: "k", N: 9})); got != "[k 2 4]" && got != "[k 2 5]" {
		t.Error(got)
	}
	// A time far ahead is from another limit, or another clock.
	d.exec(`UPDATE outbox_limits SET tat = now() + interval '9 years'`)
	if got := fmt.Sprint(ask(b, limit.Terms{Gap: time.Minute, Burst: 60}, limit.Request{Key: "k", N: 1})); got != "[k 0 1]" {
		t.Error(got)
	}
	// Rows without effect are deleted, others stay.
	d.exec(`UPDATE outbox_limits SET tat = now() - interval '2 minutes' WHERE key = 'k'`)
	a.tidy = time.Time{}
	ask(a, hour, limit.Request{Key: "", N: 1})
	d.expect("rows", `SELECT '[' || key || ']' FROM outbox_limits`, "[]")
	d.exec(`ALTER TABLE outbox_limits RENAME TO gone`)
	if _, err := a.Reserve(t.Context(), "d", hour, []limit.Request{{N: 1}}); err == nil || reported[len(reported)-1] == nil || reported[0] != nil {
		t.Error("without the table:", err, reported)
	}
	d.exec(`ALTER TABLE gone RENAME TO outbox_limits`)
	// A session that has failed is replaced.
	ask(a, hour, limit.Request{Key: "", N: 1})
	if reported[len(reported)-1] != nil {
		t.Error("after a failure:", reported)
	}
}

// TestReserveTogether: sessions that reserve at once get no more than the limit, and no deadlock occurs.
func TestReserveTogether(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	terms := limit.Terms{Gap: 24 * time.Hour, Burst: 100}
	var mu sync.Mutex
	got := make(map[string]int)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			l := NewLimits(d.Connector, func(error) {})
			defer l.Close(context.WithoutCancel(t.Context()))
			for range 20 {
				grants, err := l.Reserve(t.Context(), "d", terms, []limit.Request{{Key: "a", N: 3}, {Key: "b", N: 4}, {Key: "c", N: 1}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, g := range grants {
					got[g.Key] += g.N
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if want := map[string]int{"a": 100, "b": 100, "c": 100}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error(got, "were granted, want", want)
	}
}
