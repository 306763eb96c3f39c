package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
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
	fields := documentedFields(t)
	show := func(code int, url string, args ...string) {
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
		documented := fields[strings.TrimPrefix(cmd.CommandPath(), "notifyd ")]
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		for _, v := range list {
			for name := range v.(map[string]any) { //nolint:forcetypeassert // otherwise it panics
				if !slices.Contains(documented, name) {
					t.Errorf("%s: docs/commands.md has no field %q", line, name)
				}
			}
		}
	}
	show(0, queue, "publish", "order.paid", "{}", "--idempotency-key", "k")
	show(0, queue, "publish", "order.paid", "{}", "--idempotency-key", "k", "--ignore-duplicate")
	show(0, queue, "events", "list", "--limit", "3")
	show(0, queue, "events", "show", "1", "--payload")
	show(0, queue, "dlq", "list", "--limit", "2")
	show(0, queue, "dlq", "list", "--group")
	show(0, queue, "dlq", "edit", "1", "{}")
	show(0, queue, "dlq", "show", "1")
	show(0, queue, "dlq", "replay", "--all", "--dry-run")
	show(0, queue, "dlq", "replay", "1")
	show(1, queue, "dlq", "replay", "2", "--wait", "--timeout", "1ms")
	show(0, queue, "dlq", "discard", "3", "--reason", "test")
	show(0, queue, "events", "retry", "1")
	show(0, queue, "dlq", "bury", "1", "--dry-run")
	show(0, queue, "dlq", "bury", "1", "--reason", "test")
	execute(t, queue, `CREATE TABLE captured (id int PRIMARY KEY)`)
	show(0, queue, "capture", "add", "captured", "--install")
	execute(t, queue, `ALTER TABLE captured ADD COLUMN note text`)
	show(0, queue, "capture", "list")
	show(0, queue, "capture", "remove", "captured")
	show(0, queue, "migrate", "status")
	show(0, queue, "migrate")
	show(0, queue, "migrate", "up")
	show(0, queue, "migrate", "--dry-run", "--mode", "stream")
	show(1, testenv.Database(t), "migrate", "status")
	show(0, queue, "pause", "mail", "--reason", "test")
	show(0, queue, "status")
	show(0, "", "status", "-c", path)
	show(1, "", "doctor", "-c", path) // no relay runs
	show(0, queue, "resume", "mail", "other")
	show(0, "", "check-config", "-c", path, "--online")
	show(78, "", "check-config", "-c", wrong)
	show(0, "", "plan", "-c", path, "--against", old)
	show(0, "", "route", "test", "order.placed", "-c", path)
	show(0, stream, "positions", "list")
	show(0, stream, "positions", "show", "mail")
	show(0, stream, "positions", "seek", "mail", "2h", "--dry-run")
	show(0, stream, "replay", "--destination", "mail", "--dry-run")
	show(0, stream, "replay", "--destination", "mail", "--yes")
	show(0, stream, "replay", "list")
	show(0, stream, "replay", "show", "1")
	show(0, stream, "replay", "stop", "1")
	show(0, stream, "positions", "forget", "crm", "--yes")
	show(0, stream, "status")
	execute(t, stream, `UPDATE outbox_mode SET home = '1/2/3/elsewhere'`)
	show(0, stream, "adopt", "--yes")
	show(0, "", "version")
	show(0, queue, "demo", "--orders", "3")
	execute(t, queue, `INSERT INTO outbox_relays (owner, process, host, started_at, loaded_at) VALUES (7, 1, 'elsewhere', now(), now())`)
	show(1, "", "reload", "-c", path)

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

// documentedFields returns the fields of each command in docs/commands.md.
func documentedFields(t *testing.T) map[string][]string {
	t.Helper()
	quoted := func(text string) (all []string) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		return all
	}
	fields := make(map[string][]string)
	_, table, _ := strings.Cut(testenv.ReadFile(t, root+"docs/commands.md"), "\n## JSON\n")
	for _, row := range regexp.MustCompile(`(?m)^\| (`+"`"+`[^|]+) \|[^|]+\| ([^|]+) \|$`).FindAllStringSubmatch(table, -1) {
		for _, name := range quoted(row[1]) {
			fields[name] = quoted(row[2])
		}
	}
	for _, cmd := range tree() {
		name := strings.TrimPrefix(cmd.CommandPath(), "notifyd ")
		if has := cmd.Flags().Lookup("output") != nil; has != (fields[name] != nil) {
			t.Errorf("docs/commands.md has %s: %v", name, !has)
		}
	}
	return fields
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
