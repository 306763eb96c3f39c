// Package dispatch delivers: it routes events to destinations, runs a bounded number of
// deliveries at once, and turns each answer into an outcome.
//
// The package knows neither PostgreSQL nor any destination. An engine hands it what is to be
// delivered, see [Lane] and [Parcel], and writes down what became of it; a destination is a
// [Handler]. Both can be replaced in a test.
package dispatch
