package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/doctor"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// strict is a server that refuses everything, then nothing, then what is marked as bad.
type strict interface {
	// settings are those of a destination of the type.
	settings() string
	// heal takes everything, and refuses what is bad in the former way if bad is true.
	heal(bad bool)
	// arrived returns what the server has taken, in order.
	arrived(t *testing.T) []item
	// refused is how many messages it has not taken.
	refused() int
}

// badOnes is the aggregate of the events that a healed server still refuses.
const badOnes = "bad"

// strictMail refuses mails with a fault of the sink.
type strictMail struct {
	sink  *smtpsink.Sink
	fault smtpsink.Fault
}

func refusingMail(t *testing.T, fault smtpsink.Fault) strict {
	t.Helper()
	fault.Times = smtpsink.Always
	s := &strictMail{sink: testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS}), fault: fault}
	s.sink.Fail(fault)
	return s
}

func (s *strictMail) settings() string {
	return fmt.Sprintf("type: email, host: 127.0.0.1, port: %d, tls: none, from: shop@example.com, to: '{{ .Payload.of }}@example.com', "+
		"subject: '{{ json .Payload }}', text: x", s.sink.Port())
}

func (s *strictMail) heal(bad bool) {
	s.sink.Heal()
	if bad {
		fault := s.fault
		fault.Match = badOnes + "@example.com"
		s.sink.Fail(fault)
	}
}

func (s *strictMail) arrived(t *testing.T) (all []item) {
	t.Helper()
	for _, mail := range s.sink.Mails() {
		m, err := mail.Parse()
		if err != nil {
			t.Fatal(err)
		}
		var i item
		if err := json.Unmarshal([]byte(m.Subject), &i); err != nil {
			t.Fatalf("%v in %s", err, m.Subject)
		}
		all = append(all, i)
	}
	return all
}

func (s *strictMail) refused() int { return s.sink.Failed() }

// strictDesk refuses requests with a status.
type strictDesk struct {
	*httptest.Server
	status int
	more   string // further settings

	mu      sync.Mutex
	refuses func(item) bool
	taken   []item
	failed  int
}

func refusingDesk(t *testing.T, status int, more string) strict {
	t.Helper()
	d := &strictDesk{status: status, more: more, refuses: func(item) bool { return true }}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

func (d *strictDesk) settings() string {
	return "type: webhook, url: '" + d.URL + "/" + d.more
}

func (d *strictDesk) heal(bad bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuses = func(i item) bool { return bad && i.Of == badOnes }
}

func (d *strictDesk) arrived(*testing.T) []item {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]item(nil), d.taken...)
}

func (d *strictDesk) refused() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// ServeHTTP takes all events of a request, or none.
func (d *strictDesk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the connection was lost
	}
	var items []item
	if bytes.HasPrefix(body, []byte("[")) {
		var events []struct{ Data item }
		err = json.Unmarshal(body, &events)
		for _, e := range events {
			items = append(items, e.Data)
		}
	} else {
		items = make([]item, 1)
		err = json.Unmarshal(body, &items[0])
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	refused := err != nil
	for _, i := range items {
		refused = refused || d.refuses(i)
	}
	if refused {
		d.failed++
		w.Header().Set("Retry-After", "0")
		http.Error(w, "not so", d.status)
		return
	}
	d.taken = append(d.taken, items...)
}

