package modelock_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/modelock"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestHold: a session that wants the table's mode holds it; another one holds nothing.
func TestHold(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, relay := testdb.Connect(t, url), testdb.Connect(t, url)
	hold := func(want outboxsql.Mode) error { return modelock.Hold(t.Context(), relay, "a \"b", want) }
	held := func() int {
		return testdb.One[int](t, conn, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	}
	if err := hold(outboxsql.ModeQueue); !errors.Is(err, outboxsql.ErrNotMigrated) {
		t.Errorf("without tables: %v", err)
	}
	if _, err := outboxsql.Migrate(t.Context(), conn, "a \"b", outboxsql.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := hold(outboxsql.ModeStream); !errors.Is(err, outboxsql.ErrMode) || !strings.Contains(err.Error(), "is a queue") {
		t.Errorf("a stream's relay: %v", err)
	}
	if n := held(); n != 0 {
		t.Errorf("%d locks are held after a refusal", n)
	}
	const guard = `1853122168::bigint << 32 | '"a ""b".outbox_mode'::regclass::oid::bigint`
	testdb.Exec(t, conn, `SELECT pg_advisory_lock(`+guard+`)`)
	pid := strconv.Itoa(testdb.One[int](t, conn, `SELECT pg_backend_pid()`))
	if err := hold(outboxsql.ModeQueue); !errors.Is(err, outboxsql.ErrModeChanging) || !strings.Contains(err.Error(), "pid "+pid+",") {
		t.Errorf("beside a session with the lock, pid %s: %v", pid, err)
	}
	testdb.Exec(t, conn, `UPDATE "a ""b".outbox_mode SET mode = 'stream'; SELECT pg_advisory_unlock(`+guard+`)`)
	if err := hold(outboxsql.ModeQueue); !errors.Is(err, outboxsql.ErrMode) {
		t.Errorf("after it: %v", err)
	}
	if err := hold(outboxsql.ModeStream); err != nil {
		t.Error(err)
	}
	if n := held(); n != 1 {
		t.Errorf("%d locks are held, want 1", n)
	}
	if testdb.One[bool](t, conn, `SELECT pg_try_advisory_lock(`+guard+`)`) {
		t.Error("the mode can be changed below the relay")
	}
}
