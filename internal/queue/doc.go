// Package queue is the engine of a queue: relays compete for events, lock them with SKIP LOCKED, and mark each
// delivered event. A queue has no order.
//
// A scheduler decides what to claim: ids that a notification named, fresh events in sweeps, and due deliveries. A claimer
// passes the claimed events to the lanes of package dispatch, and writes the outcome in the transaction that holds
// the locks. Slower deliveries continue under a lease.
//
// Read engine.go and work.go first, then scheduler.go and claimer.go:
//
//	engine.go     runs and stops claimers, leases, housekeeping
//	work.go       declares the data between scheduler, claimers and sessions
//	scheduler.go  chooses the next query and processes its result; tracks lanes that the common sweep passed over
//	sweep.go      computes cursor and watermarks, even during long transactions
//	idlimit.go    bounds the ids that a sweep passes after one that took too long
//	duecursor.go  computes where claims of due deliveries begin
//	counters.go   counts queries
//	idle.go       holds waiting claimers
//	claimer.go    claims, hands out, waits, settles
//	judge.go      evaluates filters and rate keys outside of claims, where they may take long
//	claim.go      tracks one claim: its shares in the lanes, its settlement
//	withheld.go   keeps the outcomes of rows whose settlement is refused
//	settling.go   excludes rows whose settlement is being written from other claims
//	leases.go     renews leases and writes late answers
//	session.go    owns a claimer's connection and its pipelined flights
//	read.go       has the statements of a claim
//	settle.go     has the statements of a settlement
//	ranged.go     adds the range of ids to statements, for partitions
//	maintenance.go     writes, renews and takes over leases; finds unrouted events with a new route
package queue
