package console

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// TestStateOf: the label and the colour of a destination.
func TestStateOf(t *testing.T) {
	t.Parallel()
	for want, d := range map[[2]string]observe.DestinationStats{
		{"ok", "good"}:         {},
		{"unavailable", "bad"}: {State: observe.BreakerProbing, Unavailable: true},
		{"ramping", "warn"}:    {State: observe.BreakerRamping},
		{"throttled", "warn"}:  {State: observe.BreakerThrottled, Report: &delivery.Report{Blocked: true}},
		{"paused", "paused"}:   {State: observe.BreakerOpen, Unavailable: true, Paused: true},
		{"blocked", "warn"}:    {Report: &delivery.Report{Blocked: true}},
	} {
		if text, class := stateOf(d); text != want[0] || class != want[1] {
			t.Errorf("%+v is %s (%s), want %v", d, text, class, want)
		}
	}
}