// TestEveryEventRefused: a server that refuses every event in the same way buries none, and gets all of them once it is
// cured, in order where order is kept. An event that it refuses alone is a dead letter all the same.
func TestEveryEventRefused(t *testing.T) {
	t.Parallel()
	rcpt := func(code int, text string) smtpsink.Fault {
		return smtpsink.Fault{Stage: smtpsink.Rcpt, Code: code, Text: text}
	}
	for name, c := range map[string]struct {
		start func(t *testing.T) strict
		text  string // in the log, in status and in the dead letter
		row   bool   // the refusal is unclear
	}{
		"mail, greeting": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingMail(t, rcpt(504, "5.5.2 <shop>: Helo command rejected: need fully-qualified hostname"))
			}, "set helo to the full name of this machine", true,
		},
		"mail, unknown greeting": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingMail(t, rcpt(450, "4.7.1 <shop>: Helo command rejected: Host not found"))
			}, "set helo to the full name of this machine", true,
		},
		"mail, relay denied": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingMail(t, rcpt(454, "4.7.1 <x@example.com>: Relay access denied"))
			}, "set username and password", true,
		},
		"mail, block list": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingMail(t, rcpt(554, "5.7.1 Client host [192.0.2.1] blocked using zen.spamhaus.org"))
			}, "is on a block list", true,
		},
		"mail, full disk": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingMail(t, rcpt(452, "4.3.1 Insufficient system storage"))
			}, "452 4.3.1", false,
		},
		"mail, sender": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingMail(t, smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 554, Text: "5.2.252 SendAsDenied; not allowed to send as shop@example.com"})
			}, "check from", true,
		},
		"mail, cut after DATA": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingMail(t, smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true})
			}, "maybe sent", true,
		},
		"webhook 400": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingDesk(t, 400, "'")
			}, "HTTP 400 Bad Request", true,
		},
		"webhook 402, one URL": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingDesk(t, 402, "'")
			}, "HTTP 402 Payment Required", false,
		},
		"webhook 402": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingDesk(t, 402, "{{ .Payload.of }}'")
			}, "HTTP 402 Payment Required", true,
		},
		"webhook 404": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingDesk(t, 404, "{{ .Payload.of }}'")
			}, "HTTP 404 Not Found", true,
		},
		"webhook 500": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingDesk(t, 500, "'")
			}, "HTTP 500 Internal Server Error", true,
		},
		"batches 400": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingDesk(t, 400, "', batch_format: cloudevents, cloudevents_source: /shop")
			}, "HTTP 400 Bad Request", true,
		},
		"batches 500": {
			func(t *testing.T) strict {
				t.Helper()
				return refusingDesk(t, 500, "', batch_format: cloudevents, cloudevents_source: /shop")
			}, "HTTP 500 Internal Server Error", true,
		},
	} {
		for _, mode := range modes() {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				if name != "mail, relay denied" && name != "webhook 400" {
					testenv.Long(t)
				}
				r := &refusal{T: t, server: c.start(t), url: databaseOf(t, mode), mode: mode}
				r.all(c.text, c.row)
				r.one(c.text)
			})
		}
	}
}

// refusal is a daemon whose only destination refuses events.
type refusal struct {
	*testing.T
	server strict
	url    string
	mode   string
	daemon *runningDaemon
}

// write inserts n events of some aggregates.
func (r *refusal) write(n int, aggregate string) {
	r.Helper()
	execute(r.T, r.url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'order.placed', 'order', of, jsonb_build_object('of', of, 'n', n) FROM (SELECT n, %s AS of FROM generate_series(1, %d) n) all_of_them`, aggregate, n))
}

func (r *refusal) dead() int {
	r.Helper()
	return query[int](r.T, r.url, `SELECT count(*)::int FROM outbox_deliveries WHERE state = 'dead'`)
}

// all lets the server refuse everything until the relay takes it for down, and then cures it.
func (r *refusal) all(text string, row bool) {
	r.Helper()
	const events, aggregates = 40, 20
	r.write(events, fmt.Sprintf("'a' || n %% %d", aggregates))
	path := file(r.T, fmt.Sprintf(`version: 1
database: {url: '%s'}
log: {format: json}
destinations:
  place: {%s, start_from: %s, max_attempts: 3, backoff: {initial: 100ms, max: 300ms}}
routes: [{match: '*', to: place}]
`, r.url, r.server.settings(), map[string]string{"queue": "auto", "stream": "beginning"}[r.mode]))
	r.daemon = startDaemon(r.T, nil, "run", "-c", path)
	r.daemon.stderr.await(r.T, `"destination down"`)
	if row {
		r.daemon.stderr.await(r.T, "events in a row were refused alike; the destination counts as down until it takes one: ")
	}
	if !strings.Contains(r.daemon.stderr.text(), text) {
		r.Errorf("the log does not say %s:\n%s", text, r.daemon.stderr.text())
	}
	until(r.T, r.url, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE last_error LIKE '%' || $1 || '%')`, text)
	r.Logf("%d messages until it counts as down, %d of %d events are dead", r.server.refused(), r.dead(), events)

	r.server.heal(false)
	untilDone(r.T, r.url)
	if n := r.dead(); n > 0 {
		r.Errorf("%d dead letters: %s", n, query[string](r.T, r.url, `SELECT string_agg(DISTINCT last_error, ' ') FROM outbox_deliveries`))
	}

	seen := make(map[item]bool)
	last := make(map[string]int)
	late := 0
	for _, i := range r.server.arrived(r.T) {
		if !seen[i] && i.N < last[i.Of] {
			late++
		}
		seen[i] = true
		last[i.Of] = max(last[i.Of], i.N)
	}
	r.Logf("%d of %d events arrived, %d behind a later one of their aggregate, %d messages refused in all", len(seen), events, late, r.server.refused())
	if len(seen) != events {
		r.Errorf("%d of %d events arrived", len(seen), events)
	}
	if r.mode == "stream" && late > 0 {
		r.Errorf("%d events came behind a later one of their aggregate", late)
	}
}

