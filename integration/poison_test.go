package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// poisonTo are the destinations that some events harm: those of the aggregates eve1,
// eve2 and so on, whose payloads have eve as the recipient.
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
				if strings.HasPrefix(req.Header.Get("notifyd-aggregate-id"), "eve") {
					harm(w, req)
					return
				}
				w.WriteHeader(http.StatusNoContent)
			})
			c := webhook.Config{URL: "http://" + r.addr}
			if name == "webhook, hang" {
				c.ResponseTimeout = 500 * time.Millisecond // a busy machine must not exceed it for good events of the others
			}
			h, err := webhook.New(c)
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
		fault.Times = smtpsink.Always
		all[name] = func(t *testing.T) delivery.Handler {
			t.Helper()
			server, h := mailTo(t)
			server.Fail(fault)
			return h
		}
	}
	all["kafka, no topic"] = func(t *testing.T) delivery.Handler {
		t.Helper()
		brokers, topic := testenv.Kafka(t), fmt.Sprintf("poison.%d.", time.Now().UnixNano())
		testenv.KafkaTopic(t, brokers, topic+"good", 1, nil)
		h, err := kafka.New(kafka.Config{Brokers: brokers, Topic: topic + "{{ .Payload.topic }}"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		return h
	}
	all[hangs] = func(*testing.T) delivery.Handler {
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

// hangs is the destination of poisonTo that answers no bad event, and every other at once.
const hangs = "one that hangs until the timeout"

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
				if name != "webhook, 503" && name != hangs {
					testenv.Long(t)
				}
				e := newEnvIn(t, mode)
				const poison, attempts = 3, 2
				timeout := time.Minute // a busy machine must not count an attempt of a good event
				if name == hangs {
					timeout = time.Second
				}
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
					SELECT 'poison', 'customer', 'eve' || n, '{"to": "eve@example.com", "topic": "none"}' FROM generate_series(1, $1::int) n`, poison)
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
					SELECT 'fine', 'customer', (n % 20)::text, '{"to": "ada@example.com", "topic": "good"}' FROM generate_series(1, 100) n`)
				r := e.relay(handleAll(t, to(t), delivery.Lane{MaxAttempts: attempts, Timeout: timeout, Backoff: quick()}), notifyd.Config{})
				e.untilAll("the others are delivered", "all", `e.event_type = 'fine'`)
				begin := time.Now()
				for scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`) < poison {
					// Deliveries of other events distinguish them from an outage.
					e.untilState(e.insert("fine", `{"to": "ada@example.com", "topic": "good"}`), "done")
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

// poison says which of the events of [manyPoison] are bad: the first ones, and those with odds in percent.
type poison struct {
	front, share int
	ownType      bool // of the bad events
}

func (p poison) String() string {
	text := fmt.Sprintf("%d in front", p.front)
	if p.share > 0 {
		text = fmt.Sprintf("%d %% of all", p.share)
	}
	if p.ownType {
		return text + ", of their type"
	}
	return text
}

// manyPoison writes good events and bad ones, and returns how long it takes until the good ones are delivered, with the pauses and
// attempts that are a relay's defaults.
func manyPoison(t *testing.T, mode outboxsql.Mode, h delivery.Handler, good int, p poison) time.Duration {
	t.Helper()
	e := newEnvIn(t, mode)
	all := good + p.front
	if p.share > 0 {
		all = good * 100 / (100 - p.share)
	}
	e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT CASE WHEN bad AND $4 THEN 'poison' ELSE 'fine' END, 'customer', CASE WHEN bad THEN 'eve' || n ELSE (n % 20)::text END,
			CASE WHEN bad THEN '{"to": "eve@example.com", "topic": "none"}' ELSE '{"to": "ada@example.com", "topic": "good"}' END::jsonb
		FROM (SELECT n, n <= $2 OR (n * 7) % 100 < $3 AS bad FROM generate_series(1, $1::int) n) AS e`, all, p.front, p.share, p.ownType)

	begin := time.Now()
	e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
	e.untilAll("the others are delivered", "all", `e.payload->>'to' = 'ada@example.com'`)
	took := time.Since(begin)
	if n := scan[int](e, `SELECT count(*) FROM outbox_events e WHERE e.payload->>'to' = 'eve@example.com'`); n == 0 {
		t.Error("no event was bad")
	}
	return took
}

// TestManyPoison: many events that make their destination fail each time, or a type that always does, hold up the others
// for a few seconds at most, although they come first or are half of all events. The log has the times.
func TestManyPoison(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	all := poisonTo(t)
	for _, name := range []string{"webhook, 503", "webhook, hang", "mail, 421", "kafka, no topic"} {
		for _, p := range []poison{{front: 20}, {front: 100}, {share: 50, ownType: true}, {share: 50}, {share: 90}} {
			for _, mode := range bothModes() {
				isSlow := name == "webhook, hang" && !p.ownType
				if isSlow {
					continue // each of them takes a worker for a while, which no one can know before
				}
				t.Run(fmt.Sprintf("%s/%s/%s", name, p, mode), func(t *testing.T) {
					t.Parallel()
					t.Logf("%.1f s", manyPoison(t, mode, all[name](t), 300, p).Seconds())
				})
			}
		}
	}
}
