package outboxsql_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// beforeSizes creates the schema as it was before the constraints of version 6, with an event that
// violates each of them.
func beforeSizes(t *testing.T) string {
	t.Helper()
	url := testenv.Database(t)
	conn := connect(t, url)
	migrate(t, conn, "public", outboxsql.BellAuto)
	exec(t, conn, `ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_aggregate_short, DROP CONSTRAINT outbox_events_headers_small;
		DELETE FROM outbox_migrations WHERE version >= 6`)
	exec(t, conn, `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) VALUES ('old', '1', 'a', repeat('a', 2000))`)
	exec(t, conn, `INSERT INTO outbox_events (event_type, payload, headers) VALUES ('old', '1', jsonb_build_object('a', repeat('a', 100000)))`)
	return url
}

// TestSizesOfOldEvents: a table with events that are too large is migrated, new ones are refused,
// and the old ones can be marked done.
func TestSizesOfOldEvents(t *testing.T) {
	t.Parallel()
	conn := connect(t, beforeSizes(t))
	if applied := migrate(t, conn, "public", outboxsql.BellKeep); !upFrom(t, conn, applied, 6) || applied[0].Name != "sizes" {
		t.Errorf("applied %+v", applied)
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO outbox_events (event_type, payload, headers) VALUES ('new', '1', jsonb_build_object('a', repeat('a', 100000)))`); sqlState(err) != "23514" {
		t.Errorf("a new event with large headers: %v", err)
	}
	exec(t, conn, `UPDATE outbox_events SET state = 'deferred'`)
	exec(t, conn, `UPDATE outbox_events SET state = 'done'`)
}

// TestPartitionOldEvents: partitioning names the constraint that old events violate, and validates
// both once there are none.
func TestPartitionOldEvents(t *testing.T) {
	t.Parallel()
	conn := connect(t, beforeSizes(t))
	migrate(t, conn, "public", outboxsql.BellKeep)
	partition := func() error { return outboxsql.Partition(t.Context(), conn, "public", outboxsql.PartitionOptions{}) }
	if err := partition(); !errors.Is(err, outboxsql.ErrObstacle) || !strings.Contains(err.Error(), "outbox_events_aggregate_short") {
		t.Errorf("with large events: %v", err)
	}
	exec(t, conn, `UPDATE outbox_events SET state = 'done'`)
	if err := partition(); err != nil {
		t.Error(err)
	}
	if got := values[string](t, conn, `SELECT conrelid::regclass || ' ' || conname FROM pg_constraint WHERE conname LIKE 'outbox_events_%_s%' AND NOT convalidated`); len(got) > 0 {
		t.Errorf("not valid: %v", got)
	}
}

// TestSizesOfPartitions: a partitioned table with events that are too large is migrated, and gets
// partitions as before.
func TestSizesOfPartitions(t *testing.T) {
	t.Parallel()
	conn := connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.BellAuto)
	writeOne(t, conn)
	if err := outboxsql.Partition(t.Context(), conn, "public", outboxsql.PartitionOptions{}); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_aggregate_short, DROP CONSTRAINT outbox_events_headers_small;
		DELETE FROM outbox_migrations WHERE version >= 6`)
	exec(t, conn, `INSERT INTO outbox_events (event_type, payload, headers) VALUES ('old', '1', jsonb_build_object('a', repeat('a', 100000)))`)
	migrate(t, conn, "public", outboxsql.BellKeep)
	before := value[int](t, conn, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass`)
	exec(t, conn, `SELECT outbox_partitions_extend(clock_timestamp() + interval '5 days', 3)`)
	if after := value[int](t, conn, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass`); after <= before {
		t.Errorf("%d partitions, %d before", after, before)
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO outbox_events (event_type, payload, aggregate_id, aggregate_type) VALUES ('new', '1', repeat('a', 2000), 'a')`); sqlState(err) != "23514" {
		t.Errorf("a new event with a long aggregate id: %v", err)
	}
	exec(t, conn, `UPDATE outbox_events SET state = 'done'`)
}
