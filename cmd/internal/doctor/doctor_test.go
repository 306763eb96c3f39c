package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// patience bounds each wait for an expected change.
const patience = 60 * time.Second

// calm are limits that a busy machine does not reach.
func calm() Limits {
	l := DefaultLimits()
	l.RoundTrip, l.Canary, l.Skew = time.Hour, patience, time.Hour
	return l
}

// connectTo connects as a command does.
func connectTo(to string) Connect {
	return func(ctx context.Context) (*pgx.Conn, error) {
		cfg, err := pgx.ParseConfig(to)
		if err != nil {
			return nil, err
		}
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
		return pgx.ConnectConfig(ctx, cfg)
	}
}

// examine runs all checks on the patient's database.
func (p *patient) examine(change func(*Options)) Report {
	p.Helper()
	o := Options{Connect: connectTo(p.URL), Schema: "public", Limits: calm()}
	if change != nil {
		change(&o)
	}
	return Run(p.Context(), o)
}

// of returns the findings of one check.
func (r Report) of(check string) (all []Finding) {
	for _, f := range r.Findings {
		if f.Check == check {
			all = append(all, f)
		}
	}
	return all
}

// relay holds the lock by which a relay shows that it lives.
func (p *patient) relay() {
	p.Helper()
	cfg, err := pgx.ParseConfig(p.URL)
	if err != nil {
		p.Fatal(err)
	}
	k := store.NewSession(&store.Connector{Config: cfg, Schema: "public"}, store.SessionOptions{Owner: store.NewOwner()})
	p.Cleanup(func() { k.Close(context.WithoutCancel(p.Context())) })
	if err := k.Hold(p.Context()); err != nil {
		p.Fatal(err)
	}
}

// illness is a problem that a check finds.
type illness struct {
	// cause produces the illness, and may change the options of the examination.
	cause    func(p *patient, o *Options)
	check    string
	severity Severity
	text     string // a part of the finding
	cure     string // a part of the cure
}

// sql is a cause that consists of statements.
func sql(statements string) func(*patient, *Options) {
	return func(p *patient, _ *Options) {
		p.Helper()
		for statement := range strings.SplitSeq(statements, ";") {
			p.Exec(statement)
		}
	}
}

