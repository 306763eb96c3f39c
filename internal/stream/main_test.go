package stream

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// log is a database with an outbox_events that is read.
type log struct{ *testdb.DB }

func newLog(tb testing.TB) *log {
	tb.Helper()
	return asStream(testdb.New(tb, tables()))
}

// tables are without a trigger, which keeps transactions from being prepared.
func tables() testdb.Tables { return testdb.Tables{Notify: outboxsql.NotifyOff} }

func asStream(d *testdb.DB) *log {
	d.Helper()
	d.Exec(`DROP INDEX outbox_events_fresh`)
	return &log{d}
}

// insert inserts an event of an aggregate.
const insert = `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', 'order', '1', '{}')`
