package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/notifyd/notifyd/outbox"
)

// writers are the ways to write within a transaction, which is then committed, or
// rolled back if the given function fails.
func writers(pool *pgxpool.Pool) map[string]func(ctx context.Context, schema string, then error, events ...outbox.Event) error {
	return map[string]func(context.Context, string, error, ...outbox.Event) error{
		"pgx.Tx": func(ctx context.Context, schema string, then error, events ...outbox.Event) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				return errors.Join(outbox.WriteTo(ctx, tx, schema, events...), then)
			})
		},
		"*pgxpool.Tx": func(ctx context.Context, schema string, then error, events ...outbox.Event) error {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback(ctx) //nolint:errcheck // reports the commit before it
			pooled, ok := tx.(*pgxpool.Tx)
			if !ok {
				return fmt.Errorf("a pool began %T", tx)
			}
			if err := errors.Join(outbox.WriteTo(ctx, pooled, schema, events...), then); err != nil {
				return err
			}
			return tx.Commit(ctx)
		},
		"*sql.Tx": func(ctx context.Context, schema string, then error, events ...outbox.Event) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close() //nolint:errcheck // the pool is not closed by it
			return inSQL(ctx, db, func(tx *sql.Tx) error {
				return errors.Join(outbox.WriteSQLTo(ctx, tx, schema, events...), then)
			})
		},
		"Statement": func(ctx context.Context, schema string, then error, events ...outbox.Event) error {
			query, args, err := outbox.Statement(schema, events...)
			if err != nil {
				return err
			}
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close() //nolint:errcheck // the pool is not closed by it
			return inSQL(ctx, db, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, query, args...)
				return errors.Join(err, then)
			})
		},
	}
}

func inSQL(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // reports the commit before it
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// awkward are payloads that only a byte for byte copy leaves unchanged.
func awkward() []string {
	return []string{
		`{}`, `null`, `"text"`, `-0`, `1e400`, `123456789012345678901234567890.10`, "\t{ \"b\" :1,\r\n\"a\": [ ] }  ",
		`{"a":1,"a":2}`, `"\u0000"`, `"\ud800"`, `"Zoë \u00e9 😀 \ud83d\ude00 ` + "\u2028" + `"`, `"<&>'\\\"$1 $$ ?"`,
		`[` + strings.Repeat(`{"k":"v"},`, 1000) + `0]`, strings.Repeat("[", 9000) + strings.Repeat("]", 9000),
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	const odd = `Odd "schema"`
	at := time.Date(2031, 2, 3, 4, 5, 6, 123456789, time.FixedZone("", -3*3600))
	var events []outbox.Event
	var want []stored
	for i, payload := range awkward() {
		events = append(events, outbox.Event{
			Type: fmt.Sprintf("type.%d", i), Payload: json.RawMessage(payload),
			AggregateType: "order'\\\"", AggregateID: fmt.Sprint("Ä,{}", i), IdempotencyKey: fmt.Sprint("key ", i),
			Headers: map[string]string{"traceparent": "00-ab", "x!#$%&'*+-.^_`|~": "\\ \"Ü\n"}, AvailableAt: at,
		})
		want = append(want, stored{
			fmt.Sprintf("type.%d", i), "order'\\\"", fmt.Sprint("Ä,{}", i), fmt.Sprint("key ", i), "fresh", payload,
			"{\"traceparent\": \"00-ab\", \"x!#$%&'*+-.^_`|~\": \"\\\\ \\\"Ü\\n\"}", "2031-02-03T07:05:06.123457",
		})
	}
	bare := outbox.Event{Type: "bare", Payload: map[string]any{"a": 1, "html": "<&>"}}
	bareWant := stored{"bare", "<null>", "<null>", "<null>", "fresh", `{"a":1,"html":"\u003c\u0026\u003e"}`, "<null>", "<null>"}

	for name, mode := range map[string]pgx.QueryExecMode{
		"cached": pgx.QueryExecModeCacheStatement, "describe": pgx.QueryExecModeCacheDescribe,
		"exec": pgx.QueryExecModeExec, "simple": pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t, mode, odd)
			for way, write := range writers(pool) {
				empty := func() {
					if _, err := pool.Exec(t.Context(), `TRUNCATE "Odd ""schema""".outbox_events`); err != nil {
						t.Fatal(err)
					}
				}
				check := func(what string, want ...stored) {
					t.Helper()
					got := read(t, pool, odd)
					if len(got) != len(want) {
						t.Errorf("%s, %s: stored %d events, want %d", way, what, len(got), len(want))
						return
					}
					for i := range got {
						if got[i] != want[i] {
							t.Errorf("%s, %s, event %d: stored\n%.200q\nwant\n%.200q", way, what, i, got[i], want[i])
						}
					}
				}
				empty()
				if err := write(t.Context(), odd, nil, events...); err != nil {
					t.Fatalf("%s: %v", way, err)
				}
				check("many", want...)
				empty()
				for i := range events {
					if err := write(t.Context(), odd, nil, events[i]); err != nil {
						t.Fatalf("%s, event %d: %v", way, i, err)
					}
				}
				check("one by one", want...)
				empty()
				if err := errors.Join(write(t.Context(), odd, nil, bare), write(t.Context(), odd, nil, bare, bare), write(t.Context(), odd, nil)); err != nil {
					t.Fatalf("%s: %v", way, err)
				}
				check("the bare minimum", bareWant, bareWant, bareWant)
				empty()
				stop := errors.New("the business change failed")
				if err := errors.Join(write(t.Context(), odd, stop, events[0]), write(t.Context(), odd, stop, events...)); !errors.Is(err, stop) {
					t.Fatalf("%s: %v", way, err)
				}
				check("rolled back")
			}
			if n := len(read(t, pool, "public")); n != 0 {
				t.Errorf("%d events in public", n)
			}
		})
	}
}

