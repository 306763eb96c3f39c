package main

import (
	"strings"
	"testing"
)

func TestSQSPage(t *testing.T) {
	t.Parallel()
	checkPage(t, "docs/destinations/sqs.md", vars{"AWS_ID": "AK", "AWS_SECRET": "sk"}, nil)
}

func TestSQSMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ settings, want string }{
		"queue":   {"region: eu-central-1", ":3:3: destinations.orders.queue: missing: "},
		"region":  {"queue: orders\n    region: Frankfurt", ":6:13: destinations.orders.region: must be a region"},
		"timeout": {"queue: orders\n    region: eu-central-1\n    timeout: 10s", ":7:14: destinations.orders.timeout: must be longer than request_timeout (15s)"},
		"tls":     {"queue: orders\n    region: eu-central-1\n    tls: {ca_file: nowhere.pem}", ":7:20: destinations.orders.tls.ca_file: cannot be read"},
		"profile": {"queue: orders\n    profile: there-is-none-of-this-name", ":6:14: destinations.orders.profile: there is no profile"},
		"secret":  {"queue: orders\n    region: eu-central-1\n    secret_access_key: sesame-open", ":3:3: destinations.orders.access_key_id: missing: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := file(t, "version: 1\ndestinations:\n  orders:\n    type: sqs\n    "+c.settings+"\nroutes: [{match: '*', to: orders}]\n")
			got := invoke(t, "check-config", "-c", path)
			if got.code != 78 || !strings.HasPrefix(got.stderr, path+c.want) || strings.Contains(got.stderr, "sesame") {
				t.Errorf("got  %+v\nwant %s", got, c.want)
			}
		})
	}
}
