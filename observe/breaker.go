package observe

import "fmt"

// BreakerState says how a lane lets its destination be called.
type BreakerState uint8

const (
	// BreakerClosed is the state of a destination that is well.
	BreakerClosed BreakerState = iota
	// BreakerOpen is that of one that is down: nothing is begun before the end of a pause.
	BreakerOpen
	// BreakerProbing is that of one that may be down still: one delivery at a time finds out.
	BreakerProbing
	// BreakerRamping is that of one that answers again: it gets twice as many
	// deliveries at once with every round of answers.
	BreakerRamping
	// BreakerThrottled is that of one that is well and has asked for fewer: there
	// is a gap between the beginnings of deliveries.
	BreakerThrottled
)

// BreakerStates returns all states.
func BreakerStates() []BreakerState {
	return []BreakerState{BreakerClosed, BreakerOpen, BreakerProbing, BreakerRamping, BreakerThrottled}
}

// String returns the word for the state, as metrics have it.
func (s BreakerState) String() string {
	switch s {
	case BreakerClosed:
		return "closed"
	case BreakerOpen:
		return "open"
	case BreakerProbing:
		return "probing"
	case BreakerRamping:
		return "ramping"
	case BreakerThrottled:
		return "throttled"
	default:
		return fmt.Sprintf("state(%d)", uint8(s))
	}
}
