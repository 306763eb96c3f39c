package config_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

const full = `version: 1
database: {url: "postgres://app:s3cret@db/app", schema: outbox}
relay: {connections: 2, batch: 10, max_event_bytes: 1048576, lock_budget: 50ms, lease: 1m, poll_interval: 500ms, canary: 2s, shutdown_timeout: 1m30s}
retention: {keep: 0, batch: 5}
log: {level: debug, format: json}
destinations:
  mail:
    type: email
    concurrency: 9
    backoff: {initial: 2s, max: 1h, multiplier: 1.5}
    host: mail.example.com
    port: 587
    password: hunter2
    from: a@example.com
    to: b@example.com
    wait: 1.5d
    headers: {X-A: "1", x.y: two}
    tokens: {api: t0ken}
    ratio: 2
    dry: false
    extra: {a: [1, 2.5, true, x, null]}
    level: high
    tls:
      mode: tls
      limits:
        - {name: one, max: 3}
  audit: {type: log}
routes:
  - {match: order.*, to: [mail, audit]}
  - {match: "*", to: audit}
`

func TestParseFillsEverything(t *testing.T) {
	t.Parallel()
	c := mustParse(t, full)
	if got := c.Database.URL.Reveal(); got != "postgres://app:s3cret@db/app" {
		t.Errorf("url = %q", got)
	}
	wantRelay := c.Relay
	wantRelay.Connections, wantRelay.Batch, wantRelay.BatchBytes, wantRelay.MaxEventBytes = 2, 10, 8<<20, 1<<20
	wantRelay.LockBudget, wantRelay.Lease, wantRelay.PollInterval = 50*time.Millisecond, time.Minute, 500*time.Millisecond
	wantRelay.Canary, wantRelay.ShutdownTimeout = 2*time.Second, 90*time.Second
	if c.Relay != wantRelay {
		t.Errorf("relay = %+v", c.Relay)
	}
	if c.Retention.Keep != 0 || c.Log.Level != "debug" {
		t.Errorf("retention %+v, log %+v", c.Retention, c.Log)
	}
	if len(c.Destinations) != 2 || c.Destinations[0].Name != "mail" || c.Destinations[1].Name != "audit" {
		t.Fatalf("destinations = %+v", c.Destinations)
	}
	mail := c.Destinations[0]
	if mail.Concurrency != 9 || mail.Backoff.Multiplier != 1.5 || mail.MaxAttempts != 20 {
		t.Errorf("lane = %+v", mail.Lane)
	}
	if mail.Timeout != time.Minute {
		t.Errorf("the type's default did not reach the lane: timeout = %s", mail.Timeout)
	}
	s := mail.Settings.(*mailSettings) //nolint:forcetypeassert // a panic fails the test as well
	if s.Password.Reveal() != "hunter2" || s.Wait != 36*time.Hour || len(s.To) != 1 || *s.Dry || s.Level != "HIGH" {
		t.Errorf("settings = %+v", s)
	}
	if s.Headers["x.y"] != "two" || s.Tokens["api"].Reveal() != "t0ken" || s.TLS.Limits[0].Max != 3 {
		t.Errorf("settings = %+v", s)
	}
	if got := fmt.Sprint(s.Extra); got != "map[a:[1 2.5 true x <nil>]]" {
		t.Errorf("extra = %s", got)
	}
	if len(c.Routes) != 2 || len(c.Routes[1].To) != 1 || len(c.Warnings) != 0 {
		t.Errorf("routes = %+v, warnings = %v", c.Routes, c.Warnings)
	}
}

func TestParseReportsEveryMistakeAtOnce(t *testing.T) {
	t.Parallel()
	_, err := parse(t, `version: 2
databas: {url: x}
relay:
  lease: 10ms
  connections: 0
  poll_interval: 5
  batch: many
log: {level: inof}
destinations:
  mail:
    type: email
    hots: x
    password: ${env:SMTP_PASSWORD}
    tls: {mode: sll, limits: [{max: 1}]}
    to: [a, b, c, d, ]
    from: nobody
    concurrency: 0
    concurrency: 4
    order: false
  chat: {type: slak, order: sorted}
  other: {type: log, order: strict}
  "bad name": {type: log}
  none:
routes:
  - {match: order*, to: mial}
  - {match: a, to: [mail, mail]}
  - {match: a, to: []}
  - {to: mail}
`)
	want := `notifyd.yaml:1:10: version 2 is not supported: this notifyd reads version 1
notifyd.yaml:2:1: unknown key "databas" (did you mean "database"?)
notifyd.yaml:4:10: relay.lease: "10ms" is too small: the least is 1s
notifyd.yaml:5:16: relay.connections: "0" is too small: the least is 1
notifyd.yaml:6:18: relay.poll_interval: "5" has no unit: write 500ms, 30s, 5m, 12h or 7d
notifyd.yaml:7:10: relay.batch: expected a whole number, got "many"
notifyd.yaml:8:14: log.level: "inof" is not one of debug, info, warn, error (did you mean "info"?)
notifyd.yaml:10:3: the key "host" is missing in destinations.mail
notifyd.yaml:12:5: unknown key "hots" in destinations.mail (did you mean "host"?)
notifyd.yaml:13:15: destinations.mail.password: the environment variable SMTP_PASSWORD is not set: set it, or write ${env:SMTP_PASSWORD:-default}
notifyd.yaml:14:17: destinations.mail.tls.mode: "sll" is not one of none, starttls, tls (did you mean "tls"?)
notifyd.yaml:14:31: the key "name" is missing in destinations.mail.tls.limits.0
notifyd.yaml:15:19: destinations.mail.to.3: three are enough
notifyd.yaml:16:11: destinations.mail.from: "nobody" is not an address
notifyd.yaml:17:18: destinations.mail.concurrency: "0" is too small: the least is 1
notifyd.yaml:18:5: the key "concurrency" is there twice in destinations.mail: the first is on line 17
notifyd.yaml:19:12: destinations.mail.order: "false" is no longer accepted: write none
notifyd.yaml:20:16: unknown destination type "slak" in destinations.chat (known: email, log)
notifyd.yaml:21:29: destinations.other.order: "strict" is not one of auto, none, aggregate, total
notifyd.yaml:22:3: the destination name "bad name" must be at most 63 letters, digits, - _ and . and start with a letter or digit
notifyd.yaml:23:3: the key "type" is missing in destinations.none (known: email, log)
notifyd.yaml:25:13: routes.0.match: the star may only stand alone ("*") or after a final dot ("order.*")
notifyd.yaml:25:25: routes.0.to.0: there is no destination "mial" (did you mean "mail"?)
notifyd.yaml:26:27: routes.1.to.1: the destination "mail" is there twice
notifyd.yaml:27:13: routes.2.match: "a" has a route on line 26: add the destinations there
notifyd.yaml:27:16: routes.2.to: names no destination
notifyd.yaml:28:5: the key "match" is missing in routes.3`
	var list *config.Error
	if !errors.As(err, &list) {
		t.Fatalf("error is a %T", err)
	}
	compareLines(t, list.Error(), want)
}

func compareLines(t *testing.T, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		switch {
		case i >= len(g):
			t.Errorf("missing:\n  %s", w[i])
		case i >= len(w):
			t.Errorf("not wanted:\n  %s", g[i])
		case g[i] != w[i]:
			t.Errorf("got  %s\nwant %s", g[i], w[i])
		}
	}
}
