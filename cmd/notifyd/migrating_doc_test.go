//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// equal compares the one text that a query returns.
func equal(t *testing.T, url, sql, want string) {
	t.Helper()
	if got := query[string](t, url, sql); got != want {
		t.Errorf("%s\nis   %s\nwant %s", sql, got, want)
	}
}

// TestMigratePages runs docs/migrating.md twice, once for each of the outboxes that
// it comes from: what it begins with, and the section. Every section has to be one.
func TestMigratePages(t *testing.T) {
	t.Parallel()
	const begins = "Migrate from another outbox"
	all := steps(testenv.ReadFile(t, root+"docs/migrating.md"))
	for heading, acts := range map[string]func(*stage) map[string]act{"From a polling table": polling, "From Debezium": debezium} {
		t.Run(heading, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, testenv.Database(t))
			s.write("notifyd.yaml", s.own.Replace(auditOnly))
			var list []step
			for _, st := range all {
				if st.heading == begins || st.heading == heading {
					list = append(list, st)
				}
			}
			s.followAll(list, acts(s))
		})
	}
	const there, back = "From a queue to a stream", "From a stream to a queue"
	t.Run(there, func(t *testing.T) {
		t.Parallel()
		s := newStage(t, database(t))
		s.write("notifyd.yaml", s.own.Replace(auditOnly))
		var list []step
		for _, st := range all {
			if st.heading == there || st.heading == back {
				list = append(list, st)
			}
		}
		s.followAll(list, thereAndBack(s))
	})
	if i := slices.IndexFunc(all, func(s step) bool {
		return !slices.Contains([]string{begins, "From a polling table", "From Debezium", there, back}, s.heading)
	}); i >= 0 {
		t.Errorf("nobody runs %q, %s", all[i].heading, all[i].text)
	}
}

// thereAndBack has events that wait at each change, and some that were delivered.
func thereAndBack(s *stage) map[string]act {
	delivers := func() {
		s.Helper()
		publishTo(s.T, s.url, "order.placed", "{}")
		s.start()
		untilDone(s.T, s.url)
		s.stop()
		publishTo(s.T, s.url, "order.placed", "{}")
	}
	return map[string]act{
		"notifyd migrate --mode stream": {before: delivers, after: func(string) {
			delivers()
			equal(s.T, s.url, `SELECT delivered::text FROM outbox_positions WHERE destination = 'audit'`, "2") // one from before
		}},
		"notifyd migrate --mode queue": {after: func(string) {
			delivers()
			equal(s.T, s.url, `SELECT string_agg(state, ',' ORDER BY id) FROM outbox_events`, "done,done,done,done,done,fresh")
		}},
	}
}

// polling cuts over from a table with rows that were sent and rows that were not,
// and back: nothing is left out, nothing is there twice.
func polling(s *stage) map[string]act {
	insert := func(n string) {
		s.Helper()
		execute(s.T, s.url, `INSERT INTO outbox (topic, key, payload) VALUES ('order.placed', '7', '{"n": `+n+`}')`)
	}
	return map[string]act{
		"sql 1": {after: func(string) {
			insert("1")
			execute(s.T, s.url, `UPDATE outbox SET sent_at = now()`)
			insert("2")
			insert("3")
		}},
		"sql 2": {after: func(string) {
			insert("4")
			execute(s.T, s.url, `BEGIN; INSERT INTO outbox (topic, payload) VALUES ('order.placed', '{"n": 99}'); ROLLBACK`)
			equal(s.T, s.url, `SELECT string_agg(payload->>'n', ' ' ORDER BY id) FROM outbox_events`, "2 3 4")
			equal(s.T, s.url, `SELECT count(*)::text FROM outbox WHERE sent_at IS NULL`, "0")
		}},
		"notifyd run": {run: func(step) {
			s.start()
			until(s.T, s.url, `SELECT count(*) = 3 FROM outbox_events WHERE state = 'done'`)
		}},
		"sql 3": {says: `(?s)state *\| *count.*done *\| +3\n.*destination *\| *state *\| *count`},
		"sql 4": {before: s.stop, after: func(string) {
			insert("5")
			equal(s.T, s.url, `SELECT string_agg(payload->>'n', ' ' ORDER BY id) FROM outbox WHERE sent_at IS NULL`, "5")
			equal(s.T, s.url, `SELECT count(*)::text FROM outbox_events`, "3")
		}},
	}
}

