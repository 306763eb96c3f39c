package outboxtest_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// database returns a pool on a database with the tables, in the mode.
func database(tb testing.TB, schema string, mode outboxsql.Mode) *pgxpool.Pool {
	tb.Helper()
	pool := testdb.Pool(tb, testenv.Database(tb))
	err := pool.AcquireFunc(tb.Context(), func(c *pgxpool.Conn) error {
		if _, err := outboxsql.Migrate(tb.Context(), c.Conn(), schema, outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto}); err != nil {
			return err
		}
		return outboxsql.SetMode(tb.Context(), c.Conn(), schema, mode, outboxsql.ModeOptions{})
	})
	if err != nil {
		tb.Fatal(err)
	}
	return pool
}

func write(tb testing.TB, tx pgx.Tx, events ...outbox.Event) {
	tb.Helper()
	if err := outbox.Write(tb.Context(), tx, events...); err != nil {
		tb.Fatal(err)
	}
}

// order is the event of an order.
func order(eventType, id string, payload any) outbox.Event {
	return outbox.Event{Type: eventType, AggregateType: "order", AggregateID: id, Payload: payload}
}

// recorder is the T of a test that should fail: it keeps the message of the failure.
type recorder struct {
	testing.TB

	failure string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// fails runs f, which must fail with a message that contains every one of these.
func fails(t *testing.T, f func(tb *recorder), parts ...string) {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	if r.failure == "" {
		t.Errorf("passes, should fail with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(r.failure, part) {
			t.Errorf("failure %q does not contain %q", r.failure, part)
		}
	}
}
