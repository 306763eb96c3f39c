//go:build unix

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	yaml "go.yaml.in/yaml/v4"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/settingstest"
)

// roundTrip is an environment for configurations that are read again when they were printed.
type roundTrip struct {
	*testing.T
	dir string
	env vars
}

func newRoundTrip(t *testing.T) *roundTrip {
	t.Helper()
	r := &roundTrip{t, t.TempDir(), vars{
		"SECRET": "swordfish-and-swordfish", "WORDS": "words", "SECRET_URL": "postgres://app:swordfish@west/app", "HOST": "smtp.example.com", "ADMIN_TOKEN": strings.Repeat("swordfish", 4), "VIEWER_TOKEN": strings.Repeat("swordfish", 3),
		"SIGNING_SECRET": webhookSecret, "SIGNING_KEY": "c3dvcmRmaXNoc3dvcmRmaXNoc3dvcmRmaXNo", "SLACK_TOKEN": "xoxb-swordfish", "HOOK_URL": "https://hooks.slack.com/services/T/B/swordfish",
		"INBOX_URL": "postgres://shop:swordfish@stock.example.com:5432/stock",
		"NKEY_SEED": "SUAMK2FG4MI6UE3ACF3FK3OIQBCEIEZV7NSWFFEW63UXMRLFM2XLAXK4GY",
	}}
	cert, key := selfSigned(t)
	err := errors.Join(os.Mkdir(filepath.Join(r.dir, "tls"), 0o700), os.CopyFS(filepath.Join(r.dir, "mail"), os.DirFS(root+"examples/mail/mail")))
	for name, text := range map[string]string{
		"tls/tls.crt": cert, "tls/tls.key": key, "token.txt": "swordfish", "secret.txt": "swordfish", "google.json": `{"type": "authorized_user", "client_id": "a", "client_secret": "swordfish", "refresh_token": "swordfish"}`, "creds.txt": "-----BEGIN NATS USER JWT-----\nswordfish\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n" + r.env["NKEY_SEED"] + "\n------END USER NKEY SEED------\n",
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *roundTrip) write(name, text string) string {
	r.Helper()
	return testenv.WriteFile(r, filepath.Join(r.dir, name), text)
}

// goes prints a configuration, reads what was printed, and prints that: the prints are
// the same, plan finds no change, and no secret is shown.
func (r *roundTrip) goes(written string) (text string) {
	r.Helper()
	path := r.write("notifyd.yaml", written)
	one := commandIn(r.T, r.env, "config", "print", "-c", path)
	if one.code != 0 {
		r.Fatalf("%s\n%s", one.stderr, written)
	}
	printed := r.write("printed.yaml", one.stdout)
	two := commandIn(r.T, r.env, "config", "print", "-c", printed)
	if two.code != 0 || two.stdout != one.stdout {
		r.Errorf("the print is read as %s\n%s\nand was\n%s", two.stderr, two.stdout, one.stdout)
	}
	for _, against := range []string{printed, path} {
		if p := commandIn(r.T, r.env, "plan", "--offline", "--exit-code", "-c", path, "--against", against); p.code != 0 {
			r.Errorf("plan against %s: %+v", filepath.Base(against), p)
		}
	}
	if strings.Contains(one.stdout, "swordfish") || strings.Contains(one.stdout, webhookSecret) {
		r.Errorf("a secret is shown:\n%s", one.stdout)
	}
	if r.env["SECRET"] != "" && strings.Contains(one.stdout, "redacted") {
		r.Errorf("the print is not input:\n%s", one.stdout)
	}
	return one.stdout
}

// TestEverySettingRoundTrips prints and reads every setting of the relay, of a lane and of every destination. What is read is
// what was written.
func TestEverySettingRoundTrips(t *testing.T) {
	t.Parallel()
	written := make(map[string]map[string]any)
	for _, c := range typeCases(t) {
		maps.Copy(written, c.Every)
	}
	used := map[string]bool{}
	for _, d := range written {
		for key := range d {
			used[fmt.Sprint(d["type"], " ", key)] = true
		}
	}
	for name, fresh := range destinations.Registry(".", nil, nil) {
		for _, key := range settingNames(reflect.TypeOf(fresh()).Elem()) {
			if !used[name+" "+key] && key != "profile" { // which must be in a file of AWS
				t.Errorf("%s: the configuration has no %s", name, key)
			}
		}
	}

	var relay notifyd.Config
	var retention notifyd.Retention
	var lane config.Lane
	var inLane map[string]any
	settingstest.Fill(t, settingstest.InFile(&relay), nil)
	settingstest.Fill(t, settingstest.InFile(&retention), nil)
	settingstest.Fill(t, settingstest.InFile(&lane), map[string]any{
		"Order": delivery.OrderAggregate, "OnDead.To": "email-2", "StartFrom": "now",
		"RateLimit": delivery.Rate{Events: 500, Per: time.Minute}, "RateKey": "payload.customer_id", "Retry": []time.Duration{time.Second},
	})

	lane.Retry = nil // it excludes backoff; the file of the type log has it

	// The destination log has the settings of every lane.
	if err := yaml.Load([]byte(settingstest.File(t, settingstest.InFile(&lane))), &inLane); err != nil {
		t.Fatal(err)
	}
	maps.Copy(written["log"], inLane)
	text, err := yaml.Dump(map[string]any{"destinations": written})
	if err != nil {
		t.Fatal(err)
	}

	r := newRoundTrip(t)
	r.goes(everyOther + "relay: " + settingstest.File(t, settingstest.InFile(&relay)) + "\n" +
		"retention: " + settingstest.File(t, settingstest.InFile(&retention)) + "\n" + string(text))

	for _, name := range []string{"notifyd.yaml", "printed.yaml"} {
		c, err := config.Load(filepath.Join(r.dir, name), "", destinations.Registry(r.dir, nil, nil), r.env.lookup)
		if err != nil {
			t.Fatal(err)
		}

		settingstest.Same(t, settingstest.InFile(&c.Relay), settingstest.InFile(&relay))
		settingstest.Same(t, settingstest.InFile(&c.Retention), settingstest.InFile(&retention))
		at := slices.IndexFunc(c.Destinations, func(d config.Destination) bool { return d.Name == "log" })
		settingstest.Same(t, settingstest.InFile(&c.Destinations[at].Lane), settingstest.InFile(&lane))

		at = slices.IndexFunc(c.Destinations, func(d config.Destination) bool { return d.Name == "log-2" })
		if retry := c.Destinations[at].Retry; !slices.Equal(retry, []time.Duration{10 * time.Second, time.Minute}) {
			t.Errorf("%s: retry is %v", name, retry)
		}
	}
}

// TestDefaultsRoundTrip prints each type with what it must have and no more: what is shown
// in place of the rest is in force, and is accepted.
func TestDefaultsRoundTrip(t *testing.T) {
	t.Parallel()
	r := newRoundTrip(t)
	text := r.goes(ofEveryType(t, func(string) string { return "" }))
	for _, want := range []string{
		"payload: true", "port: 587", "tls: mandatory", "connections: 4", "send_timeout: 1m", "compression: none", "client_id: notifyd", "format: payload",
		"port: 5672", "vhost: /", "unroutable: auto", "method: POST", "addresses: any", "response_timeout: ", "api_url: https://slack.com/api/", "mode: jetstream",
		"payload_field: payload", "on: [dead_letter, destination, database, listener, relay, retention, waiting]",
	} {
		if !strings.Contains(text, " "+want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "method: ''") {
		t.Error("a default is shown as empty")
	}
}

// TestPagesRoundTrip prints and reads every configuration of every page.
func TestPagesRoundTrip(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, page := range docPages(t) {
		for _, st := range steps(testenv.ReadFile(t, page)) {
			if st.language != "yaml" {
				continue
			}
			r := newRoundTrip(t)
			r.env = variablesOf(st.text)
			whole := completed(st.text)
			besideConfig(t, filepath.Join(r.dir, "notifyd.yaml"), whole)
			text := r.goes(whole)
			if slices.Contains(strings.Fields(text), "${redacted}") {
				t.Errorf("%s, %q: no input:\n%s", page, st.heading, text)
			}
			ran++
		}
	}
	if ran < 25 {
		t.Errorf("%d configurations", ran)
	}
}

// TestPrintHidesWhatTheFileHolds: secrets that stand in the file itself, tokens in paths
// and literal headers among them, are shown by neither print nor plan.
func TestPrintHidesWhatTheFileHolds(t *testing.T) {
	t.Parallel()
	const secrets = `version: 1
database: {url: "postgres://app:swordfish1@db/app"}
destinations:
  slack: {type: slack, webhook_url: https://hooks.slack.com/services/T/B/swordfish2, text: t}
  hook: {type: webhook, url: https://hooks.slack.com/services/T1/B1/swordfish3, headers: {X-Api-Key: swordfish4, X-Auth: Bearer swordfish5}}
  other: {type: webhook, url: "https://h.example.com/in/swordfish66swordfish66?token=swordfish7", bearer_token: swordfish8, proxy_url: "http://u:swordfish6@proxy.example.com:3128"}
  mail: {type: email, host: h.example.com, from: a@example.com, to: b@example.com, subject: s, text: "see https://u:swordfish9@h.example.com/", headers: {X-Token: swordfish0}}
routes: [{match: "*", to: [slack, hook, other, mail]}]
`
	r := newRoundTrip(t)
	path := r.write("notifyd.yaml", secrets)
	other := r.write("other.yaml", strings.ReplaceAll(secrets, "swordfish", "marlin"))
	for _, args := range [][]string{
		{"config", "print", "-c", path}, {"plan", "--offline", "-c", path, "--against", other}, {"plan", "--offline", "-o", "json", "-c", other, "--against", path},
	} {
		got := commandIn(t, r.env, args...)
		if got.code != 0 || regexp.MustCompile(`swordfish\d|marlin\d`).MatchString(got.stdout+got.stderr) {
			t.Errorf("%s: %+v", args[0], got)
		}
		for _, name := range []string{"webhook_url", "X-Api-Key", "X-Auth", "X-Token", "bearer_token", "url"} {
			if !strings.Contains(got.stdout, name) {
				t.Errorf("%s does not name %s:\n%s", args, name, got.stdout)
			}
		}
	}
	printed := r.write("printed.yaml", commandIn(t, r.env, "config", "print", "-c", path).stdout)
	got := commandIn(t, r.env, "check-config", "-c", printed)
	if got.code != command.ExitConfig || strings.Count(got.stderr, "${redacted} stands for a secret") < 10 {
		t.Errorf("as input: %+v", got)
	}
}

// everyOther are the settings that are neither of a destination nor of the relay.
const everyOther = `version: 1
database: {url: "postgres://app:${env:SECRET}@db.example.com/app?application_name=shop", listen_url: "host=db.example.com password=${env:SECRET} dbname=app", schema: shop}
log: {level: debug, format: json}
admin: {listen: "127.0.0.1:9470", tls: {cert_file: tls/tls.crt, key_file: tls/tls.key}, token: "${env:ADMIN_TOKEN}", pprof: true, console: true, read_only: true, payloads: hidden, read_only_token: "${env:VIEWER_TOKEN}", actor_header: X-Forwarded-User, trusted_proxies: [127.0.0.1, "10.1.0.0/16"]}
alerts: {to: [log], on: [destination, waiting], every: 6m, oldest_waiting: 0}
routes: [{match: order.*, to: [log, webhook-1], when: 'payload.total > 100.0'}, {match: "*", to: webhook-2}]
`
