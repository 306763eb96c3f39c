package main

import (
	"os"
	"strings"
	"testing"
)

// pasted returns the first configuration in the page of a destination.
func pasted(t *testing.T, page string) string {
	t.Helper()
	doc, err := os.ReadFile(root + "docs/destinations/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "```yaml\n")
	block, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatalf("docs/destinations/%s has no configuration", page)
	}
	return block
}

func TestKafkaPageCanBePasted(t *testing.T) {
	t.Parallel()
	env := vars{"KAFKA_PASSWORD": "secret"}
	if got := commandIn(t, env, "check-config", "-c", file(t, pasted(t, "kafka.md"))); got.code != 0 {
		t.Errorf("check-config: %d\n%s%s", got.code, got.stdout, got.stderr)
	}
}

func TestKafkaMistakes(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nroutes: [{match: \"*\", to: k}]\ndestinations:\n  k:\n    type: kafka\n"
	for settings, want := range map[string]string{
		"    topic: t\n": "brokers",
		"    brokers: kafka://a:9092\n    topic: t\n":                                                                  "leave out :// and what comes before",
		"    brokers: a\n    topic: \"no good\"\n":                                                                     "topic",
		"    brokers: a\n    topic: t\n    timeout: 20s\n":                                                             "longer than delivery_timeout",
		"    brokers: a\n    topic: t\n    tls: {ca_file: nowhere.pem}\n":                                              "tls.ca_file",
		"    brokers: a\n    topic: t\n    sasl: {mechanism: plain, username: a, password: hush}\n":                    "sasl.mechanism",
		"    brokers: a\n    topic: t\n    sasl: {mechanism: scram-sha-256, username: a}\n":                            "sasl.password",
		"    brokers: a\n    topic: t\n    compression: brotli\n":                                                      "compression",
		"    brokers: a\n    topic: t\n    transactional_id: x\n":                                                      "transactional: true",
		"    brokers: a\n    topic: t\n    exactly_once: true\n    concurrency: 2\n":                                   "raise batch instead",
		"    brokers: a\n    topic: t\n    exactly_once: true\n    max_message_bytes: 4096\n":                          "the record of the position has to fit",
		"    brokers: a\n    topic: t\n    exactly_once: true\n    order: none\n":                                      "keeps the order of events: use auto or aggregate",
		"    brokers: a\n    topic: t\n    exactly_once: true\n    transactional: true\n":                              "is a part of exactly_once",
		"    brokers: a\n    topic: t\n    positions_topic: x\n":                                                       "no effect without exactly_once",
		"    brokers: a\n    topic: notifyd-positions\n    exactly_once: true\n":                                       "is the topic of the positions",
		"    brokers: a\n    topic: t\n    schema_registry: {url: \"http://r\", username: a, password: hush}\n":        "would be readable on the way",
		"    brokers: a\n    topic: t\n    schema_registry: {url: \"http://r\", version: newest}\n":                    "must be a number from 1 on, or latest",
		"    brokers: a\n    topic: t\n    format: cloudevents_structured\n    schema_registry: {url: \"http://r\"}\n": "no schema of the payload describes",
		"    brokers: a\n    topic: t\n    topcis: x\n":                                                                "topcis",
		"    brokers: a\n    topic: t\n    format: avro\n":                                                             "format",
		"    brokers: a\n    topic: t\n    tls: {}\n    sasl: {mechanism: oauthbearer, token: a, token_file: b}\n":     "sasl.token",
	} {
		got := command(t, "check-config", "-c", file(t, head+settings))
		if got.code != exitConfig || !strings.Contains(got.stdout+got.stderr, want) || strings.Contains(got.stdout+got.stderr, "hush") {
			t.Errorf("%s\nexit %d, want one about %s:\n%s%s", settings, got.code, want, got.stdout, got.stderr)
		}
	}
}

// TestKafkaExactlyOnce: it needs a stream, as check-config says, and has a batch of its own unless the
// file has one.
func TestKafkaExactlyOnce(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nroutes: [{match: \"*\", to: k}]\ndestinations:\n  k: {type: kafka, brokers: a, topic: t, exactly_once: true"
	for settings, batch := range map[string]string{"}\n": "batch: 5000", ", batch: 1000}\n": "batch: 1000", ", batch: 7}\n": "batch: 7"} {
		path := file(t, head+settings)
		if got := command(t, "check-config", "-c", path); got.code != 0 || !strings.Contains(got.stderr, "destination k: exactly_once: true needs a table that is a stream") {
			t.Errorf("%s: %+v", settings, got)
		}
		if got := command(t, "config", "print", "-c", path); got.code != 0 || !strings.Contains(got.stdout, batch) {
			t.Errorf("%s: no %s in %+v", settings, batch, got)
		}
	}
}