// debezium inserts as an application does that knows Debezium's columns only: before
// the change, after it, and after going back.
func debezium(s *stage) map[string]act {
	insert := func(n string) {
		s.Helper()
		execute(s.T, s.url, `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES
			('00000000-0000-0000-0000-00000000000`+n+`', 'order', '7', 'OrderPlaced', '{"n": `+n+`}')`)
	}
	return map[string]act{
		"sql 1": {after: func(string) { insert("1") }},
		"sql 2": {after: func(string) {
			insert("2")
			insert("3")
			equal(s.T, s.url, `SELECT string_agg(concat_ws(' ', event_type, aggregate_type, aggregate_id, right(idempotency_key, 2), right(headers->>'id', 2), payload->>'n'), ', ' ORDER BY id)
				FROM outbox_events`, "OrderPlaced order 7 02 02 2, OrderPlaced order 7 03 03 3")
		}},
		"sql 3": {says: `(?s)pg_current_wal_lsn.*slot_name *\| *confirmed_flush_lsn`},
		"notifyd run": {run: func(step) {
			s.start()
			until(s.T, s.url, `SELECT count(*) = 2 FROM outbox_events WHERE state = 'done'`)
		}},
		"sql 4": {before: s.stop, after: func(string) {
			insert("4")
			equal(s.T, s.url, `SELECT string_agg(payload->>'n', ' ' ORDER BY id) FROM outbox`, "1 4")
		}},
	}
}

// TestMigrateDebeziumToKafka has the configuration of the page send what the view has
// taken: topic, key, header and value are those of the router.
func TestMigrateDebeziumToKafka(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	brokers := testenv.Kafka(t)
	url, kind := testenv.Database(t), "order-of-"+strings.ToLower(rand.Text()[:8])
	topic := "outbox.event." + kind
	testenv.KafkaTopic(t, brokers, topic, 1, nil)
	s := newStage(t, url, "kafka-1.example.com:9092", strings.Join(brokers, ","))
	s.command(step{text: "notifyd migrate"}, act{})
	sql, config := 0, ""
	for _, st := range steps(testenv.ReadFile(t, root+"docs/migrating.md")) {
		switch {
		case st.heading != "From Debezium":
		case st.language == "yaml":
			config = st.text
		case st.language == "sql" && sql < 2: // the table, and cutting over
			s.psql(st.text, act{})
			sql++
		}
	}
	const id = "8e03978e-40d5-43dd-bc93-6894a57f9324"
	execute(t, url, `INSERT INTO outbox VALUES ('`+id+`', '`+kind+`', '7', 'OrderPlaced', '{"n": 1}')`)
	s.relay(config + "database: {url: '${env:DATABASE_URL}'}\nadmin: {listen: 127.0.0.1:9470}\n")
	until(t, url, `SELECT bool_and(state = 'done') FROM outbox_events`)
	s.stop()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var records []*kgo.Record
	for len(records) == 0 && ctx.Err() == nil { // a fetch may also bring an error alone
		records = client.PollFetches(ctx).Records()
	}
	if len(records) != 1 || string(records[0].Key) != "7" || string(records[0].Value) != `{"n": 1}` ||
		!slices.ContainsFunc(records[0].Headers, func(h kgo.RecordHeader) bool { return h.Key == "id" && string(h.Value) == id }) {
		t.Errorf("%d records, %v", len(records), records)
	}
}
