package delivery

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// Backoff is the wait before an event is retried: Initial after the first failure, Multiplier times
// as long after each further one, at most Max. Each wait is drawn from zero to twice its length, so
// that events that failed together do not come back together. A field that is zero has its default, so
// that Backoff{Initial: time.Minute} changes one of them.
type Backoff struct {
	Initial    time.Duration // at least 1 ms; 1 s by default, or Max if that is shorter
	Max        time.Duration // at least Initial; 1 h by default, or Initial if that is longer
	Multiplier float64       // at least 1; 2 by default
}

// DefaultBackoff is the backoff of a destination that sets none. With 20 attempts an event is tried
// for about eight hours.
func DefaultBackoff() Backoff {
	return Backoff{Initial: time.Second, Max: time.Hour, Multiplier: 2}
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

// Validate returns every mistake in b, joined. A field that is zero is none.
func (b Backoff) Validate() error {
	b = b.WithDefaults()
	var errs []error
	if b.Initial < time.Millisecond {
		errs = append(errs, fmt.Errorf("initial backoff of %v is below 1ms", b.Initial))
	}
	if b.Max < b.Initial {
		errs = append(errs, fmt.Errorf("longest backoff of %v is below the initial one of %v", b.Max, b.Initial))
	}
	if !(b.Multiplier >= 1) || math.IsInf(b.Multiplier, 1) { // NaN is not at least 1
		errs = append(errs, fmt.Errorf("backoff multiplier of %v is not a number of at least 1", b.Multiplier))
	}
	return errors.Join(errs...)
}
