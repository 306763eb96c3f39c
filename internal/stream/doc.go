// Package stream is the engine of an outbox that is read like a log: each destination has a position in the table, and
// no row of the table ever changes.
//
// Package tail reads the table and proves that no event is missed. Package position loads and writes the row of a
// position. Package routes stores the history of what each destination reads. Package flight tracks the events in
// memory. Package aggregates decides the next step of each aggregate with stored rows. Package replay sends a range
// again. Package withheld keeps rows that the database refuses. Package exactly wraps the position of a destination that gets each event exactly once.
//
// Read engine.go and shard.go first. Where reading begins:
//
//	start.go     creates positions and decides where a new destination begins
//
// One shard:
//
//	shard.go     reads, delivers, collects answers and writes the position; one goroutine, one step after the other
//	common.go    has what a shard shares with its parts
//	next.go      plans the next read
//	inflight.go  hands deliveries to the lane: how many, in which batches
//	limit.go     applies the rate limit; makes delayed deliveries rows
//	stored.go    tracks stored deliveries: to be written, running, due, ready
//	order.go     decides which events are delivered one after the other; the one queue of a total order
//	rows.go      finds rows of outbox_deliveries; package deliveries has the other statements
//	load.go      loads aggregates with stored deliveries at a take-over
//	progress.go  tracks how far the position was written
//	writes.go    writes rows in the transaction of the position
//
// All shards:
//
//	engine.go    runs the shards that the relay leases (package lease); the API of the relay; detects the end of silent writers
//	layout.go    gives a destination another number of shards
//	pool.go      shares a few connections among all shards
//	unrouted.go  stores events without a route, and hands them to destinations that gain one
package stream
