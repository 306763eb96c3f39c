//go:build testall

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// everywhere are the servers behind every destination that there is.
type everywhere struct {
	*testing.T
	name                      string            // of topic, exchange, queues
	traces                    map[string]string // the traceparent that has arrived at each place
	database, kafka, rabbitmq string
	pubsub                    string
	archive                   string // a file
	inbox                     string // another database, with the table of the type postgres
	redis, nats               testenv.Place
	mqtt                      string // the address of a broker, which keeps the last message of a topic
	mail                      *smtpsink.Sink
	hooks, slack              *received
	clouds
}

// received is an HTTP server that keeps its requests.
type received struct {
	*httptest.Server
	requests chan string
	traces   chan string // traceparent, of the header or of Slack's metadata
}

func receive(t *testing.T, answer string) *received {
	t.Helper()
	r := &received{requests: make(chan string, 10), traces: make(chan string, 10)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body) // what is missing is missed below
		r.requests <- request.Header.Get("Webhook-Id") + " " + string(body)
		r.traces <- traceOf(request.Header.Get("traceparent") + string(body))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(r.Close)
	return r
}

// traceOf returns the first traceparent in a text.
func traceOf(text string) string {
	return regexp.MustCompile(`00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]`).FindString(text)
}

// startEverything starts one of each, and makes the stream and the queue that
// no test makes on demand.
func startEverything(t *testing.T, name string) *everywhere {
	t.Helper()
	name += "-" + rand.Text() // the shared servers keep what an earlier round of -count left
	e := &everywhere{
		T: t, name: name, traces: make(map[string]string), database: database(t), kafka: testenv.Kafka(t)[0], rabbitmq: testenv.RabbitMQ(t).URL, pubsub: testenv.PubSub(t),
		redis: testenv.Redis(t), nats: testenv.NATS(t), mail: testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS}),
		hooks: receive(t, "{}"), slack: receive(t, `{"ok": true, "ts": "1.2", "channel": "C1"}`),
	}
	e.clouds = startClouds(t, name)
	e.mqtt = testenv.OwnServer(t, "mqtt", privateserver.MQTT("")).Addr()
	e.pubsubTopic(http.MethodPut, "")
	testenv.KafkaTopic(t, []string{e.kafka}, name, 1, nil)
	e.archive = filepath.Join(t.TempDir(), "archive.jsonl")
	e.inbox = testenv.Database(t)
	execute(t, e.inbox, postgres.Schema(postgres.Config{}))
	e.stream(func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: e.nats.Name, Subjects: []string{e.nats.Name + ".>"}})
		return err
	})
	return e
}

func (e *everywhere) stream(f func(context.Context, jetstream.JetStream) error) {
	e.Helper()
	conn, err := natsgo.Connect(e.nats.URL, natsgo.Timeout(patience))
	if err != nil {
		e.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		e.Fatal(err)
	}
	if err := f(e.Context(), js); err != nil {
		e.Fatal(err)
	}
}

// published is a message of a topic.
type published struct {
	OrderingKey string
	Attributes  map[string]string
	Data        []byte
}

