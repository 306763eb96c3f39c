package outboxsql_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestPartitionExtendBesideWriters: a relay that returns after days creates the partition of the
// day next to writers, and no write fails because of it: neither before that is committed, nor in a
// transaction that was open all the time.
func TestPartitionExtendBesideWriters(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	later := monday().Add(240 * time.Hour)
	writer, open := testdb.Connect(t, conn.Config().ConnString()), testdb.Connect(t, conn.Config().ConnString())
	testdb.Exec(t, open, "BEGIN")
	writeOne(t, open)
	writeOne(t, writer)

	testdb.Exec(t, conn, "BEGIN")
	made := testdb.List[string](t, conn, `SELECT outbox_partitions_extend($1, 3)`, later)
	writeOne(t, writer)
	testdb.Exec(t, conn, "COMMIT")
	if len(made) != 4 {
		t.Errorf("made %v", made)
	}
	writeOne(t, writer)

	for range 3 {
		for _, c := range []*pgx.Conn{writer, open} {
			if id := writeOne(t, c); in(t, c, id) == "outbox_events_p20310320" {
				t.Errorf("event %d is where a transaction that was open does not find its way", id)
			}
		}
		if made := testdb.List[string](t, conn, `SELECT outbox_partitions_extend($1, 3)`, later); len(made) != 0 {
			t.Errorf("made again: %v", made)
		}
	}
	testdb.Exec(t, open, "COMMIT")
	testdb.Exec(t, open, "BEGIN")
	writeOne(t, open)
	extend(t, conn, later)
	for _, c := range []*pgx.Conn{writer, open} {
		if id := writeOne(t, c); in(t, c, id) != "outbox_events_p20310320" {
			t.Errorf("event %d is in %s", id, in(t, c, id))
		}
	}
}

// TestPartitionKeysWithoutEvent: a key whose event is missing is free, at once and for one
// transaction.
func TestPartitionKeysWithoutEvent(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	const write = `INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ('a', $1, '1')`
	testdb.Exec(t, conn, `INSERT INTO outbox_events (id, event_type, idempotency_key, payload) VALUES (5, 'a', 'other', '1')`)
	testdb.Exec(t, conn, `INSERT INTO outbox_events (id, event_type, idempotency_key, payload) VALUES (5, 'a', 'conflict', '1') ON CONFLICT DO NOTHING`)
	testdb.Exec(t, conn, `INSERT INTO outbox_events (id, event_type, idempotency_key, payload) VALUES (5, 'a', 'purged', '1') ON CONFLICT DO NOTHING`)
	if next := testdb.One[*int64](t, conn, `SELECT outbox_keys_purge(0, 10)`); next != nil {
		t.Errorf("go on from %d", *next)
	}
	if keys := testdb.List[string](t, conn, `SELECT idempotency_key FROM outbox_keys`); !slices.Equal(keys, []string{"other"}) {
		t.Errorf("keys %v", keys)
	}
	testdb.Exec(t, conn, `INSERT INTO outbox_keys VALUES (1, 'a', 'dropped'), (2, 'a', 'raced')`)
	testdb.Exec(t, conn, write, "dropped")
	for _, key := range []string{"dropped", "other"} {
		if _, err := conn.Exec(t.Context(), write, key); sqlState(err) != "23505" {
			t.Errorf("%s once more: %v", key, err)
		}
	}
	for _, both := range []string{
		`INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ('a', 'raced', '1'), ('a', 'raced', '2')`,
		`INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ('a', 'twice', '1'), ('a', 'twice', '2')`,
	} {
		if _, err := conn.Exec(t.Context(), both); sqlState(err) != "23505" {
			t.Errorf("%s: %v", both, err)
		}
	}
	_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"outbox_events"}, []string{"event_type", "idempotency_key", "payload"},
		pgx.CopyFromRows([][]any{{"a", "raced", "1"}, {"a", "raced", "1"}}))
	if sqlState(err) != "23505" {
		t.Errorf("copied: %v", err)
	}

	other := testdb.Connect(t, conn.Config().ConnString())
	testdb.Exec(t, other, "BEGIN")
	testdb.Exec(t, other, write, "raced")
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), write, "raced")
		ended <- err
	}()
	waitFor(t, other, `SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`)
	testdb.Exec(t, other, "COMMIT")
	if err := <-ended; sqlState(err) != "23505" {
		t.Errorf("taken by two: %v", err)
	}
}

