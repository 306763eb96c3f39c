package email

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestSuite runs the properties that every destination has. The answers that
// are held back are those to the final dot, before which nothing can have been
// sent, and to the goodbye.
func TestSuite(t *testing.T) {
	t.Parallel()
	const password = "correct-horse-battery"
	s := testenv.Mail(t, smtpsink.Options{Username: "relay", Password: password})
	s.Fail(smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "nobody@", Code: 550, Text: "5.1.1 no such user", Times: smtpsink.Always})
	proxy := handlertest.StartProxy(t, s.Addr(), handlertest.MuteAfter([]byte("\r\n.\r\n"), []byte("QUIT\r\n")))
	cfg := config(s)
	cfg.Host, cfg.Port = proxy.Host(), proxy.Port()
	cfg.Username, cfg.Password = "relay", handlers.NewSecret(password)
	handlertest.Run(t, handlertest.Destination{
		Open: func(tb testing.TB) delivery.Handler {
			tb.Helper()
			h, err := New(cfg)
			if err != nil {
				tb.Fatal(err)
			}
			return h
		},
		Received: func(tb testing.TB) []int64 { tb.Helper(); return received(tb, s) },
		Event:    func(id int64) *delivery.Event { return numbered(id, "ada@example.com") },
		Rejected: func(id int64) *delivery.Event { return numbered(id, "nobody@example.com") },
		Network:  proxy,
		Stop: func(tb testing.TB) {
			tb.Helper()
			if err := s.Close(); err != nil {
				tb.Fatal(err)
			}
		},
		Start: func(tb testing.TB) {
			tb.Helper()
			if err := s.Restart(); err != nil {
				tb.Fatal(err)
			}
		},
		Secrets: []string{password, "p4ssw0rd", "wr0ng!"},
		Cases:   suiteCases(),
	})
}

func numbered(id int64, to string) *delivery.Event {
	e := event(fmt.Sprintf(`{"email":%q,"name":"Ada"}`, to))
	e.ID = id
	return e
}

func received(tb testing.TB, s *smtpsink.Sink) []int64 {
	tb.Helper()
	const header = "\r\nX-Notifyd-Event-Id: "
	var ids []int64
	for _, m := range s.Mails() {
		_, rest, found := strings.Cut(string(m.Data), header)
		text, _, _ := strings.Cut(rest, "\r\n")
		id, err := strconv.ParseInt(text, 10, 64)
		if !found || err != nil {
			tb.Fatalf("a mail without the event's id (%v):\n%s", err, m.Data)
		}
		ids = append(ids, id)
	}
	return ids
}

// suiteCases are the rows of [faults] that need not wait for a timeout.
func suiteCases() []handlertest.Case {
	var all []handlertest.Case
	for _, row := range faults() {
		if strings.Contains(row.name, "within") {
			continue
		}
		c := handlertest.Case{Name: row.name, Text: row.text, Provoke: func(tb testing.TB) error { tb.Helper(); return row.provoke(tb) }}
		switch row.class {
		case "unavailable":
			c.Class = delivery.ClassDestination
		case "throttled":
			c.Class, c.Throttled = delivery.ClassDestination, true
		case "permanent":
			c.Class, c.Permanent = delivery.ClassEvent, true
		case "retry":
			c.Class = delivery.ClassEvent
		case "unclear-permanent":
			c.Class, c.Permanent, c.Unclear = delivery.ClassEvent, true, true
		case "unclear-retry":
			c.Class, c.Unclear = delivery.ClassEvent, true
		}
		all = append(all, c)
	}
	return all
}

func (r row) provoke(tb testing.TB) error {
	tb.Helper()
	s := testenv.Mail(tb, r.sink)
	if r.fault.Stage != "" {
		s.Fail(r.fault)
	}
	cfg := config(s)
	if r.config != nil {
		r.config(&cfg)
	}
	return deliverytest.Open(tb, New, cfg).Deliver(tb.Context(), event(ada))
}
