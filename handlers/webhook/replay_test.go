package webhook

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// TestReplayIsNoDuplicate: a receiver drops a webhook-id that it knows.
func TestReplayIsNoDuplicate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		e    delivery.Event
		want string
	}{
		{delivery.Event{ID: 42}, "notifyd-42-webhook"},
		{delivery.Event{ID: 42, Attempt: 9}, "notifyd-42-webhook"},
		{delivery.Event{ID: 42, Replay: 1}, "notifyd-42r1-webhook"},
		{delivery.Event{ID: 42, Destination: "r1-webhook"}, "notifyd-42-r1-webhook"},
	} {
		if got := webhookID("notifyd", &c.e); got != c.want {
			t.Errorf("%+v: id %s, want %s", c.e, got, c.want)
		}
	}
}