// pubsubTopic asks the emulator of Pub/Sub about the topic of the test.
func (e *everywhere) pubsubTopic(method, verb string) []published {
	e.Helper()
	req, err := http.NewRequestWithContext(e.Context(), method, e.pubsub+"/v1/projects/shop/topics/"+e.name+verb, http.NoBody)
	if err != nil {
		e.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		e.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // nothing was written
	var out struct{ Messages []published }
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || resp.StatusCode != http.StatusOK {
		e.Fatalf("%s: %v", resp.Status, err)
	}
	return out.Messages
}

// config is a file with every type of destination.
func (e *everywhere) config() string {
	const text = `version: 1
database: {url: "$database"}
log: {level: debug, format: json}
destinations:
  kafka: {type: kafka, brokers: "$kafka", topic: $name}
  rabbitmq:
    type: rabbitmq
    url: "$rabbitmq"
    exchange: $name
    declare:
      exchanges: [{name: $name}]
      queues: [{name: $name}]
      bindings: [{exchange: $name, queue: $name, routing_key: "order.#"}]
  sqs: {type: sqs, queue_url: "$queue", region: eu-central-1, endpoint: "$sqs", access_key_id: id, secret_access_key: key}
  sns: {type: sns, topic_arn: "$topic", endpoint: "$sqs", access_key_id: id, secret_access_key: key}
  eventbridge: {type: eventbridge, event_bus: "$bus", endpoint: "$aws", access_key_id: id, secret_access_key: key}
  kinesis: {type: kinesis, stream: $name, region: eu-central-1, endpoint: "$aws", access_key_id: id, secret_access_key: key}
  pubsub: {type: pubsub, project: shop, topic: $name, endpoint: "$pubsub"}
  redis: {type: redis, url: "$redis", stream: "$stream"}
  nats: {type: nats, servers: "$nats", subject: "$subject.{{ .Event.Type }}"}
  mqtt: {type: mqtt, servers: "mqtt://$mqtt", topic: "$name/{{ .Event.Type }}", retain: true}
  webhook: {type: webhook, url: "$hooks", signing_secrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw]}
  slack: {type: slack, token: xoxb-swordfish, api_url: "$slack/", channel: C1, text: "Order {{ .Payload.order }}"}
  mail:
    type: email
    host: 127.0.0.1
    port: $port
    tls: none
    from: Shop <shop@example.com>
    to: "{{ .Payload.email }}"
    subject: "Order {{ .Payload.order }}"
    text: "Thank you."
  postgres: {type: postgres, url: "$inbox", source: shop}
  file: {type: file, path: "$archive"}
  log: {type: log}
routes:
  - {match: order.*, to: [kafka, rabbitmq, sqs, sns, eventbridge, kinesis, pubsub, redis, nats, mqtt, webhook, slack, mail, postgres, file, log]}
`
	return os.Expand(text, func(name string) string {
		return map[string]string{
			"name": e.name, "database": e.database, "kafka": e.kafka, "rabbitmq": e.rabbitmq, "queue": e.queue.URL, "sqs": e.sqs, "topic": e.topic, "pubsub": e.pubsub,
			"bus": e.bus.ARN, "aws": e.aws,
			"redis": e.redis.URL, "stream": e.redis.Name, "nats": e.nats.URL, "subject": e.nats.Name, "mqtt": e.mqtt,
			"archive": e.archive, "inbox": e.inbox, "hooks": e.hooks.URL, "slack": e.slack.URL, "port": strconv.Itoa(e.mail.Port()),
		}[name]
	})
}

// arrived returns what has arrived at each place.
func (e *everywhere) arrived() map[string]string {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), patience)
	defer cancel()
	got := map[string]string{"webhook": <-e.hooks.requests, "slack": <-e.slack.requests}
	e.traces["webhook"], e.traces["slack"] = <-e.hooks.traces, <-e.slack.traces
	e.fromBrokers(ctx, got)
	e.fromClouds(got)
	for _, m := range e.pubsubTopic(http.MethodGet, ":messages") {
		got["pubsub"] = fmt.Sprintf("key %s, %d attributes, %s", m.OrderingKey, len(m.Attributes), m.Data)
		e.traces["pubsub"] = m.Attributes["traceparent"]
	}
	options, err := goredis.ParseURL(e.redis.URL)
	if err != nil {
		e.Fatal(err)
	}
	redis := goredis.NewClient(options)
	defer redis.Close() //nolint:errcheck // it was only read from
	entries, err := redis.XRange(ctx, e.redis.Name, "-", "+").Result()
	if err != nil {
		e.Fatal(err)
	}
	for _, entry := range entries {
		got["redis"] = fmt.Sprint("id ", entry.Values["id"], ", ", entry.Values["payload"])
		e.traces["redis"] = fmt.Sprint(entry.Values["traceparent"])
	}
	e.stream(func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, e.nats.Name)
		if err != nil {
			return err
		}
		m, err := s.GetLastMsgForSubject(ctx, e.nats.Name+".order.placed")
		if err == nil {
			got["nats"] = m.Header.Get("Nats-Msg-Id") + " " + string(m.Data)
			e.traces["nats"] = m.Header.Get("traceparent")
		}
		return err
	})
	retained := e.fromMQTT(ctx)
	got["mqtt"] = retained.Topic + " " + retained.Properties.User.Get("notifyd-id") + " " + string(retained.Payload)
	e.traces["mqtt"] = retained.Properties.User.Get("traceparent")
	m, err := mails(e.T, e.mail, 1)[0].Parse()
	if err != nil {
		e.Fatal(err)
	}
	got["postgres"] = query[string](e.T, e.inbox, `SELECT source || ' ' || dedupe_id || ' ' || payload::text FROM received_events`)
	e.traces["postgres"] = query[string](e.T, e.inbox, `SELECT coalesce(headers ->> 'traceparent', '') FROM received_events`)
	archived, err := os.ReadFile(e.archive)
	if err != nil {
		e.Fatal(err)
	}
	got["file"], e.traces["file"] = string(archived), traceOf(string(archived))
	got["mail"] = m.Subject + " to " + m.To
	e.traces["mail"] = m.Header.Get("Traceparent")
	return got
}

