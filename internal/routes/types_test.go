package routes

import (
	"fmt"
	"testing"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/routing"
)

// TestTypesMet: all types that were read are recorded, including skipped ones. Above the limit none are recorded, and the
// number of skipped types is bounded.
func TestTypesMet(t *testing.T) {
	t.Parallel()
	types := NewTypes()
	for i := range MaxTypes {
		got := i%2 == 0
		if types.Wants(fmt.Sprint(i), func(string) bool { return got }) != got {
			t.Fatalf("type %d is not as its route", i)
		}
	}
	if len(types.Met()) != MaxTypes || len(types.Skip) != MaxTypes/2 {
		t.Errorf("%d types were met, %d are skipped", len(types.Met()), len(types.Skip))
	}
	for i := range 2 * MaxTypes {
		if types.Wants(fmt.Sprint("more ", i), func(string) bool { return false }) {
			t.Fatal("a type without a route is wanted")
		}
	}
	if types.Met() != nil || len(types.Skip) != MaxTypes {
		t.Errorf("%d types were met, %d are skipped", len(types.Met()), len(types.Skip))
	}
}

// TestTypesOfEndedRoutes: a type is not skipped while the destination may get older events of it.
func TestTypesOfEndedRoutes(t *testing.T) {
	t.Parallel()
	types := NewTypes()
	types.Former = []Range{{Range: routing.Range{Routes: routing.Routes{Patterns: []string{"old.*"}}, Ended: true}}}
	types.Former[0].Until.Head = 100
	never := func(string) bool { return false }
	if types.Wants("old.event", never) || types.Wants("other", never) {
		t.Error("a type without a route is wanted")
	}
	if len(types.Skip) != 1 || types.Skip[0] != "other" {
		t.Errorf("skipped: %v", types.Skip)
	}
	if !types.Formerly("old.event", 100) || types.Formerly("old.event", 101) || types.Formerly("other", 1) {
		t.Error("what is read by ended routes is not what they had")
	}
	if types.Forget(idset.Watermark{Head: 99}); len(types.Former) != 1 {
		t.Error("a route is forgotten before all of it was read")
	}
	if types.Forget(idset.Watermark{Head: 100}); len(types.Former) != 0 {
		t.Error("a route is kept after all of it was read")
	}
}
