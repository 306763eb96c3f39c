package capture_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/capture"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// base is a database with an outbox in schema public.
type base struct{ *testdb.DB }

func open(tb testing.TB, partitioned bool) *base {
	tb.Helper()
	return &base{testdb.New(tb, testdb.Tables{Partitioned: partitioned})}
}

// prepare plans a capture into schema public.
func (b *base) prepare(request capture.Request) (*capture.Plan, error) {
	b.Helper()
	if request.Outbox == "" {
		request.Outbox = outboxsql.DefaultSchema
	}
	return capture.Prepare(b.Context(), b.Conn, request)
}

// add installs a capture.
func (b *base) add(request capture.Request) *capture.Plan {
	b.Helper()
	plan, err := b.prepare(request)
	if err != nil {
		b.Fatal(err)
	}
	if err := capture.Run(b.Context(), b.Conn, plan.SQL, time.Minute); err != nil {
		b.Fatalf("%v\n%s", err, plan.SQL)
	}
	return plan
}

// remove removes the captures of a table.
func (b *base) remove(table string) *capture.Removal {
	b.Helper()
	removal, err := capture.PrepareRemoval(b.Context(), b.Conn, outboxsql.DefaultSchema, table)
	if err != nil {
		b.Fatal(err)
	}
	if err := capture.Run(b.Context(), b.Conn, removal.SQL, time.Minute); err != nil {
		b.Fatal(err)
	}
	return removal
}

// list returns the captures of schema public.
func (b *base) list() []capture.State {
	b.Helper()
	list, err := capture.List(b.Context(), b.Conn, outboxsql.DefaultSchema)
	if err != nil {
		b.Fatal(err)
	}
	return list
}

// problems returns the problems of the only capture.
func (b *base) problems() []capture.Problem {
	b.Helper()
	list := b.list()
	if len(list) != 1 {
		b.Fatalf("%d captures: %+v", len(list), list)
	}
	return list[0].Problems
}

// event is a row of outbox_events, and its payload.
type event struct {
	Type      string
	Aggregate *string
	ID        *string
	Payload   payload
}

type payload struct {
	Op     string         `json:"op"`
	Schema string         `json:"schema"`
	Table  string         `json:"table"`
	Key    map[string]any `json:"key"`
	Old    map[string]any `json:"old"`
	New    map[string]any `json:"new"`
}

// String is the type, the id and the values: orders.updated 1 {id:1}->{id:1}.
func (e event) String() string {
	id := "-"
	if e.ID != nil {
		id = *e.ID
	}
	return fmt.Sprintf("%s %s %s->%s", e.Type, id, values(e.Payload.Old), values(e.Payload.New))
}

func values(row map[string]any) string {
	if row == nil {
		return "none"
	}
	text, _ := json.Marshal(row) // a map of JSON
	return strings.ReplaceAll(string(text), `"`, "")
}

