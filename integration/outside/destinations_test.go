package shop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/eventbridge"
	"github.com/notifyd/notifyd/handlers/file"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/handlers/kinesis"
	"github.com/notifyd/notifyd/handlers/nats"
	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/handlers/pubsub"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/handlers/redis"
	"github.com/notifyd/notifyd/handlers/slack"
	"github.com/notifyd/notifyd/handlers/sns"
	"github.com/notifyd/notifyd/handlers/sqs"
	"github.com/notifyd/notifyd/handlers/webhook"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// hidden is in each secret.
const hidden = "hunter2hunter2hunter2"

// signing is a secret of Standard Webhooks.
const signing = "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg=="

func secret(text string) handlers.Secret { return handlers.NewSecret(text) }

// seed is the seed of an unused key.
const seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"

func aws() handlers.AWS {
	return handlers.AWS{
		Region: "eu-central-1", Endpoint: "http://127.0.0.1:1", AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: secret(hidden), SessionToken: secret(hidden),
	}
}

// destination is a destination with its Config, and the handler that New has made of it.
type destination struct {
	config  any
	handler delivery.Handler
	err     error
	lane    delivery.Lane
}

// made takes the result of New.
func made[H delivery.Handler](config any, lane delivery.Lane) func(h H, err error) destination {
	return func(h H, err error) destination {
		if err != nil {
			return destination{config: config, err: err}
		}
		return destination{config, h, nil, lane}
	}
}

