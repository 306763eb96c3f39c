package outboxsql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// beforeBytes makes a migrated table one of version 9.
const beforeBytes = `ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_one_payload, DROP CONSTRAINT outbox_events_content_type_valid,
		DROP COLUMN payload_bytes, DROP COLUMN content_type, ALTER COLUMN payload SET NOT NULL;
	ALTER TABLE outbox_audit DROP COLUMN old_payload_bytes;
	DELETE FROM outbox_migrations WHERE version >= 10`

// eachKind runs a test with a plain and with a partitioned table.
func eachKind(t *testing.T, test func(t *testing.T, conn *pgx.Conn)) {
	t.Helper()
	for _, kind := range []string{"plain", "partitioned"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, testenv.Database(t))
			migrate(t, conn, "public", outboxsql.BellAuto)
			if kind == "partitioned" {
				writeOne(t, conn) // so that the table itself becomes a partition
				if err := outboxsql.Partition(t.Context(), conn, "public", outboxsql.PartitionOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			test(t, conn)
		})
	}
}

// TestBytesMigration: a table of version 9 with waiting events is not rewritten, keeps its events, and takes
// bytes; a writer with the grants of version 9 may write them as well, in old partitions and new ones.
func TestBytesMigration(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		writer := role(t, conn)
		exec(t, conn, beforeBytes)
		exec(t, conn, `GRANT USAGE ON SCHEMA public TO `+writer)
		exec(t, conn, `GRANT INSERT (event_type, payload) ON outbox_events TO `+writer)
		exec(t, conn, `INSERT INTO outbox_events (event_type, payload) VALUES ('old', '{"n": 1}'), ('old', 'null')`)
		const files = `SELECT string_agg(c.relname || ' ' || pg_relation_filenode(c.oid), ', ' ORDER BY c.relname) FROM pg_class c
			WHERE c.relkind = 'r' AND (c.relname = 'outbox_events' OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass))`
		before := value[string](t, conn, files)
		if applied := migrate(t, conn, "public", outboxsql.BellKeep); !upFrom(t, conn, applied, 10) {
			t.Errorf("applied %+v", applied)
		}
		if after := value[string](t, conn, files); after != before {
			t.Errorf("the files are %s, were %s: the table was rewritten", after, before)
		}
		if got := values[bool](t, conn, `SELECT convalidated FROM pg_constraint WHERE conrelid = 'outbox_events'::regclass AND conname IN ('outbox_events_one_payload', 'outbox_events_content_type_valid')`); fmt.Sprint(got) != "[false false]" {
			t.Errorf("validated: %v, want two that were added without reading the table", got)
		}
		exec(t, conn, `SET ROLE `+writer)
		exec(t, conn, `INSERT INTO outbox_events (event_type, payload_bytes, content_type) VALUES ('new', '\x00ff', 'application/x-protobuf')`)
		exec(t, conn, `INSERT INTO outbox_events (event_type, payload) VALUES ('new', '1')`)
		exec(t, conn, `RESET ROLE`)
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM outbox_events WHERE event_type IN ('old', 'new')`).Scan(new(int)); err != nil {
			t.Error(err)
		}
		exec(t, conn, `UPDATE outbox_events SET state = 'done', processed_at = now()`)
		exec(t, conn, `ALTER TABLE outbox_events VALIDATE CONSTRAINT outbox_events_one_payload; ALTER TABLE outbox_events VALIDATE CONSTRAINT outbox_events_content_type_valid`)
	})
}

// TestOnePayload: an event has exactly one payload, and a content type that fits it.
func TestOnePayload(t *testing.T) {
	t.Parallel()
	const (
		one  = "outbox_events_one_payload"
		kind = "outbox_events_content_type_valid"
	)
	eachKind(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		for _, c := range []struct{ payload, raw, contentType, refused string }{
			{"NULL", "NULL", "NULL", one},
			{"NULL", "NULL", "'application/json'", one},
			{"'1'", `'\x01'`, "NULL", one},
			{"'null'", "''", "NULL", one},
			{"'null'", "NULL", "NULL", ""},
			{"NULL", "''", "NULL", ""}, // a Protobuf message of defaults
			{"NULL", `'\x00'`, "'application/vnd.apache.avro+binary; v=1'", ""},
			{"NULL", `'\x00'`, "'application/json'", ""},
			{"'1'", "NULL", "'application/json; charset=utf-8'", ""},
			{"'1'", "NULL", "'application/vnd.acme.order+JSON'", ""},
			{"'1'", "NULL", "'avro/binary'", kind},
			{"'1'", "NULL", "'application/jsonp'", kind},
			{"NULL", "''", "''", kind},
			{"NULL", "''", "'avro'", kind},
			{"NULL", "''", `E'text/plain\nX-Evil: 1'`, kind},
			{"NULL", "''", "'text/plön'", kind},
			{"NULL", "''", "'a/' || repeat('b', 253)", ""},
			{"NULL", "''", "'a/' || repeat('b', 254)", kind},
		} {
			_, err := conn.Exec(t.Context(), fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload, payload_bytes, content_type) VALUES ('a', %s, %s, %s)`, c.payload, c.raw, c.contentType))
			switch {
			case c.refused == "" && err != nil:
				t.Errorf("%+v: %v", c, err)
			case c.refused != "" && (sqlState(err) != "23514" || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}
