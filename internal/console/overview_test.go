package console

import (
	"testing"

	"github.com/notifyd/notifyd/dispatch"
)

// TestStateOf: the word and the colour of a destination.
func TestStateOf(t *testing.T) {
	t.Parallel()
	for want, d := range map[[2]string]dispatch.DestinationStats{
		{"ok", "good"}:         {},
		{"unavailable", "bad"}: {State: dispatch.BreakerProbing, Unavailable: true},
		{"ramping", "warn"}:    {State: dispatch.BreakerRamping},
		{"throttled", "warn"}:  {State: dispatch.BreakerThrottled, Report: &dispatch.Report{Blocked: true}},
		{"paused", "paused"}:   {State: dispatch.BreakerOpen, Unavailable: true, Paused: true},
		{"blocked", "warn"}:    {Report: &dispatch.Report{Blocked: true}},
	} {
		if text, class := stateOf(d); text != want[0] || class != want[1] {
			t.Errorf("%+v is %s (%s), want %v", d, text, class, want)
		}
	}
}
