package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// pasted returns the first configuration in the page of a destination.
func pasted(t *testing.T, page string) string {
	t.Helper()
	_, rest, ok := strings.Cut(testenv.ReadFile(t, root+"docs/destinations/"+page), "```yaml\n")
	block, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatalf("docs/destinations/%s has no configuration", page)
	}
	return block
}

// TestKafkaExactlyOnce: it needs a stream, as check-config says, and has a batch of its own unless the
// file has one.
func TestKafkaExactlyOnce(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nroutes: [{match: \"*\", to: k}]\ndestinations:\n  k: {type: kafka, brokers: a, topic: t, exactly_once: true"
	for settings, batch := range map[string]string{"}\n": "batch: 5000", ", batch: 1000}\n": "batch: 1000", ", batch: 7}\n": "batch: 7"} {
		path := file(t, head+settings)
		if got := invoke(t, "check-config", "-c", path); got.code != 0 || !strings.Contains(got.stderr, path+":4:56: destinations.k.exactly_once: true needs a table that is a stream") {
			t.Errorf("%s: %+v", settings, got)
		}
		if got := invoke(t, "config", "print", "-c", path); got.code != 0 || !strings.Contains(got.stdout, batch) {
			t.Errorf("%s: no %s in %+v", settings, batch, got)
		}
	}
}

// TestKafkaForeignTopic: of a transaction with topics made of events, one of which the user may not write, the events
// of that topic alone fail. The others are written, and none of their attempts counts.
func TestKafkaForeignTopic(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	broker := testenv.OwnKafka(t, kafkaserver.Config{
		Secure: kafkaserver.Secure{Users: map[string]string{"ann": "marker5"}},
		Properties: map[string]string{
			"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":           "User:ANONYMOUS",
		},
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()), kgo.AlwaysRetryEOF())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	allow := func(b *kadm.ACLBuilder) {
		t.Helper()
		results, err := admin.CreateACLs(t.Context(), b.Allow("User:ann").AllowHosts())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	const events = 60
	kinds := []string{"transactional", "exactly_once"}
	for _, kind := range kinds {
		for _, topic := range []string{"one", "two", "foreign"} {
			testenv.KafkaTopic(t, []string{broker.Addr()}, kind+"."+topic, 1, nil)
		}
		allow(kadm.NewACLs().Topics(kind+".one", kind+".two", "notifyd-positions").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpAll))
		allow(kadm.NewACLs().Topics(kind + ".foreign").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpDescribe))
	}
	allow(kadm.NewACLs().TransactionalIDs("notifyd").ResourcePatternType(kadm.ACLPatternPrefixed).Operations(kadm.OpAll))
	allow(kadm.NewACLs().Clusters().ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpCreate, kadm.OpIdempotentWrite, kadm.OpDescribeConfigs))
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, "stream")
			execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload) SELECT (ARRAY['one', 'foreign', 'two'])[1 + i %% 3], '{}' FROM generate_series(1, %d) AS i`, events))
			path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nlog: {level: debug}\ndestinations:\n  k: {type: kafka, brokers: '%s', topic: '%s.{{ .Event.Type }}', %s: true,\n"+
				"    start_from: beginning, sasl: {mechanism: scram-sha-256, username: ann, password: marker5}, max_attempts: 2, longest_pause: 100ms, backoff: {initial: 1ms, max: 1ms}}\nroutes: [{match: '*', to: k}]\n", url, broker.SecureAddr(), kind, kind))
			d := startDaemon(t, nil, "run", "-c", path)
			more := 0
			// writeUntil writes events for the first topic until the condition holds. Without events that the cluster takes, no
			// other would be at fault.
			writeUntil := func(condition, also string) {
				t.Helper()
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for deadline := time.Now().Add(patience); !query[bool](t, url, condition); more++ {
					if time.Now().After(deadline) {
						t.Fatalf("never true: %s", condition)
					}
					execute(t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('one', '{}')`+also)
					<-tick.C
				}
			}
			// An event of the second topic may not be a row yet.
			const nothingWaits = `SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE state <> 'dead') AND NOT EXISTS (SELECT FROM outbox_events e, outbox_positions p
				WHERE p.destination <> '' AND e.event_type <> 'one' AND (e.id > p.head OR p.open @> e.id))`
			writeUntil(fmt.Sprintf(`SELECT count(*) = %d FROM outbox_deliveries WHERE state = 'dead'`, events/3), "")
			untilDone(t, url)
			if got := query[string](t, url, `SELECT string_agg(DISTINCT concat_ws(' ', e.event_type, d.state, d.attempts), ', ') || ': ' || count(*) FROM outbox_deliveries d JOIN outbox_events e ON e.id = d.event_id`); got != fmt.Sprintf("foreign dead 2: %d", events/3) {
				t.Errorf("deliveries: %s", got)
			}
			for line := range strings.Lines(d.stderr.text()) {
				if strings.Contains(line, `"event_type":"two"`) {
					t.Fatal(line)
				}
			}
			if n := committed(t, broker.Addr(), kind+".two"); n != events/3 {
				t.Errorf("%d records of the second topic", n)
			}

			// The client has written the second topic, whose right it loses; the broker hears of it after a while.
			allow(kadm.NewACLs().Topics(kind + ".two").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpDescribe))
			if _, err := admin.DeleteACLs(t.Context(), kadm.NewACLs().Allow("User:ann").AllowHosts().Topics(kind+".two").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpAll)); err != nil {
				t.Fatal(err)
			}
			writeUntil(`SELECT EXISTS (SELECT FROM outbox_deliveries d JOIN outbox_events e ON e.id = d.event_id WHERE d.state = 'dead' AND e.event_type = 'two')`, `, ('two', '{}')`)
			writeUntil(nothingWaits, "")
			untilDone(t, url)
			if code := d.end(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			for line := range strings.Lines(d.stderr.text()) {
				if strings.Contains(line, `"event_type":"one"`) {
					t.Fatal(line)
				}
			}
			if n := committed(t, broker.Addr(), kind+".one"); n != events/3+more {
				t.Errorf("%d records of the first topic, want %d", n, events/3+more)
			}
		})
	}
}

