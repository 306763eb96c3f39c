package dispatch

import (
	"fmt"
	"runtime"
	"testing"
)

// TestMillionBlocked: a million blocked aggregates fit into 64 MiB.
func TestMillionBlocked(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	lane := newTestLane(nil, testLane())
	lane.Own(func() {})
	keys := NewKeys()
	before := heap()
	for i := range 1_000_000 {
		lane.SetRows(keys.Named(fmt.Sprint("order/", i)), SomeRows)
	}
	took := int64(heap()) - int64(before)
	if n := lane.Order(Key{}).Aggregates; n != 1_000_000 || took > 64<<20 {
		t.Errorf("%d are blocked, in %d MiB", n, took>>20)
	}
	t.Logf("%d MiB", took>>20)
	if !lane.Order(keys.Named("order/7")).Blocked || lane.Order(keys.Named("order/-1")).Blocked {
		t.Error("an aggregate that was not blocked is blocked")
	}
}
