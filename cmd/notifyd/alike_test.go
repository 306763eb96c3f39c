package main

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
)

// picky is a destination that refuses all events until it is cured, and then only those of the type odd.one.
type picky struct {
	settings string // its configuration
	cure     func()
	arrived  func() []int64 // in the order of arrival
}

// journaled is a table whose trigger writes into another one, which has no partition for today.
func journaled(t *testing.T) picky {
	t.Helper()
	inbox := testenv.Database(t)
	execute(t, inbox, postgres.Schema(postgres.Config{})+`
		ALTER TABLE received_events ADD COLUMN n bigserial;
		CREATE TABLE journal (event_id bigint, day date) PARTITION BY RANGE (day);
		CREATE FUNCTION journal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO journal VALUES (NEW.event_id, CASE NEW.event_type WHEN 'odd.one' THEN DATE '9999-01-01' ELSE DATE '2026-11-29' END);
			RETURN NEW; END $$;
		CREATE TRIGGER journal BEFORE INSERT ON received_events FOR EACH ROW EXECUTE FUNCTION journal()`)
	return picky{
		settings: fmt.Sprintf(`type: postgres, url: "%s", source: shop`, inbox),
		cure: func() {
			execute(t, inbox, `CREATE TABLE today PARTITION OF journal FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')`)
		},
		arrived: func() []int64 {
			return query[[]int64](t, inbox, `SELECT coalesce(array_agg(event_id ORDER BY n), '{}') FROM received_events`)
		},
	}
}

// unbound is an exchange of RabbitMQ to which no queue is bound.
func unbound(t *testing.T) picky {
	t.Helper()
	url := testenv.RabbitMQ(t).URL
	ch := channelTo(t, url)

	var got []int64
	return picky{
		settings: fmt.Sprintf(`type: rabbitmq, url: "%s", exchange: amq.topic`, url),
		cure: func() {
			if err := ch.QueueBind("billing", "order.#", "amq.topic", false, nil); err != nil {
				t.Fatal(err)
			}
		},
		arrived: func() []int64 {
			for {
				m, ok, err := ch.Get("billing", true)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					return got
				}
				id, _ := strconv.ParseInt(m.MessageId, 10, 64)
				got = append(got, id)
			}
		},
	}
}

// TestDelayedMessages: an exchange that delays messages returns each of them as unroutable. They are delivered once, and none is a
// dead letter.
func TestDelayedMessages(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			broker := testenv.OwnRabbitMQ(t, rabbitserver.Config{})
			if err := broker.DelayMessages(t.Context()); errors.Is(err, rabbitserver.ErrOtherVersion) {
				testenv.Need(t, "rabbitmq", err)
			} else if err != nil {
				t.Fatal(err)
			}
			ch := channelTo(t, broker.URL(""))
			if err := ch.ExchangeDeclare("later", "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "direct"}); err != nil {
				t.Fatal(err)
			}
			if err := ch.QueueBind("billing", "order.placed", "later", false, nil); err != nil {
				t.Fatal(err)
			}

			url := databaseOf(t, mode)
			const events = 10
			execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, headers, payload)
				SELECT 'order', n::text, 'order.placed', '{"x-delay": "50"}', '{}' FROM generate_series(1, %d) n`, events))
			d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(pickyConfig, url, fmt.Sprintf(`type: rabbitmq, url: "%s", exchange: later`, broker.URL("")))))
			untilDone(t, url)
			if code := d.end(t); code != 0 {
				t.Errorf("exit code %d", code)
			}

			// All copies are due before this message, which comes later and has a longer delay.
			headers := amqp.Table{"x-delay": "500"}
			if err := ch.PublishWithContext(t.Context(), "later", "order.placed", false, false, amqp.Publishing{MessageId: "last", Headers: headers}); err != nil {
				t.Fatal(err)
			}
			var got []string
			messages, err := ch.ConsumeWithContext(t.Context(), "billing", "", true, false, false, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			for m := range messages {
				if m.MessageId == "last" {
					break
				}
				got = append(got, m.MessageId)
			}
			slices.Sort(got)
			if rows := query[int](t, url, `SELECT count(*) FROM outbox_deliveries`); len(got) != events || len(slices.Compact(got)) != events || rows != 0 {
				t.Errorf("messages %q, %d rows are left", got, rows)
			}
		})
	}
}

// channelTo returns a channel of a broker that has the queue billing.
func channelTo(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("billing", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return ch
}

// misset is a queue of SQS that refuses a parameter of each message.
func misset(t *testing.T) picky {
	t.Helper()
	type entry struct {
		ID, MessageBody   string
		MessageAttributes map[string]struct{ StringValue string }
	}
	var mu sync.Mutex
	var cured bool
	var got []int64
	fake := awstest.StartFake(t, func(_ int, a awstest.Asked) awstest.Said {
		var in struct{ Entries []entry }
		if err := json.Unmarshal(a.Body, &in); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		var answers []string
		for _, e := range in.Entries {
			if !cured || e.MessageAttributes["notifyd-type"].StringValue == "odd.one" {
				return awstest.Problem(400, "InvalidParameterValue", "The queue does not support this")
			}
			sum := md5.Sum([]byte(e.MessageBody))
			answers = append(answers, fmt.Sprintf(`{"Id":%q,"MessageId":"m","MD5OfMessageBody":%q}`, e.ID, hex.EncodeToString(sum[:])))
		}
		for _, e := range in.Entries {
			id, _ := strconv.ParseInt(e.MessageAttributes["notifyd-id"].StringValue, 10, 64)
			got = append(got, id)
		}
		return awstest.Said{Body: fmt.Sprintf(`{"Successful":[%s],"Failed":[]}`, strings.Join(answers, ","))}
	})
	return picky{
		settings: fmt.Sprintf(`type: sqs, queue_url: "%s/123456789012/orders.fifo", endpoint: "%s", region: eu-central-1, access_key_id: AK, secret_access_key: sk`,
			fake.URL, fake.URL),
		cure: func() {
			mu.Lock()
			defer mu.Unlock()
			cured = true
		},
		arrived: func() []int64 {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(got)
		},
	}
}

const pickyConfig = `version: 1
database: {url: "%s"}
log: {level: debug, format: json}
destinations:
  picky: {%s, max_attempts: 3, backoff: {initial: 50ms, max: 50ms}}
