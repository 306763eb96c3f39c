// Package limit holds destinations to their rates, over all relays together: a table has, for each destination and
// key, the theoretical arrival time of the generic cell rate algorithm (GCRA), and each relay takes from it what it is
// about to deliver. What a relay has taken is spent, also if the relay dies: a take-over refills nothing.
//
// One statement takes for a whole read or claim. A busy relay takes ahead, a quarter of a second's events at most and never
// more than a quarter of the burst, so that a high limit costs next to nothing. What it takes ahead it may use only for as
// long as it takes that many to come, and the burst in the table is smaller by as much. So in any time t no more than
// rate * t + burst are let go, whatever the number of relays.
package limit
