// Package deliveries reads and writes outbox_deliveries for both engines: a row per event and destination for what was not
// delivered at the first attempt. It decides neither what is delivered nor when.
//
//	rows.go      the states of a row; reads rows with their events
//	put.go       writes rows, and removes them
//	leases.go    finishes, renews and takes over the rows that relays of a queue have leased
//	tokens.go    numbers leases, tracks which are live
//	unrouted.go  finds rows without a route
package deliveries
