package stream

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/tail"
)

// TestReplayMemory: events of a replay that wait for the lane count as memory like those at the lane.
func TestReplayMemory(t *testing.T) {
	t.Parallel()
	const room = 1000
	s := aside{common: &common{}, replay: &replay{to: 100, reader: tail.NewReader(0, nil, tail.NewWitnesses())}}
	s.replay.flight = newFlight()
	s.replay.flight.again = []dispatch.Delivery{
		{Event: &delivery.Event{ID: 1, Payload: make([]byte, room/2)}},
		{Event: &delivery.Event{ID: 2, Payload: make([]byte, room/2)}},
	}
	// There is no connection: a read would panic.
	if did, err := s.read(t.Context(), nil, 100, room, nil); did || err != nil {
		t.Errorf("it reads although its memory is full: %v, %v", did, err)
	}
}
