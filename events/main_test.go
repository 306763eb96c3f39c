package events_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/events"
	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const schema = `Odd "shop"`

// db is a database with the tables in a schema that is not the default one.
type db struct {
	testing.TB
	pool  *pgxpool.Pool
	store *events.Store
}

func newDB(tb testing.TB, stream, partitioned bool) *db {
	tb.Helper()
	tables := testdb.Tables{Schema: schema, Partitioned: partitioned}
	if stream {
		tables.Mode = outboxsql.ModeStream
	}
	pool := testdb.Pool(tb, testdb.URL(tb, tables), testdb.InSchema(schema))
	store, err := events.New(pool, schema)
	if err != nil {
		tb.Fatal(err)
	}
	return &db{tb, pool, store}
}

// allTables runs f for plain and partitioned tables.
func allTables(t *testing.T, stream bool, f func(t *testing.T, d *db)) {
	t.Helper()
	testdb.Partitions(t, func(tb testing.TB, partitioned bool) *db { tb.Helper(); return newDB(tb, stream, partitioned) }, f)
}

func (d *db) exec(sql string, args ...any) {
	d.Helper()
	testdb.Exec(d, d.pool, sql, args...)
}

// says is what Show says of an event, on one line.
func (d *db) says(id int64) string {
	d.Helper()
	e, err := d.store.Show(d.Context(), id)
	if err != nil {
		d.Fatal(err)
	}
	return line(&e)
}

func line(e *events.Event) string {
	parts := []string{string(e.State)}
	for i := range e.Destinations {
		parts = append(parts, fmt.Sprintf("%s %s", e.Destinations[i].Name, e.Destinations[i].State))
	}
	if e.OthersSettled {
		parts = append(parts, "others settled")
	}
	return strings.Join(parts, ", ")
}

// sentence is Words with each moment as "TIME".
func sentence(d *events.Destination) string {
	var b strings.Builder
	for _, p := range d.Words(time.Now()) {
		b.WriteString(p.Text)
		if !p.At.IsZero() {
			b.WriteString("TIME")
		}
	}
	return b.String()
}
