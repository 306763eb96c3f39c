// Package queue is the engine of an outbox that is a queue: relays compete for events,
// lock them with SKIP LOCKED, and mark each when it is delivered. No order is kept.
//
// A scheduler decides what to claim: ids that the bell named, fresh events in sweeps, and
// deliveries that are due. A claimer takes that to the lanes of package dispatch and writes down
// what became of it, in the transaction that holds the locks; what takes longer goes on under a lease.
package queue
