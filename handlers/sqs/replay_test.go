package sqs

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// TestReplayIsNoDuplicate: a FIFO queue drops messages with a known id.
func TestReplayIsNoDuplicate(t *testing.T) {
	t.Parallel()
	enc, err := newEncoder(Config{Queue: "orders.fifo"})
	if err != nil {
		t.Fatal(err)
	}
	e := &delivery.Event{ID: 42, Type: "a", Payload: []byte("1"), Destination: "orders", CreatedAt: time.UnixMicro(36)}
	for replay, want := range []string{"42.10.orders", "42r1.10.orders", "42r2.10.orders"} {
		e.Replay = replay
		out, err := enc.encode(e)
		if err != nil || out.dedupID != want {
			t.Errorf("replay %d: id %+v, %v; want %s", replay, out, err, want)
		}
	}
}
