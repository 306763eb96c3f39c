package dispatch_test

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// TestCheckDeadLetters: each mistake is named at the destination that has it, and chains are allowed.
func TestCheckDeadLetters(t *testing.T) {
	t.Parallel()
	to := func(name, receiver string) dispatch.Receiver {
		return dispatch.Receiver{Name: name, Lane: delivery.Lane{OnDead: delivery.OnDead{To: receiver}}}
	}
	routed, exact, sharded := to("b", ""), to("b", ""), to("b", "")
	routed.Routed, exact.Exact, sharded.Lane.Shards = true, true, 2
	for want, all := range map[string][]dispatch.Receiver{
		"": {to("a", "b"), to("b", "c"), to("c", ""), to("d", "c")},
		`a.on_dead.to: there is no destination "b": add it to the same relay, without a route`:                                          {to("a", "b")},
		`a.on_dead.to: a route leads to "b", which would take a dead letter for an event of its own: name a destination without routes`: {to("a", "b"), routed},
		`a.on_dead.to: "b" keeps its own position, and dead letters have none: name a destination without exactly_once`:                 {to("a", "b"), exact},
		`a.on_dead.to: "b" has several shards: remove shards there`:                                                                     {to("a", "b"), sharded},
		`a.on_dead.to: dead letters would go round in a circle (a to a): end the chain at one of them`:                                  {to("a", "a")},
		"b.on_dead.to: dead letters would go round in a circle (b to c to b): end the chain at one of them\n" +
			"c.on_dead.to: dead letters would go round in a circle (c to b to c): end the chain at one of them": {to("a", "b"), to("b", "c"), to("c", "b")},
	} {
		got := ""
		if err := dispatch.CheckDeadLetters(all); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
