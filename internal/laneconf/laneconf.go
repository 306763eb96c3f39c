// Package laneconf fills and checks the settings of a [delivery.Lane].
package laneconf

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
)

// StartAuto is the default of [delivery.Lane].StartFrom.
const StartAuto = "auto"

// MaxShards is the largest number of shards of a destination.
const MaxShards = 64

// WithDefaults returns l with the defaults of the fields that are zero.
func WithDefaults(l delivery.Lane) delivery.Lane {
	field.Fill(&l)
	field.Fill(&l.OnDead)
	l.Backoff = Backoff(l.Backoff)
	l.Retry = slices.Clone(l.Retry) // of the caller, who may change it
	return l
}

// Validate returns every mistake in l, joined, each a [*handlers.FieldError] with the name that the field has in
// notifyd.yaml. Zero fields are valid. The relay validates StartFrom.
func Validate(l delivery.Lane) error {
	l = WithDefaults(l)
	errs := []error{
		field.Check(l),
		field.Under("on_dead", field.Check(l.OnDead)),
		field.Under("backoff", ValidateBackoff(l.Backoff)),
	}

	if err := l.RateLimit.Validate(); err != nil {
		errs = append(errs, field.Errorf("rate_limit", "%w", err))
	}

	if l.RateLimit.IsZero() && l.RateBurst > 0 {
		errs = append(errs, field.Errorf("rate_burst", "has no effect without rate_limit"))
	}

	if len(l.Retry) > 0 && l.Backoff != Backoff(delivery.Backoff{}) {
		errs = append(errs, field.Errorf("backoff", "has no effect beside retry, which lists the pauses: leave one of them out"))
	}

	if l.Shards > 1 && l.Order == delivery.OrderTotal {
		errs = append(errs, field.Errorf("shards", "must be 1 with order: total, which delivers one event after the "+
			"other: leave shards out, or use order: aggregate"))
	}

	return errors.Join(errs...)
}

// NeedsStream returns the settings that a queue cannot honor, such as "order: aggregate"; none if a queue can have the lane.
func NeedsStream(l delivery.Lane) (settings []string) {
	if l.Order == delivery.OrderAggregate || l.Order == delivery.OrderTotal {
		settings = append(settings, fmt.Sprintf("order: %s", l.Order))
	}

	switch {
	case l.OnDead.Then != delivery.OnDeadBlock:
	case l.OnDead.To == "":
		settings = append(settings, "on_dead: block")
	default:
		settings = append(settings, "on_dead.then: block")
	}

	if l.StartFrom != "" && l.StartFrom != StartAuto {
		settings = append(settings, "start_from: "+l.StartFrom)
	}

	if l.Shards > 1 {
		settings = append(settings, "shards: "+strconv.Itoa(l.Shards))
	}

	return settings
}

// Backoff returns b with the defaults of the fields that are zero. With the default and 20 attempts an event is tried for about
// eight hours.
func Backoff(b delivery.Backoff) delivery.Backoff {
	var d delivery.Backoff
	field.Fill(&d)
	if b.Max > 0 {
		d.Initial = min(d.Initial, b.Max)
	}
	b.Initial = cmp.Or(b.Initial, d.Initial)
	b.Max = cmp.Or(b.Max, max(d.Max, b.Initial))
	b.Multiplier = cmp.Or(b.Multiplier, d.Multiplier)
	return b
}

// ValidateBackoff returns every mistake in b, joined, each a [*handlers.FieldError]. Zero fields are valid.
func ValidateBackoff(b delivery.Backoff) error {
	b = Backoff(b)
	errs := []error{field.Check(b)}
	if b.Max < b.Initial {
		errs = append(errs, field.Errorf("max", "%v is shorter than backoff.initial (%v)", b.Max, b.Initial))
	}
	if math.IsNaN(b.Multiplier) {
		errs = append(errs, field.Errorf("multiplier", "is no number"))
	}
	return errors.Join(errs...)
}
