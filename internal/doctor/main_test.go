package doctor

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patient is a database with the tables, on which a test operates.
type patient struct {
	testing.TB
	url  string
	conn *pgx.Conn
}

func newPatient(tb testing.TB) *patient {
	tb.Helper()
	p := &patient{TB: tb, url: testenv.Database(tb)}
	p.conn = p.connect(p.url)
	p.migrate("public", outboxsql.BellAuto)
	return p
}

func (p *patient) migrate(schema string, bell outboxsql.Bell) {
	p.Helper()
	if _, err := outboxsql.Migrate(p.Context(), p.conn, schema, bell); err != nil {
		p.Fatal(err)
	}
}

func (p *patient) partition() {
	p.Helper()
	if err := outboxsql.Partition(p.Context(), p.conn, "public", outboxsql.PartitionOptions{}); err != nil {
		p.Fatal(err)
	}
}

// connect opens a connection that the end of the test closes.
func (p *patient) connect(url string) *pgx.Conn {
	p.Helper()
	conn, err := pgx.Connect(p.Context(), url)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { closeConn(context.WithoutCancel(p.Context()), conn) })
	return conn
}

func (p *patient) exec(sql string) {
	p.Helper()
	if _, err := p.conn.Exec(p.Context(), sql); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}
