package rabbitmq

import (
	"slices"
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// TestTotalOrderInBatch: with strict_order, a call of a total order publishes one event at a time, and
// none behind one that failed.
func TestTotalOrderInBatch(t *testing.T) {
	t.Parallel()
	events := []*delivery.Event{{ID: 1, AggregateID: "a"}, {ID: 2, AggregateID: "b"}, {ID: 3}}
	for name, c := range map[string]struct {
		total       bool
		first, then []int
	}{
		"aggregates": {false, []int{0, 1, 2}, nil},
		"total":      {true, []int{0}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if c.total {
				ctx = delivery.WithCall(ctx, delivery.Call{TotalOrder: true})
			}
			b := (&Handler{cfg: Config{StrictOrder: true}}).newBatch(ctx, nil)
			b.events, b.failures, b.open = events, make([]*failure, 3), []bool{true, true, true}
			got := b.next()
			if !slices.Equal(got, c.first) {
				t.Errorf("first %v", got)
			}
			for _, i := range got {
				b.settle(i, nil)
			}
			if got = b.next(); !slices.Equal(got, c.then) {
				t.Errorf("then %v", got)
			}
			for _, i := range got {
				b.settle(i, &failure{at: stageNack, text: "not now"})
			}
			if got = b.next(); len(got) > 0 || name == "total" && b.failures[2] == nil {
				t.Errorf("behind the failure: %v, %v", got, b.failures)
			}
		})
	}
}
