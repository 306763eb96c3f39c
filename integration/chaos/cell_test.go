package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// patience bounds each wait for an expected change; no test expects it to run out.
const patience = 3 * time.Minute

// dumpWithin bounds reading a table that a fault may have locked.
const dumpWithin = 10 * time.Second

// form holds the sizes of a run.
type form struct {
	long    bool
	backlog int           // events
	before  int           // arrivals before the fault
	hold    time.Duration // how long a fault lasts
	freeze  time.Duration // how long a relay is frozen at least
	mails   int           // events where they are mails
	every   time.Duration // between two transactions of a writer
}

func shortForm() form {
	return form{backlog: 2000, before: 200, hold: 500 * time.Millisecond, mails: 150, every: 30 * time.Millisecond}
}

func longForm() form {
	return form{long: true, backlog: 30_000, before: 3000, hold: 5 * time.Second, freeze: 30 * time.Second, mails: 1000, every: 20 * time.Millisecond}
}

// cell is one fault under one load, in one mode.
type cell struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // the test's own
	form form
	mode outboxsql.Mode

	server   *pgserver.Server // its own; nil for the shared one
	url      string           // of the database, as superuser
	pool     *pgxpool.Pool    // likewise
	role     string           // of the relays
	relayURL string           // may lead through a pooler or a network
	place    place
	relays   []*child
	load     *load

	// State of the fault.
	network           *testenv.Network
	pooler            *privateserver.Server
	clock             func(time.Duration)
	skew              time.Duration // how far the clock was set
	ballast           string        // the file that fills the disk
	kept              int           // settled for good before the fault
	foreign           *pgx.Conn
	refused           int       // writes before the fault that the database refused
	partition, bounds string    // what was detached
	settled           int       // events written, delivered and no longer counted by id
	frozen            time.Time // when a relay was
	stopped           *child    // which one

	// tookOver is how long the remaining relays took to deliver all events from
	// before the fault, where that is measured.
	tookOver time.Duration

	// The possible duplicates in a queue: how many relays lost their events in
	// flight, how often all at once; how many lost only their leases; and how many
	// deliveries were settled without being on disk.
	broken, unleased, volatile int
}

// newCell creates the database, with a role for relays that has only the
// privileges that a relay needs.
func newCell(t *testing.T, f *fault, mode outboxsql.Mode, s form) *cell {
	t.Helper()
	c := &cell{t: t, ctx: t.Context(), form: s, mode: mode}
	if f.server != nil {
		f.server(c)
		c.url = c.server.URL("")
	} else {
		c.url = testenv.Database(t)
	}
	c.pool = testdb.Pool(t, c.url)
	c.migrate()
	u, err := url.Parse(c.url)
	if err != nil {
		t.Fatal("the URL of the database is invalid") // it may hold a password
	}
	u.User = url.User(c.role)
	c.relayURL = u.String()
	c.load = newLoad(c)
	place := f.place // the other cell of the fault runs at the same time
	if place == nil {
		place = pacedSink
	}
	place(c)
	if f.way != nil {
		f.way(c)
	}
	return c
}

