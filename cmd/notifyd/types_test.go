package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/destinations"
)

// smallest has the settings that a destination of each type must have. It fails the test if a type is missing.
func smallest(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{
		"log":         "",
		"file":        "path: archive.jsonl",
		"email":       "host: h.example.com, from: a@example.com, to: b@example.com, subject: s, text: t",
		"kafka":       "brokers: k.example.com, topic: t",
		"rabbitmq":    "routing_key: q",
		"webhook":     "url: https://h.example.com/x",
		"slack":       `token: "${env:SLACK_TOKEN}", channel: C1, text: t`,
		"sqs":         "queue: q, region: eu-central-1",
		"sns":         "topic_arn: arn:aws:sns:eu-central-1:123456789012:t",
		"eventbridge": "region: eu-central-1",
		"kinesis":     "stream: s, region: eu-central-1",
		"pubsub":      "project: shop, topic: orders, endpoint: 'http://127.0.0.1:1'",
		"nats":        "servers: nats://127.0.0.1, subject: s",
		"redis":       "addresses: 127.0.0.1, stream: s",
		"postgres":    `url: "${env:INBOX_URL}", source: shop`,
	}
	if types := destinations.Registry("", nil, nil); !slices.Equal(slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(types))) {
		t.Fatalf("the types are %v", slices.Sorted(maps.Keys(types)))
	}
	return all
}

// smallestVars are the variables of smallest.
func smallestVars() vars {
	return vars{"SLACK_TOKEN": "xoxb-x", "INBOX_URL": "postgres://shop@127.0.0.1:1/stock"}
}

// ofEveryType is a configuration with a destination of each type, which has its name. more returns further settings of a type.
func ofEveryType(t *testing.T, more func(kind string) string) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("version: 1\ndestinations:\n")
	all := smallest(t)
	kinds := slices.Sorted(maps.Keys(all))
	for _, kind := range kinds {
		settings := slices.DeleteFunc([]string{"type: " + kind, all[kind], more(kind)}, func(s string) bool { return s == "" })
		fmt.Fprintf(&text, "  %s: {%s}\n", kind, strings.Join(settings, ", "))
	}
	fmt.Fprintf(&text, "routes: [{match: '*', to: [%s]}]\n", strings.Join(kinds, ", "))
	return text.String()
}

// typesWith returns the types that have all of the settings, sorted.
func typesWith(settings ...string) (kinds []string) {
	for kind, fresh := range destinations.Registry("", nil, nil) {
		names := settingNames(reflect.TypeOf(fresh()).Elem())
		if !slices.ContainsFunc(settings, func(s string) bool { return !slices.Contains(names, s) }) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}
