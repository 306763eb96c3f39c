package dispatch

import (
	"errors"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/laneconf"
)

// LaneConfig configures how the events of one destination are delivered: the settings of its lane, and the functions
// that only code can set. Fields that are zero have their defaults.
type LaneConfig struct {
	delivery.Lane
	// Filter decides about each event before the filters of its route; nil for none.
	Filter delivery.Filter
	// RateKey applies the rate limit to each key separately; nil counts all events together. RateKey excludes a total
	// order.
	RateKey delivery.RateKey
	// Type is the kind of the handler, for the figures.
	Type string
}

// validate returns every mistake in c, joined.
func (c LaneConfig) validate() error {
	err := laneconf.Validate(c.Lane)

	switch {
	case c.RateKey == nil:
	case c.RateLimit.IsZero():
		err = errors.Join(err, field.Errorf("rate_key", "has no effect without rate_limit"))
	case c.Order == delivery.OrderTotal:
		err = errors.Join(err, field.Errorf("rate_key",
			"order: total lets nothing go past an event that waits: limit all events together, or use order: aggregate"))
	}

	return err
}
