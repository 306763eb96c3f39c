// Package engine has the parts that both engines use: limits, and when a relay starts. An engine finds the
// events to deliver: package queue claims them, package stream reads them in order.
package engine

import (
	"errors"
	"fmt"
	"time"
)

// Limits bound an engine. DefaultLimits has the defaults; every field must be set.
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

// DefaultLimits returns the limits of a relay that sets none.
func DefaultLimits() Limits {
	return Limits{
		Claims: 4, Batch: 1000, Bytes: 8 << 20, EventBytes: 64 << 20, LockBudget: 100 * time.Millisecond, Lease: 30 * time.Second,
		PollInterval: time.Second,
	}
}

// The defaults of a relay that are not limits of its engine, for who embeds one and for
// the configuration file.
const (
	// DefaultCanary is how often a relay proves that it would hear a notification, and
	// MinCanary keeps these proofs from being a load of their own.
	DefaultCanary = 5 * time.Second
	MinCanary     = 100 * time.Millisecond
	// DefaultRetention is how long delivered events are kept, and DefaultPurgeBatch how
	// many are deleted in one statement.
	DefaultRetention  = 7 * 24 * time.Hour
	DefaultPurgeBatch = 1000
)

const (
	// maxLockBudget stays below the server's limit on idle transactions.
	maxLockBudget = 2 * time.Second
	// minEventBytes leaves room for an ordinary event, and maxEventBytes is as much as PostgreSQL
	// stores.
	minEventBytes, maxEventBytes = 1 << 10, 1 << 30
	// minLease leaves time for three renewals.
	minLease = time.Second
)

// Validate returns every mistake in l, joined.
func (l Limits) Validate() error {
	var errs []error
	if l.Claims < 1 {
		errs = append(errs, fmt.Errorf("claims in flight of %d are below 1", l.Claims))
	}
	if l.Batch < 1 {
		errs = append(errs, fmt.Errorf("batch of %d is below 1", l.Batch))
	}
	if l.Bytes < 1 {
		errs = append(errs, fmt.Errorf("batch bytes of %d are below 1", l.Bytes))
	}
	if l.EventBytes < minEventBytes || l.EventBytes > maxEventBytes {
		errs = append(errs, fmt.Errorf("max event bytes of %d are not between %d and %d", l.EventBytes, minEventBytes, maxEventBytes))
	}
	if l.LockBudget < time.Millisecond || l.LockBudget > maxLockBudget {
		errs = append(errs, fmt.Errorf("lock budget of %v is not between 1ms and %v", l.LockBudget, maxLockBudget))
	}
	if l.Lease < minLease || l.Lease <= l.LockBudget {
		errs = append(errs, fmt.Errorf("lease of %v is not above the lock budget of %v and at least %v", l.Lease, l.LockBudget, minLease))
	}
	if l.PollInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("poll interval of %v is below 1ms", l.PollInterval))
	}
	return errors.Join(errs...)
}
