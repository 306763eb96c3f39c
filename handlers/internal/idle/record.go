package idle

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// RenewEvery is the shortest time between two replacements of a connection over which first attempts go, as long as the
// destination takes other events: a destination that refuses each tenth event would cost a handshake each time.
const RenewEvery = time.Second

// IsRetry reports whether one of the events is tried again after a counted failure.
func IsRetry(events []*delivery.Event) bool {
	return slices.ContainsFunc(events, func(e *delivery.Event) bool { return e.Attempt > 1 })
}

// Record has the failures of a connection, and decides whether further events may use the connection. A destination may be
// a balancer that gives each connection to one of several servers. If one server refuses everything and keeps its
// connections open, only a new connection can help. A Record is safe for concurrent use.
type Record struct {
	since  time.Time
	down   atomic.Bool // an outage
	failed atomic.Bool // a refusal that may be the server's
}

// NewRecord returns the record of a new connection.
func NewRecord() *Record { return &Record{since: time.Now()} }

// Learn records the marked errors of events that went over the connection.
func (r *Record) Learn(errs []error) {
	if slices.ContainsFunc(errs, delivery.IsUnavailable) {
		r.down.Store(true)
	}
	if slices.ContainsFunc(errs, outcome.MayBeServer) {
		r.failed.Store(true)
	}
}

// Serves reports whether events may go over the connection. No event does after an outage: the lane paces those. After
// another refusal a retry does not, and a first attempt does for [RenewEvery] after the connection was made.
func (r *Record) Serves(events []*delivery.Event) bool {
	switch {
	case r.down.Load():
		return false
	case !r.failed.Load():
		return true
	default:
		return !IsRetry(events) && time.Since(r.since) < RenewEvery
	}
}