func illnesses() map[string]illness {
	return map[string]illness{
		"column missing":          {sql(`ALTER TABLE outbox_events DROP COLUMN headers`), "schema", Error, "The column outbox_events.headers is missing.", `ALTER TABLE "public"."outbox_events" ADD COLUMN headers jsonb`},
		"column changed":          {sql(`ALTER TABLE outbox_events ALTER payload TYPE jsonb`), "schema", Error, `outbox_events.payload is "jsonb" and should be "json"`, "ALTER COLUMN payload"},
		"default lost":            {sql(`ALTER TABLE outbox_events ALTER state DROP DEFAULT`), "schema", Error, "outbox_events.state", "DEFAULT 'fresh'"},
		"column of another":       {sql(`ALTER TABLE outbox_events ADD tenant text`), "schema", Note, "column outbox_events.tenant does not belong to notifyd", "DROP COLUMN tenant"},
		"column that must be":     {sql(`ALTER TABLE outbox_events ADD tenant text NOT NULL`), "schema", Error, "needs a value", "DROP NOT NULL"},
		"index missing":           {sql(`DROP INDEX outbox_events_fresh`), "schema", Error, "The index outbox_events_fresh is missing.", "notifyd migrate print"},
		"index changed":           {sql(`DROP INDEX outbox_events_fresh; CREATE INDEX outbox_events_fresh ON outbox_events (id)`), "schema", Error, "The index outbox_events_fresh is", `DROP INDEX "public"."outbox_events_fresh"`},
		"index of another":        {sql(`CREATE INDEX mine ON outbox_events (aggregate_id)`), "schema", Note, "index mine does not belong to notifyd", `DROP INDEX CONCURRENTLY "public"."mine"`},
		"change broken off":       {sql(`UPDATE outbox_mode SET mode = 'stream', becoming = 'queue'`), "schema", Error, "to a queue was interrupted", "notifyd migrate --mode queue"},
		"constraint missing":      {sql(`ALTER TABLE outbox_deliveries DROP CONSTRAINT outbox_deliveries_state_known`), "schema", Error, "constraint outbox_deliveries_state_known is missing", "ADD CONSTRAINT outbox_deliveries_state_known CHECK"},
		"constraint of another":   {sql(`ALTER TABLE outbox_events ADD CONSTRAINT small CHECK (id < 100)`), "schema", Warning, "constraint small", "DROP CONSTRAINT small"},
		"primary key missing":     {sql(`ALTER TABLE outbox_deliveries DROP CONSTRAINT outbox_deliveries_pkey`), "schema", Error, "outbox_deliveries_pkey", "PRIMARY KEY (event_id, destination)"},
		"function changed":        {sql(`ALTER FUNCTION outbox_notify_auto() SECURITY DEFINER`), "schema", Error, "function outbox_notify_auto", "notifyd migrate"},
		"unlogged":                {sql(`ALTER TABLE outbox_deliveries SET UNLOGGED`), "schema", Error, "unlogged", "SET LOGGED"},
		"table missing":           {sql(`DROP TABLE outbox_deliveries`), "schema", Error, "The table outbox_deliveries is missing.", "notifyd migrate print"},
		"not migrated":            {func(_ *patient, o *Options) { o.Schema = "nowhere" }, "schema", Error, "has no tables of notifyd", "notifyd migrate"},
		"too new":                 {sql(`INSERT INTO outbox_migrations VALUES (999, 'from the future')`), "schema", Error, "is at version 999", "upgrade notifyd"},
		"trigger missing":         {sql(`DROP TRIGGER outbox_events_notify ON outbox_events`), "trigger", Warning, "There is no trigger", "notifyd migrate --notify auto"},
		"trigger disabled":        {sql(`ALTER TABLE outbox_events DISABLE TRIGGER outbox_events_notify`), "trigger", Warning, "is disabled", `ALTER TABLE "public"."outbox_events" ENABLE TRIGGER outbox_events_notify`},
		"trigger for replicas":    {sql(`ALTER TABLE outbox_events ENABLE REPLICA TRIGGER outbox_events_notify`), "trigger", Warning, "replicas only", "ENABLE TRIGGER"},
		"trigger of another kind": {sql(`DROP TRIGGER outbox_events_notify ON outbox_events; CREATE TRIGGER outbox_events_notify AFTER UPDATE ON outbox_events REFERENCING NEW TABLE AS outbox_inserted FOR EACH STATEMENT EXECUTE FUNCTION outbox_notify_auto()`), "trigger", Error, "not the one that migrate creates", "DROP TRIGGER"},
		"trigger on deliveries":   {sql(`CREATE TRIGGER mine BEFORE UPDATE ON outbox_deliveries FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()`), "other triggers", Note, "raises an error while the relay records", `DROP TRIGGER "mine" ON "public"."outbox_deliveries"`},
		"rule":                    {sql(`CREATE RULE mine AS ON DELETE TO outbox_deliveries DO INSTEAD NOTHING`), "rules", Warning, "rule mine", `DROP RULE "mine" ON "public"."outbox_deliveries"`},
		"foreign key":             {sql(`CREATE TABLE orders (event bigint REFERENCES outbox_events)`), "foreign keys", Warning, "orders_event_fkey of orders", `DROP CONSTRAINT "orders_event_fkey"`},
		"foreign key, cascading":  {sql(`CREATE TABLE orders (event bigint REFERENCES outbox_events ON DELETE CASCADE)`), "foreign keys", Note, "costs a search", `DROP CONSTRAINT "orders_event_fkey"`},
		"another trigger":         {sql(`CREATE TRIGGER mine BEFORE INSERT ON outbox_events FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()`), "other triggers", Note, "trigger mine", `DROP TRIGGER "mine"`},
	}
}

