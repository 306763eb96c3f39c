package replay

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/flight"
	"github.com/notifyd/notifyd/internal/tail"
)

// TestMemory: events of a replay that wait for the lane count as memory like those at the lane.
func TestMemory(t *testing.T) {
	t.Parallel()
	const room = 1000
	s := NewSender(Shard{})
	s.active = &activeReplay{lastID: 100, reader: tail.NewReader(0, nil, tail.NewWriterScanner()), flight: flight.New(nil, nil)}
	s.active.flight.Returned = []dispatch.Delivery{
		{Event: &delivery.Event{ID: 1, Payload: make([]byte, room/2)}},
		{Event: &delivery.Event{ID: 2, Payload: make([]byte, room/2)}},
	}
	// Without a connection: a read would panic.
	if did, err := s.read(t.Context(), nil, Live{Head: 100, FreeBytes: room}); did || err != nil {
		t.Errorf("it reads although its memory is full: %v, %v", did, err)
	}
}
