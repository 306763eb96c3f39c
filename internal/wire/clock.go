package wire

import "time"

// Clock pairs the time of the database in a read with the time of this relay. The age of an event is the difference of
// two times of the database: the clock of a relay, and a step of the server's clock between two reads, do not matter.
type Clock struct{ database, here time.Time }

// Here converts a time of the database to this relay's clock. The result has a monotonic reading, which clock changes
// do not affect.
func (c Clock) Here(t time.Time) time.Time { return c.here.Add(t.Sub(c.database)) }

// After returns the time of the database a while after the read.
func (c Clock) After(wait time.Duration) time.Time { return c.database.Add(wait) }