// partitionTroubles are illnesses of partitions.
func partitionTroubles() map[string]illness {
	return map[string]illness{
		"daily and plain": {func(_ *patient, o *Options) {
			daily := true
			o.Daily = &daily
		}, "partitions", Warning, "is a plain table: events are deleted one by one", "notifyd migrate --partitions daily"},
		"partitioned and none": {func(p *patient, o *Options) {
			p.partition()
			o.Daily = new(bool)
		}, "partitions", Warning, "no relay creates or drops partitions", "partitions: daily"},
		"partitioning begun": {
			sql(`ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_bound CHECK (id < 4294967296) NOT VALID`),
			"partitions", Warning, "is half-way to being partitioned", "notifyd migrate --partitions daily",
		},
		"partitions of others": {func(p *patient, _ *Options) {
			p.partition()
			p.Exec(`DROP FUNCTION outbox_keys_purge`)
		}, "partitions", Error, "may not call outbox_keys_purge", "--print-grants"},
		"no partition for tomorrow": {func(p *patient, _ *Options) {
			if err := outboxsql.Partition(p.Context(), p.Conn, "public", outboxsql.PartitionOptions{Now: time.Now().AddDate(0, 0, -9)}); err != nil {
				p.Fatal(err)
			}
		}, "partitions", Warning, "no partition for tomorrow", "notifyd run"},
	}
}

