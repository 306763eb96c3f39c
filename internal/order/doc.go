// Package order keeps the deliveries of each aggregate in order.
//
// The package is a state machine without a lock: its owner's lock guards it. The owner has deliveries with values of
// some type T, queues them for its workers and ends them. [Queues] decides which of them may begin. One worker has
// the first deliveries of an aggregate, and the others wait behind them in memory. A failure blocks the aggregate:
// its later deliveries are parked as rows, or returned, until the owner has handled the stored ones.
//
//	queues.go  orders the deliveries of each aggregate, and decides when they begin
//	keyset.go  stores the set of blocked aggregates
//	key.go     declares the key of an aggregate
package order
