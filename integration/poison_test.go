package integration

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/smtpsink"
	"github.com/notifyd/notifyd/observe"
)

// poisonTo are the destinations that some events harm. The payload of an event
// names its recipient, and the harmful ones are for eve.
func poisonTo(t *testing.T) map[string]func(t *testing.T) delivery.Handler {
	t.Helper()
	all := make(map[string]func(t *testing.T) delivery.Handler)
	for name, harm := range map[string]http.HandlerFunc{
		"webhook, 503":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"webhook, 401":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"webhook, drop": reset,
		"webhook, hang": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		all[name] = func(t *testing.T) delivery.Handler {
			t.Helper()
			r := startHTTPReceiver(t, func(w http.ResponseWriter, req *http.Request) {
				if req.Header.Get("notifyd-type") == "poison" {
					harm(w, req)
					return
				}
				w.WriteHeader(http.StatusNoContent)
			})
			h, err := webhook.New(webhook.Config{URL: "http://" + r.addr, ResponseTimeout: 500 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = h.Close() })
			return h
		}
	}
	for name, fault := range map[string]smtpsink.Fault{
		"mail, 421 and gone at DATA": {Stage: smtpsink.DataEnd, Match: "eve@", Drop: true, Code: 421},
		"mail, drop at RCPT":         {Stage: smtpsink.Rcpt, Match: "eve@", Drop: true},
		"mail, 421":                  {Stage: smtpsink.Rcpt, Match: "eve@", Code: 421},
	} {
		all[name] = func(t *testing.T) delivery.Handler {
			t.Helper()
			server, h := mailTo(t)
			fault.Times = smtpsink.Always
			server.Fail(fault)
			return h
		}
	}
	all["one that hangs until the timeout"] = func(*testing.T) delivery.Handler {
		return delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
			if e.Type != "poison" {
				return nil
			}
			<-ctx.Done()
			return delivery.Unavailable(errors.Join(errors.New("no answer"), context.Cause(ctx)))
		})
	}
	return all
}

// TestPoison: events that make their destination fail each time hold up no others
// for long, although they come first, and are dead letters in the end. The pauses
// are a relay's defaults: if the same events were always the probe, they would
// hold up the others for good.
func TestPoison(t *testing.T) {
	t.Parallel()
	for name, to := range poisonTo(t) {
		for _, mode := range bothModes() {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				e := newEnvIn(t, mode)
				const poison, attempts = 3, 2
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
					SELECT 'poison', 'customer', 'eve' || n, '{"to": "eve@example.com"}' FROM generate_series(1, $1::int) n`, poison)
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
					SELECT 'fine', 'customer', (n % 20)::text, '{"to": "ada@example.com"}' FROM generate_series(1, 100) n`)
				r := e.relay(handleAll(t, to(t), delivery.Lane{MaxAttempts: attempts, Timeout: time.Second, Backoff: quick()}), notifyd.Config{})
				e.untilAll("the others are delivered", "all", `e.event_type = 'fine'`)
				begin := time.Now()
				for scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`) < poison {
					// Deliveries of other events distinguish them from an outage.
					e.untilState(e.insert("fine", `{"to": "ada@example.com"}`), "done")
					if time.Since(begin) > patience {
						t.Fatalf("they do not die:\n%s", e.dump())
					}
				}
				if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead' AND event_type = 'poison' AND attempts = $1`, attempts); n != poison {
					t.Errorf("%d of %d are dead after %d attempts:\n%s", n, poison, attempts, e.dump())
				}
				r.untilDestination("well", func(d *observe.DestinationStats) bool { return d.State == observe.BreakerClosed })
				if d := r.Stats().Destinations[0]; d.Dead != poison || d.Failed != poison*(attempts-1) {
					t.Errorf("an attempt was counted for a good event: %+v", d)
				}
			})
		}
	}
}
