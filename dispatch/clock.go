package dispatch

import (
	"sync/atomic"
	"time"
)

// clock estimates the database's time: event age never depends on a relay's clock. The zero value uses the relay's
// own clock.
type clock struct{ read atomic.Pointer[reading] }

// reading pairs the database's time with the relay's time at the same moment.
type reading struct{ database, here time.Time }

// here converts a time of the database to this relay's clock. The result has a monotonic reading, which clock changes
// do not affect.
func (c *clock) here(t time.Time) time.Time {
	r := c.read.Load()
	if r == nil {
		now := time.Now()
		r = &reading{now.Round(0), now}
	}
	return r.here.Add(t.Sub(r.database))
}
