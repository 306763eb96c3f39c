// Package queue is the engine of an outbox that is a queue: relays compete for events,
// lock them with SKIP LOCKED, and mark each when it is delivered. No order is kept.
//
// A scheduler decides what to claim: ids that the bell named, fresh events in sweeps, and
// deliveries that are due. A claimer takes that to the lanes of package dispatch and writes down
// what became of it, in the transaction that holds the locks; what takes longer goes on under a lease.
//
// Read engine.go and work.go first, then scheduler.go and claimer.go:
//
//	engine.go     runs and stops claimers, leases, housekeeping
//	work.go       what scheduler, claimers and sessions exchange
//	scheduler.go  chooses the next query
//	answers.go    takes what came of a query
//	sweep.go      cursor, marks; awake, ringing, drowsy, asleep
//	lag.go        lanes that the common sweep has passed over
//	priority.go   which sweep goes first
//	tally.go      counts queries, and how often the bell rings
//	idle.go       claimers that wait
//	ringer.go     works the bell, so that the scheduler does not wait for it
//	claimer.go    claims, hands out, waits, settles
//	claim.go      one claim: its parts in the lanes, its settlement
//	leases.go     renews leases, writes late answers
//	tokens.go     numbers leases, knows which are live
//	session.go    a claimer's connection; pipelined flights
//	read.go       the statements of a claim
//	settle.go     the statements of a settlement
//	ranged.go     gives ids their range, for partitions
//	keeper.go     writes and renews leases; finds unrouted events that have a route now
//	takeover.go   takes over the leases of relays that are gone
package queue
