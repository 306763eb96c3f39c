//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	yaml "go.yaml.in/yaml/v4"
)

// everySetting are destinations that together have every setting of every type, with a
// value that is not the default.
const everySetting = `
  log: {type: log, output: stderr, payload: false, concurrency: 3, batch: 7, timeout: 5s, max_attempts: 3, priority: -5, order: none, on_dead: continue, rate_limit: 500/m, rate_burst: 20, rate_key: payload.customer_id, expires_after: 24h, supersede: none, backoff: {initial: 2s, max: 3m, multiplier: 1.5}}
  email-1:
    type: email
    host: smtp.example.com
    port: 2525
    username: shop
    password: ${env:SECRET}
    auth: scram-sha-256
    tls: opportunistic
    ca_file: tls/tls.crt
    server_name: mail.example.com
    helo: relay.example.com
    from: Shop <shop@example.com>
    to: ["{{ .Payload.email }}", b@example.com]
    cc: c@example.com
    bcc: [d@example.com]
    reply_to: help@example.com
    subject: "Order {{ .Payload.order }} $${not expanded} $5"
    text: "See https://shop.example.com/help: write to help@example.com\n\n  100% {{ money .Payload.total_cents \"EUR\" }}\n"
    html: "<p>${env:WORDS}</p>"
    headers: {X-Shop: main, X-Api-Token: "${env:SECRET}"}
    message_id_domain: example.com
    concurrency: 9
    connections: 5
    connect_timeout: 3s
    send_timeout: 4s
    timeout: 30s
    maybe_sent: accept
  email-2: {type: email, host: smtp.example.com, tls: none, from: a@example.com, to: b@example.com, subject: s, text_file: t.txt, html_file: t.html}
  email-3: {type: email, host: "${env:HOST}", tls: implicit, from: a@example.com, to: b@example.com, subject: s, text: t}
  kafka-1:
    type: kafka
    brokers: [k1.example.com:9092, k2.example.com]
    topic: "{{ .Event.Type }}"
    key: "{{ .Event.AggregateID }}"
    format: cloudevents_binary
    cloudevents_source: /shop
    tls: {ca_file: tls/tls.crt, cert_file: tls/tls.crt, key_file: tls/tls.key, server_name: kafka}
    sasl: {mechanism: plain, username: shop, password: "${env:SECRET}", allow_unencrypted: true}
    client_id: shop
    compression: zstd
    max_message_bytes: 2048
    delivery_timeout: 7s
    allow_auto_topic_creation: true
    transactional: true
    transactional_id: shop
    concurrency: 2
    batch: 11
    timeout: 20s
  kafka-2: {type: kafka, brokers: k.example.com, topic: t, tls: {}, sasl: {mechanism: oauthbearer, token_file: token.txt}, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  kafka-3: {type: kafka, brokers: k.example.com, topic: t, tls: {}, sasl: {mechanism: oauthbearer, token: "${file:secret.txt}"}, format: cloudevents_structured}
  kafka-4: {type: kafka, brokers: k.example.com, topic: t, exactly_once: true, positions_topic: places, transactional_id: shop-1}
  kafka-5: {type: kafka, brokers: k.example.com, topic: t, exactly_once: true, batch: 1000}
  kafka-6:
    type: kafka
    brokers: k.example.com
    topic: t
    schema_registry:
      url: https://registry.example.com/api
      username: shop
      password: "${env:SECRET}"
      tls: {ca_file: tls/tls.crt, cert_file: tls/tls.crt, key_file: tls/tls.key, server_name: registry}
      subject: "orders-{{ .Event.Type }}"
      version: "3"
      message_indexes: [1, 0]
  kafka-7: {type: kafka, brokers: k.example.com, topic: t, schema_registry: {url: "http://registry.example.com", username: shop, password: "${env:SECRET}", allow_unencrypted: true}}
  rabbitmq-1:
    type: rabbitmq
    host: mq.example.com
    port: 5700
    username: shop
    password: ${env:SECRET}
    vhost: shop
    tls: {server_name: mq}
    auth: plain
    connection_name: shop
    exchange: "{{ .Event.AggregateType }}"
    routing_key: "{{ .Event.Type }}.x"
    format: cloudevents_structured
    cloudevents_source: /shop
    message_priority: '{{ get .Headers "priority" | default "" }}'
    expiration: 90s
    app_id: shop
    transient: true
    unroutable: drop
    strict_order: true
    declare:
      exchanges: [{name: shop, type: topic, transient: true, arguments: {alternate-exchange: other}}]
      queues: [{name: q, transient: true, arguments: {x-queue-type: quorum, x-max-length: 5, x-dead-letter-routing-key: late, x-single-active-consumer: true}}]
      bindings: [{exchange: shop, queue: q, routing_key: "order.#", arguments: {x-match: any}}]
    max_message_bytes: 1000
    heartbeat: 3s
    connect_timeout: 4s
    write_timeout: 5s
    confirm_timeout: 6s
    concurrency: 2
    batch: 12
    timeout: 40s
    priority: 5
  rabbitmq-2: {type: rabbitmq, url: "amqps://shop:${env:SECRET}@mq.example.com/v", routing_key: q, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  rabbitmq-3: {type: rabbitmq, routing_key: q, auth: external, tls: {cert_file: tls/tls.crt, key_file: tls/tls.key}}
  webhook-1:
    type: webhook
    url: https://{{ .Payload.host }}/in/${env:WORDS}
    dynamic_host: true
    method: PATCH
    body: '{"order": {{ json .Payload.order }}}'
    content_type: application/json; charset=utf-8
    headers: {X-Shop: main, X-Signature: "v1 ${env:SECRET}"}
    id_prefix: shop-
    signing_secrets: ["${env:SIGNING_SECRET}", "whsec_${env:SIGNING_KEY}"]
    tls: {ca_file: tls/tls.crt}
    proxy_url: none
    addresses: public
    allow_addresses: [10.1.0.0/16, 10.2.0.1]
    connect_timeout: 1s
    tls_timeout: 2s
    response_timeout: 3s
    request_timeout: 4s
    host_rate_limit: 2.5
    host_concurrency: 3
    concurrency: 4
    timeout: 50s
  webhook-2: {type: webhook, url: "https://h.example.com/x?shop=1", username: shop, password: "${env:SECRET}", format: cloudevents_binary, cloudevents_source: /shop, proxy_url: "http://u:${env:SECRET}@proxy.example.com:3128"}
  webhook-3: {type: webhook, url: "${env:HOOK_URL}", bearer_token: "${env:SECRET}"}
  slack-1:
    type: slack
    token: ${env:SLACK_TOKEN}
    channel: C0123456789
    text: "Order {{ .Payload.order }} <https://shop.example.com/orders|all>"
    blocks: '[{"type": "section", "text": {"type": "mrkdwn", "text": "x"}}]'
    raw_values: true
    thread_ts: '{{ get .Headers "ts" | default "" }}'
    unfurl_links: true
    unfurl_media: false
    username: shop
    icon_emoji: ":bell:"
    api_url: https://gateway.example.com/api
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    timeout: 9s
  slack-2: {type: slack, webhook_url: "${env:HOOK_URL}", text: t, icon_url: https://shop.example.com/icon.png}
  sqs-1:
    type: sqs
    queue: orders.fifo
    queue_owner: "123456789012"
    group_id: "{{ .Event.AggregateID }}"
    format: cloudevents_structured
    cloudevents_source: /shop
    region: eu-central-1
    endpoint: https://sqs.example.com
    access_key_id: AKIAIOSFODNN7EXAMPLE
    secret_access_key: ${env:SECRET}
    session_token: ${env:SECRET}
    assume_role_arn: arn:aws:iam::123456789012:role/notifyd
    external_id: ${env:SECRET}
    role_session_name: shop
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  sqs-2: {type: sqs, queue_url: https://sqs.eu-central-1.amazonaws.com/123456789012/orders, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  sqs-3: {type: sqs, queue: orders, region: eu-west-1}
  sns-1:
    type: sns
    topic_arn: arn:aws:sns:eu-central-1:123456789012:orders.fifo
    group_id: "{{ .Event.AggregateID }}"
    format: cloudevents_structured
    cloudevents_source: /shop
    region: eu-central-1
    endpoint: https://sns.example.com
    access_key_id: AKIAIOSFODNN7EXAMPLE
    secret_access_key: ${env:SECRET}
    session_token: ${env:SECRET}
    assume_role_arn: arn:aws:iam::123456789012:role/notifyd
    external_id: ${env:SECRET}
    role_session_name: shop
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  sns-2: {type: sns, topic_arn: arn:aws:sns:eu-central-1:123456789012:orders, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  eventbridge-1:
    type: eventbridge
    event_bus: arn:aws:events:eu-central-1:123456789012:event-bus/orders
    source: shop.{{ .Headers.tenant }}
    detail_type: "{{ .Event.Type }}"
    resources: ["order/{{ .Event.AggregateID }}"]
    format: cloudevents_structured
    cloudevents_source: /shop
    region: eu-central-1
    endpoint: https://events.example.com
    access_key_id: AKIAIOSFODNN7EXAMPLE
    secret_access_key: ${env:SECRET}
    session_token: ${env:SECRET}
    assume_role_arn: arn:aws:iam::123456789012:role/notifyd
    external_id: ${env:SECRET}
    role_session_name: shop
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  eventbridge-2: {type: eventbridge, region: eu-west-1, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  kinesis-1:
    type: kinesis
    stream: arn:aws:kinesis:eu-central-1:123456789012:stream/orders
    partition_key: "{{ .Event.AggregateID }}"
    format: cloudevents_structured
    cloudevents_source: /shop
    region: eu-central-1
    endpoint: https://kinesis.example.com
    access_key_id: AKIAIOSFODNN7EXAMPLE
    secret_access_key: ${env:SECRET}
    session_token: ${env:SECRET}
    assume_role_arn: arn:aws:iam::123456789012:role/notifyd
    external_id: ${env:SECRET}
    role_session_name: shop
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  kinesis-2: {type: kinesis, stream: orders, region: eu-west-1, body: '{{ .Payload.order }}', content_type: text/csv}
  pubsub-1:
    type: pubsub
    project: shop-123456
    topic: orders
    ordering_key: "{{ .Payload.customer }}"
    format: cloudevents_binary
    cloudevents_source: /shop
    endpoint: https://europe-west3-pubsub.googleapis.com
    credentials_file: google.json
    tls: {ca_file: tls/tls.crt}
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  pubsub-2: {type: pubsub, topic: projects/shop/topics/orders, endpoint: "http://localhost:8085", body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  postgres-1:
    type: postgres
    url: "${env:INBOX_URL}"
    source: shop
    schema: orders
    table: inbox
    request_timeout: 3s
    concurrency: 2
    batch: 20
    timeout: 9s
  nats-1:
    type: nats
    servers: [tls://n1.example.com:4222, nats://127.0.0.1]
    subject: "orders.{{ .Event.Type }}"
    mode: jetstream
    stream: ORDERS
    format: cloudevents_binary
    cloudevents_source: /shop
    username: shop
    password: ${env:SECRET}
    allow_unencrypted: true
    tls: {server_name: nats}
    client_name: shop
    connect_timeout: 2s
    ack_timeout: 3s
    concurrency: 2
    batch: 13
    timeout: 20s
  nats-2: {type: nats, servers: tls://n.example.com, subject: s, mode: core, token: "${env:SECRET}", body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
  nats-3: {type: nats, servers: tls://n.example.com, subject: s, credentials_file: creds.txt}
  nats-4: {type: nats, servers: tls://n.example.com, subject: s, nkey_seed: "${env:NKEY_SEED}"}
  redis-1:
    type: redis
    addresses: [r1.example.com:6379, r2.example.com]
    sentinel_master: main
    sentinel_username: watch
    sentinel_password: ${env:SECRET}
    username: shop
    password: ${env:SECRET}
    allow_unencrypted: true
    database: 2
    tls: {}
    stream: "{{ .Event.AggregateType }}"
    format: cloudevents_binary
    cloudevents_source: /shop
    payload_field: body
    max_len: 1000
    deduplicate: 2000
    wait_replicas: 1
    wait_timeout: 2s
    max_message_bytes: 4096
    connect_timeout: 1s
    write_timeout: 2s
    read_timeout: 3s
    concurrency: 2
    batch: 14
    timeout: 40s
  redis-2: {type: redis, url: "rediss://shop:${env:SECRET}@r.example.com/1", channel: orders, require_subscribers: true}
  redis-3: {type: redis, addresses: r.example.com, cluster: true, stream: orders, body: '{"order": {{ json .Payload.order }}}', content_type: application/vnd.shop+json}
`

