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
		"    brokers: kafka://a:9092\n    topic: t\n":                                                              "leave out :// and what comes before",
		"    brokers: a\n    topic: \"no good\"\n":                                                                 "topic",
		"    brokers: a\n    topic: t\n    timeout: 20s\n":                                                         "longer than delivery_timeout",
		"    brokers: a\n    topic: t\n    tls: {ca_file: nowhere.pem}\n":                                          "tls.ca_file",
		"    brokers: a\n    topic: t\n    sasl: {mechanism: plain, username: a, password: hush}\n":                "sasl.mechanism",
		"    brokers: a\n    topic: t\n    sasl: {mechanism: scram-sha-256, username: a}\n":                        "sasl.password",
		"    brokers: a\n    topic: t\n    compression: brotli\n":                                                  "compression",
		"    brokers: a\n    topic: t\n    transactional_id: x\n":                                                  "transactional: true",
		"    brokers: a\n    topic: t\n    topcis: x\n":                                                            "topcis",
		"    brokers: a\n    topic: t\n    format: avro\n":                                                         "format",
		"    brokers: a\n    topic: t\n    tls: {}\n    sasl: {mechanism: oauthbearer, token: a, token_file: b}\n": "sasl.token",
	} {
		got := command(t, "check-config", "-c", file(t, head+settings))
		if got.code != exitConfig || !strings.Contains(got.stdout+got.stderr, want) || strings.Contains(got.stdout+got.stderr, "hush") {
			t.Errorf("%s\nexit %d, want one about %s:\n%s%s", settings, got.code, want, got.stdout, got.stderr)
		}
	}
}