// one lets the server refuse one event among others.
func (r *refusal) one(text string) {
	r.Helper()
	r.server.heal(true)
	r.write(1, "'"+badOnes+"'")
	r.write(20, "'b' || n")
	for r.dead() == 0 {
		r.write(1, "'c'") // others, which are taken
		untilRests(r.T, r.url)
	}
	got := invoke(r.T, "dlq", "list", "--database-url", r.url, "-o", "json")
	if !strings.Contains(got.stdout, text) || r.dead() != 1 {
		r.Errorf("%d dead letters, want 1: %s", r.dead(), got.stdout)
	}
}

// untilRests waits until every event but the bad one has left the lane.
func untilRests(t *testing.T, url string) {
	t.Helper()
	until(t, url, `SELECT CASE (SELECT mode FROM outbox_mode)
		WHEN 'queue' THEN NOT EXISTS (SELECT FROM outbox_events WHERE state <> 'done' AND aggregate_id <> 'bad')
		ELSE NOT EXISTS (SELECT FROM outbox_events e, outbox_positions p WHERE p.destination <> '' AND e.aggregate_id <> 'bad' AND (e.id > p.head OR p.open @> e.id)) END`)
}

// TestGreetingWithoutDot: a greeting that many servers refuse is a warning of check-config, of doctor and of the log at the
// start, and no mistake.
func TestGreetingWithoutDot(t *testing.T) {
	t.Parallel()
	url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	path := file(t, fmt.Sprintf(`version: 1
database: {url: '%s'}
destinations:
  mail:
    type: email
    host: 127.0.0.1
    port: %d
    tls: none
    helo: relay
    from: shop@example.com
    to: '{{ .Payload.email }}'
    subject: x
    text: x
routes: [{match: '*', to: mail}]
`, url, sink.Port()))
	const warning = ":9:11: warning: destinations.mail.helo: has no dot, and many servers refuse every mail after such a greeting: set helo to the full name of this machine"

	if got := invoke(t, "check-config", "-c", path); got.code != 0 || !strings.Contains(got.stdout+got.stderr, path+warning) {
		t.Errorf("check-config: %+v", got)
	}
	found, _ := examineBy(t, path)
	if f := found["mail"]; f.Severity != doctor.Warning || !strings.Contains(f.Text, " helo: has no dot, ") || f.Cure != "check destinations.mail.helo of the configuration" {
		t.Errorf("doctor: %+v", f)
	}
	d := startDaemon(t, nil, "run", "-c", path)
	d.stderr.await(t, "relay started")
	if !strings.Contains(d.stderr.text(), warning) {
		t.Errorf("the log:\n%s", d.stderr.text())
	}
}

// TestRetryAfterKeepsBackoff: a receiver that asks for a short pause again and again does not use up the attempts: the backoff
// is longer.
func TestRetryAfterKeepsBackoff(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, status := range []int{http.StatusConflict, http.StatusTooEarly, http.StatusInternalServerError} {
		for form, more := range map[string]string{
			"one":   "",
			"batch": ", batch_format: cloudevents, cloudevents_source: /shop",
			"207":   ", batch_format: cloudevents, cloudevents_source: /shop",
		} {
			t.Run(fmt.Sprint(status, " ", form), func(t *testing.T) {
				t.Parallel()
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					var events []struct{ ID string }
					if form != "207" || json.NewDecoder(r.Body).Decode(&events) != nil {
						w.Header().Set("Retry-After", "1")
						w.WriteHeader(status)
						return
					}
					w.WriteHeader(http.StatusMultiStatus)
					_, _ = fmt.Fprintf(w, `[{"id": %q, "status": %d, "retry_after": 1}]`, events[0].ID, status)
				}))
				t.Cleanup(server.Close)
				url := database(t)
				startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(`version: 1
database: {url: '%s'}
destinations:
  place: {type: webhook, url: '%s'%s, backoff: {initial: 2000h, max: 2000h}}
routes: [{match: '*', to: place}]
`, url, server.URL, more)))
				publishTo(t, url, "order.placed", order)
				until(t, url, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE attempts = 1 AND state = 'retry' AND available_at > now() + interval '1 min')`)
			})
		}
	}
}
