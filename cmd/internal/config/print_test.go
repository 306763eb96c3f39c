package config_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

func printed(t *testing.T, c *config.Config) string {
	t.Helper()
	var b bytes.Buffer
	if err := config.Print(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// shortConfig relies on many defaults.
const shortConfig = head + `database:
  url: postgres://app:s3cret@db:5432/app?sslpassword=k3y&sslmode=require
  listen_url: host=db password='a b' user=app
destinations:
  mail:
    type: email
    host: ${env:HOST}
    port: ${env:PORT}
    password: ${env:PASS}
    from: a$${b@example.com
    to: ${env:TO}
    headers: {Authorization: "Bearer ${env:TOKEN}", Plain: text}
    extra: {url: "https://u:pw@h/x", n: ["${env:TOKEN}"]}
routes: [{match: order.*, to: mail}]
`

// shortPrinted is the effective configuration of shortConfig.
const shortPrinted = `version: 1
database:
  url: postgres://app:${redacted}@db:5432/app?sslpassword=${redacted}&sslmode=require
  listen_url: host=db password=${redacted} user=app
  schema: public
  password_command: []
  password_lifetime: 1m
  aws_region: ''
relay:
  connections: 4
  batch: 1000
  batch_bytes: 8388608
  max_event_bytes: 8388608
  lock_budget: 100ms
  lease: 30s
  poll_interval: 1s
  canary: 5s
  shutdown_timeout: 20s
retention:
  keep: 7d
  batch: 1000
  partitions: none
log:
  level: info
  format: auto
destinations:
  mail:
    type: email
    concurrency: 8
    batch: 100
    timeout: 1m
    max_attempts: 20
    priority: 0
    order: auto
    on_dead: continue
    start_from: auto
    shards: 1
    rate_burst: 0
    expires_after: 0
    longest_pause: 30s
    backoff:
      initial: 1s
      max: 1h
      multiplier: 2
    host: ${env:HOST}
    port: 587
    password: ${env:PASS}
    from: a$${b@example.com
    to: ['${env:TO}']
    wait: 0
    tls:
      mode: starttls
      limits: []
    headers:
      Authorization: Bearer ${env:TOKEN}
      Plain: text
    tokens: {}
    ratio: 0
    extra:
      n: ['${env:TOKEN}']
      url: https://u:${redacted}@h/x
    small: 0
    level: ''
routes:
- match: order.*
  to: [mail]
admin:
  listen: ''
  tls:
    cert_file: ''
    key_file: ''
  token: ''
  pprof: false
  console: false
  read_only: false
  payloads: shown
alerts:
  to: []
  on: [dead_letter, destination, database, listener, relay, retention, waiting]
  every: 5m
  oldest_waiting: 15m
`

func TestPrintShowsTheEffectiveConfiguration(t *testing.T) {
	t.Parallel()
	c := mustParse(t, shortConfig, "HOST=mail.example.com", "PORT=587", "PASS=hunter2", "TO=x@example.com", "TOKEN=t0ken")
	compareLines(t, printed(t, c), shortPrinted)
}

// TestPrintCanBeReadBack without the secrets, which are gone.
func TestPrintCanBeReadBack(t *testing.T) {
	t.Parallel()
	in := strings.NewReplacer("database: {url: \"postgres://app:s3cret@db/app\", schema: outbox}\n", "",
		"    password: hunter2\n", "", "    tokens: {api: t0ken}\n", "").Replace(full)
	c := mustParse(t, in)
	again := mustParse(t, printed(t, c))
	again.Destinations[0].Settings.(*mailSettings).Tokens = nil //nolint:forcetypeassert // a panic fails the test as well
	c.Warnings, again.Warnings = nil, nil
	config.ForgetPlaces(c)
	config.ForgetPlaces(again)
	if !reflect.DeepEqual(c, again) {
		t.Errorf("got  %#v\nwant %#v", again, c) // tells nil from empty
	}
}

// TestRedactedIsNoInput: a print of which a secret is missing is refused, and the message
// says what to do.
func TestRedactedIsNoInput(t *testing.T) {
	t.Parallel()
	_, err := parse(t, printed(t, mustParse(t, full)))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"database.url: ", "destinations.mail.password: ", "destinations.mail.tokens.api: "} {
		if !strings.Contains(err.Error(), want+"${redacted} stands for a secret that was not shown when this was printed: write the secret") {
			t.Errorf("%s is not in %v", want, err)
		}
	}
}

func TestInitParses(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := config.Init(&b); err != nil {
		t.Fatal(err)
	}
	c := mustParse(t, b.String())
	if len(c.Warnings) != 0 || len(c.Destinations) != 1 || len(c.Routes) != 2 {
		t.Errorf("%+v", c)
	}
	var settings int
	for line := range strings.Lines(b.String()) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			settings++
		}
	}
	if settings < 10 || settings > 25 {
		t.Errorf("%d lines of settings", settings)
	}
}