// take returns the events in the order of their ids, and removes them.
func (b *base) take() []event {
	b.Helper()
	rows, err := b.Conn.Query(b.Context(), `SELECT event_type, aggregate_type, aggregate_id, payload FROM outbox_events ORDER BY id`)
	if err != nil {
		b.Fatal(err)
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	if err != nil {
		b.Fatal(err)
	}
	b.Exec(`DELETE FROM outbox_events`)
	return events
}

// expect fails unless the events are these, in any order.
func (b *base) expect(what string, want ...string) {
	b.Helper()
	var have []string
	for _, e := range b.take() {
		have = append(have, e.String())
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		b.Errorf("%s:\nhave %s\nwant %s", what, strings.Join(have, "\n     "), strings.Join(want, "\n     "))
	}
}

// TestStatements: each kind of statement writes one event for each changed row, with the old and the new values, in
// tables with and without partitions.
func TestStatements(t *testing.T) {
	t.Parallel()
	testdb.Partitions(t, open, func(t *testing.T, b *base) {
		t.Helper()
		b.Exec(`CREATE SCHEMA shop`)
		b.Exec(`CREATE TABLE shop.orders (id bigint PRIMARY KEY, status text, secret text)`)
		b.Exec(`CREATE TABLE shop.items (orders bigint REFERENCES shop.orders ON DELETE CASCADE ON UPDATE CASCADE, n int, PRIMARY KEY (orders, n))`)
		b.add(capture.Request{Table: "shop.orders", Exclude: []string{"secret"}})
		b.add(capture.Request{Table: "shop.items"})
		version := testdb.One[int](t, b.Conn, `SELECT current_setting('server_version_num')::int`)
		for _, c := range []struct {
			statement string
			want      []string
			from      int
		}{
			{statement: `INSERT INTO shop.orders VALUES (1, 'new', 'x'), (2, 'new', 'y')`, want: []string{"orders.inserted 1 none->{id:1,status:new}", "orders.inserted 2 none->{id:2,status:new}"}},
			{statement: `UPDATE shop.orders SET status = 'paid' WHERE id = 1 RETURNING status`, want: []string{"orders.updated 1 {id:1,status:new}->{id:1,status:paid}"}},
			{statement: `UPDATE shop.orders SET secret = 'z'`},
			{statement: `UPDATE shop.orders SET status = status`},
			{statement: `UPDATE shop.orders SET status = 'void' WHERE false`},
			{statement: `UPDATE shop.orders SET id = 3 WHERE id = 2`, want: []string{"orders.deleted 2 {id:2,status:new}->none", "orders.inserted 3 none->{id:3,status:new}"}},
			{
				statement: `INSERT INTO shop.orders VALUES (3, 'kept', ''), (4, 'new', '') ON CONFLICT (id) DO UPDATE SET status = excluded.status`,
				want:      []string{"orders.updated 3 {id:3,status:new}->{id:3,status:kept}", "orders.inserted 4 none->{id:4,status:new}"},
			},
			{statement: `INSERT INTO shop.orders VALUES (4, 'other', '') ON CONFLICT DO NOTHING`},
			{statement: `INSERT INTO shop.items VALUES (3, 1), (3, 2), (4, 1)`, want: []string{"items.inserted [3, 1] none->{n:1,orders:3}", "items.inserted [3, 2] none->{n:2,orders:3}", "items.inserted [4, 1] none->{n:1,orders:4}"}},
			{statement: `UPDATE shop.orders SET id = 5 WHERE id = 4`, want: []string{
				"orders.deleted 4 {id:4,status:new}->none", "orders.inserted 5 none->{id:5,status:new}",
				"items.deleted [4, 1] {n:1,orders:4}->none", "items.inserted [5, 1] none->{n:1,orders:5}",
			}},
			{statement: `DELETE FROM shop.orders WHERE id IN (3, 5)`, want: []string{
				"orders.deleted 3 {id:3,status:kept}->none", "orders.deleted 5 {id:5,status:new}->none",
				"items.deleted [3, 1] {n:1,orders:3}->none", "items.deleted [3, 2] {n:2,orders:3}->none", "items.deleted [5, 1] {n:1,orders:5}->none",
			}},
			{
				statement: `MERGE INTO shop.orders AS o USING (VALUES (1, 'gone'), (7, 'merged')) AS v (id, status) ON o.id = v.id
				WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, status) VALUES (v.id, v.status)`, from: 150000,
				want: []string{"orders.deleted 1 {id:1,status:paid}->none", "orders.inserted 7 none->{id:7,status:merged}"},
			},
			{
				statement: `WITH a AS (INSERT INTO shop.orders VALUES (8, 'a', '')), b AS (INSERT INTO shop.orders VALUES (9, 'b', '')) SELECT`,
				want:      []string{"orders.inserted 8 none->{id:8,status:a}", "orders.inserted 9 none->{id:9,status:b}"},
			},
			{statement: `TRUNCATE shop.orders CASCADE`},
		} {
			if version >= c.from {
				b.Exec(c.statement)
				b.expect(c.statement, c.want...)
			}
		}
		if _, err := b.Conn.CopyFrom(t.Context(), pgx.Identifier{"shop", "orders"}, []string{"id", "status"}, pgx.CopyFromRows([][]any{{int64(1), "copied"}, {int64(2), "copied"}})); err != nil {
			t.Fatal(err)
		}
		events := b.take()
		if len(events) != 2 || events[0].Payload.Schema != "shop" || events[0].Payload.Table != "orders" || events[0].Payload.Op != "insert" ||
			!reflect.DeepEqual(events[0].Payload.Key, map[string]any{"id": 1.0}) || *events[0].Aggregate != "orders" || *events[1].ID != "2" {
			t.Errorf("COPY: %+v", events)
		}
	})
}

// TestTruncate: TRUNCATE writes an event if it is captured.
func TestTruncate(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	b.Exec(`CREATE TABLE orders (id int PRIMARY KEY)`)
	b.add(capture.Request{Table: "orders", Operations: []string{"truncate", "delete"}, Types: []string{"orders.emptied", "orders.gone"}})
	b.Exec(`INSERT INTO orders VALUES (1), (2)`)
	b.Exec(`DELETE FROM orders WHERE id = 1`)
	b.Exec(`TRUNCATE orders`)
	b.expect("truncate", "orders.gone 1 {id:1}->none", "orders.emptied - none->none")
	b.add(capture.Request{Table: "orders"}) // drops the trigger of TRUNCATE
	b.Exec(`TRUNCATE orders`)
	b.expect("without truncate")
	if p := b.problems(); len(p) > 0 {
		t.Errorf("%+v", p)
	}
}

// TestSubset: where insert and delete are not captured, a changed key is not lost: the events have the type of the update.
func TestSubset(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	b.Exec(`CREATE TABLE orders (id int PRIMARY KEY)`)
	b.add(capture.Request{Table: "orders", Operations: []string{"update"}, AggregateType: "order"})
	b.Exec(`INSERT INTO orders VALUES (1)`)
	b.Exec(`UPDATE orders SET id = 2`)
	events := b.take()
	ops := make(map[string]string)
	for _, e := range events {
		ops[e.Payload.Op] = e.Type + " " + *e.Aggregate + " " + *e.ID
	}
	if want := map[string]string{"delete": "orders.updated order 1", "insert": "orders.updated order 2"}; len(events) != 2 || !reflect.DeepEqual(ops, want) {
		t.Errorf("%v, want %v", ops, want)
	}
}

// TestValues: values have one form, whatever the settings of the writer.
func TestValues(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	b.Exec(`CREATE TABLE v (id numeric PRIMARY KEY, at timestamptz, day date, span interval, raw bytea, amount numeric, ratio float8, list int[], doc jsonb, during tstzrange, price money, none text)`)
	b.add(capture.Request{Table: "v"})
	for _, setting := range []string{`TimeZone = 'Asia/Tokyo'`, `DateStyle = 'German'`, `IntervalStyle = 'sql_standard'`, `bytea_output = 'escape'`, `extra_float_digits = -15`, `standard_conforming_strings = off`} {
		b.Exec(`SET ` + setting)
	}
	b.Exec(`INSERT INTO v VALUES (12345678901234567890.10, '2026-11-28 12:00:00+00', '2026-11-28', '1 day 2 hours', decode('ff00', 'hex'), 'NaN', 0.1::float8 + 0.2::float8, '{1,2}', '{"a": [1.50]}', '[2026-11-28 12:00:00+00,)', 1.5, NULL)`)
	for _, name := range []string{"TimeZone", "DateStyle", "IntervalStyle", "bytea_output", "extra_float_digits", "standard_conforming_strings"} {
		b.Exec(`RESET ` + name)
	}
	have := testdb.One[string](t, b.Conn, `SELECT payload ->> 'new' FROM outbox_events`)
	want := `{"at": "2026-11-28T12:00:00+00:00", "id": 12345678901234567890.10, "day": "2026-11-28", "doc": {"a": [1.50]}, "raw": "\\xff00", "list": [1, 2], "none": null, "span": "P1DT2H", "price": "$1.50", "ratio": 0.30000000000000004, "amount": "NaN", "during": "[\"2026-11-28 12:00:00+00\",)"}`
	if have != want {
		t.Errorf("\nhave %s\nwant %s", have, want)
	}
	if id := testdb.One[string](t, b.Conn, `SELECT aggregate_id FROM outbox_events`); id != "12345678901234567890.10" {
		t.Error(id)
	}
}

// TestNames: names of any form are captured: quotes, upper case, reserved words, names of the function's own variables, and
// names as long as PostgreSQL allows.
func TestNames(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	long := strings.Repeat("é", 31) + "x" // 63 bytes
	for _, names := range [][3]string{
		{"public", "order", "select"},
		{"Big Shop", `Or"ders`, `i'd\`},
		{long, long, long},
		{"public", "t", "t"},
		{"public", "omit", "omit"},
		{"public", "r", "r"},
		{"public", "old_rows", "new_rows"},
		{"public", "$notifyd$", "$notifyd$"},
		{"public", "a.b", "o"},
		{"public", "capture", "capture"},
		{"public", "line\nbreak", "id"},
		{"public", "f", "found"},
	} {
		table, column := pgx.Identifier(names[:2]).Sanitize(), pgx.Identifier(names[2:]).Sanitize()
		b.Exec(`CREATE SCHEMA IF NOT EXISTS ` + pgx.Identifier(names[:1]).Sanitize())
		b.Exec(fmt.Sprintf(`CREATE TABLE %s (%s int, "two words" text NOT NULL, PRIMARY KEY (%[2]s, "two words"))`, table, column))
		b.add(capture.Request{Table: table})
		b.Exec(fmt.Sprintf(`INSERT INTO %s VALUES (1, 'a"b')`, table))
		b.Exec(fmt.Sprintf(`UPDATE %s SET %s = 2`, table, column))
		b.Exec(fmt.Sprintf(`DELETE FROM %s`, table))
		events := b.take()
		if len(events) != 4 || *events[0].ID != `[1, "a\"b"]` || events[3].Type != names[1]+".deleted" || events[3].Payload.Old[names[2]] != 2.0 || events[3].Payload.Schema != names[0] {
			t.Errorf("%q: %+v", names, events)
		}
		list := b.list()
		i := slices.IndexFunc(list, func(s capture.State) bool { return s.Table == names[1] && s.Schema == names[0] })
		if i < 0 || len(list[i].Problems) > 0 || !list[i].Enabled || list[i].Relation != list[i].Name() {
			t.Errorf("%q, %d: %+v", names, i, list)
		}
		if removal := b.remove(table); len(removal.Functions) != 1 || len(removal.Relations) != 1 {
			t.Errorf("%q: %+v", names, removal)
		}
		b.Exec(fmt.Sprintf(`INSERT INTO %s VALUES (1, '')`, table))
		b.expect("after the removal")
	}
	if n := testdb.One[int](t, b.Conn, `SELECT count(*)::int FROM pg_proc WHERE proname LIKE 'notifyd\_capture\_%'`); n != 0 {
		t.Errorf("%d functions are left", n)
	}
}

// TestColumnsChange: no change of the columns makes a write fail, in sessions that have used the capture before; the list names
// what is different.
func TestColumnsChange(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	writer := b.Dial()
	b.Exec(`CREATE TABLE orders (gone int, id int PRIMARY KEY, status text, total numeric, secret text)`)
	b.Exec(`ALTER TABLE orders DROP COLUMN gone`)
	b.add(capture.Request{Table: "orders", Columns: []string{"status", "total"}})
	write := func(what string, want ...string) {
		t.Helper()
		b.On(writer, `INSERT INTO orders (id) VALUES (1)`)
		b.On(writer, `UPDATE orders SET status = 'paid'`)
		b.On(writer, `DELETE FROM orders`)
		b.expect(what, want...)
	}
	for range 7 { // more than PostgreSQL plans anew
		write("at first", "orders.inserted 1 none->{id:1,status:null,total:null}", "orders.updated 1 {id:1,status:null,total:null}->{id:1,status:paid,total:null}", "orders.deleted 1 {id:1,status:paid,total:null}->none")
	}
	has := func(level, part, cure string) {
		t.Helper()
		if !slices.ContainsFunc(b.problems(), func(p capture.Problem) bool {
			return p.Level == level && strings.Contains(p.Text, part) && strings.Contains(p.Cure, cure)
		}) {
			t.Errorf("no %s %q with cure %q: %+v", level, part, cure, b.problems())
		}
	}
	b.Exec(`ALTER TABLE orders DROP COLUMN total`)
	write("a column less", "orders.inserted 1 none->{id:1,status:null}", "orders.updated 1 {id:1,status:null}->{id:1,status:paid}", "orders.deleted 1 {id:1,status:paid}->none")
	has(capture.Warning, "gone from the table: total", "notifyd capture add public.orders --key id --exclude secret --install")
	b.Exec(`ALTER TABLE orders ADD COLUMN note text DEFAULT 'n'`)
	write("a column more", "orders.inserted 1 none->{id:1,status:null}", "orders.updated 1 {id:1,status:null}->{id:1,status:paid}", "orders.deleted 1 {id:1,status:paid}->none")
	has(capture.Note, "does not know: note", "--exclude secret,note --install")
	b.Exec(`ALTER TABLE orders ALTER COLUMN status TYPE varchar(10), ALTER COLUMN id TYPE bigint`)
	write("other types", "orders.inserted 1 none->{id:1,status:null}", "orders.updated 1 {id:1,status:null}->{id:1,status:paid}", "orders.deleted 1 {id:1,status:paid}->none")
	b.Exec(`ALTER TABLE orders RENAME COLUMN id TO number`)
	b.On(writer, `INSERT INTO orders (number) VALUES (1), (2)`)
	b.On(writer, `UPDATE orders SET status = 'paid'`)
	b.expect("the key is gone", "orders.inserted - none->{status:null}", "orders.inserted - none->{status:null}", "orders.deleted - {status:null}->none", "orders.deleted - {status:null}->none",
		"orders.inserted - none->{status:paid}", "orders.inserted - none->{status:paid}")
	has(capture.Error, "is gone: id", "with a new --key")
	b.add(capture.Request{Table: "orders"})
	if p := b.problems(); len(p) > 0 {
		t.Errorf("added again: %+v", p)
	}
	b.On(writer, `UPDATE orders SET status = 'sent' WHERE number = 1`)
	b.expect("added again", "orders.updated 1 {note:n,number:1,secret:null,status:paid}->{note:n,number:1,secret:null,status:sent}")
}

// TestRefused: what cannot be captured is refused with the reason, and nothing is changed.
func TestRefused(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	for _, statement := range []string{
		`CREATE TABLE good (id int PRIMARY KEY, a int NOT NULL UNIQUE, b int UNIQUE, c int NOT NULL, d text, virtual int GENERATED ALWAYS AS (c * 2) STORED)`,
		`CREATE UNIQUE INDEX partial ON good (c) WHERE c > 0`, `CREATE VIEW seen AS SELECT * FROM good`, `CREATE MATERIALIZED VIEW kept AS SELECT * FROM good`,
		`CREATE TEMP TABLE brief (id int PRIMARY KEY)`, `CREATE UNLOGGED TABLE quick (id int PRIMARY KEY)`, `CREATE TABLE parent (id int PRIMARY KEY)`, `CREATE TABLE child () INHERITS (parent)`,
		`CREATE FOREIGN DATA WRAPPER far`, `CREATE SERVER far FOREIGN DATA WRAPPER far`, `CREATE TABLE spread (id int) PARTITION BY LIST (id)`,
		`CREATE FOREIGN TABLE spread_far PARTITION OF spread FOR VALUES IN (1) SERVER far`,
		`CREATE TABLE keyless (id int)`, `CREATE TABLE later (id int PRIMARY KEY DEFERRABLE)`,
	} {
		b.Exec(statement)
	}
	for _, c := range []struct {
		request capture.Request
		want    string
	}{
		{capture.Request{Table: "nowhere"}, `table "nowhere" does not exist`},
		{capture.Request{Table: "Good"}, ""}, // folded, as in SQL
		{capture.Request{Table: `"Good"`}, "does not exist"},
		{capture.Request{Table: `a.b.c.d`}, "write it as in SQL"},
		{capture.Request{Table: `"`}, "write it as in SQL"},
		{capture.Request{Table: ""}, "write it as in SQL"},
		{capture.Request{Table: "seen"}, "it is a view"},
		{capture.Request{Table: "kept"}, "it is a materialized view"},
		{capture.Request{Table: "brief"}, "it is temporary"},
		{capture.Request{Table: "quick"}, "SET LOGGED"},
		{capture.Request{Table: "parent"}, "inherits"},
		{capture.Request{Table: "child"}, "inherits"},
		{capture.Request{Table: "spread_far"}, "it is a foreign table"},
		{capture.Request{Table: "spread"}, "a partition is a foreign table"},
		{capture.Request{Table: "outbox_events"}, "belongs to PostgreSQL or to an outbox"},
		{capture.Request{Table: "pg_class"}, "belongs to PostgreSQL or to an outbox"},
		{capture.Request{Table: "keyless"}, "has no primary key"},
		{capture.Request{Table: "later"}, "deferrable"},
		{capture.Request{Table: "good", Key: []string{"a"}}, ""},
		{capture.Request{Table: "good", Key: []string{"c", "a"}}, ""},
		{capture.Request{Table: "good", Key: []string{"b"}}, "b may be NULL"},
		{capture.Request{Table: "good", Key: []string{"c"}}, "no unique index without a condition"},
		{capture.Request{Table: "good", Key: []string{"x"}}, `has no column "x"`},
		{capture.Request{Table: "good", Columns: []string{"a"}, Exclude: []string{"b"}}, "use one of them"},
		{capture.Request{Table: "good", Exclude: []string{"id"}}, "is in the key"},
		{capture.Request{Table: "good", Columns: []string{"a", "a"}}, "named twice"},
		{capture.Request{Table: "good", Operations: []string{"upsert"}}, `operation "upsert" is unknown`},
		{capture.Request{Table: "good", Operations: []string{"insert", "insert"}}, "named twice"},
		{capture.Request{Table: "good", Types: []string{"a", "b"}}, "2 event types for the operations insert, update, delete"},
		{capture.Request{Table: "good", Types: []string{"a", "", "c"}}, "is empty"},
		{capture.Request{Table: "good", Types: []string{"a", "b", strings.Repeat("c", 256)}}, "1 to 255 bytes"},
		{capture.Request{Table: "good", AggregateType: strings.Repeat("c", 1025)}, "1 to 1024 bytes"},
	} {
		_, err := b.prepare(c.request)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !errors.Is(err, capture.ErrInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.request, err, c.want)
		}
	}
	if list := b.list(); len(list) > 0 {
		t.Errorf("%+v", list)
	}
}

// TestPartitionedTable: statements on a partitioned table write events for the rows of all partitions, also for a row that
// moves to another one. Statements on a partition write events if the partition is captured, and never two.
func TestPartitionedTable(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	b.Exec(`CREATE TABLE m (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region)`)
	b.Exec(`CREATE TABLE m_eu PARTITION OF m FOR VALUES IN ('eu')`)
	b.Exec(`CREATE TABLE m_us (v int, region text NOT NULL, id int NOT NULL, PRIMARY KEY (id, region))`)
	b.Exec(`ALTER TABLE m ATTACH PARTITION m_us FOR VALUES IN ('us')`)
	plan := b.add(capture.Request{Table: "m"})
	if len(plan.Warnings) != 1 || !strings.Contains(plan.Warnings[0], "partitioned") {
		t.Errorf("%q", plan.Warnings)
	}
	b.Exec(`INSERT INTO m VALUES (1, 'eu', 1), (2, 'us', 2)`)
	b.expect("insert", `m.inserted [1, "eu"] none->{id:1,region:eu,v:1}`, `m.inserted [2, "us"] none->{id:2,region:us,v:2}`)
	b.Exec(`UPDATE m SET region = 'us', v = 3 WHERE id = 1`)
	b.expect("move", `m.deleted [1, "eu"] {id:1,region:eu,v:1}->none`, `m.inserted [1, "us"] none->{id:1,region:us,v:3}`)
	b.Exec(`UPDATE m_us SET v = 4`)
	b.expect("a partition that is not captured")
	b.add(capture.Request{Table: "m_us", AggregateType: "m", Types: []string{"m.inserted", "m.updated", "m.deleted"}})
	b.Exec(`UPDATE m_us SET v = 5 WHERE id = 2`)
	b.expect("a captured partition", `m.updated [2, "us"] {id:2,region:us,v:4}->{id:2,region:us,v:5}`)
	b.Exec(`UPDATE m SET v = 6 WHERE id = 2`)
	b.expect("both are captured", `m.updated [2, "us"] {id:2,region:us,v:5}->{id:2,region:us,v:6}`)
}

// TestVirtualColumn: a generated column that is not stored is left out, and refused where it is named: triggers see NULL.
func TestVirtualColumn(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	kind, half, halves := "STORED", [2]string{"half:2,", "half:3,"}, ""
	if testdb.One[int](t, b.Conn, `SELECT current_setting('server_version_num')::int`) >= 180000 { // older versions have stored ones only
		kind, half, halves = "VIRTUAL", [2]string{}, "not stored"
	}
	b.Exec(`CREATE TABLE g (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED, half int GENERATED ALWAYS AS (v / 2) ` + kind + `)`)
	if _, err := b.prepare(capture.Request{Table: "g", Columns: []string{"half"}}); (err == nil) != (halves == "") || err != nil && !strings.Contains(err.Error(), halves) {
		t.Errorf("%v", err)
	}
	b.add(capture.Request{Table: "g"})
	b.Exec(`INSERT INTO g VALUES (1, 4)`)
	b.Exec(`UPDATE g SET v = 6`)
	before, after := "{"+half[0]+"id:1,twice:8,v:4}", "{"+half[1]+"id:1,twice:12,v:6}"
	b.expect(kind, "g.inserted 1 none->"+before, "g.updated 1 "+before+"->"+after)
	if p := b.problems(); len(p) > 0 {
		t.Errorf("%+v", p)
	}
}

// TestJSONColumn: a column of type json brings a warning, because jsonb holds less.
func TestJSONColumn(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	b.Exec(`CREATE DOMAIN doc AS json`)
	b.Exec(`CREATE TABLE d (id int PRIMARY KEY, a json, b doc, c json[], d jsonb, e text[])`)
	plan := b.add(capture.Request{Table: "d"})
	if len(plan.Warnings) != 3 {
		t.Errorf("%q", plan.Warnings)
	}
	b.Exec(`INSERT INTO d VALUES (1, '{"a":  1}', '[]', '{}')`)
	b.expect("json", "d.inserted 1 none->{a:{a:1},b:[],c:[],d:null,e:null,id:1}")
	_, err := b.Conn.Exec(t.Context(), `INSERT INTO d VALUES (2, '"\u0000"')`)
	if code := testdb.SQLState(err); code != "22P05" {
		t.Errorf("%v", err)
	}
}

// TestRights: writers of the table need no privilege on the outbox, the function cannot be used by others, and a role that may
// not insert events cannot install a capture.
func TestRights(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	db := b.Conn.Config().Database
	suffix := db[len(db)-10:]
	owner, app := pgx.Identifier{"owner " + suffix}.Sanitize(), pgx.Identifier{"app " + suffix}.Sanitize()
	for _, role := range []string{owner, app} {
		b.Exec(`CREATE ROLE ` + role)
		b.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			if _, err := b.Conn.Exec(ctx, `RESET ROLE; DROP OWNED BY `+role+` CASCADE; DROP ROLE `+role); err != nil {
				t.Errorf("drop the role of the test: %v", err)
			}
		})
	}
	b.Exec(`CREATE SCHEMA shop AUTHORIZATION ` + owner)
	b.Exec(`GRANT USAGE, CREATE ON SCHEMA shop TO ` + app)
	b.Exec(`SET ROLE ` + owner)
	b.Exec(`CREATE TABLE shop.orders (id int PRIMARY KEY)`)
	b.Exec(`GRANT INSERT, SELECT ON shop.orders TO ` + app)
	plan, err := b.prepare(capture.Request{Table: "shop.orders"})
	if err != nil {
		t.Fatal(err)
	}
	err = capture.Run(t.Context(), b.Conn, plan.SQL, time.Minute)
	if testdb.SQLState(err) != "42501" || !strings.Contains(err.Error(), `permission denied to insert into "public".outbox_events for role "owner `) {
		t.Fatalf("without the grant: %v", err)
	}
	b.Exec(`RESET ROLE`)
	grants, err := outboxsql.Grants("public", outboxsql.Roles{Writer: "owner " + suffix})
	if err != nil {
		t.Fatal(err)
	}
	b.Exec(grants)
	b.Exec(`SET ROLE ` + owner)
	b.add(capture.Request{Table: "shop.orders"})
	b.Exec(`SET ROLE ` + app)
	b.Exec(`INSERT INTO shop.orders VALUES (1)`)
	b.Exec(`CREATE TABLE shop.mine (id int PRIMARY KEY)`)
	_, err = b.Conn.Exec(t.Context(), `CREATE TRIGGER forged AFTER INSERT ON shop.mine REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION `+b.list()[0].Function+`()`)
	if testdb.SQLState(err) != "42501" {
		t.Errorf("another role attaches the function: %v", err)
	}
	b.Exec(`RESET ROLE`)
	b.expect("a writer without privileges", "orders.inserted 1 none->{id:1}")
	if p := b.problems(); len(p) > 0 {
		t.Errorf("%+v", p)
	}
	b.Exec(`REVOKE INSERT (payload) ON outbox_events FROM ` + owner)
	if p := b.problems(); len(p) != 1 || p[0].Level != capture.Error || !strings.Contains(p[0].Text, "may not insert events") {
		t.Errorf("%+v", p)
	}
	b.Exec(b.problems()[0].Cure)
	b.Exec(`GRANT EXECUTE ON FUNCTION ` + b.list()[0].Function + `() TO PUBLIC`)
	if p := b.problems(); len(p) != 1 || !strings.Contains(p[0].Text, "forge events") {
		t.Errorf("%+v", p)
	}
	b.Exec(b.problems()[0].Cure)
	if p := b.problems(); len(p) > 0 {
		t.Errorf("%+v", p)
	}
}

