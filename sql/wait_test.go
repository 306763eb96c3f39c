package outboxsql_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// changes are the changes of the schema that lock outbox_events against writers.
func changes() map[string]func(ctx context.Context, conn *pgx.Conn, patience time.Duration, waiting func(string)) error {
	return map[string]func(context.Context, *pgx.Conn, time.Duration, func(string)) error{
		"migrate": func(ctx context.Context, conn *pgx.Conn, patience time.Duration, waiting func(string)) error {
			_, err := outboxsql.Migrate(ctx, conn, "public", outboxsql.MigrateOptions{Notify: outboxsql.NotifyAlways, LockPatience: patience, Waiting: waiting})
			return err
		},
		"partition": func(ctx context.Context, conn *pgx.Conn, patience time.Duration, waiting func(string)) error {
			return outboxsql.Partition(ctx, conn, "public", outboxsql.PartitionOptions{LockPatience: patience, Waiting: waiting})
		},
		"mode": func(ctx context.Context, conn *pgx.Conn, patience time.Duration, waiting func(string)) error {
			return outboxsql.SetMode(ctx, conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{LockPatience: patience, Waiting: waiting})
		},
		"serialize": func(ctx context.Context, conn *pgx.Conn, patience time.Duration, waiting func(string)) error {
			return outboxsql.SerializeWriters(ctx, conn, "public", true, outboxsql.SerializeOptions{LockPatience: patience, Waiting: waiting})
		},
	}
}

// openWriter returns a session with an open transaction that has written an event.
func openWriter(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	writer := testdb.Connect(t, url)
	testdb.Exec(t, writer, `BEGIN`)
	writeOne(t, writer)
	return writer
}

// TestWritersPass: while a change of the schema waits for an open transaction, others write. The
// open transaction ends only when they have written, so a writer that waited for it would wait for
// ever.
func TestWritersPass(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, apply := range changes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn, other := testdb.Connect(t, url), testdb.Connect(t, url)
			migrate(t, conn, "public", outboxsql.NotifyAuto)
			holder := openWriter(t, url)
			lines := make(chan string, 100)
			done := make(chan error, 1)
			go func() { done <- apply(t.Context(), conn, time.Hour, func(line string) { lines <- line }) }()
			line := <-lines // it has tried once
			if pid := testdb.One[string](t, holder, `SELECT pg_backend_pid()::text`); !strings.Contains(line, "pid "+pid+",") || !strings.Contains(line, "try 1,") || !strings.Contains(line, "INSERT INTO outbox_events") {
				t.Errorf("waiting for %s it says %q", pid, line)
			}
			for range 3 {
				awaitLock(t, other, conn.PgConn().PID(), `relation = 'outbox_events'::regclass`)
				writeOne(t, other)
			}
			select {
			case err := <-done:
				t.Fatalf("it did not wait for the open transaction: %v", err)
			default:
			}
			testdb.Exec(t, holder, `COMMIT`)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// awaitLock waits until the session of that process waits for a lock, which the condition in SQL describes.
func awaitLock(t *testing.T, conn *pgx.Conn, pid uint32, lock string) {
	t.Helper()
	for !testdb.One[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted AND `+lock+`)`, int64(pid)) {
		if t.Context().Err() != nil {
			t.Fatal("it does not wait")
		}
	}
}

// TestPatienceEnds: the error at the end of a wait names the transaction that has to end, and
// nothing is left behind.
func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	for name, apply := range changes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn := testdb.Connect(t, url)
			migrate(t, conn, "public", outboxsql.NotifyAuto)
			holder := openWriter(t, url)
			err := apply(t.Context(), conn, time.Nanosecond, nil)
			pid := testdb.One[string](t, holder, `SELECT pg_backend_pid()::text`)
			if err == nil || !strings.Contains(err.Error(), "pid "+pid+",") || !strings.Contains(err.Error(), "repeat the command") {
				t.Fatalf("waiting for %s it fails with: %v", pid, err)
			}
			testdb.Exec(t, holder, `COMMIT`)
			if err := apply(t.Context(), conn, time.Hour, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOtherChange: a change waits for another one, says for which session, and not for ever.
func TestOtherChange(t *testing.T) {
	t.Parallel()
	for name, apply := range changes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			conn, holder := testdb.Connect(t, url), testdb.Connect(t, url)
			migrate(t, conn, "public", outboxsql.NotifyAuto)
			const key = `(1853122157::bigint << 32 | hashtext('public')::bigint & 4294967295)`
			testdb.Exec(t, holder, `SELECT pg_advisory_lock(`+key+`)`)
			pid := testdb.One[string](t, holder, `SELECT pg_backend_pid()::text`)
			if err := apply(t.Context(), conn, time.Nanosecond, nil); err == nil || !strings.Contains(err.Error(), "another change of the schema") || !strings.Contains(err.Error(), "pid "+pid+",") {
				t.Errorf("at the end of its patience: %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			lines := make(chan string, 100)
			done := make(chan error, 1)
			go func() { done <- apply(ctx, conn, time.Hour, func(line string) { lines <- line }) }()
			if line := <-lines; !strings.Contains(line, "another change of the schema") || !strings.Contains(line, "pid "+pid+",") {
				t.Errorf("waiting for %s it says %q", pid, line)
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("after the end of the context: %v", err)
			}
		})
	}
}