func (c *cell) migrate() {
	c.t.Helper()
	conn, err := c.pool.Acquire(c.ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Release()
	if _, err := outboxsql.Migrate(c.ctx, conn.Conn(), outboxsql.DefaultSchema, outboxsql.MigrateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if err := outboxsql.SetMode(c.ctx, conn.Conn(), outboxsql.DefaultSchema, c.mode, outboxsql.ModeOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if c.mode == outboxsql.ModeStream {
		c.watchTakeovers()
	}
	// Roles belong to the server, which cells share: named like the database.
	c.role = "relay_" + fmt.Sprintf("%x", time.Now().UnixNano()) + fmt.Sprint(os.Getpid())
	c.exec(`CREATE ROLE ` + c.role + ` LOGIN`)
	if c.server == nil {
		c.t.Cleanup(func() {
			_, err := c.pool.Exec(context.WithoutCancel(c.ctx), `DROP OWNED BY `+c.role+`; DROP ROLE `+c.role, pgx.QueryExecModeSimpleProtocol)
			if err != nil {
				c.t.Error(err)
			}
		})
	}
	grants, err := outboxsql.Grants(outboxsql.DefaultSchema, outboxsql.Roles{Relay: c.role})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := conn.Exec(c.ctx, grants, pgx.QueryExecModeSimpleProtocol); err != nil {
		c.t.Fatal(err)
	}
}

// pacedSink answers slowly, so that a backlog lasts as long as a fault.
func pacedSink(c *cell) { c.place = newSink(c.t, 15*time.Millisecond) }

func (c *cell) exec(sql string) {
	c.t.Helper()
	testdb.Exec(c.t, c.pool, sql)
}

// holds runs a query for a condition; no answer counts as no.
func (c *cell) holds(sql string, args ...any) bool {
	ctx, cancel := context.WithTimeout(c.ctx, writeWithin)
	defer cancel()
	var ok bool
	err := c.pool.QueryRow(ctx, sql, args...).Scan(&ok)
	return err == nil && ok
}

// await waits for a condition that nothing signals.
func (c *cell) await(what string, ok func() bool) {
	c.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			c.t.Fatalf("within %v it did not come to this: %s; the tables:\n%s", patience, what, c.dump())
		}
	}
}

// dump shows the rows that are not done.
func (c *cell) dump() (text string) {
	for _, sql := range []string{
		`SELECT e::text FROM (SELECT id, state, event_type, aggregate_id FROM outbox_events WHERE state <> 'done' ORDER BY id LIMIT 10) e`,
		`SELECT p::text FROM outbox_positions p`,
		`SELECT d::text FROM (SELECT * FROM outbox_deliveries ORDER BY event_id LIMIT 10) d`,
		`SELECT state || ' ' || count(*) FROM outbox_events GROUP BY state`,
		`SELECT concat_ws(' ', usename, application_name, state, wait_event, left(query, 60)) FROM pg_stat_activity WHERE datname = current_database()`,
	} {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), dumpWithin)
		rows, err := c.pool.Query(ctx, sql)
		var lines []string
		if err == nil {
			lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		cancel()
		text += fmt.Sprintln(lines, err)
	}
	return text
}

// terminate ends connections of the relays whose application_name matches name,
// and returns their number.
func (c *cell) terminate(name string) (n int) {
	c.t.Helper()
	err := c.pool.QueryRow(c.ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND usename = $1 AND application_name LIKE $2`, c.role, name).Scan(&n)
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// begin starts a transaction on a separate connection; heal ends it.
func (c *cell) begin(statements ...string) {
	c.t.Helper()
	conn, err := pgx.Connect(c.ctx, c.url)
	if err != nil {
		c.t.Fatal(err)
	}
	c.foreign = conn
	c.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(c.ctx)) })
	for _, sql := range append([]string{"BEGIN"}, statements...) {
		if _, err := conn.Exec(c.ctx, sql); err != nil {
			c.t.Fatalf("%s: %v", sql, err)
		}
	}
}

func (c *cell) commit() {
	c.t.Helper()
	_, err := c.foreign.Exec(c.ctx, "COMMIT")
	if err := errors.Join(err, c.foreign.Close(c.ctx)); err != nil {
		c.t.Fatal(err)
	}
}

// settle waits until everything written so far has arrived, and then forgets it, because its ids may be reused. The
// writers continue.
func (c *cell) settle() {
	c.t.Helper()
	steady := c.load.end()
	c.await("everything so far is done", func() bool { return c.done(math.MaxInt64) })
	missing := c.load.forget()
	c.settled += len(missing)
	for _, a := range c.sink().forget() {
		delete(missing, a.ID)
	}
	if len(missing) > 0 {
		c.t.Errorf("%d events never came: %v", len(missing), slices.Sorted(maps.Keys(missing)))
	}
	if steady {
		c.load.steady()
	}
}

// pause lets a fault last.
func (c *cell) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}
