package outboxsql_test

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestStorage: migrate has the tables vacuumed early, and keeps settings made by hand.
func TestStorage(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	options := func(table string) string {
		return testdb.One[string](t, conn, `SELECT array_to_string(reloptions, ' ') FROM pg_class WHERE oid = $1::text::regclass`, table)
	}
	if got := options("outbox_events"); !strings.Contains(got, "autovacuum_vacuum_scale_factor=0.02") {
		t.Errorf("outbox_events: %s", got)
	}
	if got := options("outbox_deliveries"); !strings.Contains(got, "autovacuum_vacuum_threshold=1000") {
		t.Errorf("outbox_deliveries: %s", got)
	}
	testdb.Exec(t, conn, `ALTER TABLE outbox_events RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_cost_limit)`)
	testdb.Exec(t, conn, `ALTER TABLE outbox_events SET (autovacuum_vacuum_scale_factor = 0.5)`)
	migrate(t, conn, "public", outboxsql.NotifyKeep)
	if got := options("outbox_events"); got != "autovacuum_vacuum_scale_factor=0.5" {
		t.Errorf("what was set by hand is now %s", got)
	}
}
