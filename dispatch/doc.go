// Package dispatch decides which destination gets an event, runs a bounded
// number of deliveries at once, and turns each answer into an outcome that the
// store writes down.
//
// The package knows neither PostgreSQL nor any destination. It reaches the
// database through the small interfaces in store.go, and a destination through
// [Handler], so that both can be replaced in a test.
package dispatch
