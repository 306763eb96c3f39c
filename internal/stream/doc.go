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
//	unit.go     reads, hands over, takes answers, writes the position; one goroutine, one thing after the other
//	common.go   what a unit shares with its parts
//	next.go     when it reads again
//	gate.go     where deliveries leave for the lane: how many, in which parcels
//	limit.go    what a rate limit allows now, and what becomes a row until later
//	shelf.go    its rows: to be written, running, due, ready
//	order.go    which events are delivered one after the other; the one queue of a total order
//	rows.go     the statements that find rows of outbox_deliveries: see package deliveries
//	load.go     aggregates with stored deliveries, at a take-over
//	ledger.go   how far the position was written
//	writes.go   the rows that go with the position, in one transaction
//
// All of them:
//
//	engine.go   the units that the relay holds, by its leases: see package lease; the API of the relay; when silent writers have ended
//	arrange.go  gives a destination another number of shards
//	pool.go     the few connections that all units share
//	router.go   finds events that no destination reads, and hands them to destinations that have gained a route
package stream