// TestManyEventsKeepTheirOrder beyond a number that a plan might sort by chance.
func TestManyEventsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	pool := database(t, pgx.QueryExecModeCacheStatement)
	events := make([]outbox.Event, 5000)
	for i := range events {
		events[i] = outbox.Event{Type: "a", Payload: i}
	}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, events...) }); err != nil {
		t.Fatal(err)
	}
	got := read(t, pool, "public")
	if len(got) != len(events) {
		t.Fatalf("%d events stored", len(got))
	}
	for i, e := range got {
		if e.Payload != fmt.Sprint(i) {
			t.Fatalf("event %d holds %s", i, e.Payload)
		}
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	pool := database(t, pgx.QueryExecModeCacheStatement)
	for way, write := range writers(pool) {
		e := outbox.Event{Type: "a" + way, Payload: 1, IdempotencyKey: "k"}
		e.Type = strings.ReplaceAll(e.Type, "*", "")
		other := e
		other.Type += "b"
		if err := write(t.Context(), "public", nil, e, other); err != nil {
			t.Errorf("%s: %v", way, err)
		}
		for _, events := range [][]outbox.Event{{e}, {{Type: "c", Payload: 1}, e}} {
			err := write(t.Context(), "public", nil, events...)
			pg, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || pg.Code != "23505" || errors.Is(err, outbox.ErrInvalid) {
				t.Errorf("%s: %v, want a unique violation", way, err)
			}
		}
	}
}

