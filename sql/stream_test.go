package outboxsql_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestCheckStream: a table that would lose or repeat events is refused, for a change and for a
// relay that starts, with the remedy, and the remedy works.
func TestCheckStream(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		check := func() error { return pgschema.CheckStream(t.Context(), conn, "public") }
		if err := check(); err != nil {
			t.Errorf("an empty table: %v", err)
		}
		testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 100)`)
		if err := check(); err != nil {
			t.Errorf("a table: %v", err)
		}
		cure := regexp.MustCompile(`(?:ALTER SEQUENCE|SELECT setval)[^,;)]+(, \d+\))?|UPDATE \S+ SET id = DEFAULT WHERE id > \d+`)
		for _, c := range []struct{ spoil, want, cure string }{
			{`ALTER SEQUENCE outbox_events_id_seq CACHE 20`, "INCREMENT 1, CACHE 20 and NO CYCLE", ""},
			{`ALTER SEQUENCE outbox_events_id_seq INCREMENT BY 2`, "INCREMENT 2, CACHE 1 and NO CYCLE", ""},
			{`ALTER TABLE outbox_events ALTER COLUMN id SET CACHE 5`, "CACHE 5", ""},
			{`ALTER SEQUENCE outbox_events_id_seq CYCLE`, "CACHE 1 and CYCLE", ""},
			{`INSERT INTO outbox_events (id, event_type, payload) VALUES (9223372036854775807, 'a', '1')`, "will never assign", ""},
			// In a partitioned table it is behind the last partition.
			{`INSERT INTO outbox_events (id, event_type, payload) VALUES (1::bigint << 50, 'a', '1')`, "event 1125899906842624 has an id that the sequence, which is at", ""},
			{`INSERT INTO outbox_events (id, event_type, payload) SELECT outbox_last_id() + 1000, 'a', '1'`, "that the sequence, which is at", ""},
			{`INSERT INTO outbox_events (id, event_type, payload) VALUES (0, 'a', '1')`, "event 0 has an id chosen by its writer", `DELETE FROM outbox_events WHERE id = 0`},
			{
				`INSERT INTO outbox_positions (destination, head) SELECT 'Shop x', outbox_last_id() + 7`,
				`the sequence gives out ids again that were delivered`, "",
			},
		} {
			testdb.Exec(t, conn, c.spoil)
			err := check()
			if !errors.Is(err, outboxsql.ErrStream) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.spoil, err)
				continue
			}
			if err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{}); !errors.Is(err, outboxsql.ErrStream) {
				t.Errorf("%s: changed: %v", c.spoil, err)
			}
			if c.cure == "" {
				c.cure = cure.FindString(err.Error())
			}
			testdb.Exec(t, conn, c.cure)
			if err := check(); err != nil {
				t.Errorf("%s: %s does not help: %v", c.spoil, c.cure, err)
			}
			if n := testdb.One[int](t, conn, `SELECT count(*) FROM outbox_events WHERE tableoid = to_regclass('outbox_events_default')`); n != 0 {
				t.Errorf("%s: %s leaves %d events in the default partition", c.spoil, c.cure, n)
			}
		}
		setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
		testdb.Exec(t, conn, `DELETE FROM outbox_positions; UPDATE outbox_mode SET origin_head = outbox_last_id()`)
		testdb.Exec(t, conn, `TRUNCATE outbox_events RESTART IDENTITY`)
		if err := check(); !errors.Is(err, outboxsql.ErrStream) || !strings.Contains(err.Error(), "the beginning of the stream is at") {
			t.Errorf("a sequence that begins again: %v", err)
		}
	})
}

// TestCheckStreamWithoutSequence: ids of the application's own.
func TestCheckStreamWithoutSequence(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	testdb.Exec(t, conn, `CREATE OR REPLACE VIEW outbox_last_id AS SELECT NULL::bigint AS id; ALTER TABLE outbox_events ALTER COLUMN id DROP IDENTITY`)
	err := pgschema.CheckStream(t.Context(), conn, "public")
	if !errors.Is(err, outboxsql.ErrStream) || !strings.Contains(err.Error(), "no sequence of its own") {
		t.Errorf("without a sequence: %v", err)
	}
	testdb.Exec(t, conn, `ALTER TABLE outbox_events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY`)
	migrate(t, conn, "public", outboxsql.NotifyAuto) // the view of the sequence
	if err := pgschema.CheckStream(t.Context(), conn, "public"); err != nil {
		t.Errorf("with ids that writers cannot choose: %v", err)
	}
}

// TestCheckStreamAsRelay: a relay may run the check, with its grants.
func TestCheckStreamAsRelay(t *testing.T) {
	t.Parallel()
	for _, days := range []bool{false, true} {
		t.Run(fmt.Sprint("partitioned ", days), func(t *testing.T) {
			t.Parallel()
			conn := testdb.Connect(t, testenv.Database(t))
			_, relay := granted(t, conn, `Odd "schema"`, outboxsql.NotifyAuto)
			testdb.Exec(t, conn, `INSERT INTO "Odd ""schema""".outbox_events (event_type, payload) VALUES ('a', '1')`)
			if days {
				partition(t, conn, `Odd "schema"`)
			}
			become(t, conn, relay)
			if err := pgschema.CheckStream(t.Context(), conn, `Odd "schema"`); err != nil {
				t.Error(err)
			}
			testdb.Exec(t, conn, `INSERT INTO "Odd ""schema""".outbox_positions (destination, head) VALUES ('x', 1::bigint << 40)`)
			if err := pgschema.CheckStream(t.Context(), conn, `Odd "schema"`); !errors.Is(err, outboxsql.ErrStream) {
				t.Errorf("behind a position: %v", err)
			}
		})
	}
}

// TestCheckStreamSubscribed: a table that gets its events from elsewhere, and one with such a
// partition.
func TestCheckStreamSubscribed(t *testing.T) {
	t.Parallel()
	tables(t, func(t *testing.T, conn *pgx.Conn) {
		t.Helper()
		name := pgx.Identifier{"s" + conn.Config().Database}.Sanitize()
		testdb.Exec(t, conn, `CREATE SUBSCRIPTION `+name+` CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false)`)
		t.Cleanup(func() {
			for _, sql := range []string{`ALTER SUBSCRIPTION ` + name + ` DISABLE`, `ALTER SUBSCRIPTION ` + name + ` SET (slot_name = NONE)`, `DROP SUBSCRIPTION ` + name} {
				if _, err := conn.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
					t.Error(err)
				}
			}
		})
		if err := pgschema.CheckStream(t.Context(), conn, "public"); err != nil {
			t.Errorf("one of other tables: %v", err)
		}
		// The rows that REFRESH would write if there were a publisher.
		testdb.Exec(t, conn, `INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) SELECT b.oid, coalesce((SELECT max(inhrelid) FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass), 'outbox_events'::regclass), 'r'
			FROM pg_subscription AS b WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		err := pgschema.CheckStream(t.Context(), conn, "public")
		if !errors.Is(err, outboxsql.ErrStream) || !strings.Contains(err.Error(), "the subscription s"+conn.Config().Database) {
			t.Errorf("a subscription: %v", err)
		}
	})
}

