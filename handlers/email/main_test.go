package email

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/internal/smtpsink"
	"github.com/notifyd/notifyd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds a test that waits for something that must happen.
const patience = time.Minute

func event(payload string) *delivery.Event {
	return &delivery.Event{
		ID: 42, Type: "order.created", AggregateType: "order", AggregateID: "A-7",
		Payload: json.RawMessage(payload), Headers: map[string]string{"tenant": "acme"},
		CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Attempt: 1, Destination: "welcome mail",
	}
}

const ada = `{"email":"ada@example.com","name":"Ada","total":1999}`

func startSink(tb testing.TB, o smtpsink.Options) *smtpsink.Sink {
	tb.Helper()
	o.Listen = freeport.At // which finds the port again at a Restart
	s, err := smtpsink.Start(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// config is a complete configuration for the sink.
func config(s *smtpsink.Sink) Config {
	return Config{
		Host: s.Host(), Port: s.Port(), TLS: TLSNone, HELO: "relay.example.com",
		From: "Shop <shop@example.com>", To: List{"{{ .Payload.email }}"},
		Subject: "Order {{ .Event.AggregateID }}", Text: "Dear {{ .Payload.name }}",
	}
}

func newHandler(tb testing.TB, cfg Config, opts ...handlers.Option) *Handler {
	tb.Helper()
	h, err := New(cfg, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := h.Close(); err != nil {
			tb.Error(err)
		}
	})
	return h
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the test waited too long"))
	t.Cleanup(cancel)
	return ctx
}

// deliverOne sends one event and returns the mail that came of it.
func deliverOne(t *testing.T, h *Handler, s *smtpsink.Sink, e *delivery.Event) (smtpsink.Mail, *smtpsink.Message) {
	t.Helper()
	n := len(s.Mails())
	if err := h.Deliver(testContext(t), e); err != nil {
		t.Fatal(err)
	}
	mails := s.Mails()
	if len(mails) != n+1 {
		t.Fatalf("%d mails, want %d", len(mails), n+1)
	}
	m := mails[n]
	p, err := m.Parse()
	if err != nil {
		t.Fatalf("%v\n%s", err, m.Data)
	}
	return m, p
}

func writeFile(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// class names the dispatcher's class of err.
func class(err error) string {
	switch {
	case err == nil:
		return "delivered"
	case delivery.IsPermanent(err):
		return "permanent"
	case delivery.IsUnavailable(err):
		return "unavailable"
	case delivery.IsThrottled(err):
		return "throttled"
	default:
		return "retry"
	}
}
