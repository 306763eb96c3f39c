// Package idset computes sets of event ids, in Go and in SQL. A [Set] has ranges; the database stores it as an
// int8multirange. A [Watermark] has the ids that a reader has passed: all ids up to a head, without the open ids. The
// database stores it in two columns. A property test compares Go with PostgreSQL.
//
// The package imports only the standard library. Its files:
//
//	set.go        ranges and their text
//	watermark.go  the ids that a reader has passed
//	sql.go        the expressions of SQL for a watermark
package idset
