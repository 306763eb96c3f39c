//go:build unix

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// door is a receiver that lets no request of one outbox pass until it is opened, and counts what has passed.
type door struct {
	*httptest.Server
	shut   string
	opened chan struct{}

	mu     sync.Mutex
	passed map[string]int
	more   chan struct{} // closed by the next one
}

func startDoor(t *testing.T, shut string) *door {
	t.Helper()
	d := &door{shut: shut, opened: make(chan struct{}), passed: make(map[string]int), more: make(chan struct{})}
	d.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		from := r.Header.Get("Notifyd-Outbox")
		if from == d.shut {
			select {
			case <-d.opened:
			case <-r.Context().Done():
				return
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.passed[from]++
		close(d.more)
		d.more = make(chan struct{})
	}))
	t.Cleanup(d.Close)
	return d
}

// await waits until n events of an outbox have passed.
func (d *door) await(t *testing.T, outbox string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		d.mu.Lock()
		got, more := d.passed[outbox], d.more
		d.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("%d events of %s of %d", got, outbox, n)
		}
	}
}

const (
	manySchemas   = 50
	manyDatabases = 10
	// hotEvents are far more than the relay takes into memory for a destination at once.
	hotEvents = 3000
)

// manyOutboxes makes schemas and databases with streams, and the table that lists them.
func manyOutboxes(t *testing.T, server *pgserver.Server, schemas, databases int) (url string, names []string) {
	t.Helper()
	execute(t, server.URL("postgres"), `CREATE DATABASE app`)
	execute(t, server.URL("postgres"), `CREATE DATABASE stream`)
	url = server.URL("app")
	migrate := func(url string, schemas ...string) {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
		for _, schema := range schemas {
			_, err := outboxsql.Migrate(t.Context(), conn, schema, outboxsql.MigrateOptions{})
			if err == nil {
				err = outboxsql.SetMode(t.Context(), conn, schema, outboxsql.ModeStream, outboxsql.ModeOptions{})
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	migrate(server.URL("stream"), "public")
	var work sync.WaitGroup
	half := make([][]string, 2)
	for i := range schemas {
		name := fmt.Sprintf("s%02d", i)
		names, half[i%2] = append(names, name), append(half[i%2], name)
	}
	for _, schemas := range half {
		work.Go(func() { migrate(url, schemas...) })
	}
	rows := "('bare', 'bare', NULL)"
	for _, name := range names {
		rows += fmt.Sprintf(", ('%s', '%[1]s', NULL)", name)
	}
	for i := range databases {
		name := fmt.Sprintf("d%02d", i)
		execute(t, server.URL("postgres"), `CREATE DATABASE `+name+` TEMPLATE stream`)
		testdb.Adopt(t, server.URL(name), "public")
		names = append(names, name)
		rows += fmt.Sprintf(", ('%s', NULL, '%[1]s')", name)
	}
	work.Wait()
	execute(t, url, `CREATE TABLE tenants (name text, schema text, database text); INSERT INTO tenants VALUES `+rows)
	return url, names
}

// TestManyOutboxes: 60 outboxes share a destination, which one of them keeps busy with a backlog for as long as
// the others need; then a database refuses connections, and comes back.
func TestManyOutboxes(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	server := testenv.OwnPostgres(t, map[string]string{"max_connections": "600"})
	url, names := manyOutboxes(t, server, manySchemas, manyDatabases)
	hot := names[0]
	hook := startDoor(t, hot)
	port, err := freeport.Pick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &tenants{url: url, address: fmt.Sprintf("127.0.0.1:%d", port)}
	s.reloadable = startReloadable(t, nil, fmt.Sprintf(`version: 1
database: {url: '%s'}
admin: {listen: '%s'}
relay: {connections: 1}
destinations:
  hook: {type: webhook, url: '%s', concurrency: 4, timeout: 10m, request_timeout: 9m, response_timeout: 9m}
routes: [{match: '*', to: hook}]
outboxes: {query: 'SELECT name, schema, database FROM tenants', every: 1s}
`, url, s.address, hook.URL))
	write := func(name string, n int) {
		t.Helper()
		in, table := url, name+".outbox_events"
		if name[0] == 'd' {
			in, table = server.URL(name), "outbox_events"
		}
		execute(t, in, fmt.Sprintf(`INSERT INTO %s (event_type, payload) SELECT 'order.placed', '{}' FROM generate_series(1, %d)`, table, n))
	}
	write(hot, hotEvents)
	for _, name := range names[1:] {
		write(name, 1)
	}
	for _, name := range names[1:] {
		hook.await(t, name, 1)
	}
	s.up(t, names...)
	close(hook.opened)
	hook.await(t, hot, hotEvents)
	s.get(t, "/metrics", has(`notifyd_outbox_up{outbox="bare"} 0`))

	loseDatabase(t, server, s, hook, names, write)

	// At rest an outbox has few connections: those that renew leases, and read. One listens for all of a database.
	until(t, server.URL("postgres"), `SELECT count(*) <= $1 FROM pg_stat_activity WHERE application_name LIKE 'notifyd/%'`, restConns*len(names)+manyDatabases+spare)
	until(t, server.URL("postgres"), `SELECT count(*) = $1 FROM pg_stat_activity WHERE application_name = 'notifyd/listen'`, manyDatabases+1)
	execute(t, url, `DELETE FROM tenants WHERE name <> 's07'`)
	s.get(t, "/metrics", func(_ int, body string) bool {
		return has(`outbox="s07"`)(0, body) && !has(`outbox="s08"`)(0, body) && !has(`outbox="d00"`)(0, body)
	})
}

// loseDatabase has a database refuse connections for a while, which concerns its own outbox only.
func loseDatabase(t *testing.T, server *pgserver.Server, s *tenants, hook *door, names []string, write func(name string, n int)) {
	t.Helper()
	hot, gone := names[0], names[len(names)-1]
	execute(t, server.URL("postgres"), `ALTER DATABASE `+gone+` ALLOW_CONNECTIONS false`)
	execute(t, server.URL("postgres"), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+gone+`'`)
	s.get(t, "/readyz?verbose", has("[!] outbox: "+gone+": the database ", "[+] started: ok"))
	for _, name := range []string{hot, names[1], names[manySchemas]} {
		write(name, 1)
	}
	hook.await(t, hot, hotEvents+1)
	hook.await(t, names[1], 2)
	hook.await(t, names[manySchemas], 2)
	execute(t, server.URL("postgres"), `ALTER DATABASE `+gone+` ALLOW_CONNECTIONS true`)
	write(gone, 1)
	hook.await(t, gone, 2)
	s.up(t, gone)
}

const (
	// restConns are the connections of a stream's relay at rest, without the shared one: one of those that read, or on a
	// busy machine, where its polls meet, as many as there can be.
	restConns = 3
	// spare is how many more there may be for a moment, of all relays together.
	spare = 15
)
