package outbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/outbox"
)

// FuzzStatement: nothing panics, and an accepted event is text that PostgreSQL
// can store, with the payload unchanged.
func FuzzStatement(f *testing.F) {
	f.Add("public", "order.created", []byte(`{"id": 1042}`), "order", "1042", "traceparent", "00-ab", "key", int64(0))
	f.Add(`odd "name"`, "a", []byte(" [1e400, \"\\u0000\"]\n"), "", "", "", "", "", int64(1<<40))
	f.Add("", "*", []byte("\xff"), "a", "", "a b", "\x00", "\xff", int64(-1<<62))
	f.Fuzz(func(t *testing.T, schema, typ string, payload []byte, aggType, aggID, name, value, key string, at int64) {
		e := outbox.Event{
			Type: typ, Payload: json.RawMessage(payload), AggregateType: aggType, AggregateID: aggID, IdempotencyKey: key,
			AvailableAt: time.Unix(at, 0),
		}
		if name != "" {
			e.Headers = map[string]string{name: value}
		}
		query, args, err := outbox.Statement(schema, e)
		if err != nil {
			if !errors.Is(err, outbox.ErrInvalid) || query != "" || args != nil {
				t.Fatalf("refused with %v, but %q %v", err, query, args)
			}
			return
		}
		if !json.Valid(payload) || !utf8.Valid(payload) || typ == "" || args[len(args)-1] != string(payload) {
			t.Fatalf("accepted payload %q of type %q as %v", payload, typ, args)
		}
		if headers, ok := args[5].(string); ok {
			var got map[string]string
			if err := json.Unmarshal([]byte(headers), &got); err != nil || got[name] != value {
				t.Fatalf("header %q: %q became %s, %v", name, value, headers, err)
			}
		}
		_, many, err := outbox.Statement(schema, e, e)
		if err != nil {
			t.Fatalf("accepted alone and refused twice: %v", err)
		}
		for _, arg := range append(args, many...) {
			if s, ok := arg.(string); ok && (!utf8.ValidString(s) || bytes.ContainsRune([]byte(s), 0)) {
				t.Fatalf("argument %q is not text", s)
			}
		}
	})
}

// TestAcceptedIsStored: every accepted event is stored, and reads back equal.
func TestAcceptedIsStored(t *testing.T) {
	t.Parallel()
	pool := database(t, pgx.QueryExecModeCacheStatement)
	text := rapid.StringOfN(rapid.Rune(), 0, 40, -1)
	payload := rapid.Custom(func(t *rapid.T) json.RawMessage {
		pad := rapid.SampledFrom([]string{"", " ", "\n", "\t\r\n "})
		b, err := json.Marshal(rapid.OneOf(
			text.AsAny(), rapid.Float64().AsAny(), rapid.Int64().AsAny(), rapid.Bool().AsAny(),
			rapid.MapOf(text, text).AsAny(), rapid.SliceOf(text).AsAny(),
		).Draw(t, "value"))
		if err != nil {
			t.Skip("no JSON")
		}
		return json.RawMessage(pad.Draw(t, "before") + string(b) + pad.Draw(t, "after"))
	})
	event := rapid.Custom(func(t *rapid.T) outbox.Event {
		e := outbox.Event{
			Type: rapid.StringOfN(rapid.Rune(), 1, 20, -1).Draw(t, "type"), Payload: payload.Draw(t, "payload"),
			Headers: rapid.MapOfN(rapid.StringMatching("[a-z-]{1,5}"), text, 0, 3).Draw(t, "headers"),
		}
		if rapid.Bool().Draw(t, "aggregate") {
			e.AggregateType, e.AggregateID = text.Draw(t, "aggregate type"), text.Draw(t, "aggregate id")
		}
		if rapid.Bool().Draw(t, "delayed") {
			e.AvailableAt = time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		}
		return e
	})
	rapid.Check(t, func(rt *rapid.T) {
		events := rapid.SliceOfN(event, 1, 4).Draw(rt, "events")
		ctx := t.Context()
		tx, err := pool.Begin(ctx)
		if err != nil {
			rt.Fatal(err)
		}
		defer tx.Rollback(ctx) //nolint:errcheck // nothing is kept
		if err := outbox.Write(ctx, tx, events...); err != nil {
			if !errors.Is(err, outbox.ErrInvalid) {
				rt.Fatalf("accepted and then refused by the database: %v", err)
			}
			return
		}
		rows, err := tx.Query(ctx, `SELECT event_type, payload::text, headers, coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), available_at
			FROM outbox_events ORDER BY id`)
		if err != nil {
			rt.Fatal(err)
		}
		i := 0
		for ; rows.Next(); i++ {
			var got outbox.Event
			var payload string
			var at *time.Time
			if err := rows.Scan(&got.Type, &payload, &got.Headers, &got.AggregateType, &got.AggregateID, &at); err != nil {
				rt.Fatal(err)
			}
			want := events[i]
			if at != nil {
				got.AvailableAt = *at
			}
			raw, ok := want.Payload.(json.RawMessage)
			same := ok && got.Type == want.Type && payload == string(raw) && got.AggregateType == want.AggregateType && got.AggregateID == want.AggregateID &&
				fmt.Sprint(got.Headers) == fmt.Sprint(want.Headers) && got.AvailableAt.Sub(want.AvailableAt).Abs() < time.Microsecond
			if !same {
				rt.Fatalf("wrote %+v, read %+v with payload %q", want, got, payload)
			}
		}
		if err := rows.Err(); err != nil || i != len(events) {
			rt.Fatalf("read %d of %d events, %v", i, len(events), err)
		}
	})
}