// troubles are illnesses outside the tables.
func troubles() map[string]illness {
	return map[string]illness{
		"replication role": {func(p *patient, _ *Options) {
			p.Exec(`ALTER DATABASE "` + p.Conn.Config().Database + `" SET session_replication_role = replica`)
		}, "replication role", Warning, "no trigger fires there", "RESET session_replication_role"},
		"replication role of the connection": {func(p *patient, o *Options) {
			o.Connect = connectTo(p.with("options", "-c session_replication_role=replica"))
		}, "replication role", Warning, "no trigger fires", "connection string"},
		"frozen relay": {func(p *patient, _ *Options) {
			p.Exec(`SELECT pg_advisory_lock(1853122162::bigint << 32 | 'outbox_events'::regclass::oid::bigint)`)
			p.Exec(`INSERT INTO outbox_events (event_type, payload, created_at) VALUES ('a', '1', now() - interval '1 h')`)
		}, "suppression", Error, "is frozen", "pg_terminate_backend"},
		"sequence that is behind": {func(p *patient, _ *Options) {
			p.Exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 5)`)
			p.Exec(`SELECT setval('outbox_events_id_seq', 2)`)
		}, "ids", Error, "is at 2, and the table has ids up to 5: inserts fail with a duplicate key (23505) from the id 3 on", "SELECT setval('outbox_events_id_seq'"},
		"foreign lock": {func(p *patient, _ *Options) {
			p.Exec(`SELECT pg_advisory_lock(1853122168::bigint << 32 | 'outbox_mode'::regclass::oid::bigint)`)
		}, "locks", Error, "no relay can start", "REVOKE CONNECT"},
		"foreign lock of listening relays": {func(p *patient, _ *Options) {
			p.Exec(`SELECT pg_advisory_lock(1853122163, hashtext('outbox_events'))`)
		}, "locks", Error, "relays cannot listen", "REVOKE CONNECT"},
		"no relay delivers": {sql(`INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`), "relays", Error, "No relay uses", "notifyd run"},
		"no relay, nothing": {sql(`SELECT 1`), "relays", Note, "nothing waits", "notifyd run"},
		"read only":         {sql(`SELECT 1`), "settings", Error, "cannot write events", "reset default_transaction_read_only"},
		"autovacuum off for a table": {
			sql(`ALTER TABLE outbox_events SET (autovacuum_enabled = off)`), "autovacuum", Warning, "Autovacuum is off for outbox_events",
			`ALTER TABLE "public"."outbox_events" RESET (autovacuum_enabled)`,
		},
		"autovacuum as the server has it": {
			sql(`ALTER TABLE outbox_deliveries RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay)`),
			"autovacuum", Note, "outbox_deliveries has the server's settings", "notifyd migrate",
		},
		"clock": {func(_ *patient, o *Options) {
			o.Now = func() time.Time { return time.Now().Add(-3 * time.Hour) }
		}, "clock", Warning, "behind that of the database", "NTP"},
		"clock set back": {
			sql(`INSERT INTO outbox_events (event_type, payload, created_at) VALUES ('a', '1', clock_timestamp() + interval '3 hours')`),
			"clock", Warning, "was set back", "NTP",
		},
		"another collation below the indexes": {
			sql(`UPDATE pg_database SET datcollversion = '1.0' WHERE datname = current_database()`),
			"collation", Warning, "was version 1.0", "REINDEX DATABASE",
		},
		"slow notification": {func(_ *patient, o *Options) { o.Limits.RoundTrip = 1 }, "notify", Warning, "takes", "load"},
		"listens elsewhere": {func(p *patient, o *Options) {
			o.Listen, o.Limits.Canary = connectTo(testenv.Postgres(p).URL("")), time.Second
		}, "notify", Error, "no notification arrives", "database.listen_url"},
		"cannot listen": {func(_ *patient, o *Options) { o.Listen = connectTo("postgres://127.0.0.1:1/x") }, "notify", Error, "cannot be opened", "listen_url"},
		"transaction pooler": {func(p *patient, o *Options) {
			o.Connect, o.Limits.Canary = connectTo(p.through(startPooler(p, p.URL))), time.Second
			o.Listen = connectTo(p.URL)
		}, "pooler", Error, "transaction pooler", "pool_mode = session"},
		"transaction pooler of a stream": {func(p *patient, o *Options) {
			if err := outboxsql.SetMode(p.Context(), p.Conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{}); err != nil {
				p.Fatal(err)
			}
			o.Connect, o.Listen = connectTo(p.through(startPooler(p, p.URL))), connectTo(p.URL)
		}, "pooler", Note, "but for LISTEN", "database.listen_url"},
		"listens through a transaction pooler": {func(p *patient, o *Options) {
			o.Listen, o.Limits.Canary = connectTo(p.through(startPooler(p, p.URL))), time.Second
		}, "notify", Error, "no notification arrives", "listen_url"},
		"row level security": {func(p *patient, _ *Options) {
			p.Exec(`ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY`)
		}, "schema", Error, "row level security", "DISABLE ROW LEVEL SECURITY"},
		"open transaction": {func(p *patient, o *Options) {
			other := testdb.Connect(p, p.with("application_name", "report"))
			if _, err := other.Exec(p.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 'a secret', count(*) FROM outbox_events`); err != nil {
				p.Fatal(err)
			}
			o.Limits.Transaction = time.Microsecond
		}, "transactions", Warning, `application "report", idle in transaction, query since`, "pg_terminate_backend"},
		"dead rows": {func(p *patient, o *Options) {
			p.Exec(`ALTER TABLE outbox_events SET (autovacuum_enabled = off)`)
			p.Exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 300)`)
			p.Exec(`DELETE FROM outbox_events`)
			p.until(`SELECT n_dead_tup >= 300 FROM pg_stat_user_tables WHERE relname = 'outbox_events'`)
			o.Limits.DeadRows = 299
		}, "dead rows", Warning, "outbox_events has 300 dead rows and 0 live ones", "VACUUM"},
		"missing events": {func(p *patient, _ *Options) {
			p.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (98, 'mail', 'a', 'parked'), (99, 'mail', 'a', 'dead')`)
		}, "orphans", Warning, "missing from outbox_events, among the first 100000: 2, the first one of event 98", "notifyd dlq discard --missing"},
		"missing deliveries": {func(p *patient, _ *Options) {
			p.Exec(`INSERT INTO outbox_events (event_type, payload, state) VALUES ('a', '1', 'deferred'), ('a', '1', 'deferred')`)
		}, "orphans", Error, "wait for stored deliveries and have none: 2, the first one is 1", "SET state = 'fresh' WHERE state = 'deferred' AND NOT EXISTS"},
		"killed by an event": {func(p *patient, _ *Options) {
			p.Exec(`INSERT INTO outbox_calls (event_id, destination, calls) VALUES (97, 'mail', 1), (98, 'mail', 3), (99, 'mail', 2), (96, 'mail', 3)`)
			p.Exec(`INSERT INTO outbox_events (id, event_type, payload) OVERRIDING SYSTEM VALUE VALUES (96, 'a', '1')`)
			p.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (96, 'mail', 'a', 'dead')`)
		}, "calls", Warning, `a process ended: 2, the first one is 98 for "mail", 2 times in turn`, "raise the memory limit"},
		"payload too large": {func(p *patient, o *Options) {
			p.Exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('big', to_json(repeat('x', 5000))), ('big', '1'), ('small', '1')`)
			o.Route = func(string) []string { return []string{"mail", "queue"} }
			o.Destinations = []Destination{{Name: "mail", Type: "email", MaxBytes: 5001}, {Name: "queue", Type: "sqs", MaxBytes: 5002}}
		}, "payloads", Warning, "The event 1 of type big has 5002 bytes and the destination mail accepts 5001", "type big"},
		"bytes too large": {func(p *patient, o *Options) {
			p.Exec(`INSERT INTO outbox_events (event_type, payload_bytes) VALUES ('big', convert_to(repeat('x', 5002), 'UTF8')), ('small', '')`)
			o.Route = func(string) []string { return []string{"mail"} }
			o.Destinations = []Destination{{Name: "mail", Type: "email", MaxBytes: 5001}}
		}, "payloads", Warning, "The event 1 of type big has 5002 bytes and the destination mail accepts 5001", "type big"},
		"destination": {func(_ *patient, o *Options) {
			o.Destinations = []Destination{{Name: "mail", Type: "email", Check: func(context.Context) error { return errors.New("no\nroute") }}}
		}, "destination mail", Error, "cannot be used from here: no route.", "destinations.mail"},
		"no database":   {func(_ *patient, o *Options) { o.Connect = connectTo("postgres://127.0.0.1:1/x") }, "database", Error, "cannot be reached", "start the server, or fix the connection string"},
		"check undone":  {func(p *patient, o *Options) { o.Schema = "public"; p.Exec(`DROP TABLE outbox_migrations`) }, "schema", Error, "has no tables of notifyd", "notifyd migrate"},
		"small timeout": {func(p *patient, o *Options) { o.Connect = connectTo(p.with("options", "-c lock_timeout=50")) }, "settings", Note, "lock_timeout is 50ms", "reset lock_timeout, which comes from the client"},
		"careless":      {func(p *patient, o *Options) { o.Connect = connectTo(p.with("options", "-c synchronous_commit=off")) }, "settings", Note, "synchronous_commit", "reset synchronous_commit"},
		"queue":         {fillQueue, "notification queue", Warning, "does not receive its notifications", "pg_stat_activity"},
		"connections":   {func(_ *patient, o *Options) { o.Connections = 100_000 }, "connections", Warning, "one relay opens 100000", "raise max_connections"},
	}
}

