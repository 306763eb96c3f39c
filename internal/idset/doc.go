// Package idset has the sets of ids of a stream, each in Go and in SQL. A [Set] is a list of ranges, in the database an
// int8multirange. A [Watermark] is what a reader has passed: all ids up to a head except the open ones, in the database
// two columns. The rest of the module computes neither by itself. A property test compares Go with PostgreSQL.
//
// The package imports nothing of ours. Its files:
//
//	set.go        ranges, and their text
//	watermark.go  what a reader has passed
//	sql.go        the same as expressions of SQL
package idset
