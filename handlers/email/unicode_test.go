package email

import (
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestUnicodeAddresses: a domain outside of ASCII goes to any server in its other form. Letters
// outside of ASCII before the @ go to a server that offers SMTPUTF8; at another one the event is a
// dead letter with that reason, no part of it is sent, and the next event is delivered.
func TestUnicodeAddresses(t *testing.T) {
	t.Parallel()
	for _, without := range []bool{false, true} {
		s := testenv.Mail(t, smtpsink.Options{NoSMTPUTF8: without})
		cfg := config(s)
		cfg.From, cfg.ReplyTo, cfg.Cc = "Läden <shop@läden.example>", "{{ get .Payload \"reply\" | default \"hilfe@läden.example\" }}", List{"b@BÜCHER.example"}
		h := deliverytest.Open(t, New, cfg)
		for range 2 { // a new connection, and one that is used again
			m, p := deliverOne(t, h, s, event(`{"email":"Ada <ada@münchen.example>","name":"Ada"}`))
			if want := []string{"ada@xn--mnchen-3ya.example", "b@xn--bcher-kva.example"}; m.From != "shop@xn--lden-loa.example" || !slices.Equal(m.To, want) {
				t.Errorf("envelope: %s -> %v, want %v", m.From, m.To, want)
			}
			if head, _, _ := strings.Cut(string(m.Data), "\r\n\r\n"); !isASCII(head) || p.Header.Get("Message-Id") != "<notifyd.42.welcome-mail@xn--lden-loa.example>" {
				t.Errorf("headers:\n%s", head)
			}
		}
		for _, payload := range []string{`{"email":"jürgen@example.com","name":"J"}`, `{"email":"a@example.com","name":"A","reply":"jürgen@example.com"}`} {
			before := len(s.Mails())
			err := h.Deliver(testenv.Within(t, patience), event(payload))
			switch {
			case !without && (err != nil || len(s.Mails()) != before+1):
				t.Errorf("a server with SMTPUTF8: %v", err)
			case without && (!delivery.IsPermanent(err) || !strings.Contains(err.Error(), "SMTPUTF8") || len(s.Mails()) != before):
				t.Errorf("a server without SMTPUTF8: %v, %d mails", err, len(s.Mails())-before)
			}
		}
		deliverOne(t, h, s, event(`{"email":"ada@example.com","name":"Ada"}`))
		if err := h.Deliver(testenv.Within(t, patience), event(`{"email":"a@\u2024.example","name":"A"}`)); !delivery.IsPermanent(err) || !strings.Contains(err.Error(), "domain") {
			t.Errorf("a domain that cannot exist: %v", err)
		}
		if n := s.Accepted(); n != 1 {
			t.Errorf("%d connections", n)
		}
	}
}
