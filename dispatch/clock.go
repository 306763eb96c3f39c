package dispatch

import (
	"sync/atomic"
	"time"
)

// clock is that of the database, as far as it is known: the clocks of relays do not decide how old an event is.
// The zero value is the relay's own.
type clock struct{ read atomic.Pointer[reading] }

// reading is one look at the clock.
type reading struct{ database, here time.Time }

// here returns the moment of this relay's clock at which the database's says t. It has a monotonic
// reading, so that nobody sets it.
func (c *clock) here(t time.Time) time.Time {
	r := c.read.Load()
	if r == nil {
		now := time.Now()
		r = &reading{now.Round(0), now}
	}
	return r.here.Add(t.Sub(r.database))
}
