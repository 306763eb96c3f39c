package outboxsql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// eachKind runs a test with a plain and with a partitioned table.
func eachKind(t *testing.T, test func(t *testing.T, conn *pgx.Conn)) {
	t.Helper()
	for _, kind := range []string{"plain", "partitioned"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			conn := testdb.Connect(t, testenv.Database(t))
			migrate(t, conn, "public", outboxsql.NotifyAuto)
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
