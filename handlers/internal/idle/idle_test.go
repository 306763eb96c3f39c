package idle_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/handlers/internal/idle"
)

func TestPool(t *testing.T) {
	t.Parallel()
	var p idle.Pool[int]
	made := 0
	take := func() int {
		n, open := p.Take(func() int { made++; return made })
		if !open {
			t.Fatal("the pool is closed")
		}
		return n
	}
	first, second, third := take(), take(), take()
	if !p.Put(first) || !p.Put(second) {
		t.Error("an open pool has refused a value")
	}
	if got := take(); got != second {
		t.Errorf("took %d, want what was returned last, %d", got, second)
	}
	if made != 3 {
		t.Errorf("%d were made, want 3", made)
	}
	if got := p.Close(); !slices.Equal(got, []int{first}) {
		t.Errorf("%v were idle, want %d", got, first)
	}
	if p.Put(third) {
		t.Error("a closed pool has kept a value")
	}
	if _, open := p.Take(func() int { t.Error("a closed pool made a value"); return 0 }); open {
		t.Error("a closed pool gave a value")
	}
	if got := p.Close(); got != nil {
		t.Errorf("closed again, it had %v", got)
	}
}

// TestPoolConcurrent: no value is in two hands, and none is lost at the end.
func TestPoolConcurrent(t *testing.T) {
	t.Parallel()
	type thing struct{ used sync.Mutex }
	var p idle.Pool[*thing]
	var mu sync.Mutex
	made, closed := 0, 0
	var users sync.WaitGroup
	for user := range 8 {
		users.Go(func() {
			for range 1000 {
				v, open := p.Take(func() *thing { mu.Lock(); defer mu.Unlock(); made++; return &thing{} })
				if !open {
					return
				}
				if !v.used.TryLock() {
					t.Error("a value is in two hands")
				}
				v.used.Unlock()
				if !p.Put(v) {
					mu.Lock()
					closed++
					mu.Unlock()
				}
			}
			if user == 0 {
				left := p.Close()
				mu.Lock()
				closed += len(left)
				mu.Unlock()
			}
		})
	}
	users.Wait()
	if made != closed {
		t.Errorf("%d were made, %d closed", made, closed)
	}
}
