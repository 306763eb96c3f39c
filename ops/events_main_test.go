package ops_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const eventSchema = `Odd "shop"`

// eventsDB is a database with the tables in a schema that is not the default one.
type eventsDB struct {
	testing.TB
	pool  *pgxpool.Pool
	store *ops.Client
}

func newEvents(tb testing.TB, stream, partitioned bool) *eventsDB {
	tb.Helper()
	tables := testdb.Tables{Schema: eventSchema, Partitioned: partitioned}
	if stream {
		tables.Mode = outboxsql.ModeStream
	}
	pool := testdb.Pool(tb, testdb.URL(tb, tables), testdb.InSchema(eventSchema))
	store, err := ops.New(pool, ops.Config{Schema: eventSchema})
	if err != nil {
		tb.Fatal(err)
	}
	return &eventsDB{tb, pool, store}
}

// allTables runs f for plain and partitioned tables.
func allTables(t *testing.T, stream bool, f func(t *testing.T, d *eventsDB)) {
	t.Helper()
	testdb.Partitions(t, func(tb testing.TB, partitioned bool) *eventsDB {
		tb.Helper()
		return newEvents(tb, stream, partitioned)
	}, f)
}

func (d *eventsDB) exec(sql string, args ...any) {
	d.Helper()
	testdb.Exec(d, d.pool, sql, args...)
}

// says is what Show says of an event, on one line.
func (d *eventsDB) says(id int64) string {
	d.Helper()
	e, err := d.store.Event(d.Context(), id)
	if err != nil {
		d.Fatal(err)
	}
	return line(&e)
}

func line(e *ops.Event) string {
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
func sentence(d *ops.Destination) string {
	var b strings.Builder
	for _, p := range d.Words(time.Now()) {
		b.WriteString(p.Text)
		if !p.At.IsZero() {
			b.WriteString("TIME")
		}
	}
	return b.String()
}