// everyOther are the settings that are no destination's.
const everyOther = `version: 1
database: {url: "postgres://app:${env:SECRET}@db.example.com/app?application_name=shop", listen_url: "host=db.example.com password=${env:SECRET} dbname=app", schema: shop}
relay: {connections: 2, batch: 3, batch_bytes: 4000, lock_budget: 50ms, lease: 1m30s, poll_interval: 2s, canary: 3s, rest: 2m, shutdown_timeout: 1h0m4s}
retention: {keep: 36h, batch: 5, partitions: daily}
log: {level: debug, format: json}
admin: {listen: "127.0.0.1:9470", tls: {cert_file: tls/tls.crt, key_file: tls/tls.key}, token: "${env:ADMIN_TOKEN}", pprof: true, console: true, read_only: true, payloads: hidden}
alerts: {to: [log], on: [destination, waiting], every: 6m, oldest_waiting: 0}
routes: [{match: order.*, to: [log, webhook-1], when: 'payload.total > 100.0'}, {match: "*", to: webhook-2}]
`

// roundTrip is an environment for configurations that are read again when they were printed.
type roundTrip struct {
	*testing.T
	dir string
	env vars
}

func newRoundTrip(t *testing.T) *roundTrip {
	t.Helper()
	r := &roundTrip{t, t.TempDir(), vars{
		"SECRET": "swordfish-and-swordfish", "WORDS": "words", "SECRET_URL": "postgres://app:swordfish@west/app", "HOST": "smtp.example.com", "ADMIN_TOKEN": strings.Repeat("swordfish", 4),
		"SIGNING_SECRET": webhookSecret, "SIGNING_KEY": "c3dvcmRmaXNoc3dvcmRmaXNoc3dvcmRmaXNo", "SLACK_TOKEN": "xoxb-swordfish", "HOOK_URL": "https://hooks.slack.com/services/T/B/swordfish",
		"INBOX_URL": "postgres://shop:swordfish@stock.example.com:5432/stock",
		"NKEY_SEED": "SUAMK2FG4MI6UE3ACF3FK3OIQBCEIEZV7NSWFFEW63UXMRLFM2XLAXK4GY",
	}}
	cert, key := selfSigned(t)
	err := os.Mkdir(filepath.Join(r.dir, "tls"), 0o700)
	for name, text := range map[string]string{
		"tls/tls.crt": cert, "tls/tls.key": key, "t.txt": "text", "t.html": "html", "token.txt": "swordfish", "secret.txt": "swordfish", "google.json": `{"type": "authorized_user", "client_id": "a", "client_secret": "swordfish", "refresh_token": "swordfish"}`, "creds.txt": "-----BEGIN NATS USER JWT-----\nswordfish\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n" + r.env["NKEY_SEED"] + "\n------END USER NKEY SEED------\n",
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *roundTrip) write(name, config string) string {
	r.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		r.Fatal(err)
	}
	return path
}

