// Package health tracks a destination that fails, throttles or recovers, for the lane that delivers to it.
//
// The package is a state machine: it locks, waits and logs nothing, and reads no clock. Its owner passes the time,
// the load and the results of calls, and receives the changes. The owner locks, calls, sets timers, logs and reports.
// Read [Health] and [Health.Decide] first.
//
// A call without an answer opens the breaker, and its event goes into quarantine: the destination may be down, or the
// event makes it fail. After a pause the breaker allows one delivery as a probe. An answer begins a ramp, which
// doubles the deliveries in flight until the lane is full. The quarantine compares events: it blames an event that
// fails again while others are answered. If a destination requests fewer deliveries, the pacer puts a gap between
// them.
//
//	health.go      combines breaker, pacer and quarantine into the state of a destination
//	decision.go    decides what a failed delivery means: whether the attempt counts, and how long the event waits
//	wait.go        computes the wait of an event by the lane's backoff or retry
//	breaker.go     tracks whether the destination is down, and when to probe it
//	pacer.go       computes the gap between deliveries while the destination throttles
//	kinds.go       finds event types that fail while others are taken
//	quarantine.go  records events over which calls failed
package health
