package observe

import "fmt"

// BreakerState is the state of a lane's breaker.
type BreakerState uint8

const (
	// BreakerClosed is the state of a healthy destination.
	BreakerClosed BreakerState = iota
	// BreakerOpen means that the destination is down, and no delivery starts before the end of a pause.
	BreakerOpen
	// BreakerProbing means that the destination may still be down; one delivery at a time finds out.
	BreakerProbing
	// BreakerRamping means that the destination answers again, and its concurrency doubles with every round of answers.
	BreakerRamping
	// BreakerThrottled means that the destination is healthy and wants fewer deliveries, so the relay leaves a gap between their
	// starts.
	BreakerThrottled
)

// BreakerStates returns all states.
func BreakerStates() []BreakerState {
	return []BreakerState{BreakerClosed, BreakerOpen, BreakerProbing, BreakerRamping, BreakerThrottled}
}

// String returns the label of the state, as in metrics.
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
