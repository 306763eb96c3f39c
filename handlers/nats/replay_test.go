package nats

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// TestReplayIsNoDuplicate: a stream drops messages with a known id.
func TestReplayIsNoDuplicate(t *testing.T) {
	t.Parallel()
	e := &delivery.Event{ID: 42, Type: "a", Destination: "orders", CreatedAt: time.UnixMicro(36)}
	if got := msgID(e); got != "orders-42-10" {
		t.Errorf("id %s", got)
	}
	e.Attempt++
	if got := msgID(e); got != "orders-42-10" {
		t.Errorf("id %s of the next attempt", got)
	}
	e.Replay = 1
	if got := msgID(e); got != "orders-42r1-10" {
		t.Errorf("id %s of a replay", got)
	}
}
