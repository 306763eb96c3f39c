package store

import (
	"testing"
	"time"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// partitionDay is the day of a partition of the tests.
func partitionDay(n int) time.Time {
	return time.Date(2031, 3, 1, 12, 0, 0, 0, time.UTC).AddDate(0, 0, n)
}

// newPartitionedDB is newDB with partitions. The first one gets events.
func newPartitionedDB(tb testing.TB) *db {
	tb.Helper()
	d := newDB(tb)
	if err := outboxsql.Partition(tb.Context(), d.conn, "public", outboxsql.PartitionOptions{Now: partitionDay(0)}); err != nil {
		tb.Fatal(err)
	}
	return d
}
