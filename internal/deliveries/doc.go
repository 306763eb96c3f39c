// Package deliveries reads and writes outbox_deliveries for both engines: a row per event and destination for each
// delivery that did not succeed at the first attempt. The engines decide which rows are delivered, and when.
//
//	rows.go      the states of a row; reads rows with their events
//	search.go    decides where a stream searches for due rows
//	put.go       writes and removes rows
//	leases.go    finishes, renews and takes over the rows that relays of a queue have leased
//	tokens.go    numbers leases, and tracks which are live
//	unrouted.go  finds rows without a route
package deliveries
