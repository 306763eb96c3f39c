package outboxsql

import (
	"errors"
	"fmt"
)

// Mode is how relays read outbox_events.
type Mode string

// The modes.
const (
	// ModeQueue marks each event when it is done; every new table is a queue.
	ModeQueue Mode = "queue"
	// ModeStream never touches events: each destination has a position in them.
	ModeStream Mode = "stream"
)

// Validate returns an error unless m is one of the modes.
func (m Mode) Validate() error {
	switch m {
	case ModeQueue, ModeStream:
		return nil
	}
	return fmt.Errorf("unknown mode %q: use queue or stream", string(m))
}

// ErrMode is returned to a relay of one mode if the table has the other. Retrying does not help.
var ErrMode = errors.New("outbox_events has another mode")

// ErrModeChanging is returned while [SetMode] is running, or after it was interrupted. It is over
// when the change is finished.
var ErrModeChanging = errors.New("the mode of outbox_events is being changed")
