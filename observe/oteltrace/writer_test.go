package oteltrace_test

import (
	"context"
	"maps"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"go.opentelemetry.io/otel/trace"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/observe/oteltrace"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	state  = "vendor=1"
)

// inSpan returns a context with a span, as from instrumentation.
func inSpan(t *testing.T, flags trace.TraceFlags) context.Context {
	t.Helper()
	traceID, err := trace.TraceIDFromHex(parent[3:35])
	if err != nil {
		t.Fatal(err)
	}
	spanID, err := trace.SpanIDFromHex(parent[36:52])
	if err != nil {
		t.Fatal(err)
	}
	with, err := trace.ParseTraceState(state)
	if err != nil {
		t.Fatal(err)
	}
	return trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: flags, TraceState: with,
	}))
}

func TestEvents(t *testing.T) {
	t.Parallel()
	shared := map[string]string{"tenant": "a", "Tracestate": "other=1"}
	events := []outbox.Event{
		{Type: "a"}, {Type: "b", Headers: shared}, {Type: "c", Headers: map[string]string{"TraceParent": "own", "tracestate": "own=1"}},
	}
	got := oteltrace.Events(inSpan(t, trace.FlagsSampled), events...)
	for i, want := range []map[string]string{
		{"traceparent": parent, "tracestate": state},
		{"traceparent": parent, "tracestate": state, "tenant": "a"},
		{"TraceParent": "own", "tracestate": "own=1"},
	} {
		if got[i].Type != events[i].Type || !maps.Equal(got[i].Headers, want) {
			t.Errorf("%s has %v, want %v", got[i].Type, got[i].Headers, want)
		}
	}
	if events[0].Headers != nil || len(shared) != 2 {
		t.Errorf("the given event became %v", events)
	}
	if got := oteltrace.Events(inSpan(t, 0), events[0]); got[0].Headers["traceparent"] != parent[:53]+"00" {
		t.Errorf("not sampled, and written as %v", got[0].Headers)
	}
	if got := oteltrace.Events(t.Context(), events...); len(got) != 3 || got[0].Headers != nil {
		t.Errorf("without a span: %v", got)
	}
	if got := oteltrace.Events(inSpan(t, 0)); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// TestWrites: each of the functions stores the trace with the event.
func TestWrites(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testenv.Database(t))
	for _, schema := range []string{"public", "relay"} {
		_, err := outboxsql.Migrate(t.Context(), pool, schema, outboxsql.MigrateOptions{Notify: outboxsql.NotifyOff})
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := inSpan(t, trace.FlagsSampled)
	e := outbox.Event{Type: "a", Payload: 1}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := oteltrace.Write(ctx, tx, e, e); err != nil {
			return err
		}
		return oteltrace.WriteTo(ctx, tx, "relay", e)
	})
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close() //nolint:errcheck // nothing is under way
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := oteltrace.WriteSQL(ctx, tx, e); err != nil {
		t.Error(err)
	}
	if err := oteltrace.WriteSQLTo(ctx, tx, "relay", e); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	for schema, want := range map[string]int{"public": 3, "relay": 2} {
		var n int
		err := pool.QueryRow(ctx, `SELECT count(*) FROM `+schema+`.outbox_events WHERE headers = jsonb_build_object('traceparent', $1::text, 'tracestate', $2::text)`, parent, state).Scan(&n)
		if err != nil || n != want {
			t.Errorf("%s: %d events, %v; want %d", schema, n, err, want)
		}
	}
}

// TestNoSDK: a writer of events depends on the API alone, and on no driver.
func TestNoSDK(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "go.opentelemetry.io/otel/trace\n") {
		t.Errorf("the list is\n%s", out)
	}
	for _, unwanted := range []string{"otel/sdk", "otel/exporters", "jackc", "notifyd/dispatch", "google.golang.org"} {
		if strings.Contains(string(out), unwanted) {
			t.Errorf("%s is a dependency", unwanted)
		}
	}
}
