package outboxsql_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestTraceparentCaptured: the setting of the transaction is stored in the row, whatever columns
// the writer names, and invalid values are not.
func TestTraceparentCaptured(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	writer, _ := granted(t, conn, "relay", outboxsql.NotifyAuto)
	// A function of that name in front of the real one must not run.
	testdb.Exec(t, conn, `CREATE SCHEMA front; GRANT USAGE ON SCHEMA front TO PUBLIC;
		CREATE FUNCTION front.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT (1/0)::text'`)
	captured := func(setting, columns, values string) (got *string) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			if setting != "unset" {
				if _, err := tx.Exec(t.Context(), `SELECT set_config('notifyd.traceparent', $1, true)`, setting); err != nil {
					return err
				}
			}
			_, err := tx.Exec(t.Context(), `INSERT INTO relay.outbox_events (event_type, payload`+columns+`) VALUES ('a', '1'`+values+`)`)
			return err
		})
		if err != nil {
			t.Errorf("with %q: %v", setting, err)
		}
		testdb.Exec(t, conn, "RESET ROLE")
		got = testdb.One[*string](t, conn, `SELECT traceparent FROM relay.outbox_events ORDER BY id DESC LIMIT 1`)
		become(t, conn, writer)
		return got
	}
	become(t, conn, writer)
	testdb.Exec(t, conn, `SET search_path = front, relay, pg_catalog`)
	if got := captured("unset", "", ""); got != nil {
		t.Errorf("captured %q of nothing", *got)
	}
	for _, c := range [][2]string{{"", ""}, {", headers", `, '{"tenant": "a"}'`}, {", aggregate_type, aggregate_id", ", 'order', '7'"}} {
		if got := captured(traceparent, c[0], c[1]); got == nil || *got != traceparent {
			t.Errorf("captured %v with columns %q", got, c[0])
		}
	}
	// The setting belonged to the transaction; the empty text is left of it.
	for _, setting := range []string{
		"unset", "", " ", traceparent + "\n", " " + traceparent, traceparent + "-x", strings.ToUpper(traceparent), traceparent[:54],
		strings.Repeat("-", 55), traceparent[:10] + "-" + traceparent[11:], "%" + traceparent[1:], "ü" + traceparent[1:],
		strings.Replace(traceparent, "4bf", "4gf", 1), strings.ReplaceAll(traceparent, "-", "_"), strings.Repeat("0123456789abcdef-", 100_000), "ü'; --",
	} {
		if got := captured(setting, "", ""); got != nil {
			t.Errorf("captured %q of %.80q", *got, setting)
		}
	}
	refused(t, conn, `INSERT INTO relay.outbox_events (event_type, payload, traceparent) VALUES ('a', '1', '`+traceparent+`')`)
}
