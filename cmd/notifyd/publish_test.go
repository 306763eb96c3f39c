package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestPublish(t *testing.T) {
	t.Parallel()
	url := database(t)
	payload := filepath.Join(t.TempDir(), "order.json")
	if err := os.WriteFile(payload, []byte("{\"from\": \"file\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	row := func(id string) string {
		t.Helper()
		return query[string](t, url, `SELECT concat_ws('|', event_type, trim(E'\n' from payload::text), aggregate_type, aggregate_id, headers,
			idempotency_key, available_at > now() + interval '50 min') FROM outbox_events WHERE id = $1::text::bigint`, id)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"a.b"}, "a.b|{}"},
		{[]string{"a.b", order}, "a.b|" + order},
		{[]string{"a.b", "@" + payload}, `a.b|{"from": "file"}`},
		{[]string{"a.b", "[1]", "--aggregate", "order/7/8"}, "a.b|[1]|order|7/8"},
		{[]string{"a.b", "--header", "x=1", "--header", "y=2=3"}, `a.b|{}|{"x": "1", "y": "2=3"}`},
		{[]string{"a.b", "--idempotency-key", "k", "--delay", "1h"}, "a.b|{}|k|t"},
	} {
		if got := row(publishTo(t, url, c.args...)); got != c.want {
			t.Errorf("%q: got %s, want %s", c.args, got, c.want)
		}
	}
	bytes := file(t, "\x00\xff{")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"a.b", "@" + bytes, "--content-type", "application/x-protobuf"}, "application/x-protobuf|00ff7b"},
		{[]string{"a.b", "@" + os.DevNull, "--content-type", "application/x-protobuf"}, "application/x-protobuf|"},
		{[]string{"a.b", "[1]", "--content-type", "text/plain"}, "text/plain|5b315d"},
		{[]string{"a.b", "[1]", "--content-type", "application/vnd.acme+json"}, "application/vnd.acme+json|[1]"},
	} {
		id := publishTo(t, url, c.args...)
		if got := query[string](t, url, `SELECT concat_ws('|', content_type, payload, encode(payload_bytes, 'hex')) FROM outbox_events WHERE id = $1::text::bigint`, id); got != c.want {
			t.Errorf("%q: got %s, want %s", c.args, got, c.want)
		}
	}
	got := invoke(t, "publish", "a.b", "--idempotency-key", "k", "--database-url", url)
	if want := "notifyd: there is an event of type \"a.b\" with the idempotency key \"k\" already\n"; got != (result{1, "", want}) {
		t.Errorf("the same key again: %+v", got)
	}
	ignoring(t, url, "k")
	if got := invoke(t, "migrate", "--partitions", "daily", "--yes", "--database-url", url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	ignoring(t, url, "k")
	ignoring(t, url, publishNew(t, url))
	p := startProcess(t, `{"from": "stdin"}`, "publish", "a.b", "-", "--database-url", url)
	if code := p.wait(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr.text())
	}
	if got := row(strings.TrimSpace(p.stdout.text())); got != `a.b|{"from": "stdin"}` {
		t.Errorf("from standard input: %s", got)
	}
}

// publishNew writes an event that would be ignored were its key there, and returns the key.
func publishNew(t *testing.T, url string) string {
	t.Helper()
	id := publishTo(t, url, "a.b", "--idempotency-key", "new", "--ignore-duplicate")
	if got := query[string](t, url, `SELECT idempotency_key FROM outbox_events WHERE id = $1::text::bigint`, id); got != "new" {
		t.Errorf("event %s has the key %s", id, got)
	}
	return "new"
}

// ignoring publishes an event with a key that is there: nothing is written, and so it is said.
func ignoring(t *testing.T, url, key string) {
	t.Helper()
	holder := query[string](t, url, `SELECT id::text FROM outbox_events WHERE event_type = 'a.b' AND idempotency_key = $1`, key)
	got := invoke(t, "publish", "a.b", "--idempotency-key", key, "--ignore-duplicate", "--database-url", url)
	want := "notifyd: nothing was written: event " + holder + " is of type \"a.b\" with the idempotency key \"" + key + "\" already\n"
	if got != (result{0, "", want}) {
		t.Errorf("the key %s again: %+v, want %q", key, got, want)
	}
}

func TestPublishMistakes(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{64, []string{"x", "{"}, "notifyd: PAYLOAD is not JSON"},
		{64, []string{"x", ""}, "notifyd: PAYLOAD is not JSON"},
		{64, []string{""}, "notifyd: TYPE"},
		{64, []string{"x", "{", "--content-type", "application/json"}, "notifyd: PAYLOAD is not JSON"},
		{64, []string{"x", "{", "--content-type", "avro"}, `notifyd: invalid event: content type "avro" is no media type`},
		{64, []string{"x", "--aggregate", "order"}, `notifyd: --aggregate "order" is not TYPE/ID`},
		{64, []string{"x", "--header", "order"}, `notifyd: --header "order" is not NAME=VALUE`},
		{64, []string{"x", "--ignore-duplicate"}, "notifyd: --ignore-duplicate needs --idempotency-key"},
		{64, []string{"x", "--delay", "-1s"}, `notifyd: invalid argument "-1s" for "--delay" flag: `},
		{64, nil, "notifyd: accepts between 1 and 2 arg(s), received 0"},
		{1, []string{"x", "@/not/there"}, "notifyd: open /not/there: no such file or directory\n"},
		{1, []string{"x"}, "notifyd: schema \"public\" has no tables of notifyd: run `notifyd migrate`, or call outboxsql.Migrate: schema is not migrated\n"},
		{1, []string{"x", "--schema", "none"}, "notifyd: schema \"none\" has no tables of notifyd: run `notifyd migrate`, or call outboxsql.Migrate: schema is not migrated\n"},
	} {
		got := invoke(t, append([]string{"publish", "--database-url", url}, c.args...)...)
		if got.code != c.code || got.stdout != "" || !strings.HasPrefix(got.stderr, c.want) {
			t.Errorf("%q: got %+v, want %d %q", c.args, got, c.code, c.want)
		}
	}
}
