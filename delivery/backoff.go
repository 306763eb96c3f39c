package delivery

import (
	"cmp"
	"errors"
	"math"
	"time"

	"github.com/notifyd/notifyd/internal/field"
)

// Backoff is the wait before an event is retried: Initial after the first failure, Multiplier times
// as long after each further one, at most Max. Each wait is drawn from zero to twice its length, so
// that events that failed together do not come back together. A field that is zero has its default, so
// that Backoff{Initial: time.Minute} changes one of them; a default that would contradict the other field gives way.
type Backoff struct {
	Initial    time.Duration `yaml:"initial" default:"1s" jsonschema:"minimum=1ms" jsonschema_description:"Pause after the first failure. A shorter 'max' lowers the default."`
	Max        time.Duration `yaml:"max" default:"1h" jsonschema:"minimum=1ms" jsonschema_description:"The pause does not grow beyond this. A longer 'initial' raises the default."`
	Multiplier float64       `yaml:"multiplier" default:"2" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Factor by which the pause grows with each failure."`
}

// DefaultBackoff is the backoff of a destination that sets none. With 20 attempts an event is tried
// for about eight hours.
func DefaultBackoff() (b Backoff) {
	field.Fill(&b)
	return b
}

// WithDefaults returns b with the defaults of the fields that are zero.
func (b Backoff) WithDefaults() Backoff {
	d := DefaultBackoff()
	if b.Max > 0 {
		d.Initial = min(d.Initial, b.Max)
	}
	b.Initial = cmp.Or(b.Initial, d.Initial)
	b.Max = cmp.Or(b.Max, max(d.Max, b.Initial))
	b.Multiplier = cmp.Or(b.Multiplier, d.Multiplier)
	return b
}

// Validate returns every mistake in b, joined, each a [*handlers.FieldError]. Zero fields are valid.
func (b Backoff) Validate() error {
	b = b.WithDefaults()
	errs := []error{field.Check(b)}
	if b.Max < b.Initial {
		errs = append(errs, field.Errorf("max", "%v is shorter than backoff.initial (%v)", b.Max, b.Initial))
	}
	if math.IsNaN(b.Multiplier) {
		errs = append(errs, field.Errorf("multiplier", "is no number"))
	}
	return errors.Join(errs...)
}
