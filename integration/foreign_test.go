package integration

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestForeignLocks: every role that may connect can take the locks that relays need. A relay
// that meets such a lock names the session in its log, and continues when the session has ended. A role that only reads is no
// relay, whatever application_name it sets.
func TestForeignLocks(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, c := range map[string]struct {
		mode outboxsql.Mode
		lock string
		says string
	}{
		"notify": {outboxsql.ModeQueue, `pg_advisory_lock(1853122162::bigint << 32 | 'outbox_events'::regclass::oid::bigint)`, "suppresses the trigger"},
		"listen": {outboxsql.ModeQueue, `pg_advisory_lock(1853122163, hashtext('outbox_events'))`, "writers see that a relay listens"},
		"mode":   {outboxsql.ModeQueue, `pg_advisory_lock(1853122168::bigint << 32 | 'outbox_mode'::regclass::oid::bigint)`, "keeps relays away"},
		"stream": {outboxsql.ModeStream, `pg_advisory_lock(1853122168::bigint << 32 | 'outbox_mode'::regclass::oid::bigint)`, "keeps relays away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, c.mode), newRecorder(t)
			first := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: 20 * time.Millisecond})
			e.insert("a", "1")
			e.untilDone()
			if err := first.end(); err != nil {
				t.Fatal(err)
			}
			holder := testdb.Connect(t, reader(t, e))
			testdb.Exec(t, holder, `SET application_name = 'notifyd/relay'`)
			testdb.Exec(t, holder, `SELECT `+c.lock)
			r := e.start(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: 20 * time.Millisecond})
			pid := fmt.Sprint("pid ", holder.PgConn().PID(), ",")
			testenv.Await(t, "the report", func() bool {
				text := strings.ReplaceAll(r.log.text(), fmt.Sprint("pid=", holder.PgConn().PID(), " "), pid)
				return strings.Contains(text, c.says) && strings.Contains(text, pid)
			})
			testdb.Exec(t, holder, `SELECT pg_advisory_unlock_all()`)
			e.insert("a", "1")
			e.untilDone()
			if n := strings.Count(r.log.text(), c.says); n != 1 {
				t.Errorf("the session is named %d times", n)
			}
			if strings.Contains(r.log.text(), "database does not answer") {
				t.Error("a lock of another session is called an outage")
			}
		})
	}
}

// reader makes a role that may read the tables, and returns the URL to connect as it.
func reader(t *testing.T, e *env) string {
	t.Helper()
	u, err := url.Parse(e.url)
	if err != nil {
		t.Fatal(err)
	}
	name := "reader_of" + strings.ReplaceAll(u.Path, "/", "_")
	e.exec(`CREATE ROLE ` + name + ` LOGIN PASSWORD 'secret'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO ` + name)
	t.Cleanup(func() {
		if _, err := e.pool.Exec(context.WithoutCancel(e.ctx), `DROP OWNED BY `+name+`; DROP ROLE `+name); err != nil {
			t.Error(err)
		}
	})
	u.User = url.UserPassword(name, "secret")
	return u.String()
}
