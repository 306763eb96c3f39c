package oteltrace_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe/oteltrace"
)

// FuzzTraceparent: whatever trace a writer has set, one valid traceparent goes out, and a tracestate of the size that W3C Trace
// Context allows.
func FuzzTraceparent(f *testing.F) {
	for _, seed := range [][2]string{
		{writer, ""},
		{unsampled, "a=1"},
		{"", strings.Repeat("a=1,", 1000)},
		{strings.ToUpper(writer), "a=1"},
		{"01" + writer[2:] + "-x", "a=\x00"},
		{"ff" + writer[2:], "="},
		{writer[:54] + "9", ",,"},
		{writer, strings.Repeat("k", 300) + "=v"},
		{"00-0-0-0", "a=1,a=2"},
	} {
		f.Add(seed[0], seed[1], "TraceParent")
	}
	form := regexp.MustCompile(`\A00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]\z`)
	provider := sdktrace.NewTracerProvider()
	f.Fuzz(func(t *testing.T, parent, state, name string) {
		e := &delivery.Event{ID: 1, Headers: map[string]string{name: parent, "tracestate": state}}
		var sent *delivery.Event
		h := oteltrace.Middleware(provider)(delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			sent = e
			return nil
		}))
		if err := h.Deliver(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		traces := 0
		for name, value := range sent.Headers {
			switch strings.ToLower(name) {
			case "traceparent":
				traces++
				if !form.MatchString(value) {
					t.Errorf("%q became %q", parent, value)
				}
			case "tracestate":
				if len(value) > len(state) || strings.Count(value, ",") >= 32 {
					t.Errorf("%q became %q", state, value)
				}
			}
		}
		if traces != 1 {
			t.Errorf("%d traces: %q", traces, sent.Headers)
		}
	})
}
