// Package daemon runs the relays of a configuration file, with the admin server, alerts and traces. It reloads the file, and
// tells the service manager how it is doing. The notifyd command calls [Run].
//
// A supervisor has a member for each outbox; the only outbox of a file is a member without a name. A member runs a
// generation: a relay with its handlers, its pool and its alerter, built from one reading of the file. If a relay ends
// with an error and the file has several outboxes, its member builds another relay after a pause. If it is the relay of the
// only outbox, the daemon ends.
//
// A reload has three steps. It reads the file, and builds and checks the next generation of every member that must
// change, while the old relays go on: an error ends the reload, and nothing has changed. Then it stops the old
// relays and closes their handlers. Then it starts the next generations.
//
// Who owns which goroutine:
//
//   - Run's own goroutine starts and stops members, sends the query for outboxes, and reloads. No other goroutine does.
//   - Each member has one for its relay. Member.end waits for it, and the supervisor for all of them before Run
//     returns.
//   - The alerter of a generation outlives its relay, to send the last alert; the member waits for it at the end.
//   - The admin server and the reports to the service manager start before the first relay and end after the last.
//
// Readers, such as a scrape or a page of the console, hold a live: the relay of the moment, with counters that
// continue over reloads.
package daemon
