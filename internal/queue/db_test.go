package queue

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/store"
)

// db is a database with the tables, and a connector of a relay.
type db struct {
	*testdb.DB
	*store.Connector
}

func newDB(tb testing.TB) *db {
	tb.Helper()
	d := testdb.New(tb, testdb.Tables{})
	return &db{d, connector(tb, d.URL)}
}

// expect fails the test unless the query returns exactly these lines.
func (d *db) expect(what, query string, want ...string) {
	d.Helper()
	if got := testdb.List[string](d, d.Conn, query); fmt.Sprint(got) != fmt.Sprint(want) {
		d.Errorf("%s: %q, want %q", what, got, want)
	}
}

// events and stored are the queries that most tests compare.
const (
	events = `SELECT format('%s %s %s', id, state, processed_at IS NOT NULL) FROM outbox_events ORDER BY id`
	stored = `SELECT format('%s/%s %s %s', event_id, destination, state, attempts) FROM outbox_deliveries ORDER BY event_id, destination`
)

func options() SessionOptions { return SessionOptions{Owner: store.NewOwner(), Lease: time.Minute} }

func (d *db) session(o SessionOptions) *Session {
	s := NewSession(d.Connector, o)
	d.Cleanup(func() { s.Close(context.WithoutCancel(d.Context())) })
	return s
}

func (d *db) maintenance(o SessionOptions) *Maintenance {
	k := NewMaintenance(d.Connector, o)
	d.Cleanup(func() { k.Close(context.WithoutCancel(d.Context())) })
	return k
}

func (d *db) claim(s *Session, q Query) Claimed {
	d.Helper()
	if q.Source == SourceSweep && q.Upto == 0 {
		q.Upto = math.MaxInt64
	}
	c, err := s.Claim(d.Context(), q)
	if err != nil {
		d.Fatalf("claim: %v", err)
	}
	return c
}

// keepOpen keeps a claim open during other work, however long that takes on a busy machine.
func (d *db) keepOpen(s *Session) {
	d.Helper()
	if _, err := s.conn.Exec(d.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		d.Fatal(err)
	}
}

// sweep claims by a sweep from the start and returns the ids, in order.
func (d *db) sweep(s *Session, limit int) []int64 {
	d.Helper()
	return ids(d.claim(s, Query{Source: SourceSweep, Limit: limit}))
}

func (d *db) settle(s *Session, settlement *Settlement) {
	d.Helper()
	if s.conn != nil && s.conn.PgConn().TxStatus() == 'I' { // the test has claimed nothing
		testdb.Exec(d, s.conn, "BEGIN")
	}
	if refused, err := s.Settle(d.Context(), settlement); err != nil || len(refused) > 0 {
		d.Fatalf("settle: %v, refused %v", err, refused)
	}
}

// end ends the session that proves that a relay is alive, and waits until it is gone.
func (d *db) end(owner int64) {
	d.Helper()
	if !testdb.One[bool](d, d.Conn, `SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND classid = ($1::bigint >> 32)::oid AND objid = ($1::bigint & 4294967295)::oid`, owner) {
		d.Fatal("the session did not end")
	}
}

func dueFor(names ...string) Query {
	wanted := make(map[string]int, len(names))
	for _, name := range names {
		wanted[name] = 100
	}
	return Query{Source: SourceDue, Wanted: wanted}
}

func ids(c Claimed) []int64 {
	all := []int64{}
	for _, w := range c.Work {
		all = append(all, w.Event.ID)
	}
	return all
}

func entry(id int64, destination string, state deliveries.State) deliveries.Entry {
	return deliveries.Entry{Ref: deliveries.Ref{EventID: id, Destination: destination}, EventType: "a", State: state}
}

func connector(tb testing.TB, url string) *store.Connector {
	tb.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	return &store.Connector{Config: cfg, Schema: "public"}
}

// standby restarts a server as a standby that waits for its primary.
func standby(tb testing.TB, server *pgserver.Server) {
	tb.Helper()
	if err := server.Halt(tb.Context(), pgserver.Fast); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(server.Dir(), "data", "standby.signal"), nil, 0o644); err != nil {
		tb.Fatal(err)
	}
	if err := server.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}
