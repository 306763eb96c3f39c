package rabbitmq

import (
	"context"
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
		ctx         context.Context
		first, then []int
	}{
		"aggregates": {t.Context(), []int{0, 1, 2}, nil},
		"total":      {delivery.WithTotalOrder(t.Context()), []int{0}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := (&Handler{cfg: Config{StrictOrder: true}}).newBatch(c.ctx, nil)
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
