package email

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestAcceptIsBounded: maybe_sent: accept logs each mail that it takes for sent, and stops where every mail ends without an
// answer. One answer begins the count again.
func TestAcceptIsBounded(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.MaybeSent = MaybeSentAccept
	var log bytes.Buffer
	h, err := New(cfg, handlers.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	id := int64(0)
	send := func() error {
		id++
		return h.Deliver(testenv.Within(t, patience), numbered(id, "ada@example.com"))
	}

	for round := range 2 {
		s.Fail(smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true, Times: smtpsink.Always})
		for n := range maxUnanswered {
			if err := send(); err != nil {
				t.Fatalf("round %d, mail %d: %v", round, n, err)
			}
			if want := fmt.Sprintf(`level=WARN msg="mail taken for sent without an answer" event_id=%d`, id); !strings.Contains(log.String(), want) {
				t.Errorf("no %s in\n%s", want, log.String())
			}
		}
		for range 2 {
			err := send()
			deliverytest.WantClass(t, err, "unavailable")
			deliverytest.WantText(t, err, "maybe sent: more than 5 mails in a row had no answer")
		}

		s.Heal()
		if err := send(); err != nil {
			t.Fatalf("round %d, healed: %v", round, err)
		}
	}
	if got := strings.Count(log.String(), "\n"); got != 2*maxUnanswered {
		t.Errorf("%d lines, want %d:\n%s", got, 2*maxUnanswered, log.String())
	}
}
