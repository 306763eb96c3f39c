// Package stream is the engine of an outbox that is read like a log: each destination has a
// position in the table, and no row of it is ever changed. Package tail reads the table, and proves that no event is missed;
// package position has the row of the position, package routes the history of what each destination reads, package flight the events in
// memory, and package aggregates what is done next about each aggregate with stored rows. Package replay sends a range again, and package
// exactly wraps the position of a destination that gets each event exactly once.
//
// Read engine.go and unit.go first. Where reading begins:
//
//	start.go    where a new destination begins
//
// One destination:
//
//	unit.go     reads, hands over, takes answers; one goroutine, one thing after the other
//	common.go   what a unit shares with its parts
//	next.go     when it reads again
//	limit.go    what a rate limit allows now, and what becomes a row until later
//	feed.go     what goes to the lane next: how much, in which parcels
//	shelf.go    the state of its rows: to be written, running, due
//	order.go    which events are delivered one after the other; the one queue of a total order
//	lines.go    rows that are due, and those of aggregates that are ready
//	rows.go     the statements that find rows of outbox_deliveries: see package deliveries
//	load.go     aggregates with stored deliveries, at a take-over
//	ledger.go   how far the position was written
//	writes.go   the position, and the rows that go with it, in one transaction
//	leave.go    the end of a unit
//
// All of them:
//
//	engine.go   the units that the relay holds, by its leases: see package lease; the API of the relay
//	arrange.go  gives a destination another number of shards
//	pool.go     the few connections that all units share
//	router.go   finds events that no destination reads
//	handout.go  hands them to destinations that have gained a route
//	settle.go   when the writers have ended that were silent
package stream
