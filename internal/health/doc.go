// Package health tracks a destination that fails, throttles or recovers, for the lane that delivers to it.
//
// The package is a state machine: it locks, waits and logs nothing, and reads no clock. Its owner passes the time, the load and
// the results of calls, and gets back the changes. The owner locks, calls, sets timers, logs and reports. Read [Health] first.
//
// A call that the destination does not answer opens the breaker, and its event goes into quarantine: the destination may be
// down, or the event makes it fail. After a pause the breaker lets one delivery through as a probe. An answer begins a ramp,
// which doubles the deliveries in flight until the lane is full. The quarantine compares events: it blames one
// that fails again while others are answered. A destination that requests fewer deliveries gets a gap between them from the pacer.
//
//	health.go      the state of the destination: the three parts below
//	breaker.go     whether the destination is down, and when to probe it
//	pacer.go       the gap between deliveries while it throttles
//	quarantine.go  events over which calls failed
package health
