package main

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestOutboxesHostsOfRows: who writes the table behind the query gets no password of the daemon, and adds no outbox of
// another server.
func TestOutboxesHostsOfRows(t *testing.T) {
	t.Parallel()
	stranger, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Close() })
	var asked atomic.Int64
	go func() {
		for {
			conn, err := stranger.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			_ = conn.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(stranger.Addr().String())

	there, away := testenv.Database(t), database(t)
	u, err := url.Parse(away)
	if err != nil {
		t.Fatal(err)
	}
	good := "postgres://" + u.User.Username() + "@" + u.Host + u.Path
	execute(t, there, `CREATE TABLE public.tenants (name text, url text)`)
	rows := map[string]string{
		"good": good,
		"host": "postgres://u@localhost:" + port + "/d",
		"two":  "postgres://u@" + u.Host + ",localhost:" + port + "/d",
		"word": "host=localhost port=" + port + " user=u",
		"file": good + "?passfile=/etc/notifyd/other",
		"mode": good + "?sslmode=require&host=localhost&port=" + port,
		"far":  "postgres://u@db.example/d",
	}
	for name, text := range rows {
		execute(t, there, fmt.Sprintf(`INSERT INTO public.tenants VALUES ('%s', '%s')`, name, text))
	}

	d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(`version: 1
database: {url: '%s', password_command: [echo, token-of-the-daemon]}
admin: {listen: '127.0.0.1:0'}
log: {format: json}
destinations: {audit: {type: log}}
routes: [{match: '*', to: audit}]
outboxes: {query: 'SELECT name, url FROM public.tenants', every: 1s, hosts: [db.example]}
`, there)))
	d.stderr.await(t, `"msg":"admin server listening"`)
	s := &tenants{address: listenOf(d), reloadable: &reloadable{runningDaemon: d}}
	s.up(t, "good")
	const unknown = ` of its url is in no connection string of the file: add it to outboxes.hosts`
	s.get(t, "/readyz?verbose", has(
		`outbox "host": the host "localhost"`+unknown, `outbox "two": the host "localhost"`+unknown, `outbox "mode": its url has the parameter "`,
		`outbox "word": its url has to be like postgres://user@host:5432/database`, `outbox "file": its url has the parameter "passfile"`,
		`outbox "far": its url connects to "db.example" without TLS: add ?sslmode=verify-full`))
	if n := asked.Load(); n > 0 {
		t.Errorf("the server of a row was asked %d times", n)
	}
	d.end(t)
	if strings.Contains(d.stderr.text(), "token-of-the-daemon") {
		t.Errorf("the token is in the log")
	}
}
