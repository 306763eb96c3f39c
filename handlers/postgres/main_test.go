package postgres

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds waiting for something that is to happen; no test expects it to run out.
const patience = time.Minute

func execute(tb testing.TB, dsn string, statements ...string) {
	tb.Helper()
	conn := testdb.Connect(tb, dsn)
	for _, s := range statements {
		testdb.Exec(tb, conn, s)
	}
}

// inbox makes a database with the table, and a column with the order of arrival.
func inbox(tb testing.TB, statements ...string) (dsn string) {
	tb.Helper()
	dsn = testenv.Database(tb)
	execute(tb, dsn, append([]string{Schema(Config{}), arrival}, statements...)...)
	return dsn
}

const arrival = `ALTER TABLE received_events ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY`

// open makes a handler and closes it after the test.
func open(tb testing.TB, dsn string, changes ...func(*Config)) *Handler {
	tb.Helper()
	return deliverytest.Open(tb, New, deliverytest.Changed(Config{URL: handlers.NewSecret(dsn), Source: "shop", RequestTimeout: patience}, changes...))
}

func events(n int) []*delivery.Event {
	all := make([]*delivery.Event, n)
	for i := range all {
		all[i] = &delivery.Event{
			ID: int64(i + 1), Type: "order.created", AggregateType: "order", AggregateID: fmt.Sprint("k", i%7), Attempt: 1, Destination: "inbox",
			Payload: fmt.Appendf(nil, `{ "n":  %d, "z": 1, "a": "é" }`, i+1), Headers: map[string]string{"tenant": "a\"b"},
			CreatedAt: time.Date(2026, 11, 21, 10, 0, 0, 123456000, time.UTC),
		}
	}
	return all
}

// ids returns the ids in the table in the order of arrival.
func ids(tb testing.TB, dsn string) []int64 {
	tb.Helper()
	return testdb.List[int64](tb, testdb.Connect(tb, dsn), `SELECT event_id FROM received_events ORDER BY n`)
}

// arrivedAs returns payload and content type of the row of an event.
func arrivedAs(tb testing.TB, dsn string, id int64) (payload []byte, contentType string) {
	tb.Helper()
	err := testdb.Connect(tb, dsn).QueryRow(tb.Context(), `SELECT coalesce(payload_bytes, convert_to(payload::text, 'UTF8')), coalesce(content_type, 'application/json')
FROM received_events WHERE event_id = $1`, id).Scan(&payload, &contentType)
	if err != nil {
		tb.Fatal(err)
	}
	return payload, contentType
}

// asRole returns the URL of a database for another role.
func asRole(tb testing.TB, raw, role string) string {
	tb.Helper()
	u := mustParse(tb, raw)
	u.User = url.User(role)
	return u.String()
}
