// Package dispatch delivers: it routes events to destinations, runs a bounded number of
// deliveries at once, and turns each answer into an outcome.
//
// It is the relay's own: programs use package notifyd, authors of destinations package delivery. An
// engine hands deliveries to dispatch, see [QueueLane], [StreamLane] and [Parcel], and records their outcomes. The
// package knows neither PostgreSQL nor an engine nor a destination.
package dispatch