// destinations makes destinations of most types, with each of their secrets. TestConfigs in cmd/internal/destinations has all types.
func destinations(t *testing.T, url string) map[string]destination {
	t.Helper()
	all := make(map[string]destination)
	mail := email.Config{
		Host: "127.0.0.1", Port: 1, Username: "shop", Password: secret(hidden),
		From: "Shop <shop@example.com>", To: email.List{"{{ .Payload.email }}"}, Subject: "Order {{ .Event.AggregateID }}", Text: "Thank you.",
	}
	all["email"] = made[*email.Handler](mail, email.DefaultLane())(email.New(mail))
	bot := slack.Config{Token: secret("xoxb-" + hidden), Channel: "C0123456789", Text: "Order {{ .Event.AggregateID }}"}
	all["slack"] = made[*slack.Handler](bot, slack.DefaultLane())(slack.New(bot))
	incoming := slack.Config{WebhookURL: secret("https://127.0.0.1:1/services/" + hidden), Text: "Order"}
	all["slack of a webhook"] = made[*slack.Handler](incoming, slack.DefaultLane())(slack.New(incoming))
	topic := kafka.Config{
		Brokers: []string{"127.0.0.1:1"}, Topic: "orders", TLS: &handlers.TLS{}, SASL: &kafka.SASL{Mechanism: kafka.SASLPlain, Username: "shop", Password: secret(hidden)},
		SchemaRegistry: &kafka.SchemaRegistry{URL: "https://127.0.0.1:1", Username: "shop", Password: secret(hidden)},
	}
	all["kafka"] = made[*kafka.Handler](topic, kafka.DefaultLane())(kafka.New(topic))
	bearer := kafka.Config{Brokers: []string{"127.0.0.1:1"}, Topic: "orders", TLS: &handlers.TLS{}, SASL: &kafka.SASL{Mechanism: kafka.SASLOAuthBearer, Token: secret(hidden)}}
	all["kafka with a token"] = made[*kafka.Handler](bearer, kafka.DefaultLane())(kafka.New(bearer))
	exchange := rabbitmq.Config{Host: "127.0.0.1", Port: 1, Username: "shop", Password: secret(hidden), Exchange: "orders", RoutingKey: "{{ .Event.Type }}"}
	all["rabbitmq"] = made[*rabbitmq.Handler](exchange, rabbitmq.DefaultLane())(rabbitmq.New(exchange))
	queue := rabbitmq.Config{URL: secret("amqp://shop:" + hidden + "@127.0.0.1:1/"), RoutingKey: "orders"}
	all["rabbitmq by URL"] = made[*rabbitmq.Handler](queue, rabbitmq.DefaultLane())(rabbitmq.New(queue))
	subject := nats.Config{Servers: []string{"nats://127.0.0.1:1"}, Username: "shop", Password: secret(hidden), AllowUnencrypted: true, Subject: "orders"}
	all["nats"] = made[*nats.Handler](subject, nats.DefaultLane())(nats.New(subject))
	token := nats.Config{Servers: []string{"nats://127.0.0.1:1"}, Token: secret(hidden), AllowUnencrypted: true, Subject: "orders"}
	all["nats with a token"] = made[*nats.Handler](token, nats.DefaultLane())(nats.New(token))
	key := nats.Config{Servers: []string{"nats://127.0.0.1:1"}, NKeySeed: secret(seed), Subject: "orders"}
	all["nats with a key"] = made[*nats.Handler](key, nats.DefaultLane())(nats.New(key))
	one := redis.Config{URL: secret("redis://shop:" + hidden + "@127.0.0.1:1/0"), AllowUnencrypted: true, Stream: "orders"}
	all["redis"] = made[*redis.Handler](one, redis.DefaultLane())(redis.New(one))
	sentinels := redis.Config{
		Addresses: []string{"127.0.0.1:1"}, SentinelMaster: "main", SentinelPassword: secret(hidden), Password: secret(hidden), AllowUnencrypted: true, Stream: "orders",
	}
	all["redis of sentinels"] = made[*redis.Handler](sentinels, redis.DefaultLane())(redis.New(sentinels))
	messages := sqs.Config{QueueURL: "http://127.0.0.1:1/1/orders", AWS: aws()}
	all["sqs"] = made[*sqs.Handler](messages, sqs.DefaultLane())(sqs.New(messages))
	role := aws()
	role.AssumeRoleARN, role.ExternalID = "arn:aws:iam::123456789012:role/shop", secret(hidden)
	notes := sns.Config{TopicARN: "arn:aws:sns:eu-central-1:123456789012:orders", AWS: role}
	all["sns"] = made[*sns.Handler](notes, sns.DefaultLane())(sns.New(notes))
	records := kinesis.Config{Stream: "orders", AWS: aws()}
	all["kinesis"] = made[*kinesis.Handler](records, kinesis.DefaultLane())(kinesis.New(records))
	bus := eventbridge.Config{EventBus: "orders", AWS: aws()}
	all["eventbridge"] = made[*eventbridge.Handler](bus, eventbridge.DefaultLane())(eventbridge.New(bus))
	pub := pubsub.Config{Project: "shop-project", Topic: "orders", Endpoint: "http://127.0.0.1:1", Message: handlers.Message{Format: handlers.FormatCloudEventsBinary}}
	all["pubsub"] = made[*pubsub.Handler](pub, pubsub.DefaultLane())(pubsub.New(pub))
	rows := postgres.Config{URL: secret("postgres://shop:" + hidden + "@127.0.0.1:1/shop"), Source: "shop"}
	all["postgres"] = made[*postgres.Handler](rows, postgres.DefaultLane())(postgres.New(rows))
	hook := webhook.Config{
		URL: url, SigningSecrets: []handlers.Secret{secret(signing)}, BearerToken: secret(hidden), ProxyURL: secret("none"), Addresses: webhook.AddressesAny,
	}
	all["webhook"] = made[*webhook.Handler](hook, webhook.DefaultLane())(webhook.New(hook))
	basic := webhook.Config{URL: "https://127.0.0.1:1/", Username: "shop", Password: secret(hidden), ProxyURL: secret("http://shop:" + hidden + "@127.0.0.1:1"), Addresses: webhook.AddressesAny}
	all["webhook with a password"] = made[*webhook.Handler](basic, webhook.DefaultLane())(webhook.New(basic, handlers.WithBaseDir(t.TempDir())))
	archive := file.Config{Path: filepath.Join(t.TempDir(), "missing", "orders.jsonl")}
	all["file"] = made[*file.Handler](archive, file.DefaultLane())(file.New(archive))
	lines := file.LogConfig{}
	all["log"] = made[*file.Log](lines, delivery.Lane{})(file.NewLog(lines, file.WithWriter(io.Discard)))
	return all
}

