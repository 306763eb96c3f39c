package stream

import (
	"testing"

	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// log is a database with an outbox_events that is read.
type log struct{ *testdb.DB }

func newLog(tb testing.TB) *log {
	tb.Helper()
	return newLogAt(tb, testenv.Database(tb))
}

func newLogAt(tb testing.TB, url string) *log {
	tb.Helper()
	l := &log{testdb.At(tb, url, outboxsql.BellOff)} // a bell keeps transactions from being prepared
	l.Exec(`DROP INDEX outbox_events_fresh`)         // as in a stream
	return l
}

// insert inserts an event of an aggregate.
const insert = `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', 'order', '1', '{}')`
