package copies

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestRewrite: while VACUUM FULL and CLUSTER rewrite the tables below a relay and a writer, no event is lost and none is delivered
// twice.
func TestRewrite(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode outboxsql.Mode) {
		t.Helper()
		d := testdb.New(t, testdb.Tables{Mode: mode})
		got := newReceived()
		stop := start(t, newRelay(t, d.URL, got))
		writer := d.Dial()
		written := make(chan []int64, 1)
		go func() {
			var ids []int64
			for range 200 {
				var id int64
				if err := writer.QueryRow(t.Context(), `INSERT INTO outbox_events (event_type, payload) VALUES ('good', '1') RETURNING id`).Scan(&id); err != nil {
					t.Error(err)
					break
				}
				ids = append(ids, id)
			}
			written <- ids
		}()
		for range 3 {
			for _, table := range []string{"outbox_events", "outbox_deliveries", "outbox_positions", "outbox_mode"} {
				d.Exec(`VACUUM FULL ` + table)
			}
			d.Exec(`CLUSTER outbox_events USING outbox_events_pkey`)
		}
		ids := <-written
		if all := got.await(t, len(ids)); !slices.Equal(all, ids) {
			t.Errorf("received %v, want %v", all, ids)
		}
		await(t, d.Conn, settled)
		stop()
		if again := got.twice(); len(again) > 0 {
			t.Errorf("received twice: %v", again)
		}
	})
}

// TestTemplate: a database made from another one as its template is a copy. Its own events are delivered after adoption, and
// the original is at home all the time.
func TestTemplate(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode outboxsql.Mode) {
		t.Helper()
		url := testdb.URL(t, testdb.Tables{Mode: mode})
		waiting := lived(t, url)
		copied := duplicate(t, url)
		refused(t, copied)
		adopt(t, copied, true)
		continues(t, copied, nil)
		continues(t, url, waiting)
	})
}

// TestSchemaRenamed: a rename of the schema moves the outbox, and makes no copy.
func TestSchemaRenamed(t *testing.T) {
	t.Parallel()
	d := testdb.New(t, testdb.Tables{Schema: "shop"})
	d.Exec(`DROP SCHEMA public CASCADE; ALTER SCHEMA shop RENAME TO public`, pgx.QueryExecModeSimpleProtocol)
	if state, err := outboxsql.ReadState(t.Context(), d.Conn, "public"); err != nil || state.Home.Check("public") != nil {
		t.Errorf("%+v, %v", state.Home, err)
	}
}

// duplicate makes a database with that of a URL as its template. No session may use it.
func duplicate(t *testing.T, url string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	server := testenv.Postgres(t)
	name := cfg.Database + "_copy"
	admin := testdb.Connect(t, server.URL(""))
	testdb.Exec(t, admin, `SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE datname = $1`, cfg.Database)
	testdb.Exec(t, admin, `CREATE DATABASE `+pgx.Identifier{name}.Sanitize()+` TEMPLATE `+pgx.Identifier{cfg.Database}.Sanitize())
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), `DROP DATABASE `+pgx.Identifier{name}.Sanitize()+` WITH (FORCE)`)
		if err != nil {
			t.Error(err)
		}
	})
	return server.URL(name)
}
