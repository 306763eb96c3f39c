package doctor

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patient is a database with the tables, on which a test operates.
type patient struct{ *testdb.DB }

func newPatient(tb testing.TB) *patient {
	tb.Helper()
	return &patient{testdb.New(tb, testdb.Tables{})}
}

func (p *patient) migrate(schema string, notify outboxsql.NotifyMode) {
	p.Helper()
	if _, err := outboxsql.Migrate(p.Context(), p.Conn, schema, outboxsql.MigrateOptions{Notify: notify}); err != nil {
		p.Fatal(err)
	}
}

func (p *patient) partition() {
	p.Helper()
	if err := outboxsql.Partition(p.Context(), p.Conn, "public", outboxsql.PartitionOptions{}); err != nil {
		p.Fatal(err)
	}
}