// invalid are events that are refused, and the text that the error must have.
func invalid() map[string]struct {
	event outbox.Event
	want  string
} {
	type c = struct {
		event outbox.Event
		want  string
	}
	ok := json.RawMessage("1")
	return map[string]c{
		"no type":            {outbox.Event{Payload: ok}, "order.created"},
		"white space":        {outbox.Event{Type: "a b", Payload: ok}, "white space"},
		"star":               {outbox.Event{Type: "a.*", Payload: ok}, "'*'"},
		"long type":          {outbox.Event{Type: strings.Repeat("x", 256), Payload: ok}, "at most 255"},
		"type with zero":     {outbox.Event{Type: "a\x00", Payload: ok}, "zero bytes"},
		"type not UTF-8":     {outbox.Event{Type: "a\xff", Payload: ok}, "UTF-8"},
		"no payload":         {outbox.Event{Type: "a"}, `json.RawMessage("null")`},
		"bytes":              {outbox.Event{Type: "a", Payload: []byte("1")}, "json.RawMessage"},
		"kind of bytes":      {outbox.Event{Type: "a", Payload: []byte("1"), ContentType: "avro"}, "no media type"},
		"long kind":          {outbox.Event{Type: "a", Payload: []byte("1"), ContentType: "a/" + strings.Repeat("x", 254)}, "at most 255"},
		"kind of two lines":  {outbox.Event{Type: "a", Payload: []byte("1"), ContentType: "a/b;\n c=d"}, "no media type"},
		"kind of no JSON":    {outbox.Event{Type: "a", Payload: ok, ContentType: "avro/binary"}, "give the payload as a []byte"},
		"no JSON":            {outbox.Event{Type: "a", Payload: json.RawMessage("{")}, "not valid JSON"},
		"empty JSON":         {outbox.Event{Type: "a", Payload: json.RawMessage("")}, "not valid JSON"},
		"JSON not UTF-8":     {outbox.Event{Type: "a", Payload: json.RawMessage("\"\xff\"")}, "UTF-8"},
		"nested not UTF-8":   {outbox.Event{Type: "a", Payload: []json.RawMessage{json.RawMessage("\"\xff\"")}}, "UTF-8"},
		"not encodable":      {outbox.Event{Type: "a", Payload: make(chan int)}, "cannot be encoded"},
		"half an aggregate":  {outbox.Event{Type: "a", Payload: ok, AggregateID: "1"}, "set both or neither"},
		"other half":         {outbox.Event{Type: "a", Payload: ok, AggregateType: "t"}, "set both or neither"},
		"aggregate not text": {outbox.Event{Type: "a", Payload: ok, AggregateType: "t\x00", AggregateID: "1"}, "aggregate type"},
		"long aggregate":     {outbox.Event{Type: "a", Payload: ok, AggregateType: "t", AggregateID: strings.Repeat("x", 1025)}, "at most 1024"},
		"header name":        {outbox.Event{Type: "a", Payload: ok, Headers: map[string]string{"a b": ""}}, "not a token"},
		"no header name":     {outbox.Event{Type: "a", Payload: ok, Headers: map[string]string{"": ""}}, "not a token"},
		"header value":       {outbox.Event{Type: "a", Payload: ok, Headers: map[string]string{"a": "secret\x00"}}, "header \"a\""},
		"large headers":      {outbox.Event{Type: "a", Payload: ok, Headers: map[string]string{"a": strings.Repeat("x", 65536)}}, "at most 65536"},
		"key not text":       {outbox.Event{Type: "a", Payload: ok, IdempotencyKey: "\xff"}, "idempotency key"},
		"long key":           {outbox.Event{Type: "a", Payload: ok, IdempotencyKey: strings.Repeat("x", 1025)}, "at most 1024"},
		"far future":         {outbox.Event{Type: "a", Payload: ok, AvailableAt: time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC)}, "available at"},
		"before Christ":      {outbox.Event{Type: "a", Payload: ok, AvailableAt: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)}, "available at"},
	}
}

