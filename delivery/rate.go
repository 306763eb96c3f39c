package delivery

import (
	"errors"
	"fmt"
	"time"
)

// Rate is a limit: Events in each Per, evenly, and Burst at once after a time in which fewer went. In any
// time t no more than t * Events / Per + Burst go. The zero value is no limit.
type Rate struct {
	Events int           // at least 1, and no more than one a microsecond
	Per    time.Duration // from 1 ms to 366 days
	Burst  int           // at least 1; 0 is what goes in a second, and at least 1
}

// RateKey returns the key of an event by which a [Rate] counts, such as the customer whom it is for. It is
// called from several goroutines at once, must be quick, and must not keep the candidate. Events for
// which it fails have the empty key together.
type RateKey func(c *Candidate) (string, error)

const (
	shortestPer = time.Millisecond
	longestPer  = 366 * 24 * time.Hour
)

// IsZero reports whether r is no limit.
func (r Rate) IsZero() bool { return r == Rate{} }

// Validate returns every mistake in r, joined.
func (r Rate) Validate() error {
	if r.IsZero() {
		return nil
	}
	var errs []error
	if r.Events < 1 {
		errs = append(errs, fmt.Errorf("rate limit of %d events is below 1", r.Events))
	}
	if r.Per < shortestPer || r.Per > longestPer {
		errs = append(errs, fmt.Errorf("rate limit per %v is not from %v to %v", r.Per, shortestPer, longestPer))
	}
	if r.Events > 0 && r.Per/time.Duration(r.Events) < time.Microsecond {
		errs = append(errs, fmt.Errorf("rate limit of %d events per %v is more than one a microsecond", r.Events, r.Per))
	}
	if r.Burst < 0 {
		errs = append(errs, fmt.Errorf("burst of %d is negative", r.Burst))
	}
	return errors.Join(errs...)
}
