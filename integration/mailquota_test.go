package integration

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// mailTo starts a mail server and returns it with a handler that sends to it.
func mailTo(t *testing.T) (*smtpsink.Sink, *email.Handler) {
	t.Helper()
	server, err := smtpsink.Start(smtpsink.Options{TLS: smtpsink.NoTLS})
	if err != nil {
		t.Fatal(err)
	}
	h, err := email.New(email.Config{
		Host: server.Host(), Port: server.Port(), TLS: email.TLSNone, From: "shop@example.com",
		To: email.List{"{{ .Payload.to }}"}, Subject: "x", Text: "x",
	})
	if err != nil {
		t.Fatal(errors.Join(err, server.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(h.Close(), server.Close()); err != nil {
			t.Error(err)
		}
	})
	return server, h
}

// mails counts the mails received, by event.
func mails(t *testing.T, server *smtpsink.Sink) map[int64]int {
	t.Helper()
	count := make(map[int64]int)
	for _, m := range server.Mails() {
		p, err := m.Parse()
		if err != nil {
			t.Fatal(err)
		}
		id, err := strconv.ParseInt(p.Header.Get("X-Notifyd-Event-Id"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		count[id]++
	}
	return count
}

// TestMailQuota: a provider whose codes report that its rate limit or quota is
// used up gets its mails more slowly. No attempt is counted and nothing dies,
// although only one attempt is allowed, and the relay does not report the
// provider as down.
func TestMailQuota(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const events, times = 60, 2
			refusals := []smtpsink.Fault{
				{Stage: smtpsink.MailCmd, Code: 454, Text: "Throttling failure: Maximum sending rate exceeded.", Times: times},
				{Stage: smtpsink.Rcpt, Code: 550, Text: "5.4.5 Daily user sending limit exceeded.", Times: times},
				{Stage: smtpsink.DataEnd, Code: 454, Text: "Throttling failure: Daily message quota exceeded.", Times: times},
			}
			e := newEnvIn(t, mode)
			server, h := mailTo(t)
			server.Fail(refusals...)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'mail', '{"to": "ada@example.com"}' FROM generate_series(1, $1::int)`, events)
			seen := make(incidents, 1000)
			r := e.relay(handleAll(t, h, delivery.Lane{MaxAttempts: 1}), notifyd.Config{Observer: seen})
			e.untilDone()
			d := r.Stats().Destinations[0]
			if d.Dead != 0 || d.Classes[delivery.ClassEvent] != 0 || scan[int](e, `SELECT count(*) FROM outbox_deliveries`) != 0 {
				t.Errorf("an attempt was counted: %+v\n%s", d, e.dump())
			}
			if d.Throttled != uint64(len(refusals)*times) {
				t.Errorf("%d times throttled, want %d", d.Throttled, len(refusals)*times)
			}
			came := mails(t, server)
			if len(came) != events || slices.Max(slices.Collect(maps.Values(came))) > 1 && !r.lostClaim() {
				t.Errorf("not one mail for each of %d events: %v", events, came)
			}
			for range len(seen) {
				if i := <-seen; i.Kind == delivery.IncidentDown {
					t.Errorf("the server was reported as down: %v", i.Err)
				}
			}
		})
	}
}

// TestMailSessionLimit: a server refuses all mails of a session after the tenth, and keeps the session open. Each mail is
// sent at the first attempt, and the server counts as reachable all the time.
func TestMailSessionLimit(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, fault := range map[string]smtpsink.Fault{
		"MAIL 451":  {Stage: smtpsink.MailCmd, Code: 451, Text: "4.3.0 Too many messages in this session"},
		"RCPT 450":  {Stage: smtpsink.Rcpt, Code: 450, Text: "4.7.0 Too many messages in this session"},
		"RCPT 550":  {Stage: smtpsink.Rcpt, Code: 550, Text: "5.7.0 Too many messages in this session"},
		"mail 454":  {Stage: smtpsink.DataEnd, Code: 454, Text: "Throttling failure: too many messages in this session"},
		"no answer": {Stage: smtpsink.Rcpt, Drop: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const events, limit = 60, 10
			e := newEnv(t)
			server, h := mailTo(t)
			fault.Mails, fault.Times = limit, smtpsink.Always
			server.Fail(fault)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'mail', '{"to": "ada@example.com"}' FROM generate_series(1, $1::int)`, events)
			seen := make(incidents, 1000)
			r := e.relay(handleAll(t, h, delivery.Lane{MaxAttempts: 1}), notifyd.Config{Observer: seen})
			e.untilDone()
			if d := r.Stats().Destinations[0]; d.Dead != 0 || d.Throttled != 0 || d.Classes[delivery.ClassEvent] != 0 || len(seen) != 0 {
				t.Errorf("a limit of a session is no fault of an event, nor of the server: %+v, %d incidents\n%s", d, len(seen), e.dump())
			}
			if came := mails(t, server); len(came) != events {
				t.Errorf("%d mails, want %d", len(came), events)
			}
		})
	}
}

// TestMailQuotaOfOneAddress: an address that is always answered with a limit
// delays no other address, and its event is not lost.
func TestMailQuotaOfOneAddress(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const others = 60
			e := newEnvIn(t, mode)
			server, h := mailTo(t)
			server.Fail(smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "slow@", Code: 550, Text: "5.4.5 Daily quota", Times: smtpsink.Always})
			slow := e.insert("mail", `{"to": "slow@example.com"}`)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'mail', '{"to": "ada@example.com"}' FROM generate_series(1, $1::int)`, others)
			backoff := delivery.Backoff{Initial: 100 * time.Millisecond, Max: time.Second, Multiplier: 2}
			r := e.relay(handleAll(t, h, delivery.Lane{MaxAttempts: 1, Backoff: backoff}), notifyd.Config{})
			e.untilAll("the others delivered", "all", `e.id <> $1`, slow)
			e.until("the one put aside, or dead", `SELECT EXISTS (SELECT FROM outbox_deliveries
		WHERE event_id = $1 AND (state = 'dead' OR state = 'retry' AND attempts = 0 AND error_class = 'destination'))`, slow)
			server.Heal()
			e.untilState(slow, "done")
			if d := r.Stats().Destinations[0]; d.Dead != 0 || d.Classes[delivery.ClassEvent] != 0 || d.Throttled == 0 {
				t.Errorf("an attempt was counted: %+v\n%s", d, e.dump())
			}
			if came := mails(t, server); len(came) != others+1 {
				t.Errorf("%d mails, want %d", len(came), others+1)
			}
		})
	}
}