// fillQueue leaves a session that listens inside a transaction.
func fillQueue(p *patient, o *Options) {
	listener := testdb.Connect(p, p.URL)
	for _, statement := range []string{`LISTEN doctor`, `BEGIN`, `SELECT 1`} {
		if _, err := listener.Exec(p.Context(), statement); err != nil {
			p.Fatal(err)
		}
	}
	p.Exec(`SELECT pg_notify('doctor', i || repeat('x', 7000)) FROM generate_series(1, 100) i`)
	o.Limits.QueueUsage = 1e-9
}

// with returns the URL with one more parameter.
func (p *patient) with(name, value string) string {
	p.Helper()
	u, err := url.Parse(p.URL)
	if err != nil {
		p.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // as libpq spells it
	return u.String()
}

// through returns a URL that leads through a pooler.
func (p *patient) through(pool *pooler) string {
	p.Helper()
	return "postgres://x:x@" + pool.listener.Addr().String() + "/x?sslmode=disable"
}

// until waits until a query is true.
func (p *patient) until(query string) {
	p.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		var is bool
		if err := p.Conn.QueryRow(p.Context(), query).Scan(&is); err != nil {
			p.Fatal(err)
		}
		if is {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			p.Fatalf("never true: %s", query)
		}
	}
}

// TestIDBehindThePartitions: the cure for a sequence that is behind leads it into no id of a writer's own behind the last
// partition, from where all later events would go into the default one.
func TestIDBehindThePartitions(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.partition()
	p.Exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 5)`)
	p.Exec(`INSERT INTO outbox_events (id, event_type, payload) VALUES (1::bigint << 50, 'a', '1')`)
	p.Exec(`SELECT setval('outbox_events_id_seq', 2)`)
	all := p.examine(nil).of("ids")
	if len(all) != 1 || !strings.Contains(all[0].Text, "is at 2, and the table has ids up to 5") {
		t.Fatalf("%+v", all)
	}

	p.Exec(all[0].Cure)
	if all = p.examine(nil).of("ids"); len(all) != 1 || all[0].Severity != OK {
		t.Errorf("after %s: %+v", all[0].Cure, all)
	}
	p.Exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`)
	if n := testdb.One[int](t, p.Conn, `SELECT count(*) FROM outbox_events_default`); n != 1 {
		t.Errorf("%d events in the default partition, want 1", n)
	}
}

