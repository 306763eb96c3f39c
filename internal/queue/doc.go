// Package queue is the engine of an outbox that is a queue: relays compete for events,
// lock them with SKIP LOCKED, and mark each when it is delivered. No order is kept.
//
// A scheduler decides what to claim: ids that the bell named, fresh events in sweeps, and
// deliveries that are due. A claimer passes the claimed events to the lanes of package dispatch and
// writes the outcome in the transaction that holds the locks. Deliveries that take longer continue
// under a lease.
//
// Read engine.go and work.go first, then scheduler.go and claimer.go:
//
//	engine.go     runs and stops claimers, leases, housekeeping
//	work.go       what scheduler, claimers and sessions exchange
//	scheduler.go  chooses the next query, and processes its result; lanes that the common sweep passed over
//	sweep.go      cursor and marks, also beside transactions that stay open
//	span.go       bounds the ids that a sweep passes after one that took too long
//	since.go      where claims of due deliveries begin
//	tally.go      counts queries
//	idle.go       waiting claimers
//	claimer.go    claims, hands out, waits, settles
//	claim.go      one claim: its parts in the lanes, its settlement
//	recording.go  keeps claimers from rows whose settlement is under way
//	leases.go     renews leases, writes late answers
//	session.go    a claimer's connection; pipelined flights
//	read.go       the statements of a claim
//	settle.go     the statements of a settlement
//	ranged.go     gives ids their range, for partitions
//	keeper.go     writes, renews and takes over leases; finds unrouted events that have gained a route
package queue
