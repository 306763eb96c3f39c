// Package outboxes connects to the databases that a configuration file names: that of the only outbox, or those of
// many. It reads their connection strings, finds the outboxes of a query, and tells whether a relay could work with
// a table. The daemon and the commands share it.
package outboxes