// TestInvalidEvents: invalid events are refused before anything is sent, and the transaction
// goes on.
func TestInvalidEvents(t *testing.T) {
	t.Parallel()
	pool := database(t, pgx.QueryExecModeCacheStatement)
	good := outbox.Event{Type: "good", Payload: 1}
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	for name, c := range invalid() {
		check := func(err error) {
			t.Helper()
			if !errors.Is(err, outbox.ErrInvalid) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "event 1") {
				t.Errorf("%s: %v, want ErrInvalid of event 1 with %q", name, err, c.want)
			}
			if err != nil && (len(err.Error()) > 400 || strings.Contains(err.Error(), "secret")) {
				t.Errorf("%s: the error is long, or reveals too much: %v", name, err)
			}
		}
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			check(outbox.Write(t.Context(), tx, good, c.event, good))
			return outbox.Write(t.Context(), tx, good)
		}); err != nil {
			t.Errorf("%s: the transaction is unusable: %v", name, err)
		}
		if err := inSQL(t.Context(), db, func(tx *sql.Tx) error {
			check(outbox.WriteSQL(t.Context(), tx, good, c.event))
			return outbox.WriteSQL(t.Context(), tx, good)
		}); err != nil {
			t.Errorf("%s: the transaction is unusable: %v", name, err)
		}
	}
	if got, want := len(read(t, pool, "public")), 2*len(invalid()); got != want {
		t.Errorf("%d events stored, want %d", got, want)
	}
}

// TestAllMistakesAreNamed: one error names the mistakes of all events.
func TestAllMistakesAreNamed(t *testing.T) {
	t.Parallel()
	_, _, err := outbox.Statement("public", outbox.Event{Payload: 1, AggregateID: "1"}, outbox.Event{Type: "a", Payload: 1}, outbox.Event{Type: "b"})
	for _, want := range []string{"event 0", "type is empty", "both or neither", "event 2", "payload is missing"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if strings.Contains(fmt.Sprint(err), "event 1") {
		t.Errorf("%v names event 1, which is valid", err)
	}
	for _, schema := range []string{"", "a\x00"} {
		if _, _, err := outbox.Statement(schema, outbox.Event{Type: "a", Payload: 1}); !errors.Is(err, outbox.ErrInvalid) {
			t.Errorf("schema %q: %v", schema, err)
		}
	}
}

// TestOneStatementForAnyNumber: one text, because drivers prepare and cache by text.
func TestOneStatementForAnyNumber(t *testing.T) {
	t.Parallel()
	e := outbox.Event{Type: "a", Payload: 1}
	two, _, err2 := outbox.Statement("public", e, e)
	nine, _, err9 := outbox.Statement("public", e, e, e, e, e, e, e, e, e)
	if two != nine || err2 != nil || err9 != nil {
		t.Errorf("the texts for 2 and 9 events differ, or %v, %v", err2, err9)
	}
}

func TestErrorsOfTheDatabase(t *testing.T) {
	t.Parallel()
	pool := database(t, pgx.QueryExecModeCacheStatement)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return outbox.WriteTo(t.Context(), tx, "nowhere", outbox.Event{Type: "a", Payload: 1})
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42P01" || errors.Is(err, outbox.ErrInvalid) || !strings.HasSuffix(err.Error(), ": run notifyd migrate, or write to the schema that has them") {
		t.Errorf("no such schema: %v", err)
	}
	err = pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, outbox.Event{Type: "a", Payload: 1})
	})
	if err == nil || !strings.HasSuffix(err.Error(), ": write to the primary") {
		t.Errorf("read only: %v", err)
	}
	// Any driver whose errors have the method, as lib/pq and pgx do, through database/sql.
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close() //nolint:errcheck // the pool is not closed by it
	err = inSQL(t.Context(), db, func(tx *sql.Tx) error {
		_, _ = tx.ExecContext(t.Context(), "SELECT 1/0")
		return outbox.WriteSQL(t.Context(), tx, outbox.Event{Type: "a", Payload: 1})
	})
	if err == nil || !strings.Contains(err.Error(), "an earlier statement of the transaction has failed: roll it back") {
		t.Errorf("after a failed statement: %v", err)
	}
}

// TestNoDriver: an application that writes events gets no other dependency.
func TestNoDriver(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := strings.Fields(string(out)); !slices.Equal(got, []string{"github.com/notifyd/notifyd/outbox"}) {
		t.Errorf("imports %v", got)
	}
}
