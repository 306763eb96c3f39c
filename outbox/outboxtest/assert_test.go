package outboxtest_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/outbox"
	"github.com/notifyd/notifyd/outbox/outboxtest"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestEventsAreReadAsWritten(t *testing.T) {
	t.Parallel()
	tx := testdb.Begin(t, database(t, "public", outboxsql.ModeQueue), pgx.TxOptions{})
	at := time.Date(2031, 2, 3, 4, 5, 6, 789_000, time.UTC)
	write(t, tx, outbox.Event{
		Type: "order.created", AggregateType: "order", AggregateID: "1042", Payload: json.RawMessage("null"), IdempotencyKey: "k1",
		Headers: map[string]string{"tenant": "a\"b"}, AvailableAt: at,
	}, outbox.Event{Type: "ping", Payload: map[string]int{"n": 1}})
	all := outboxtest.Pgx(tx).Events(t)
	if len(all) != 2 {
		t.Fatalf("%d events, want 2", len(all))
	}
	e := all[0]
	got := fmt.Sprint(e.Type, e.AggregateType, e.AggregateID, e.IdempotencyKey, e.Headers, e.AvailableAt, string(e.Payload), time.Since(e.CreatedAt) < time.Hour)
	if want := fmt.Sprint("order.created", "order", "1042", "k1", map[string]string{"tenant": "a\"b"}, at, "null", true); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if e = all[1]; e.Headers != nil || !e.AvailableAt.IsZero() || e.AggregateType+e.IdempotencyKey != "" || string(e.Payload) != `{"n":1}` {
		t.Errorf("got %+v", e)
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	pool := database(t, "public", outboxsql.ModeQueue)
	tx := testdb.Begin(t, pool, pgx.TxOptions{})
	write(t, tx, outbox.Event{Type: "avro", Payload: []byte{0, 255, 1}, ContentType: "avro/binary"}, outbox.Event{Type: "empty", Payload: []byte(nil), ContentType: "avro/binary"},
		outbox.Event{Type: "json", Payload: 7})
	src := outboxtest.Pgx(tx)
	outboxtest.Exactly(t, src,
		outboxtest.All(outboxtest.Bytes([]byte{0, 255, 1}), outboxtest.ContentType("avro/binary")),
		outboxtest.All(outboxtest.Bytes(nil), outboxtest.ContentType("avro/binary")),
		outboxtest.All(outboxtest.Bytes([]byte("7")), outboxtest.ContentType("application/json")),
	)
	fails(t, func(tb *recorder) {
		outboxtest.Wrote(tb, src, outboxtest.Type("avro"), outboxtest.Bytes([]byte{0, 255, 2}))
	},
		"#1 avro avro/binary of 3 bytes: payload has 3 bytes, want 3: they differ from byte 2 on")
	fails(t, func(tb *recorder) { outboxtest.Wrote(tb, src, outboxtest.ContentType("a/b")) }, `content type is "avro/binary", want "a/b"`)
	var got []string
	var relay outboxtest.Relay
	relay.Handle(t, "lake", "*", delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		got = append(got, fmt.Sprintf("%s %x", e.ContentType, e.Payload))
		return nil
	}))
	if _, err := relay.Deliver(t, src); err != nil || fmt.Sprint(got) != "[avro/binary 00ff01 avro/binary  application/json 37]" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAssertions(t *testing.T) {
	t.Parallel()
	tx := testdb.Begin(t, database(t, "public", outboxsql.ModeQueue), pgx.TxOptions{})
	src := outboxtest.Pgx(tx)
	outboxtest.WroteNone(t, src)
	fails(t, func(tb *recorder) { outboxtest.Wrote(tb, src) }, "none was")

	write(t, tx, order("order.created", "1", map[string]any{"total": 12.5, "lines": []int{1, 2}}), order("order.paid", "1", map[string]any{"by": "card"}),
		order("order.created", "2", map[string]any{"total": 7}))

	if e := outboxtest.Wrote(t, src, outboxtest.Type("order.created"), outboxtest.Aggregate("order", "2")); e.AggregateID != "2" {
		t.Errorf("got %v", e)
	}
	fails(t, func(tb *recorder) { outboxtest.Wrote(tb, src, outboxtest.Type("order.gone")) },
		"no such event", `type is "order.created", want "order.gone"`, "order.paid of order/1", `{"by":"card"}`)
	outboxtest.WroteNone(t, src, outboxtest.Type("order.paid"), outboxtest.Aggregate("order", "2"))
	fails(t, func(tb *recorder) { outboxtest.WroteNone(tb, src, outboxtest.Type("order.paid")) }, "order.paid of order/1")

	created, paid := outboxtest.Type("order.created"), outboxtest.Type("order.paid")
	outboxtest.InOrder(t, src, created, paid, created)
	outboxtest.InOrder(t, src, created, created)
	outboxtest.InOrder(t, src)
	fails(t, func(tb *recorder) { outboxtest.InOrder(tb, src, paid, paid) }, "event 2 of 2 was not written behind #")
	outboxtest.Exactly(t, src, created, paid, outboxtest.All(created, outboxtest.JSON(`{"total": 7.0}`)))
	fails(t, func(tb *recorder) { outboxtest.Exactly(tb, src, created, paid) }, "3 events were written, want 2")
	fails(t, func(tb *recorder) { outboxtest.Exactly(tb, src, created, created, paid) }, "event 2 of 3: type is")

	later := src.Now(t)
	outboxtest.WroteNone(t, later)
	write(t, tx, order("order.shipped", "1", 0))
	outboxtest.Exactly(t, later, outboxtest.Type("order.shipped"))
	if got := outboxtest.Decode[struct{ Total float64 }](t, outboxtest.Wrote(t, src, created)); got.Total != 12.5 {
		t.Errorf("decoded %v", got)
	}
	fails(t, func(tb *recorder) { outboxtest.Decode[[]int](tb, outboxtest.Wrote(tb, src, created)) }, "payload of event")
}