// TestConcurrentAdd: two commands that capture the same table at once both succeed, and leave one capture.
func TestConcurrentAdd(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	b.Exec(`CREATE TABLE orders (id int PRIMARY KEY)`)
	const n = 4
	errs := make(chan error, n)
	for range n {
		conn := b.Dial()
		go func() {
			plan, err := capture.Prepare(t.Context(), conn, capture.Request{Outbox: "public", Table: "orders"})
			if err == nil {
				err = capture.Run(t.Context(), conn, plan.SQL, time.Minute)
			}
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if p := b.problems(); len(p) > 0 {
		t.Errorf("%+v", p)
	}
	b.Exec(`INSERT INTO orders VALUES (1)`)
	b.expect("after all", "orders.inserted 1 none->{id:1}")
}

// TestTwoOutboxes: a table can be captured into two outboxes, and each lists its own capture.
func TestTwoOutboxes(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	if _, err := outboxsql.Migrate(t.Context(), b.Conn, "other", outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto}); err != nil {
		t.Fatal(err)
	}
	b.Exec(`CREATE TABLE orders (id int PRIMARY KEY)`)
	b.add(capture.Request{Table: "orders"})
	b.add(capture.Request{Table: "orders", Outbox: "other", Operations: []string{"delete"}})
	b.Exec(`INSERT INTO orders VALUES (1)`)
	b.Exec(`DELETE FROM orders`)
	b.expect("the first", "orders.inserted 1 none->{id:1}", "orders.deleted 1 {id:1}->none")
	if types := testdb.List[string](t, b.Conn, `SELECT event_type FROM other.outbox_events`); !slices.Equal(types, []string{"orders.deleted"}) {
		t.Errorf("the other: %q", types)
	}
	other, err := capture.List(t.Context(), b.Conn, "other")
	if err != nil || len(other) != 1 || len(other[0].Problems) > 0 || len(other[0].Operations()) != 1 {
		t.Errorf("%+v, %v", other, err)
	}
	b.remove("orders")
	b.Exec(`INSERT INTO orders VALUES (2)`)
	b.Exec(`DELETE FROM orders`)
	if n := testdb.One[int](t, b.Conn, `SELECT count(*)::int FROM other.outbox_events`); n != 2 {
		t.Errorf("%d events of the other outbox", n)
	}
}

// TestDrift: the list names what was changed, and each cure that is SQL cures it.
func TestDrift(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	for name, c := range map[string]struct {
		statements []string
		level      string
		text, cure string
	}{
		"disabled": {[]string{`ALTER TABLE T DISABLE TRIGGER notifyd_capture_update_public`}, capture.Error, "is disabled", "ENABLE TRIGGER"},
		"replica":  {[]string{`ALTER TABLE T ENABLE REPLICA TRIGGER notifyd_capture_update_public`}, capture.Error, "replicas only", "ENABLE TRIGGER"},
		"dropped":  {[]string{`DROP TRIGGER notifyd_capture_update_public ON T`}, capture.Error, "no trigger of its capture for UPDATE", "notifyd capture add public.T"},
		"all":      {[]string{`DROP TRIGGER notifyd_capture_update_public ON T`, `DROP TRIGGER notifyd_capture_insert_public ON T`, `DROP TRIGGER notifyd_capture_delete_public ON T`}, capture.Error, "has no trigger of its capture: it was replaced", "notifyd capture add public.T"},
		"replaced": {[]string{`CREATE TABLE T_new (LIKE T INCLUDING ALL)`, `DROP TABLE T`, `ALTER TABLE T_new RENAME TO T`}, capture.Error, "it was replaced", "notifyd capture add public.T"},
		"gone":     {[]string{`DROP TABLE T`}, capture.Warning, "is gone, and its function is left", "notifyd capture remove public.T"},
		"renamed":  {[]string{`ALTER TABLE T RENAME TO T_now`}, capture.Warning, "is on the table public.T_now", "notifyd capture add public.T_now"},
		"twice":    {[]string{`CREATE TRIGGER again AFTER INSERT ON T REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION F()`}, capture.Error, "write events twice", `DROP TRIGGER "again"`},
		"row":      {[]string{`CREATE TRIGGER again AFTER UPDATE ON T FOR EACH ROW EXECUTE FUNCTION F()`}, capture.Error, "not one that capture add writes", `DROP TRIGGER "again"`},
		"function": {[]string{`ALTER FUNCTION F() SECURITY INVOKER`}, capture.Warning, "not the one that capture add writes", "notifyd capture add public.T"},
		"settings": {[]string{`ALTER FUNCTION F() RESET TimeZone`}, capture.Warning, "not the one that capture add writes", "notifyd capture add public.T"},
		"comment":  {[]string{`COMMENT ON FUNCTION F() IS 'mine'`}, capture.Warning, "is not the description of a capture", "notifyd capture add public.T"},
		"key":      {[]string{`ALTER TABLE T DROP CONSTRAINT T_pkey`}, capture.Error, "does not identify a row any more", "another --key"},
	} {
		table := "drift_" + name
		b.Exec(`CREATE TABLE ` + table + ` (id int PRIMARY KEY)`)
		b.add(capture.Request{Table: table})
		b.Exec(`INSERT INTO ` + table + ` VALUES (1)`)
		find := func() (capture.State, bool) {
			list := b.list()
			i := slices.IndexFunc(list, func(s capture.State) bool { return s.Table == table })
			if i < 0 {
				return capture.State{}, false
			}
			return list[i], true
		}
		s, ok := find()
		if !ok || len(s.Problems) > 0 {
			t.Errorf("%s: before: %+v", name, s)
			continue
		}
		replace := strings.NewReplacer("T_", table+"_", "public.T", "public."+table, " T ", " "+table+" ", "F()", s.Function+"()").Replace
		for _, statement := range c.statements {
			b.Exec(strings.TrimSpace(replace(statement + " ")))
		}
		s, ok = find()
		if !ok || len(s.Problems) != 1 {
			t.Errorf("%s: %+v", name, s.Problems)
			continue
		}
		p := s.Problems[0]
		if p.Level != c.level || !strings.Contains(p.Text, replace(c.text)) || !strings.Contains(p.Cure, replace(c.cure)) {
			t.Errorf("%s: %+v", name, p)
		}
		if strings.HasPrefix(p.Cure, "ALTER") || strings.HasPrefix(p.Cure, "DROP TRIGGER") {
			b.Exec(p.Cure)
			if s, _ := find(); len(s.Problems) > 0 || !s.Enabled {
				t.Errorf("%s: cured: %+v", name, s.Problems)
			}
		}
	}
}

// TestFormerTable: a table that took the name of a captured one cannot take its capture; the message names the way out.
func TestFormerTable(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	b.Exec(`CREATE TABLE orders (id int PRIMARY KEY)`)
	b.add(capture.Request{Table: "orders"})
	b.Exec(`ALTER TABLE orders RENAME TO orders_old`)
	b.Exec(`CREATE TABLE orders (id int PRIMARY KEY)`)
	if _, err := b.prepare(capture.Request{Table: "orders"}); err == nil || !strings.Contains(err.Error(), "notifyd capture remove public.orders_old") {
		t.Errorf("%v", err)
	}
	b.remove("orders_old")
	b.add(capture.Request{Table: "orders"})
	b.Exec(`INSERT INTO orders VALUES (1)`)
	b.Exec(`INSERT INTO orders_old VALUES (2)`)
	b.expect("the new table", "orders.inserted 1 none->{id:1}")

	b.Exec(`ALTER TABLE orders RENAME TO purchases`) // added again, it replaces triggers and function
	b.add(capture.Request{Table: "purchases"})
	b.Exec(`INSERT INTO purchases VALUES (3)`)
	b.expect("renamed", "purchases.inserted 3 none->{id:3}")
	if p := b.problems(); len(p) > 0 {
		t.Errorf("%+v", p)
	}
	if removal := b.remove("nothing_here_either"); removal.SQL != "" {
		t.Errorf("%+v", removal)
	}
}

// TestOutboxGone: a capture whose outbox was dropped is listed, because writes of its table fail, and it can be removed.
func TestOutboxGone(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	if _, err := outboxsql.Migrate(t.Context(), b.Conn, "other", outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto}); err != nil {
		t.Fatal(err)
	}
	b.Exec(`CREATE TABLE orders (id int PRIMARY KEY)`)
	b.add(capture.Request{Table: "orders", Outbox: "other"})
	b.Exec(`DROP SCHEMA other CASCADE`)
	list, err := capture.List(t.Context(), b.Conn, "other")
	if err != nil || len(list) != 1 || len(list[0].Problems) != 1 || list[0].Problems[0].Cure != "notifyd capture remove public.orders --schema other" {
		t.Fatalf("%+v, %v", list, err)
	}
	removal, err := capture.PrepareRemoval(t.Context(), b.Conn, "other", "public.orders")
	if err != nil {
		t.Fatal(err)
	}
	b.Exec(removal.SQL)
	b.Exec(`INSERT INTO orders VALUES (1)`)
}

// TestReplica: a session that replays another server's writes fires no trigger.
func TestReplica(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	b.Exec(`CREATE TABLE orders (id int PRIMARY KEY)`)
	b.add(capture.Request{Table: "orders"})
	b.Exec(`SET session_replication_role = replica`)
	b.Exec(`INSERT INTO orders VALUES (1)`)
	b.Exec(`RESET session_replication_role`)
	b.expect("replica")
}
