package dispatch

import (
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/health"
)

// LaneConfig bounds the deliveries of one destination. DefaultLaneConfig has
// the defaults; fields with a bound must be set.
type LaneConfig struct {
	// Concurrency is how many calls of the handler run at once, at least 1. Each shard has that many.
	Concurrency int
	// Batch is the largest number of events given to a BatchHandler in one
	// call, at least 1. Other handlers get one event at a time.
	Batch int
	// Timeout ends the context of one call; more than 0.
	Timeout time.Duration
	// MaxAttempts is how many failures make a dead letter, at least 1.
	MaxAttempts int
	// Backoff is how long to wait between attempts, and before an event is tried again that is
	// throttled by itself, of which no attempt counts.
	Backoff delivery.Backoff
	// LongestPause bounds how long a destination that is down is left alone
	// between two probes, at least 1 ms. The first pause is 100 ms, if that is not longer.
	LongestPause time.Duration
	// Unordered delivers the events of one aggregate in any order: none waits
	// for an earlier one that has failed. An engine that keeps no order does so anyway.
	Unordered bool
	// Total delivers all events one after the other in the order of their ids, as if they were of
	// one aggregate: one that fails holds back all others until it is delivered or dead. It
	// excludes Unordered. An engine that keeps no order ignores it.
	Total bool
	// BlockOnDead holds the later events of an aggregate back behind a dead
	// letter, until that is replayed or discarded. Otherwise they go on.
	BlockOnDead bool
	// Priority is how urgent the destination is, from MinPriority to MaxPriority;
	// 0 by default. While a queue has a backlog, the events of a destination of higher
	// priority are looked for first. It changes nothing where all destinations are alike.
	Priority int
	// Filter is asked for each event before those of its route; nil for none.
	Filter delivery.Filter
	// Rate bounds the deliveries that begin, over all relays of the tables; the zero value is no limit.
	Rate delivery.Rate
	// RateKey gives each key of it that rate; nil counts all events together. It excludes Total.
	RateKey delivery.RateKey
	// ExpiresAfter is the age from which on an event is not delivered any more; 0 for none, at least 1 ms.
	ExpiresAfter time.Duration
	// Shards is how many relays of a stream may deliver to the destination at once, up to MaxShards; 0 is 1. Each shard has the
	// aggregates that its number is the hash of, and a lane of its own. More than one excludes Total. An engine that keeps no
	// order ignores it.
	Shards int
}

// MaxShards is the largest number of shards of a destination.
const MaxShards = 64

const (
	// MinPriority is the lowest priority of a destination.
	MinPriority = -100
	// MaxPriority is the highest one.
	MaxPriority = 100
)

// DefaultLaneConfig returns the limits of a destination that sets none.
func DefaultLaneConfig() LaneConfig {
	return LaneConfig{Concurrency: 8, Batch: 100, Timeout: 30 * time.Second, MaxAttempts: 20, Backoff: delivery.DefaultBackoff(), LongestPause: health.LongestPause}
}

// validate returns every mistake in c, joined.
func (c LaneConfig) validate() error {
	var errs []error
	if c.Concurrency < 1 {
		errs = append(errs, fmt.Errorf("concurrency of %d is below 1", c.Concurrency))
	}
	if c.Batch < 1 {
		errs = append(errs, fmt.Errorf("batch of %d is below 1", c.Batch))
	}
	if c.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("timeout of %v is not above 0", c.Timeout))
	}
	if c.MaxAttempts < 1 {
		errs = append(errs, fmt.Errorf("max attempts of %d is below 1", c.MaxAttempts))
	}
	if c.Priority < MinPriority || c.Priority > MaxPriority {
		errs = append(errs, fmt.Errorf("priority of %d is not from %d to %d", c.Priority, MinPriority, MaxPriority))
	}
	if c.Total && c.Unordered {
		errs = append(errs, errors.New("total order and no order exclude each other"))
	}
	if c.Shards < 0 || c.Shards > MaxShards {
		errs = append(errs, fmt.Errorf("%d shards is not from 1 to %d", c.Shards, MaxShards))
	}
	if c.Total && c.Shards > 1 {
		errs = append(errs, errors.New("total order is that of one shard"))
	}
	if c.RateKey != nil && (c.Total || c.Rate.IsZero()) {
		errs = append(errs, errors.New("a rate key needs a rate limit, and excludes total order, in which nothing goes past an event that waits"))
	}
	if c.ExpiresAfter < 0 || c.ExpiresAfter > 0 && c.ExpiresAfter < time.Millisecond {
		errs = append(errs, fmt.Errorf("expiry after %v is below 1ms", c.ExpiresAfter))
	}
	if c.LongestPause < time.Millisecond {
		errs = append(errs, fmt.Errorf("longest pause of %v is below 1ms", c.LongestPause))
	}
	return errors.Join(append(errs, c.Backoff.Validate(), c.Rate.Validate())...)
}