// TestExactlyOnceShowsItsError: a destination with exactly_once has no rows of deliveries while it is down. Why it is down is
// shown all the same, whether the position cannot be read or each transaction fails, until events are delivered again.
func TestExactlyOnceShowsItsError(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	brokers := testenv.Kafka(t)
	topic := fmt.Sprintf("shown.%d", time.Now().UnixNano())
	for name, c := range map[string]struct {
		broker, text string
		cure         func(t *testing.T)
	}{
		"the position cannot be read": {"127.0.0.1:1", "connection refused", nil},
		"each transaction fails": {brokers[0], "topic " + topic + ": UNKNOWN_TOPIC_OR_PARTITION", func(t *testing.T) {
			t.Helper()
			testenv.KafkaTopic(t, brokers, topic, 1, nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, "stream")
			text := fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nadmin: {listen: '127.0.0.1:0', console: true}\ndestinations:\n  k: {type: kafka, brokers: '%s', topic: '%s', exactly_once: true,\n"+
				"    start_from: beginning, longest_pause: 1s}\nroutes: [{match: '*', to: k}]\n", url, c.broker, topic)
			execute(t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '{}')`)
			d := startReloadable(t, nil, text)
			v := visit(t, d)
			config := file(t, strings.Replace(text, "127.0.0.1:0", strings.TrimPrefix(v.base, "http://"), 1))

			commandUntil(t, "status", func(r result) bool {
				return strings.Contains(r.stdout, "k has been down for") && strings.Contains(r.stdout, "; the last error: kafka: ") &&
					regexp.MustCompile(`(?m)^  k: \S+ ago: kafka: .*`+regexp.QuoteMeta(c.text)).MatchString(r.stdout)
			}, "status", "-c", config)
			for what, args := range map[string][]string{
				"a finding of doctor": {"doctor", "-c", config},
				"the event":           {"events", "show", "1", "-c", config},
			} {
				commandUntil(t, what, func(r result) bool { return strings.Contains(r.stdout, c.text) }, args...)
			}
			for _, page := range []string{"/console/destinations", "/console/destination?name=k", "/console/events/1"} {
				v.awaits(page, c.text)
			}
			if c.cure == nil {
				return
			}

			c.cure(t)
			untilDone(t, url)
			commandUntil(t, "no error", func(r result) bool { return r.code == 0 && !strings.Contains(r.stdout, "kafka: ") }, "status", "-c", config)
		})
	}
}

// committed counts the records of a topic with one partition, without those of transactions that were given up.
func committed(t *testing.T, broker, topic string) (n int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	end := testenv.KafkaEnd(t, []string{broker}, topic)
	for next := int64(0); next < end; {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				n++
			}
		})
	}
	return n
}

// TestKafkaPositionIDs: two destinations, or two outboxes, of one file never share a transactional id.
func TestKafkaPositionIDs(t *testing.T) {
	t.Parallel()
	const (
		two = `version: 1
destinations:
  a: {type: kafka, brokers: k, topic: t, exactly_once: true, transactional_id: %s}
  b: {type: kafka, brokers: k, topic: u, exactly_once: true, transactional_id: %s}
routes: [{match: "*", to: [a, b]}]
`
		spelled = `version: 1
database: {url: 'postgres://u@db1.example.com/shop'}
destinations:
  a: {type: kafka, brokers: k, topic: t, exactly_once: true}
  b: {type: kafka, brokers: k, topic: u, exactly_once: true, transactional_id: notifyd/shop/public/%s/0}
routes: [{match: "*", to: [a, b]}]
`
		one = `version: 1
database: {url: 'postgres://u@db1.example.com/shop'}
destinations:
  a: {type: kafka, brokers: k, topic: t, exactly_once: true%s}
routes: [{match: "*", to: [a]}]
outboxes:
`
		names = `  list: [{name: north, schema: %s}, {name: south, schema: %s, url: 'postgres://u@db2.example.com/%s'}]
`
	)
	for text, want := range map[string][]string{
		fmt.Sprintf(two, "x", "y"):                                         nil,
		fmt.Sprintf(two, "x", "x"):                                         {"destinations.b.transactional_id", "destinations.a"},
		fmt.Sprintf(two, "x, shards: 3", "x/2"):                            {"destinations.b.transactional_id", "x/2", "destinations.a"},
		fmt.Sprintf(two, "x/1", "x, shards: 2"):                            {"destinations.b.transactional_id", "x/1", "destinations.a"},
		fmt.Sprintf(spelled, "a"):                                          {"destinations a and b", "notifyd/shop/public/a/0"},
		fmt.Sprintf(spelled, "b"):                                          nil,
		fmt.Sprintf(one+names, "", "s", "s", "depot"):                      nil,
		fmt.Sprintf(one+names, "", "a-b", "a", "b-shop"):                   nil,
		fmt.Sprintf(one+names, "", "s", "s", "shop"):                       {"outboxes.list.1 (south)", "notifyd/shop/s/a/0", "outbox north"},
		fmt.Sprintf(one+names, ", transactional_id: x", "s", "s", "depot"): {"destinations.a.transactional_id", "north and south"},
		fmt.Sprintf(one, ", transactional_id: x") + "  query: SELECT 1":    {"destinations.a.transactional_id", "outboxes.query"},
	} {
		got := invoke(t, "check-config", "-c", file(t, text))
		if (got.code == 0) != (want == nil) || got.code != 0 && got.code != command.ExitConfig {
			t.Errorf("%s\n%+v", text, got)
		}
		for _, part := range want {
			if !strings.Contains(got.stderr, part) {
				t.Errorf("%s\nno %q in:\n%s", text, part, got.stderr)
			}
		}
	}
}

// TestKafkaPositionIDsOfAQuery: an outbox that a query finds is refused where it would share a transactional id.
func TestKafkaPositionIDsOfAQuery(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	name := query[string](t, url, `SELECT current_database()::text`)
	got := invoke(t, "check-config", "--online", "-c", file(t, fmt.Sprintf(`version: 1
database: {url: '%s'}
destinations:
  a: {type: kafka, brokers: k, topic: t, exactly_once: true}
routes: [{match: "*", to: [a]}]
outboxes:
  list: [{name: north, schema: s}]
  query: SELECT 'south' AS name, 's' AS schema, 'postgres://u@127.0.0.1:1/%s' AS url
`, url, name)))
	for _, part := range []string{`outboxes.query: outbox "south": destination a would have the transactional id notifyd/` + name + `/s/a/0`, "as that of outbox north"} {
		if got.code == 0 || !strings.Contains(got.stderr, part) {
			t.Errorf("no %q in:\n%+v", part, got)
		}
	}
}