// A failure with many events, and long ones, is still read by a person.
func TestFailuresAreShort(t *testing.T) {
	t.Parallel()
	tx := testdb.Begin(t, database(t, "public", outboxsql.ModeQueue), pgx.TxOptions{})
	for i := range 30 {
		write(t, tx, order("many", fmt.Sprint(i), strings.Repeat("ä", 10_000)))
	}
	fails(t, func(tb *recorder) { outboxtest.WroteNone(tb, outboxtest.Pgx(tx)) }, "and 10 more", "ää...")
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { defer close(done); outboxtest.WroteNone(r, outboxtest.Pgx(tx)) }()
	<-done
	if len(r.failure) > 20*300 {
		t.Errorf("the failure has %d bytes", len(r.failure))
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	e := &outboxtest.Event{
		Type: "a", AggregateType: "order", AggregateID: "1", IdempotencyKey: "k", Headers: map[string]string{"h": "v"},
		Payload: []byte(`{"total": 12.50, "id": 9007199254740993, "lines": [{"sku": "x", "n": 1}], "note": null}`),
	}
	for name, c := range map[string]struct {
		m    outboxtest.Match
		want string // empty: matches
	}{
		"type":             {outboxtest.Type("a"), ""},
		"key":              {outboxtest.Key("k"), ""},
		"other key":        {outboxtest.Key("x"), `idempotency key is "k", want "x"`},
		"header":           {outboxtest.Header("h", "v"), ""},
		"no header":        {outboxtest.Header("i", "v"), "no header i"},
		"other header":     {outboxtest.Header("h", "w"), `header h is "v", want "w"`},
		"at once":          {outboxtest.Delayed(), "at once"},
		"same JSON":        {outboxtest.JSON(`{"id":9007199254740993,"note":null,"lines":[{"n":1e0,"sku":"x"}],"total":12.5}`), ""},
		"large number":     {outboxtest.JSON(`{"id":9007199254740992,"note":null,"lines":[{"n":1,"sku":"x"}],"total":12.5}`), "payload.id is 9007199254740993, want 9007199254740992"},
		"less than all":    {outboxtest.JSON(`{"total":12.5}`), "is not wanted"},
		"a part":           {outboxtest.Contains(map[string]any{"total": 12.5, "lines": []any{map[string]any{"sku": "x"}}}), ""},
		"a part is other":  {outboxtest.Contains(`{"lines":[{"sku":"y"}]}`), `payload.lines[0].sku is "x", want "y"`},
		"a part is absent": {outboxtest.Contains(`{"lines":[{"ean":"y"}]}`), `payload.lines[0].ean is missing`},
		"other length":     {outboxtest.Contains(`{"lines":[]}`), `payload.lines has 1 elements, want 0`},
		"other kind":       {outboxtest.Contains(`{"lines":{}}`), `payload.lines is [`},
		"null":             {outboxtest.Contains(`{"total":null}`), `payload.total is 12.50, want null`},
		"not JSON":         {outboxtest.JSON(`{`), "what is wanted is not JSON"},
		"two values":       {outboxtest.JSON(`1 2`), "behind the first value"},
		"cannot be JSON":   {outboxtest.JSON(func() {}), "cannot be encoded"},
		"bytes":            {outboxtest.Contains([]byte(`{"note":null}`)), ""},
		"check":            {outboxtest.Payload(func(_ struct{ Total float64 }) error { return nil }), ""},
		"check fails":      {outboxtest.Payload(func(_ struct{ Total float64 }) error { return errors.New("too much") }), "payload: too much"},
		"check of another": {outboxtest.Payload(func(_ []int) error { return nil }), "payload: json"},
		"all":              {outboxtest.All(outboxtest.Type("a"), outboxtest.Type("b")), `type is "a", want "b"`},
	} {
		err := c.m(e)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// database/sql, in a schema whose name needs quotes, committed by others.
func TestSQLInAnotherSchema(t *testing.T) {
	t.Parallel()
	pool := database(t, `odd "name"`, outboxsql.ModeQueue)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	src := outboxtest.SQL(db).In(`odd "name"`)
	outboxtest.WroteNone(t, src)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.WriteSQLTo(t.Context(), tx, `odd "name"`, outbox.Event{Type: "a", Payload: 1}); err != nil {
		t.Fatal(err)
	}
	outboxtest.WroteNone(t, src) // another session does not see it before the commit
	outboxtest.Wrote(t, outboxtest.SQL(tx).In(`odd "name"`), outboxtest.Type("a"))
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	outboxtest.Exactly(t, src, outboxtest.All(outboxtest.Type("a"), outboxtest.JSON("1")))
	fails(t, func(tb *recorder) { outboxtest.Wrote(tb, outboxtest.SQL(db).In("none")) }, "read the events", "none.outbox_events")
}
