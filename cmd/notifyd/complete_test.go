package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestCompletedNames: the shell completes destinations and outboxes with the names of the file, without its secrets.
func TestCompletedNames(t *testing.T) {
	t.Parallel()
	path := file(t, "version: 1\ndatabase: {url: '${env:NOWHERE}'}\ndestinations: {audit: {type: log}, hook: {type: webhook, url: '${env:NOWHERE}'}}\nroutes: [{match: '*', to: [audit, hook]}]\noutboxes: {list: [{name: north}, {name: south, schema: s}]}\n")
	for args, want := range map[string]string{
		"pause ":                    "audit\nhook\n",
		"pause audit ":              "audit\nhook\n",
		"positions show ":           "audit\nhook\n",
		"positions show audit ":     "",
		"dlq list --destination ":   "audit\nhook\n",
		"template test --outbox ":   "",
		"events list --outbox ":     "north\nsouth\n",
		"replay --destination ":     "audit\nhook\n",
		"replay --output ":          "table\njson\n",
		"migrate --output ":         "table\njson\n",
		"migrate --mode ":           "queue\nstream\n",
		"migrate --notify ":         "auto\nalways\noff\n",
		"migrate --partitions ":     "daily\n",
		"status --log-level ":       "debug\ninfo\nwarn\nerror\n",
		"pause -c /not/there.yaml ": "",
	} {
		words := append([]string{"__complete", "-c", path}, strings.Split(args, " ")...)
		got, _, _ := strings.Cut(invoke(t, words...).stdout, ":")
		if got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// TestConnectErrors: the cause comes first, and a connection that nobody has configured is called so.
func TestConnectErrors(t *testing.T) {
	t.Parallel()
	url, _, _ := strings.Cut(testenv.Database(t), "?") // so that TLS is tried first
	missing := url[:strings.LastIndex(url, "/")] + "/missing"
	for _, args := range [][]string{{"status"}, {"migrate"}, {"doctor"}, {"publish", "a.b", "{}"}} {
		got := invoke(t, append(args, "--database-url", missing)...)
		if text := got.stdout + got.stderr; got.code == 0 || !strings.Contains(text, `database "missing" does not exist`) || strings.Contains(text, "tls error") {
			t.Errorf("%s: %+v", args, got)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"status"}, {"migrate"}, {"publish", "a.b", "{}"}} {
		empty := t.TempDir()
		cmd := exec.CommandContext(t.Context(), self, args...)
		cmd.Dir, cmd.Env = empty, []string{envSelf + "=1", "GORACE=atexit_sleep_ms=0", "HOME=" + empty, "PGHOST=" + empty}
		if text, _ := cmd.CombinedOutput(); !strings.Contains(string(text), "there is no configuration file and no DATABASE_URL") || cmd.ProcessState.ExitCode() != command.ExitFailure {
			t.Errorf("%s: %v: %s", args, cmd.ProcessState, text)
		}
	}
}