// TestCheckStreamStandby: a standby does not know the open transactions.
func TestCheckStreamStandby(t *testing.T) {
	t.Parallel()
	primary := testenv.OwnPostgres(t, nil)
	conn := testdb.Connect(t, primary.URL("postgres"))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	_ = conn.Close(t.Context())
	standby := testdb.Connect(t, testenv.Standby(t, primary, 0).URL("postgres"))
	err := pgschema.CheckStream(t.Context(), standby, "public")
	if !errors.Is(err, outboxsql.ErrStream) || !strings.Contains(err.Error(), "standby") {
		t.Errorf("on a standby: %v", err)
	}
}

// TestQueueToStreamPrepared: a prepared transaction has no process, and the change waits for it,
// too.
func TestQueueToStreamPrepared(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	server := testenv.OwnPostgres(t, map[string]string{"max_prepared_transactions": "5"})
	conn := testdb.Connect(t, server.URL("postgres"))
	migrate(t, conn, "public", outboxsql.NotifyOff)
	testdb.Exec(t, conn, `BEGIN; INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1'); PREPARE TRANSACTION 'p'`)
	testdb.Exec(t, conn, `INSERT INTO outbox_events (event_type, payload, state) VALUES ('a', '1', 'done')`)
	err := outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{LockPatience: time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "pg_prepared_xacts") {
		t.Errorf("beside it: %v", err)
	}
	testdb.Exec(t, conn, `COMMIT PREPARED 'p'`)
	setMode(t, conn, outboxsql.ModeStream, outboxsql.ModeOptions{})
	same(t, "open", testdb.List[int64](t, conn, openIDs), []int64{1})
}
