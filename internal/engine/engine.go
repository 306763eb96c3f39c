// Package engine has the parts that both engines use: limits, and when a relay starts. An engine finds the
// events to deliver: package queue claims them, package stream reads them in order.
package engine

import "time"

// Limits bound an engine; every field must be set. The settings are those of notifyd.Config.
type Limits struct {
	// Claims is how many claims of a queue may be in flight, each on a session of its own. A stream
	// reads with one connection more.
	Claims int
	// Batch is the largest number of events in one claim or read.
	Batch int
	// Bytes bounds the rows of one claim or read, so that Claims times Bytes bounds the memory.
	// A larger event is taken alone.
	Bytes int
	// EventBytes bounds the payload and headers of one event. A larger event is not read, and
	// becomes a dead letter.
	EventBytes int
	// LockBudget is how long a claim's transaction may wait for handlers.
	LockBudget time.Duration
	// Lease is how long the lease of a slower delivery lasts without renewal.
	Lease time.Duration
	// PollInterval is how often the table is polled without a notification.
	PollInterval time.Duration
}