// fromMQTT returns a retained message.
func (e *everywhere) fromMQTT(ctx context.Context) *paho.Publish {
	e.Helper()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", e.mqtt)
	if err != nil {
		e.Fatal(err)
	}
	messages := make(chan *paho.Publish, 1)
	client := paho.NewClient(paho.ClientConfig{Conn: conn, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(p paho.PublishReceived) (bool, error) { messages <- p.Packet; return true, nil },
	}})
	if _, err := client.Connect(ctx, &paho.Connect{ClientID: "reader", CleanStart: true, KeepAlive: 60}); err != nil {
		e.Fatal(err)
	}
	defer client.Disconnect(&paho.Disconnect{}) //nolint:errcheck // it was only read from
	if _, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: e.name + "/#"}}}); err != nil {
		e.Fatal(err)
	}
	return testenv.Receive(e, patience, "the retained message", messages)
}

// fromBrokers adds what has arrived in Kafka and RabbitMQ.
func (e *everywhere) fromBrokers(ctx context.Context, got map[string]string) {
	e.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(e.kafka), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(e.name))
	if err != nil {
		e.Fatal(err)
	}
	defer client.Close()
	for got["kafka"] == "" && ctx.Err() == nil { // a fetch may also bring an error alone
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			got["kafka"] = fmt.Sprintf("key %s, %d headers, %s", r.Key, len(r.Headers), r.Value)
			e.traces["kafka"] = traceOf(fmt.Sprintf("%s", r.Headers))
		})
	}
	conn, err := amqp.Dial(e.rabbitmq)
	if err != nil {
		e.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // it was only read from
	ch, err := conn.Channel()
	if err != nil {
		e.Fatal(err)
	}
	if m, ok, err := ch.Get(e.name, true); err == nil && ok {
		got["rabbitmq"] = fmt.Sprintf("message_id %s, type %s, %s", m.MessageId, m.Type, m.Body)
		e.traces["rabbitmq"] = fmt.Sprint(m.Headers["traceparent"])
	}
}

// TestEveryDestination sends one event to all of them by one configuration.
func TestEveryDestination(t *testing.T) {
	t.Parallel()
	e := startEverything(t, "every")
	path := file(t, e.config())
	if r := invoke(t, "check-config", "-c", path); r.code != 0 {
		t.Fatalf("check-config: %d\n%s", r.code, r.stderr)
	}
	d := startDaemon(t, nil, "run", "-c", path)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the daemon:\n%s", d.stderr.text())
		}
	})
	publishTo(t, e.database, "order.placed", order, "--aggregate", "order/7")
	until(t, e.database, "SELECT count(*) = 1 AND bool_and(state = 'done') FROM outbox_events")
	got := e.arrived()
	d.stdout.await(t, "\n")
	got["log"] = d.stdout.text()
	for name, want := range map[string]string{
		"kafka": "key 7, 6 headers, " + order, "rabbitmq": "message_id 1, type order.placed, " + order, "sqs": order, "pubsub": "key 7, 5 attributes, " + order, "sns": order,
		"eventbridge": "1: " + order, "kinesis": `"id":"1"`, "redis": "id 1, " + order,
		"nats": order, "mqtt": "/order.placed 1 " + order, "webhook": order, "slack": "Order+7", "mail": "Order 7 to <ann@example.com>", "postgres": "shop 1 " + order, "file": `"dedupe_id":"1"`, "log": `"event_id":1`,
	} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s got %q, want %q in it", name, got[name], want)
		}
		t.Logf("%s: %s", name, strings.TrimSpace(got[name]))
	}
	if n := query[int](t, e.database, "SELECT count(*) FROM outbox_deliveries"); n != 0 {
		t.Errorf("%d deliveries are left", n)
	}
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
	if text := d.stderr.text(); strings.Contains(text, "swordfish") || strings.Contains(text, "whsec_") {
		t.Errorf("a secret is logged:\n%s", text)
	}
}
