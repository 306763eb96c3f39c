package email

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds a test that waits for something that must happen.
const patience = time.Minute

func event(payload string) *delivery.Event { return deliverytest.Event("welcome mail", 42, payload) }

const ada = `{"email":"ada@example.com","name":"Ada","total":1999}`

// config is a complete configuration for the sink.
func config(s *smtpsink.Sink) Config {
	return Config{
		Host: s.Host(), Port: s.Port(), TLS: TLSNone, HELO: "relay.example.com",
		From: "Shop <shop@example.com>", To: List{"{{ .Payload.email }}"},
		Subject: "Order {{ .Event.AggregateID }}", Text: "Dear {{ .Payload.name }}",
	}
}

// deliverOne sends one event and returns the mail that came of it.
func deliverOne(t *testing.T, h *Handler, s *smtpsink.Sink, e *delivery.Event) (smtpsink.Mail, *smtpsink.Message) {
	t.Helper()
	n := len(s.Mails())
	if err := h.Deliver(testenv.Within(t, patience), e); err != nil {
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

func writeFile(tb testing.TB, dir, name string, data []byte) {
	tb.Helper()
	testenv.WriteFile(tb, filepath.Join(dir, name), string(data))
}
