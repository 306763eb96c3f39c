package main

import (
	"strings"
	"testing"
)

func TestAWSPages(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sns", "eventbridge", "kinesis"} {
		checkPage(t, "docs/destinations/"+name+".md", vars{}, nil)
	}
}

func TestAWSMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ settings, want string }{
		"topic":    {"type: sns\n    region: eu-central-1", ":3:3: destinations.orders.topic_arn: missing: "},
		"region":   {"type: sns\n    topic_arn: arn:aws:sns:eu-central-1:123456789012:o\n    region: eu-west-1", ":6:13: destinations.orders.region: is not that of topic_arn"},
		"timeout":  {"type: kinesis\n    stream: arn:aws:kinesis:eu-central-1:123456789012:stream/o\n    timeout: 10s", ":6:14: destinations.orders.timeout: must be longer than request_timeout (15s)"},
		"format":   {"type: kinesis\n    stream: o\n    region: eu-central-1\n    format: cloudevents_binary", ":7:13: destinations.orders.format: must be cloudevents_structured or payload"},
		"resource": {"type: eventbridge\n    region: eu-central-1\n    resources: [a, '{{ .Paylod.x }}']", ":6:20: destinations.orders.resources.1: "},
		"content":  {"type: eventbridge\n    region: eu-central-1\n    body: x\n    content_type: text/plain", ":7:19: destinations.orders.content_type: must be JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := file(t, "version: 1\ndestinations:\n  orders:\n    "+c.settings+"\nroutes: [{match: '*', to: orders}]\n")
			got := invoke(t, "check-config", "-c", path)
			if got.code != 78 || !strings.HasPrefix(got.stderr, path+c.want) {
				t.Errorf("got  %+v\nwant %s", got, c.want)
			}
		})
	}
}