// goes prints a configuration, reads what was printed, and prints that: the prints are
// the same, plan finds no change, and no secret is shown.
func (r *roundTrip) goes(config string) (text string) {
	r.Helper()
	path := r.write("notifyd.yaml", config)
	one := commandIn(r.T, r.env, "config", "print", "-c", path)
	if one.code != 0 {
		r.Fatalf("%s\n%s", one.stderr, config)
	}
	printed := r.write("printed.yaml", one.stdout)
	two := commandIn(r.T, r.env, "config", "print", "-c", printed)
	if two.code != 0 || two.stdout != one.stdout {
		r.Errorf("the print is read as %s\n%s\nand was\n%s", two.stderr, two.stdout, one.stdout)
	}
	for _, against := range []string{printed, path} {
		if p := commandIn(r.T, r.env, "plan", "--offline", "--detailed-exitcode", "-c", path, "--against", against); p.code != 0 {
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

// TestEverySettingRoundTrips prints and reads every setting of every destination.
func TestEverySettingRoundTrips(t *testing.T) {
	t.Parallel()
	var destinations map[string]map[string]any
	if err := yaml.Load([]byte(everySetting), &destinations); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, d := range destinations {
		for key := range d {
			used[fmt.Sprint(d["type"], " ", key)] = true
		}
	}
	for name, fresh := range registry(".", nil, nil) {
		for _, key := range settingNames(reflect.TypeOf(fresh()).Elem()) {
			if !used[name+" "+key] && key != "profile" { // which must be in a file of AWS
				t.Errorf("%s: the configuration has no %s", name, key)
			}
		}
	}
	r := newRoundTrip(t)
	r.goes(everyOther + "destinations:" + everySetting)
}

// TestDefaultsRoundTrip prints each type with what it must have and no more: what is shown
// in place of the rest is in force, and is accepted.
func TestDefaultsRoundTrip(t *testing.T) {
	t.Parallel()
	r := newRoundTrip(t)
	text := r.goes(`version: 1
destinations:
  log: {type: log}
  email: {type: email, host: h.example.com, from: a@example.com, to: b@example.com, subject: s, text: t}
  kafka: {type: kafka, brokers: k.example.com, topic: t}
  rabbitmq: {type: rabbitmq, routing_key: q}
  webhook: {type: webhook, url: https://h.example.com/x}
  slack: {type: slack, token: "${env:SLACK_TOKEN}", channel: C1, text: t}
  sqs: {type: sqs, queue: q, region: eu-central-1}
  sns: {type: sns, topic_arn: arn:aws:sns:eu-central-1:123456789012:t}
  eventbridge: {type: eventbridge, region: eu-central-1}
  kinesis: {type: kinesis, stream: s, region: eu-central-1}
  pubsub: {type: pubsub, project: shop, topic: orders}
  nats: {type: nats, servers: nats://127.0.0.1, subject: s}
  redis: {type: redis, addresses: 127.0.0.1, stream: s}
  postgres: {type: postgres, url: "${env:INBOX_URL}", source: shop}
routes: [{match: "*", to: [log, email, kafka, rabbitmq, webhook, slack, sqs, sns, eventbridge, kinesis, pubsub, nats, redis, postgres]}]
`)
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
		for _, st := range steps(read(t, page)) {
			if st.language != "yaml" {
				continue
			}
			r := newRoundTrip(t)
			r.env = variablesOf(st.text)
			config := completed(st.text)
			secretFiles(t, filepath.Join(r.dir, "notifyd.yaml"), config)
			text := r.goes(config)
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
	const config = `version: 1
database: {url: "postgres://app:swordfish1@db/app"}
destinations:
  slack: {type: slack, webhook_url: https://hooks.slack.com/services/T/B/swordfish2, text: t}
  hook: {type: webhook, url: https://hooks.slack.com/services/T1/B1/swordfish3, headers: {X-Api-Key: swordfish4, X-Auth: Bearer swordfish5}}
  other: {type: webhook, url: "https://h.example.com/in/swordfish66swordfish66?token=swordfish7", bearer_token: swordfish8, proxy_url: "http://u:swordfish6@proxy.example.com:3128"}
  mail: {type: email, host: h.example.com, from: a@example.com, to: b@example.com, subject: s, text: "see https://u:swordfish9@h.example.com/", headers: {X-Token: swordfish0}}
routes: [{match: "*", to: [slack, hook, other, mail]}]
`
	r := newRoundTrip(t)
	path := r.write("notifyd.yaml", config)
	other := r.write("other.yaml", strings.ReplaceAll(config, "swordfish", "marlin"))
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
	if got.code != exitConfig || strings.Count(got.stderr, "${redacted} stands for a secret") < 10 {
		t.Errorf("as input: %+v", got)
	}
}
