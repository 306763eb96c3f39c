package integration

import (
	"context"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestUnorderedCalls: a handler learns whether the events of a call have an order.
func TestUnorderedCalls(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, c := range []struct {
		mode  outboxsql.Mode
		order delivery.Order
		want  bool
	}{
		{outboxsql.ModeQueue, delivery.OrderAuto, true},
		{outboxsql.ModeStream, delivery.OrderAuto, false},
		{outboxsql.ModeStream, delivery.OrderNone, true},
		{outboxsql.ModeStream, delivery.OrderTotal, false},
	} {
		t.Run(string(c.mode)+"/"+string(c.order), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, c.mode)
			called := make(chan bool, 1)
			h := delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error {
				called <- delivery.CallOf(ctx).Unordered
				return nil
			})
			e.relay(handleAll(t, h, delivery.Lane{Order: c.order}), notifyd.Config{})
			e.untilState(e.insert("order.placed", `{}`), "done")
			if got := <-called; got != c.want {
				t.Errorf("unordered: %t", got)
			}
		})
	}
}
