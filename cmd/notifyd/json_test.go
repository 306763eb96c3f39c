package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/testenv"
)

// TestJSON: what each command prints with -o json is one JSON value, its fields are in snake_case, and its times in RFC 3339 and UTC.
func TestJSON(t *testing.T) {
	t.Parallel()
	queue, stream := buried(t, 9), streamed(t)
	execute(t, queue, `INSERT INTO outbox_events (event_type, payload, created_at) VALUES ('user.gone', '{"Name": "Ann"}', now() - interval '1 h')`)
	plain := "version: 1\ndatabase: {url: '" + queue + "'}\ndestinations:\n  mail: {type: log}\n  spare: {type: log}\nroutes: [{match: 'order.*', to: [mail], when: 'payload.a == 1'}]\n"
	path, wrong := file(t, plain), file(t, plain+"nonsense: 1\n")
	old := file(t, strings.Replace(plain, "order.*", "user.*", 1))

	checked := make(map[string]bool) // commands
	print := func(code int, url string, args ...string) {
		t.Helper()
		line := strings.Join(args, " ")
		cmd, _, err := tree()[0].Find(args)
		if err != nil {
			t.Fatal(err)
		}
		checked[cmd.CommandPath()] = true
		args = append(args, "-o", "json")
		if url != "" {
			args = append(args, "--database-url", url)
		}
		got := invoke(t, args...)
		if got.code != code {
			t.Errorf("%s: exit code %d, want %d: %s%s", line, got.code, code, got.stdout, got.stderr)
		}
		var value any
		if err := json.Unmarshal([]byte(got.stdout), &value); err != nil {
			t.Errorf("%s: %v in %s", line, err, got.stdout)
		}
		inspectJSON(t, line, value)
	}
	print(0, queue, "publish", "order.paid", "{}", "--idempotency-key", "k")
	print(0, queue, "publish", "order.paid", "{}", "--idempotency-key", "k", "--ignore-duplicate")
	print(0, queue, "events", "list", "--limit", "3")
	print(0, queue, "events", "show", "1", "--payload")
	print(0, queue, "dlq", "list", "--limit", "2")
	print(0, queue, "dlq", "list", "--group")
	print(0, queue, "dlq", "edit", "1", "{}")
	print(0, queue, "dlq", "show", "1")
	print(0, queue, "dlq", "replay", "--all", "--dry-run")
	print(0, queue, "dlq", "replay", "1")
	print(1, queue, "dlq", "replay", "2", "--wait", "--timeout", "1ms")
	print(0, queue, "dlq", "discard", "3", "--reason", "test")
	print(0, queue, "migrate", "status")
	print(0, queue, "migrate")
	print(0, queue, "migrate", "up")
	print(1, testenv.Database(t), "migrate", "status")
	print(0, queue, "pause", "mail", "--reason", "test")
	print(0, queue, "status")
	print(0, "", "status", "-c", path)
	print(1, "", "doctor", "-c", path) // no relay runs
	print(0, queue, "resume", "mail", "other")
	print(0, "", "check-config", "-c", path, "--online")
	print(78, "", "check-config", "-c", wrong)
	print(0, "", "plan", "-c", path, "--against", old)
	print(0, stream, "positions", "list")
	print(0, stream, "positions", "show", "mail")
	print(0, stream, "positions", "seek", "mail", "2h", "--dry-run")
	print(0, stream, "replay", "--destination", "mail", "--dry-run")
	print(0, stream, "replay", "--destination", "mail", "--yes")
	print(0, stream, "replay", "list")
	print(0, stream, "replay", "show", "1")
	print(0, stream, "replay", "stop", "1")
	print(0, stream, "positions", "forget", "crm", "--yes")
	print(0, stream, "status")
	print(0, "", "version")
	print(0, queue, "demo", "--orders", "3")
	execute(t, queue, `INSERT INTO outbox_relays (owner, process, host, started_at, loaded_at) VALUES (7, 1, 'elsewhere', now(), now())`)
	print(1, "", "reload", "-c", path)

	// In another zone, too.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for line, url := range map[string]string{"status": stream, "positions list": stream, "dlq show 1": queue, "migrate status": queue, "replay list": stream} {
		cmd := exec.CommandContext(t.Context(), self, append(strings.Fields(line), "-o", "json", "--database-url", url)...)
		cmd.Env = append(os.Environ(), envSelf+"=1", "TZ=Asia/Tokyo")
		out, err := cmd.Output()
		var value any
		if err := errors.Join(err, json.Unmarshal(out, &value)); err != nil {
			t.Errorf("%s: %v in %s", line, err, out)
		}
		inspectJSON(t, line, value)
	}

	for _, cmd := range tree() {
		if cmd.Flags().Lookup("output") != nil && !checked[cmd.CommandPath()] {
			t.Errorf("%s is not checked", cmd.CommandPath())
		}
	}
}

// payloads are the fields whose content is an application's or an operator's.
func payloads(name string) bool {
	return name == "payload" || name == "headers" || name == "details" || name == "old_payload"
}

var (
	snakeCase = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	timeText  = regexp.MustCompile(`^\d{4}-\d\d-\d\d`)
)

// inspectJSON checks the names of fields, and the form of times.
func inspectJSON(t *testing.T, line string, value any) {
	t.Helper()
	switch value := value.(type) {
	case map[string]any:
		for name, v := range value {
			if !snakeCase.MatchString(name) {
				t.Errorf("%s: the field %q is not in snake_case", line, name)
			}
			if !payloads(name) {
				inspectJSON(t, line, v)
			}
		}
	case []any:
		for _, v := range value {
			inspectJSON(t, line, v)
		}
	case string:
		if !timeText.MatchString(value) {
			return
		}
		if at, err := time.Parse(time.RFC3339, value); err != nil || at.Location() != time.UTC || !strings.HasSuffix(value, "Z") {
			t.Errorf("%s: the time %q is not one of RFC 3339 in UTC", line, value)
		}
	}
}