func example() *delivery.Event {
	return &delivery.Event{
		ID: 42, Type: "order.placed", AggregateType: "order", AggregateID: "1042", Payload: []byte(`{"email":"ann@example.com"}`),
		CreatedAt: time.Unix(1, 0), Attempt: 1, Destination: "example",
	}
}

// TestDestinations makes destinations from Go, with their secrets, and registers them.
func TestDestinations(t *testing.T) {
	t.Parallel()
	pool := migrated(t, "public", outboxsql.ModeQueue)
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range destinations(t, "https://127.0.0.1:1/hook") {
		if d.err != nil {
			t.Errorf("%s: %v", name, d.err)
			continue
		}
		if closer, ok := d.handler.(io.Closer); ok {
			defer func() {
				if err := closer.Close(); err != nil {
					t.Errorf("close %s: %v", name, err)
				}
			}()
		}
		if err := errors.Join(relay.Add(notifyd.Destination{Name: name, Handler: d.handler, Lane: d.lane}), relay.Route(strings.ReplaceAll(name, " ", "-"), name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if p, ok := delivery.As[delivery.Previewer](d.handler); !ok {
			t.Errorf("%s shows no preview", name)
		} else if text, err := p.Preview(example()); err != nil || text == "" || shows(text) {
			t.Errorf("the preview of %s: %q, %v", name, text, err)
		}
		texts := []string{fmt.Sprintf("%v %+v %#v %s %d %x", d.config, d.config, d.config, d.config, d.config, d.config)}
		if text, err := json.Marshal(d.config); err != nil {
			t.Errorf("%s as JSON: %v", name, err)
		} else {
			texts = append(texts, string(text))
		}
		for _, text := range texts {
			if shows(text) {
				t.Errorf("%s shows a secret: %s", name, text)
			}
		}
	}
}

// shows reports whether a text holds a secret of destinations.
func shows(text string) bool {
	for _, s := range []string{hidden, signing, seed} {
		if strings.Contains(text, s) || strings.Contains(text, fmt.Sprintf("%x", s)) {
			return true
		}
	}
	return false
}

// TestSecretsArrive: the server gets the secrets that a program sets.
func TestSecretsArrive(t *testing.T) {
	t.Parallel()
	requests := make(chan *http.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { requests <- r }))
	defer server.Close()
	all := destinations(t, server.URL)
	for _, d := range all {
		if c, ok := d.handler.(io.Closer); ok {
			defer c.Close() //nolint:errcheck // TestDestinations looks
		}
	}
	if err := all["webhook"].handler.Deliver(t.Context(), example()); err != nil {
		t.Fatal(err)
	}
	if r := <-requests; r.Header.Get("Authorization") != "Bearer "+hidden || !strings.HasPrefix(r.Header.Get("webhook-signature"), "v1,") || r.Header.Get("webhook-id") != "notifyd-42-example" {
		t.Errorf("the header is %v", r.Header)
	}

	pool := database(t)
	url := pool.Config().ConnConfig
	cfg := postgres.Config{URL: secret(fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s", url.Host, url.Port, url.User, url.Password, url.Database)), Source: "shop"}
	if _, err := pool.Exec(t.Context(), postgres.Schema(cfg)); err != nil {
		t.Fatal(err)
	}
	rows, err := postgres.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close() //nolint:errcheck // the same
	if err := rows.Deliver(t.Context(), example()); err != nil {
		t.Error(err)
	}

	var out bytes.Buffer
	lines, err := file.NewLog(file.LogConfig{}, file.WithWriter(&out))
	if err != nil {
		t.Fatal(err)
	}
	if err := lines.Deliver(t.Context(), example()); err != nil || !strings.Contains(out.String(), "order.placed") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestUnavailable: a destination whose server refuses connections says so, and shows no secret.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	all := destinations(t, "https://127.0.0.1:1/")
	for _, d := range all {
		if c, ok := d.handler.(io.Closer); ok {
			defer c.Close() //nolint:errcheck // TestDestinations looks
		}
	}
	for _, name := range []string{"email", "slack of a webhook", "rabbitmq", "rabbitmq by URL", "nats", "redis", "postgres", "webhook", "webhook with a password"} {
		err := all[name].handler.Deliver(t.Context(), example())
		if !delivery.IsUnavailable(err) || delivery.IsPermanent(err) || shows(err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFieldErrors: every mistake in a Config is a *handlers.FieldError.
func TestFieldErrors(t *testing.T) {
	t.Parallel()
	missing := handlers.TLS{CAFile: "none.pem"}
	for name, c := range map[string]struct {
		err   error
		paths []string
	}{
		"email":         {second(email.New(email.Config{Username: "shop"})), []string{"host", "from", "subject", "password"}},
		"email, valid":  {email.Config{TLS: "perhaps"}.Validate(), []string{"tls"}},
		"slack":         {second(slack.New(slack.Config{})), []string{"token", "text"}},
		"kafka":         {second(kafka.New(kafka.Config{SASL: &kafka.SASL{Mechanism: "none"}})), []string{"brokers", "sasl.mechanism"}},
		"rabbitmq":      {second(rabbitmq.New(rabbitmq.Config{URL: secret("http://" + hidden)})), []string{"url"}},
		"nats":          {second(nats.New(nats.Config{NKeySeed: secret(hidden)})), []string{"servers", "nkey_seed"}},
		"redis":         {second(redis.New(redis.Config{URL: secret("http://" + hidden)})), []string{"url"}},
		"sqs":           {second(sqs.New(sqs.Config{AWS: handlers.AWS{SecretAccessKey: secret(hidden)}})), []string{"queue", "access_key_id"}},
		"sns":           {second(sns.New(sns.Config{})), []string{"topic_arn"}},
		"kinesis":       {second(kinesis.New(kinesis.Config{})), []string{"stream"}},
		"eventbridge":   {second(eventbridge.New(eventbridge.Config{Source: "aws.shop"})), []string{"source"}},
		"pubsub":        {second(pubsub.New(pubsub.Config{})), []string{"topic"}},
		"postgres":      {second(postgres.New(postgres.Config{URL: secret("nowhere://" + hidden), Source: "shop"})), []string{"url"}},
		"webhook":       {second(webhook.New(webhook.Config{URL: "ftp://x", SigningSecrets: []handlers.Secret{secret(hidden)}})), []string{"url", "signing_secrets.0"}},
		"missing files": {second(webhook.New(webhook.Config{URL: "https://x", TLS: missing}, handlers.WithBaseDir(t.TempDir()))), []string{"tls.ca_file"}},
		"message":       {second(webhook.New(webhook.Config{URL: "https://x", Message: handlers.Message{Format: "xml"}})), []string{"format"}},
		"tls":           {second(webhook.New(webhook.Config{URL: "https://x", TLS: handlers.TLS{CertFile: "cert.pem"}})), []string{"tls.key_file"}},
	} {
		first, ok := errors.AsType[*handlers.FieldError](c.err)
		if !ok || first.Err == nil || !strings.Contains(c.err.Error(), first.Error()) {
			t.Errorf("%s: %v is no FieldError", name, c.err)
			continue
		}
		found := make(map[string]bool)
		for _, err := range leaves(c.err) {
			mistake, ok := errors.AsType[*handlers.FieldError](err)
			if !ok {
				t.Errorf("%s: %v is no FieldError", name, err)
				continue
			}
			found[mistake.Path] = true
		}
		for _, path := range c.paths {
			if !found[path] {
				t.Errorf("%s: no mistake in %s: %v", name, path, c.err)
			}
		}
		if shows(c.err.Error()) {
			t.Errorf("%s shows a secret: %v", name, c.err)
		}
	}
}

// second returns the second of two values.
func second[T any](_ T, err error) error { return err }

// leaves returns the errors that are joined in err.
func leaves(err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, leaves(e)...)
	}
	return all
}
