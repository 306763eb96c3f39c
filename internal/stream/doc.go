// Package stream is the engine of an outbox that is read like a log: each destination has
// a position in the table, and no row of it is ever changed. See [Reader] for how nothing is
// passed over.
//
// Read engine.go, unit.go and reader.go first. Reading:
//
//	reader.go   reads upwards and passes nothing over
//	pass.go     one read: the statement, and what has come of it
//	gaps.go     ids that nobody has seen: their witnesses, and when they are dead
//	witness.go  looks who holds the lock of the sequence
//	ids.go      ends the relay if the sequence has gone back, or was begun anew
//	absence.go  ids that no event can have, between two partitions
//	decode.go   rows into events
//	ranges.go   sets of ids, as int8multirange has them
//	start.go    where a new destination begins
//
// One destination:
//
//	unit.go     reads, hands over, takes answers; one goroutine, one thing after the other
//	next.go     when it reads on
//	types.go    what it reads past, and what it gets by routes that have ended
//	feed.go     how much goes to the lane, and in which parcels
//	flight.go   what is in memory: parcels at the lane, and what the lane gave back
//	shelf.go    what is known of its rows: to be written, under way, due
//	lines.go    rows that are due, and the stored lines of aggregates
//	rows.go     the statements that read outbox_deliveries
//	load.go     which aggregates something is stored of, at a take-over
//	ledger.go   how far the position was written
//	account.go  what is open at this moment
//	position.go the row of a unit: taken over, written, bounded
//	writes.go   the position, and what was not simply delivered, in one transaction
//	leave.go    the end of a unit
//
// All of them:
//
//	engine.go   units, vigil and keeper together; what the relay calls
//	keeper.go   owns units for a relay
//	tenure.go   one session of it: takes, proves, gives, waits out doubt
//	session.go  its SQL
//	share.go    who should have which unit: a pure function of what all relays see
//	sure.go     until when a session is known to live
//	pool.go     the few connections that all units share
//	routes.go   from where to where a destination reads which event types
//	note.go     notes that they have changed
//	router.go   finds events that no destination reads
//	handout.go  hands them to those who get them by now
//	vigil.go    awake, drowsy, asleep: the bell
//	doze.go     how a relay falls asleep beside silent writers and other relays
package stream
