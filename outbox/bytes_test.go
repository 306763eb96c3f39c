package outbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/outbox"
)

// content is how a payload is stored; "<null>" stands for no text.
type content struct {
	text, contentType string
	raw               []byte
	isBytes           bool
}

func contents(ctx context.Context, tx interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
},
) ([]content, error) {
	rows, err := tx.Query(ctx, `SELECT coalesce(payload::text, '<null>'), payload_bytes, coalesce(content_type, '<null>') FROM outbox_events ORDER BY id`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c content, err error) {
		err = row.Scan(&c.text, &c.raw, &c.contentType)
		c.isBytes = c.raw != nil
		return c, err
	})
}

// TestWriteBytes: bytes are stored byte for byte for each way to write and each protocol, alone, beside JSON,
// and where duplicates are ignored.
func TestWriteBytes(t *testing.T) {
	t.Parallel()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	const protobuf = "application/x-protobuf"
	events := []outbox.Event{
		{Type: "every", Payload: every, ContentType: protobuf},
		{Type: "empty", Payload: []byte{}, ContentType: protobuf},
		{Type: "nil", Payload: []byte(nil), ContentType: `text/plain; charset="\utf-8"`},
		{Type: "text", Payload: []byte(`{"a": "\\x00"}`), ContentType: "application/json"},
		{Type: "vendor", Payload: json.RawMessage(` {"a":1}`), ContentType: "application/vnd.acme.order+json"},
		{Type: "plain", Payload: map[string]int{"n": 1}},
		{Type: "null", Payload: json.RawMessage("null")},
	}
	want := []content{
		{"<null>", protobuf, every, true},
		{"<null>", protobuf, nil, true},
		{"<null>", `text/plain; charset="\utf-8"`, nil, true},
		{"<null>", "application/json", []byte(`{"a": "\\x00"}`), true},
		{` {"a":1}`, "application/vnd.acme.order+json", nil, false},
		{`{"n":1}`, "<null>", nil, false},
		{"null", "<null>", nil, false},
	}
	for name, mode := range map[string]pgx.QueryExecMode{
		"cached": pgx.QueryExecModeCacheStatement, "describe": pgx.QueryExecModeCacheDescribe,
		"exec": pgx.QueryExecModeExec, "simple": pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t, mode)
			for way, write := range writers(pool) {
				for _, ignore := range []bool{false, true} {
					all := make([]outbox.Event, len(events))
					for i, e := range events {
						if e.IgnoreDuplicate = ignore; ignore {
							e.IdempotencyKey = "k"
						}
						all[i] = e
					}
					expectContents(t, pool, fmt.Sprintf("%s, together, ignoring duplicates: %t", way, ignore), want, func() error {
						return write(t.Context(), "public", nil, all...)
					})
					expectContents(t, pool, fmt.Sprintf("%s, one by one, ignoring duplicates: %t", way, ignore), want, func() error {
						var errs []error
						for _, e := range all {
							errs = append(errs, write(t.Context(), "public", nil, e))
						}
						return errors.Join(errs...)
					})
				}
			}
		})
	}
}

func expectContents(t *testing.T, pool *pgxpool.Pool, what string, want []content, write func() error) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `TRUNCATE outbox_events`); err != nil {
		t.Fatal(err)
	}
	if err := write(); err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	got, err := contents(t.Context(), pool)
	if err != nil || len(got) != len(want) {
		t.Errorf("%s: %d events, want %d: %v", what, len(got), len(want), err)
		return
	}
	for i := range got {
		if g, w := got[i], want[i]; g.text != w.text || g.contentType != w.contentType || g.isBytes != w.isBytes || !bytes.Equal(g.raw, w.raw) {
			t.Errorf("%s, event %d: stored %+v, want %+v", what, i, g, w)
		}
	}
}

// TestContentTypes: what is accepted is what the table accepts, and the rest is refused before anything is sent.
func TestContentTypes(t *testing.T) {
	t.Parallel()
	pool := database(t, pgx.QueryExecModeCacheStatement)
	kind := rapid.OneOf(
		rapid.SampledFrom([]string{
			"application/json", "application/JSON; charset=utf-8", "application/vnd.a+json", "application/jsonp", "avro/binary", "a/b; c=d", "a/b;c=\"d e\"",
			"a", "/", "a/", "", " a/b", "a/b\n", "a/ä", "text/json", "text/plain;x=+json", strings.Repeat("a", 200) + "/" + strings.Repeat("b", 54), strings.Repeat("a", 200) + "/" + strings.Repeat("b", 55),
		}),
		rapid.StringMatching(`[a-z/+; =]{0,12}`), rapid.String(),
	)
	payload := rapid.OneOf(rapid.SliceOf(rapid.Byte()).AsAny(), rapid.Just(json.RawMessage("1")).AsAny())
	rapid.Check(t, func(rt *rapid.T) {
		e := outbox.Event{Type: "a", Payload: payload.Draw(rt, "payload"), ContentType: kind.Draw(rt, "content type")}
		tx, err := pool.Begin(t.Context())
		if err != nil {
			rt.Fatal(err)
		}
		defer tx.Rollback(t.Context()) //nolint:errcheck // nothing is kept
		if err := outbox.Write(t.Context(), tx, e, e); err != nil {
			if !errors.Is(err, outbox.ErrInvalid) {
				rt.Fatalf("accepted and then refused by the database: %v", err)
			}
			return
		}
		if err := outbox.Write(t.Context(), tx, e); err != nil {
			rt.Fatal(err)
		}
		got, err := contents(t.Context(), tx)
		if err != nil {
			rt.Fatal(err)
		}
		for _, c := range got {
			raw, isBytes := e.Payload.([]byte)
			if c.isBytes != isBytes || !bytes.Equal(c.raw, raw) || e.ContentType != "" && c.contentType != e.ContentType {
				rt.Fatalf("wrote %+v, read %+v", e, c)
			}
		}
	})
}

// TestBytesPageIsExample: the Go of docs/bytes.md is that of the example.
func TestBytesPageIsExample(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	blocks := strings.Split(read("../docs/bytes.md"), "```go\n")[1:]
	for _, block := range blocks {
		if block, _, _ = strings.Cut(block, "```"); !strings.Contains(read("example_test.go"), block) {
			t.Errorf("no example contains:\n%s", block)
		}
	}
	if len(blocks) != 1 {
		t.Errorf("%d blocks of Go", len(blocks))
	}
}
