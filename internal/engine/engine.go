// Package engine has what both engines share: limits, where a destination starts, and missing events. Package queue
// claims the events to deliver, package stream reads them in order.
package engine

import "time"

// Limits bound an engine; every field must be set. notifyd.Config has the settings.
type Limits struct {
	// Claims is how many claims of a queue may run at the same time, each on its own session. A stream reads with one
	// more connection.
	Claims int
	// Batch is the largest number of events in one claim or read.
	Batch int
	// Bytes bounds the rows of one claim or read, so that Claims times Bytes bounds the memory. A larger event is taken
	// alone.
	Bytes int
	// EventBytes bounds the payload and headers of one event. A larger event is not read, and is dead-lettered.
	EventBytes int
	// LockBudget is how long a claim's transaction may wait for handlers.
	LockBudget time.Duration
	// Lease is how long the lease of a slower delivery lasts without renewal.
	Lease time.Duration
	// PollInterval is how often the table is polled without a notification.
	PollInterval time.Duration
}
