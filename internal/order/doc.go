// Package order keeps the deliveries of each aggregate in order.
//
// The package is a state machine without a lock: the lock of its owner guards it. The owner has deliveries with
// values of some type T, queues them for its workers and ends them. [Queues] decides which of them may begin. One worker has the first
// deliveries of an aggregate, and the others wait behind them in memory. A failure blocks the aggregate: its later
// deliveries are parked as rows, or returned, until the owner has dealt with the stored ones.
//
//	queues.go  the queue of each aggregate, and the order in which deliveries begin and end
//	keyset.go  the set of blocked aggregates
//	key.go     the key of an aggregate
package order
