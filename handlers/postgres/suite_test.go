package postgres

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const password = "correct-horse-battery-staple"

// through returns the URL with another address, and a password.
func through(tb testing.TB, raw, addr string) string {
	tb.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		tb.Fatal(err)
	}
	u.Host, u.User = addr, url.UserPassword(u.User.Username(), password)
	return u.String()
}

func TestConformance(t *testing.T) {
	t.Parallel()
	s := testenv.OwnPostgres(t, nil)
	direct := s.URL("")
	execute(t, direct, Schema(Config{}), arrival, `ALTER TABLE received_events ADD CHECK (payload::text <> '{"refused": true}')`,
		`CREATE TABLE keyless (LIKE received_events)`, `CREATE TABLE narrow (source text, dedupe_id text)`,
		`CREATE ROLE stranger LOGIN`, `CREATE ROLE reader LOGIN`, `GRANT ALL ON received_events TO reader`, `ALTER ROLE reader SET default_transaction_read_only = on`,
		`CREATE TABLE guarded (LIKE received_events INCLUDING ALL)`,
		`CREATE TABLE parted (LIKE received_events INCLUDING ALL) PARTITION BY LIST (source)`, `ALTER TABLE parted ALTER n DROP IDENTITY`,
		`CREATE TABLE wider (LIKE received_events INCLUDING ALL)`, `ALTER TABLE wider ADD COLUMN handled boolean NOT NULL`,
		`CREATE VIEW seen AS SELECT * FROM received_events WHERE source = 'stock' WITH CHECK OPTION`,
		`CREATE ROLE guest LOGIN`, `GRANT ALL ON received_events TO guest`, `ALTER TABLE received_events ENABLE ROW LEVEL SECURITY`,
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not in this table'; END $$`,
		`CREATE TRIGGER refuse BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION refuse()`)
	proxy := handlertest.StartProxy(t, s.Addr())
	proxied := through(t, direct, proxy.Addr())
	refused := func(id int64) *delivery.Event {
		return &delivery.Event{ID: id, Type: "x", Payload: json.RawMessage(`{"refused": true}`)}
	}
	once := func(change func(*Config), e *delivery.Event) func(testing.TB) error {
		return func(tb testing.TB) error {
			tb.Helper()
			return open(tb, proxied, change).Deliver(tb.Context(), e)
		}
	}
	table := func(name string) func(*Config) { return func(c *Config) { c.Table = name } }
	as := func(role, database string) func(*Config) {
		return func(c *Config) {
			c.URL = handlers.NewSecret(fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", role, password, proxy.Addr(), database))
		}
	}
	ok := events(1)[0]
	stop := func(tb testing.TB) {
		tb.Helper()
		if err := s.Halt(tb.Context(), pgserver.Fast); err != nil {
			tb.Fatal(err)
		}
	}
	start := func(tb testing.TB) {
		tb.Helper()
		if err := s.Start(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
	database := strings.TrimPrefix(mustParse(t, direct).Path, "/")
	destination := delivery.ClassDestination
	handlertest.Run(t, handlertest.Destination{
		Open:     func(tb testing.TB) delivery.Handler { tb.Helper(); return open(tb, proxied) },
		Received: func(tb testing.TB) []int64 { tb.Helper(); return ids(tb, direct) },
		Message:  func(tb testing.TB, id int64) ([]byte, string) { tb.Helper(); return arrivedAs(tb, direct, id) },
		Rejected: refused, Network: proxy, Stop: stop, Start: start, Secrets: []string{password}, Ordered: true,
		Cases: []handlertest.Case{
			{Name: "no such table", Class: destination, Text: "create the table", Provoke: once(table("nowhere"), ok)},
			{Name: "no such schema", Class: destination, Text: "create the table", Provoke: once(func(c *Config) { c.Schema = "nowhere" }, ok)},
			{Name: "a table without the columns", Class: destination, Text: "compare the table's columns", Provoke: once(table("narrow"), ok)},
			{Name: "a table without the key", Class: destination, Text: "PRIMARY KEY or UNIQUE", Provoke: once(table("keyless"), ok)},
			{Name: "no such database", Class: destination, Text: "name of the database", Provoke: once(as("postgres", "nowhere"), ok)},
			{Name: "no such role", Class: destination, Text: "check user and password", Provoke: once(as("nobody", database), ok)},
			{Name: "no right", Class: destination, Text: "grant INSERT and SELECT", Provoke: once(as("stranger", database), ok)},
			{Name: "read only", Class: destination, Text: "lead to the primary", Provoke: once(as("reader", database), ok)},
			{Name: "a constraint", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "23514", Provoke: once(func(*Config) {}, refused(1))},
			{Name: "no partition", Class: delivery.ClassEvent, Unclear: true, Text: "create the partition", Provoke: once(table("parted"), ok)},
			{Name: "a column that must be set", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "23502", Provoke: once(table("wider"), ok)},
			{Name: "a policy", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "policies of the table", Provoke: once(as("guest", database), ok)},
			{Name: "a view", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "44000", Provoke: once(table("seen"), ok)},
			{Name: "a trigger", Class: delivery.ClassEvent, Permanent: true, Unclear: true, Text: "not in this table", Provoke: once(table("guarded"), ok)},
			{
				Name: "no JSON", Class: delivery.ClassEvent, Permanent: true, Text: "22P02",
				Provoke: once(func(*Config) {}, &delivery.Event{ID: 1, Type: "x", Payload: json.RawMessage(`{`)}),
			},
			{
				Name: "no text", Class: delivery.ClassEvent, Permanent: true, Text: "22021",
				Provoke: once(func(*Config) {}, &delivery.Event{ID: 1, Type: "\xff\x00", Payload: json.RawMessage(`{}`)}),
			},
		},
	})
}

func mustParse(tb testing.TB, raw string) *url.URL {
	tb.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		tb.Fatal(err)
	}
	return u
}
