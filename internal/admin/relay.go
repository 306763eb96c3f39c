package admin

import (
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/observe"
)

// Relay is a relay whose health a server reports.
type Relay interface {
	Health() observe.Health
	Stats() observe.Stats
}

// ReadyRelay is a relay that tells when it has begun to read its table.
type ReadyRelay interface {
	Relay
	// Ready is closed once the relay has begun to read.
	Ready() <-chan struct{}
}

// ErrNotReady is the state of a relay that has just begun.
var ErrNotReady = errors.New("the table has not been read yet")

// Works returns why a relay does not work; nil if it does.
func Works(relay ReadyRelay) error {
	h := relay.Health()
	if err := h.Ready(); err != nil {
		return err
	}

	select {
	case <-relay.Ready():
		return nil
	default:
		return ErrNotReady
	}
}

// RelayChecks returns the conditions of readiness of a relay, and advice. The relay has begun to read once ready is closed. A
// destination that is down does not count: a restart of the relay would not help.
func RelayChecks(ready <-chan struct{}, relay Relay) []Check {
	return []Check{
		{Name: "started", Do: func() error {
			select {
			case <-ready:
				return nil
			default:
				return ErrNotReady
			}
		}},
		{Name: "database", Do: func() error {
			h := relay.Health()
			h.Hangs = nil // the check of the relay reports both
			h.Stopped = nil
			return h.Ready()
		}},
		{Name: "relay", Do: func() error {
			h := relay.Health()
			h.DatabaseDown = false // the check of the database reports it
			return h.Ready()
		}},
		{Name: "listener", Advisory: true, Do: func() error {
			switch h := relay.Health(); {
			case len(h.Hangs) > 0:
				return errors.New("not checked while the relay hangs")
			case h.DatabaseDown: // the connection that listens is one of those that do not answer
				return errors.New("not checked while the database does not answer")
			case h.Stopped != nil:
				return errors.New("not checked after the relay has stopped")
			}

			l := relay.Stats().Listener
			if l == nil || l.Listening && l.Trouble == nil {
				return nil
			}
			if l.Trouble == nil {
				return errors.New("it does not listen yet")
			}
			return fmt.Errorf("events are found by polling: %w", l.Trouble)
		}},
		{Name: CheckOutcomes, Advisory: true, Do: func() error {
			var all []error
			for _, r := range relay.Stats().Refusals {
				if text := r.Withheld(time.Now()); text != "" {
					all = append(all, errors.New(text))
				}
			}
			return errors.Join(all...)
		}},
	}
}
