// Package stream delivers the events of a table that is read like a log: each
// destination has a position in it, and no row is ever changed. See [Reader] for
// how nothing is passed over.
package stream