routes:
  - {match: "*", to: picky}
`

// TestRefusedAlike: what every event gets is not the fault of each. All events wait until the destination is cured, and none
// is a dead letter; one that is refused while others are taken is.
func TestRefusedAlike(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, to := range map[string]func(*testing.T) picky{"partition": journaled, "binding": unbound, "parameter": misset} {
		for _, mode := range modes() {
			t.Run(name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				refuseAlike(t, mode, to(t))
			})
		}
	}
}

func refuseAlike(t *testing.T, mode string, p picky) {
	t.Helper()
	url := databaseOf(t, mode)
	const events = 60
	execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', (n %% 7)::text, 'order.placed', '{}' FROM generate_series(1, %d) n`, events))
	d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(pickyConfig, url, p.settings)))
	d.stderr.await(t, "events in a row were refused alike; the destination counts as down until it takes one")
	d.stderr.await(t, `"msg":"destination still down"`) // a probe was refused, too

	p.cure()
	untilDone(t, url)
	arrived := p.arrived()
	if dead := query[int](t, url, `SELECT count(*) FROM outbox_deliveries`); len(arrived) != events || dead != 0 {
		t.Errorf("%d of %d events have arrived, %d rows are left", len(arrived), events, dead)
	}
	latest := make(map[int64]int64)
	for _, id := range arrived {
		if mode == "stream" && id < latest[id%7] {
			t.Errorf("event %d came behind %d of its aggregate", id, latest[id%7])
		}
		latest[id%7] = id
	}

	insert := func(kind string) {
		execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '%s', '%[1]s', '{}')`, kind))
	}
	insert("odd.one")
	good := 0
	for deadline := time.Now().Add(patience); !query[bool](t, url, `SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'dead' AND event_type = 'odd.one'`); {
		if time.Now().After(deadline) {
			t.Fatalf("it is no dead letter after %d others:\n%s", good, d.stderr.text())
		}
		insert("order.placed") // others distinguish it from an outage
		good++
	}
	untilDone(t, url)
	if n, dead := len(p.arrived()), query[int](t, url, `SELECT count(*) FROM outbox_deliveries`); n != events+good || dead != 1 {
		t.Errorf("%d of %d events have arrived, %d are dead letters", n, events+good, dead)
	}
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestRefusedByPolicy: rows that a policy of row level security refuses are at fault, and no outage: others are written as if
// alone.
func TestRefusedByPolicy(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url, inbox := databaseOf(t, mode), testenv.Database(t)
			writer := query[string](t, inbox, `SELECT current_database()::text`) // a superuser meets no policy
			execute(t, inbox, postgres.Schema(postgres.Config{})+fmt.Sprintf(`
				CREATE ROLE %[1]s LOGIN; GRANT ALL ON received_events TO %[1]s;
				ALTER TABLE received_events ENABLE ROW LEVEL SECURITY;
				CREATE POLICY tenant ON received_events WITH CHECK (event_type <> 'odd.one');
				CREATE POLICY shown ON received_events FOR SELECT USING (true)`, writer))
			to := strings.Replace(inbox, "postgres://postgres", "postgres://"+writer, 1)
			d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(pickyConfig, url, fmt.Sprintf(`type: postgres, url: "%s", source: shop`, to))))
			d.stderr.await(t, `"relay started"`)

			const rounds, each = 20, 10
			for range rounds {
				execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
					SELECT 'order', n::text, CASE n WHEN 1 THEN 'odd.one' ELSE 'order.placed' END, '{}' FROM generate_series(1, %d) n`, each))
			}
			good := rounds * (each - 1)
			const dead = `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead' AND event_type = 'odd.one'`
			for deadline := time.Now().Add(patience); query[int](t, url, dead) < rounds; {
				if time.Now().After(deadline) {
					t.Fatalf("%d of %d refused rows are dead letters:\n%s", query[int](t, url, dead), rounds, d.stderr.text())
				}
				execute(t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '{}')`) // others distinguish them from an outage
				good++
			}
			untilDone(t, url)
			if n := query[int](t, inbox, `SELECT count(*) FROM received_events`); n != good {
				t.Errorf("%d of %d rows are written", n, good)
			}
			if strings.Contains(d.stderr.text(), `"msg":"destination down"`) {
				t.Errorf("the destination counts as down:\n%s", d.stderr.text())
			}
			t.Logf("good rows, p50 in ms: %.0f", query[float64](t, inbox, `SELECT 1000 * percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM received_at - created_at)) FROM received_events`))
		})
	}
}