// TestIllnesses produces each illness in a separate database.
func TestIllnesses(t *testing.T) {
	t.Parallel()
	all := illnesses()
	maps.Copy(all, troubles())
	maps.Copy(all, partitionTroubles())
	maps.Copy(all, deliveryTroubles())
	for name, ill := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			r := p.examine(func(o *Options) {
				ill.cause(p, o)
				if name == "read only" {
					o.Connect = connectTo(p.with("options", "-c default_transaction_read_only=on"))
				}
			})
			var seen []string
			for _, f := range r.of(ill.check) {
				seen = append(seen, fmt.Sprintf("%s: %s [%s]", f.Severity, f.Text, f.Cure))
				if f.Severity == ill.severity && strings.Contains(f.Text, ill.text) && strings.Contains(f.Cure, ill.cure) {
					if strings.Contains(fmt.Sprint(r), "a secret") {
						t.Errorf("the text of a query is shown: %+v", r)
					}
					return
				}
			}
			if len(seen) == 0 {
				seen = append(seen, fmt.Sprintf("%+v", r))
			}
			t.Errorf("want %s: %s [%s]\ngot\n%s", ill.severity, ill.text, ill.cure, strings.Join(seen, "\n"))
		})
	}
}

// TestHealthy: a healthy system gives no finding, also to a role with no more
// privileges than a relay needs. Illnesses that affect all databases of a server
// follow, on the same server.
func TestHealthy(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, map[string]string{"fsync": "on", "max_prepared_transactions": "2", "wal_level": "replica", "max_replication_slots": "2"})
	p := &patient{testdb.At(t, server.URL(""), testdb.Tables{})}
	p.migrate("shop", outboxsql.NotifyAlways)
	p.relay()
	p.Exec(`INSERT INTO outbox_events (event_type, payload, state, processed_at) VALUES ('a', '1', 'done', now())`)
	p.Exec(`CREATE ROLE relay LOGIN PASSWORD 'x'`)
	p.grant("public", outboxsql.Roles{Relay: "relay"})
	p.grant("shop", outboxsql.Roles{Relay: "relay"})
	asRelay, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	asRelay.User = url.UserPassword("relay", "x")
	for _, u := range []string{p.URL, asRelay.String()} {
		for _, schema := range []string{"public", "shop"} {
			r := p.examine(func(o *Options) {
				o.Connect, o.Schema = connectTo(u), schema
				o.Destinations = []Destination{{Name: "mail", Type: "email", Check: func(context.Context) error { return nil }}, {Name: "audit", Type: "log"}}
			})
			if len(r.Findings) != r.Count(OK) || len(r.Findings) != len(checks())+2 {
				t.Errorf("schema %s: %d findings: %+v", schema, len(r.Findings), r.Findings)
			}
			locks := r.of("locks")
			for _, kind := range store.LockKinds() {
				if !strings.Contains(locks[0].Text, string(kind)+" (") || strings.Contains(locks[0].Text, "unknown") {
					t.Errorf("the lock %s is not listed: %+v", kind, locks)
				}
			}
		}
	}
	worse := func(check string, severity Severity, text, cure string, change func(*Options), statements ...string) {
		t.Helper()
		for _, s := range statements {
			p.Exec(s)
		}
		got := p.examine(change).of(check)
		if len(got) != 1 || got[0].Severity != severity || !strings.Contains(got[0].Text, text) || !strings.Contains(got[0].Cure, cure) {
			t.Errorf("%s: %+v", check, got)
		}
	}
	impatient := func(o *Options) { o.Limits.Transaction = time.Microsecond }
	worse("prepared transactions", Warning, `"it's \"forgotten\""`, `ROLLBACK PREPARED 'it''s "forgotten"'`, impatient,
		`ALTER TABLE outbox_events DISABLE TRIGGER outbox_events_notify`, `BEGIN`, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`, `PREPARE TRANSACTION 'it''s "forgotten"'`)
	worse("replication slots", Warning, "replication slot left_behind", "pg_drop_replication_slot('left_behind')", nil,
		`SELECT pg_create_physical_replication_slot('left_behind', true)`)
	limited := func(o *Options) { o.Connect = connectTo(asRelay.String()) }
	worse("rights", Error, "The role relay lacks DELETE, INSERT on \"public\".\"outbox_deliveries\"", `GRANT DELETE, INSERT ON "public"."outbox_deliveries" TO relay`, limited,
		`REVOKE INSERT, DELETE ON outbox_deliveries FROM relay`)
	worse("connections", Warning, "The connection limit of the role relay leaves", "raise the connection limit of the role relay", limited, `ALTER ROLE relay CONNECTION LIMIT 8`)
	worse("rights", Error, "Row level security hides rows", "BYPASSRLS", limited,
		`ROLLBACK PREPARED 'it''s "forgotten"'`, `GRANT INSERT, DELETE ON outbox_deliveries TO relay`, `ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY`)
	worse("autovacuum", Error, "autovacuum is off", "ALTER SYSTEM SET autovacuum = on", func(*Options) {
		p.until(`SELECT current_setting('autovacuum') = 'off'`)
	}, `ALTER SYSTEM SET autovacuum = off`, `SELECT pg_reload_conf()`)
	worse("server", Warning, "fsync is off", "ALTER SYSTEM SET fsync = on", func(*Options) {
		p.until(`SELECT current_setting('fsync') = 'off'`)
	}, `ALTER SYSTEM SET fsync = off`, `SELECT pg_reload_conf()`)
}

// TestShorten: no quoted text of a query is shown.
func TestShorten(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"SELECT 1":                     "SELECT 1",
		"SELECT 'a', 'it''s', b":       "SELECT '...', '...', b",
		"SELECT 'cut":                  "SELECT '...'",
		"SELECT $$a$$, $x$b$x$\n, c":   "SELECT '...', '...' , c",
		"SELECT $1, 'x'":               "SELECT $1, '...'",
		strings.Repeat("ü", 81):        strings.Repeat("ü", 80) + "...",
		"SELECT $tag$a password is it": "SELECT '...'",
	} {
		if got := shorten(query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}
