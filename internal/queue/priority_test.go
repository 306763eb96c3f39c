package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// arrivals are destinations that record the order of their events.
type arrivals struct {
	mu   sync.Mutex
	list []string // destination and id
}

func (a *arrivals) to(name string) delivery.Handler {
	return delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.list = append(a.list, fmt.Sprint(name, " ", e.ID))
		return nil
	})
}

// before returns how many other deliveries came before the last one of a destination.
func (a *arrivals) before(name string) (others int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for i, one := range a.list {
		if one[:len(name)] == name {
			n, others = n+1, i
		}
	}
	return others - n + 1
}

// ranked adds destinations of the given priorities, each with a separate event type.
func (a *arrivals) ranked(t *bubble, priorities map[string]int) {
	t.Helper()
	for name, n := range priorities {
		cfg := testLane()
		cfg.Priority = n
		t.r.to(t, name, a.to(name), cfg, name)
	}
}

func TestPriorityComesFirstInABacklog(t *testing.T) {
	t.Parallel()
	for name, priorities := range map[string]map[string]int{
		"alike":         {"bulk": 1, "urgent": 1},
		"higher":        {"bulk": 0, "urgent": 1},
		"lower":         {"bulk": 0, "urgent": 0, "lowest": -1},
		"among several": {"bulk": 0, "middle": 5, "urgent": 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *bubble) {
				var a arrivals
				t.r.options.Limits.Batch = 50
				a.ranked(t, priorities)
				ids := slices.Concat(t.db.write("bulk", 3000), t.db.write("urgent", 10))
				t.r.start()
				eventually(t, "all delivered", t.db.empty)
				others, first := a.before("urgent"), priorities["urgent"] > priorities["bulk"]
				if first && others > 1000 || !first && others < 2500 {
					t.Errorf("%d of 3000 came before the urgent ones", others)
				}
				if len(a.list) != len(ids) {
					t.Errorf("%d deliveries of %d events", len(a.list), len(ids))
				}
			})
		})
	}
}

// Less urgent destinations do not wait forever, and equal ones take turns.
func TestPriorityLeavesTurnsToOthers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		var a arrivals
		t.r.options.Limits.Batch = 10
		a.ranked(t, map[string]int{"top": 9, "one": 0, "two": 0, "last": -9})
		for range 100 {
			for _, typ := range []string{"one", "two", "top", "last"} {
				t.db.write(typ, 10)
			}
		}
		t.r.start()
		eventually(t, "all delivered", t.db.empty)
		if others := a.before("top"); others > 1000 {
			t.Errorf("%d others before the last of the most urgent", others)
		}
		place := func(name string, n int) int {
			for i, one := range a.list {
				if one[:len(name)] == name {
					if n--; n == 0 {
						return i
					}
				}
			}
			return len(a.list)
		}
		for _, name := range []string{"one", "two", "last"} {
			if at := place(name, 50); at > 2000 {
				t.Errorf("the 50th of %s came after %d others", name, at)
			}
		}
		if one, two := place("one", 250), place("two", 250); max(one, two) > 2*min(one, two) {
			t.Errorf("of two equal ones, one had a quarter after %d, the other after %d deliveries", one, two)
		}
	})
}

// A destination that shares most of the backlog with a more urgent one keeps up with it: no rows
// have to be written for it.
func TestPriorityDoesNotPartWhatIsShared(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		var a arrivals
		t.r.options.Limits.Batch = 50
		a.ranked(t, map[string]int{"bulk": 0, "urgent": 1})
		t.r.fanOut(t, "both", "bulk", "urgent")
		for i := range 500 {
			w := t.db.begin()
			w.insertKeyed("both", fmt.Sprint(i%7), 0)
			w.commit()
		}
		stored := 0
		t.db.faults = func(string) faultKind { stored = max(stored, len(t.db.rows)); return noFault }
		t.r.start()
		eventually(t, "all delivered", t.db.empty)
		t.db.set(func() {
			if stored > 0 {
				t.Errorf("up to %d deliveries were stored", stored)
			}
		})
	})
}