// TestPartitionDropSeesThePresent: events committed after a snapshot are not dropped with the
// partition that the snapshot shows.
func TestPartitionDropSeesThePresent(t *testing.T) {
	t.Parallel()
	conn := partitioned(t)
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, state, processed_at) VALUES ('a', '1', 'done', '2001-01-01')`)
	extend(t, conn, monday().Add(24*time.Hour))
	for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
		testdb.Exec(t, conn, "BEGIN ISOLATION LEVEL "+level)
		_, err := conn.Exec(t.Context(), `SELECT outbox_partition_drop('outbox_events_p20310310', now())`)
		if err == nil || !strings.Contains(err.Error(), "sees the past") {
			t.Errorf("%s: %v", level, err)
		}
		testdb.Exec(t, conn, "ROLLBACK")
	}
	if got := drop(t, conn, "p20310310"); got != "dropped" {
		t.Errorf("%s", got)
	}
}

// TestPartitionFunctionsTrustNobody: the functions of the owner run no object of another role that
// may create objects in the schema, however well it fits.
func TestPartitionFunctionsTrustNobody(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	writeOne(t, conn)
	partition(t, conn, "public")
	stranger := role(t, conn)
	testdb.Exec(t, conn, `GRANT CREATE, USAGE ON SCHEMA public TO `+stranger+`; SET ROLE `+stranger)
	trap := func(signature, result string) {
		t.Helper()
		testdb.Exec(t, conn, `CREATE FUNCTION public.`+signature+` RETURNS `+result+` LANGUAGE plpgsql AS $$ BEGIN RAISE 'a stranger runs as %', current_user; END $$`)
	}
	for _, types := range []string{"text, text", "text, name", "text, text, text", "text, name, text", "text, name, name", "text, name, name, text", "text, name, name, text, bigint, bigint"} { //nolint:dupword // types of parameters
		trap("format("+types+")", "text")
	}
	trap("to_char(date, text)", "text")
	trap("setval(text, bigint, boolean)", "bigint")
	trap("substring(name, text)", "text")
	trap("to_date(text, name)", "date")
	for _, types := range []string{"oid, regclass", "name, text", "float8, numeric", "numeric, float8"} {
		trap("trap("+types+")", "boolean")
	}
	testdb.Exec(t, conn, `CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = trap);
		CREATE OPERATOR public.~~ (LEFTARG = name, RIGHTARG = text, FUNCTION = trap);
		CREATE OPERATOR public.* (LEFTARG = float8, RIGHTARG = numeric, FUNCTION = trap);
		CREATE OPERATOR public.+ (LEFTARG = numeric, RIGHTARG = float8, FUNCTION = trap)`)
	testdb.Exec(t, conn, `RESET ROLE`)

	const write = `INSERT INTO outbox_events (event_type, idempotency_key, payload) VALUES ('a', 'k', '1')`
	testdb.Exec(t, conn, write)
	if _, err := conn.Exec(t.Context(), write); sqlState(err) != "23505" {
		t.Errorf("a duplicate: %v", err)
	}
	extend(t, conn, monday().Add(96*time.Hour))
	testdb.Exec(t, conn, `UPDATE outbox_events SET state = 'done', processed_at = '2001-01-01'`)
	other := testdb.Connect(t, conn.Config().ConnString())
	testdb.Exec(t, other, "BEGIN")
	writeOne(t, other)
	if got := drop(t, conn, "before"); !strings.HasPrefix(got, "busy") {
		t.Errorf("beside a writer: %s", got)
	}
	testdb.Exec(t, other, "ROLLBACK")
	if got := drop(t, conn, "before"); got != "dropped" {
		t.Errorf("%s", got)
	}
	testdb.Exec(t, conn, `DELETE FROM outbox_events; SELECT outbox_keys_purge(0, 10); SELECT * FROM outbox_partitions()`)
}
