package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// smallQueue starts a server whose notification queue has 64 pages, and not 8 GB.
func smallQueue(t *testing.T) *pgserver.Server {
	t.Helper()
	return testenv.OwnNewPostgres(t, 17, map[string]string{"max_notify_queue_pages": "64"})
}

// fillQueue fills the notification queue of a server from a database other than the relay's. It returns the session that
// keeps the queue full: it listens inside a transaction.
func fillQueue(t *testing.T, server *pgserver.Server) *pgx.Conn {
	t.Helper()
	var sessions [2]*pgx.Conn
	for i := range sessions {
		conn, err := pgx.Connect(t.Context(), server.URL("template1"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
		sessions[i] = conn
	}
	culprit, filler := sessions[0], sessions[1]
	for _, sql := range []string{`LISTEN elsewhere`, `BEGIN`, `SELECT 1`} {
		if _, err := culprit.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		_, err := filler.Exec(t.Context(), `SELECT pg_notify('elsewhere', $1)`, fmt.Sprint(i, strings.Repeat("x", 7000)))
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && strings.Contains(refused.Message, "NOTIFY queue") {
			return culprit
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the queue is never full")
	return nil
}

// TestNotifyQueueFull: no commit is refused while the notification queue of the server is full, with a relay and without
// one; relays take over, deliver, and listen again once the session has ended that kept it full.
func TestNotifyQueueFull(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		for _, notify := range []outboxsql.NotifyMode{outboxsql.NotifyAuto, outboxsql.NotifyAlways} {
			t.Run(string(mode)+" "+string(notify), func(t *testing.T) {
				t.Parallel()
				server := smallQueue(t)
				e, h := envAt(t, server.URL("")).become(mode), newRecorder(t)
				e.migrate(outboxsql.DefaultSchema, notify)
				cfg := notifyd.Config{PollInterval: never, Canary: 100 * time.Millisecond}
				first := e.relay(handleAll(t, h, delivery.Lane{}), cfg)
				testenv.Await(t, "listening", func() bool { return !first.Stats().Listener.Proven.IsZero() })
				culprit := fillQueue(t, server)
				for range 20 {
					e.insert("order.created", `{}`) // in a separate transaction, which must not be refused
				}
				e.untilDone()
				h.all(e, 20)
				testenv.Await(t, "that the relay knows", func() bool { return errors.Is(first.Stats().Listener.Trouble, pgschema.ErrNotifyQueue) })
				if err := first.end(); err != nil {
					t.Fatal(err)
				}
				e.insert("order.created", `{}`) // nor without a relay
				second := e.relay(handleAll(t, h, delivery.Lane{}), cfg)
				e.untilDone()
				h.all(e, 21)
				if err := culprit.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				testenv.Await(t, "listening again", func() bool { s := second.Stats().Listener; return s.Listening && s.Trouble == nil })
				id := e.insert("order.created", `{}`)
				e.untilState(id, "done")
			})
		}
	}
}
