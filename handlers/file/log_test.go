package file_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/file"
)

var _ delivery.BatchHandler = (*file.Log)(nil)

func event(id int64, payload string) *delivery.Event {
	return &delivery.Event{
		ID: id, Type: "order.created", Payload: json.RawMessage(payload),
		CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Attempt: 1, Destination: "audit",
	}
}

func handler(t *testing.T, w io.Writer, cfg file.LogConfig) *file.Log {
	t.Helper()
	h, err := file.NewLog(cfg, file.WithWriter(w))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestPayloadIsCompactAndOtherwiseAsItWas(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := handler(t, &out, file.LogConfig{})
	for payload, want := range map[string]string{
		"{\n \"b\" : 1.10,\r\n\t\"a\": 12345678901234567890, \"a\": \" x\\n \"}\n": `{"b":1.10,"a":12345678901234567890,"a":" x\n "}`,
		" null ":           "null",
		"\"ü <&>\"":        "\"ü <&>\"",
		"\"\u2028\u009b\"": `"\u2028\u009b"`, // in a terminal too
		"[ 1 ,\n2 ]":       "[1,2]",
	} {
		out.Reset()
		if err := h.Deliver(t.Context(), event(1, payload)); err != nil {
			t.Error(err)
		}
		got := out.String()
		if !strings.HasSuffix(got, `,"payload":`+want+"}\n") || strings.Count(got, "\n") != 1 || !json.Valid([]byte(got)) {
			t.Errorf("%q: got %q", payload, got)
		}
	}
}

// TestWhatOthersCarry: an event that other destinations can carry has a line.
func TestWhatOthersCarry(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := handler(t, &out, file.LogConfig{})
	for _, year := range []int{-4711, 10_000, 294_276} {
		out.Reset()
		e := event(1, "{}")
		e.CreatedAt = time.Date(year, 1, 2, 3, 4, 5, 0, time.UTC)
		if err := h.Deliver(t.Context(), e); err != nil || !json.Valid(out.Bytes()) || strings.Contains(out.String(), "created_at") {
			t.Errorf("written in the year %d: %v, %s", year, err, out.String())
		}
	}
	const deep = 12_000
	out.Reset()
	payload := strings.Repeat("[ ", deep) + `{"a\\" : "b \" \\", "n": 1e400}` + strings.Repeat("\n]", deep)
	want := strings.Repeat("[", deep) + `{"a\\":"b \" \\","n":1e400}` + strings.Repeat("]", deep)
	if err := h.Deliver(t.Context(), event(1, payload)); err != nil || !strings.HasSuffix(out.String(), `"payload":`+want+"}\n") {
		t.Errorf("nested deeply: %v, %.200q", err, out.String())
	}
	for _, bad := range []string{strings.Repeat("[", deep), payload + "1", payload[:len(payload)-1], strings.Repeat("[", deep) + "1,]" + strings.Repeat("]", deep-1)} {
		if err := h.Deliver(t.Context(), event(1, bad)); !delivery.IsPermanent(err) {
			t.Errorf("no JSON, nested deeply: %v", err)
		}
	}
}

// TestBytes: of a payload that is not JSON the line has type and size.
func TestBytes(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := handler(t, &out, file.LogConfig{})
	e := event(1, `{"secret": 1}`)
	for kind, want := range map[string]string{
		"":                     `"payload":{"secret":1}`,
		"application/json":     `"payload":{"secret":1}`,
		"application/x+json":   `"content_type":"application/x+json","payload":{"secret":1}`,
		"application/protobuf": `"content_type":"application/protobuf","payload_size":13`,
	} {
		out.Reset()
		if e.ContentType = kind; h.Deliver(t.Context(), e) != nil || !strings.HasSuffix(out.String(), `"destination":"audit",`+want+"}\n") {
			t.Errorf("%q: %s, want %s", kind, out.String(), want)
		}
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var cfg file.LogConfig
	if err := yaml.Unmarshal([]byte("payload: false"), &cfg); err != nil {
		t.Fatal(err)
	}
	e := event(9, `{"secret":1}`)
	e.AggregateType, e.AggregateID, e.Headers = "order\n", "A-7", map[string]string{"k\n": "v"}
	if err := handler(t, &out, cfg).Deliver(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	want := `{"event_id":9,"event_type":"order.created","aggregate_type":"order\n","aggregate_id":"A-7",` +
		`"created_at":"2026-03-04T05:06:07Z","attempt":1,"destination":"audit","headers":{"k\n":"v"}}` + "\n"
	if out.String() != want {
		t.Errorf("got %s", out.String())
	}
}

func TestBatchIsOneWrite(t *testing.T) {
	t.Parallel()
	w := &countWriter{}
	h := handler(t, w, file.LogConfig{})
	errs := h.DeliverBatch(t.Context(), []*delivery.Event{event(1, "{}"), event(2, "hunter2"), event(3, "{}")})
	if len(errs) != 3 || errs[0] != nil || errs[2] != nil || !delivery.IsPermanent(errs[1]) || strings.Contains(errs[1].Error(), "hunter2") {
		t.Errorf("got %v", errs)
	}
	if w.writes != 1 || strings.Count(w.String(), "\n") != 2 || strings.Contains(w.String(), "hunter2") {
		t.Errorf("%d writes: %s", w.writes, w.String())
	}
	if errs := h.DeliverBatch(t.Context(), []*delivery.Event{event(4, "1"), event(5, "2")}); errs != nil {
		t.Errorf("got %v", errs)
	}
	if errs := h.DeliverBatch(t.Context(), nil); errs != nil || w.writes != 2 {
		t.Errorf("got %v after %d writes", errs, w.writes)
	}
}

type countWriter struct {
	bytes.Buffer
	writes int
}

func (w *countWriter) Write(p []byte) (int, error) {
	w.writes++
	return w.Buffer.Write(p)
}

// fullWriter takes so many bytes and no more.
type fullWriter struct {
	left int
	err  error
}

func (w *fullWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	if n < len(p) {
		return n, w.err
	}
	return n, nil
}

// tornWriter fails once, after so many bytes.
type tornWriter struct {
	bytes.Buffer
	left int
}

func (w *tornWriter) Write(p []byte) (int, error) {
	if n := w.left; n > 0 && n < len(p) {
		w.left = 0
		_, _ = w.Buffer.Write(p[:n])
		return n, io.ErrShortWrite
	}
	return w.Buffer.Write(p)
}

func TestFailedWriteIsTheDestinations(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left")
	var one bytes.Buffer
	if err := handler(t, &one, file.LogConfig{}).Deliver(t.Context(), event(1, "{}")); err != nil {
		t.Fatal(err)
	}
	for _, cause := range []error{full, nil} { // nil: a writer that breaks its contract
		h := handler(t, &fullWriter{left: one.Len() + 3, err: cause}, file.LogConfig{})
		errs := h.DeliverBatch(t.Context(), []*delivery.Event{event(1, "{}"), event(2, "{}"), event(3, "x")})
		if len(errs) != 3 || errs[0] != nil || !delivery.IsUnavailable(errs[1]) || !delivery.IsPermanent(errs[2]) {
			t.Errorf("got %v", errs)
		}
	}
	// A torn line does not spoil the next one.
	w := &tornWriter{left: 5}
	h := handler(t, w, file.LogConfig{})
	first, second := h.Deliver(t.Context(), event(1, "{}")), h.Deliver(t.Context(), event(2, "{}"))
	if !delivery.IsUnavailable(first) || second != nil || !strings.HasPrefix(w.String(), "{\"eve\n{\"event_id\":2,") {
		t.Errorf("%v, %v, %q", first, second, w.String())
	}
	if err := handler(t, &fullWriter{err: full}, file.LogConfig{}).Deliver(t.Context(), event(1, "{}")); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if _, err := file.NewLog(file.LogConfig{}, file.WithWriter(nil)); err == nil {
		t.Error("a nil writer is accepted")
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	cause := errors.New("stopping")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	err := handler(t, &out, file.LogConfig{}).Deliver(ctx, event(1, "{}"))
	if !errors.Is(err, cause) || delivery.IsUnavailable(err) || delivery.IsPermanent(err) || out.Len() != 0 {
		t.Errorf("got %v and %q", err, out.String())
	}
}

func TestLinesOfManyGoroutinesStayWhole(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := handler(t, &out, file.LogConfig{})
	var wg sync.WaitGroup
	for i := range int64(50) {
		wg.Go(func() {
			if err := h.Deliver(t.Context(), event(i, `{"n":1}`)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 50 {
		t.Errorf("%d lines", len(lines))
	}
	for _, l := range lines {
		if !json.Valid([]byte(l)) {
			t.Errorf("broken: %s", l)
		}
	}
}

func Example() {
	h, err := file.NewLog(file.LogConfig{}, file.WithWriter(os.Stdout))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = h.Deliver(context.Background(), &delivery.Event{
		ID: 7, Type: "order.created", AggregateType: "order", AggregateID: "A-1",
		Payload: []byte("{\n  \"total\": 19.90\n}"), CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
		Attempt: 1, Destination: "log",
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"event_id":7,"event_type":"order.created","aggregate_type":"order","aggregate_id":"A-1","created_at":"2026-03-04T05:06:07Z","attempt":1,"destination":"log","payload":{"total":19.90}}
}
