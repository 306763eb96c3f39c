package main

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// TestOutboxesShareRefusals: a server that refuses the password of eight outboxes sees one login of them all, and not one of each
// until it locks the account.
func TestOutboxesShareRefusals(t *testing.T) {
	t.Parallel()
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	var logins atomic.Int64
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go refuse(conn, &logins)
		}
	}()
	const outboxes = 8
	var list strings.Builder
	for i := range outboxes {
		fmt.Fprintf(&list, "    - {name: o%d, schema: s%d}\n", i, i)
	}
	r := startReloadable(t, nil, `version: 1
database: {url: 'postgres://u:wrong@`+server.Addr().String()+`/d?sslmode=disable'}
log: {format: json}
destinations: {audit: {type: log}}
routes: [{match: '*', to: audit}]
outboxes:
  list:
`+list.String())
	for i := range outboxes {
		r.stderr.await(t, fmt.Sprintf(`"outbox":"o%d"`, i))
	}
	r.stderr.awaitN(t, "password authentication failed", outboxes)
	if n := logins.Load(); n != 1 {
		t.Errorf("%d logins", n)
	}
	r.end(t)
}

// refuse answers a login as PostgreSQL answers a wrong password.
func refuse(conn net.Conn, logins *atomic.Int64) {
	defer conn.Close() //nolint:errcheck // it is over
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	logins.Add(1)
	backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "28P01", Message: `password authentication failed for user "u"`})
	_ = backend.Flush()
}
