// Package limit enforces the rates of destinations over all relays together. A table has the theoretical arrival time of
// the generic cell rate algorithm (GCRA) for each destination and key. Each relay reserves its deliveries from the
// table. Reserved events are spent, even if the relay dies: a take-over refills nothing.
//
// One statement reserves for a whole read or claim. A busy relay reserves ahead, at most a quarter of a second's events
// and a quarter of the burst, so that a high limit costs almost nothing. Events reserved ahead expire after the time in
// which as many would accrue, and the burst in the table is smaller by the same number. So at most rate * t + burst
// events begin in any time t, whatever the number of relays.
package limit
