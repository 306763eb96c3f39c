//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestPageConfigsRun starts a relay with every configuration of every page. A relay
// starts while its destinations are away, so their addresses need not exist.
func TestPageConfigsRun(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	queue, stream, ran := database(t), databaseOf(t, "stream"), 0
	cert, key := selfSigned(t)
	for _, page := range docPages(t) {
		// TestRunBesideAPooler and TestManagedPage have the servers for the first two, TestOutboxesPage the outboxes of the third.
		if name := filepath.Base(page); name == "operations.md" || name == "managed-postgresql.md" || name == "outboxes.md" {
			continue
		}
		for _, st := range steps(testenv.ReadFile(t, page)) {
			if st.language != "yaml" {
				continue
			}
			config := strings.NewReplacer("127.0.0.1:9470", "127.0.0.1:0", "0.0.0.0:9470", "127.0.0.1:0").Replace(completed(st.text))
			if !regexp.MustCompile(`(?m)^database:`).MatchString(config) {
				config += "database: {url: '${env:DATABASE_URL}'}\n"
			}
			path := file(t, config)
			besideConfig(t, path, config)
			dir := filepath.Join(filepath.Dir(path), "tls")
			for name, text := range map[string]string{"tls.crt": cert, "tls.key": key} {
				if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			env := variablesOf(config)
			env["DATABASE_URL"] = queue
			if strings.Contains(config, "start_from") || strings.Contains(config, "shards:") { // only a stream can
				env["DATABASE_URL"] = stream
			}
			d := startDaemon(t, env, "run", "-c", path, "--log-format", "json")
			if !d.says(t, `"relay started"`) {
				t.Fatalf("%s, %q: exit code %d: %s\n%s", page, st.heading, d.wait(t), d.stderr.text(), config)
			}
			if code := d.end(t); code != 0 {
				t.Errorf("%s, %q: exit code %d: %s\n%s", page, st.heading, code, d.stderr.text(), config)
			}
			ran++
		}
	}
	if ran < 25 {
		t.Errorf("%d configurations", ran)
	}
}

// says waits until the command has printed a text, or has ended.
func (d *runningDaemon) says(t *testing.T, want string) bool {
	t.Helper()
	for deadline := time.After(patience); ; {
		text, more := d.stderr.read()
		if strings.Contains(text, want) {
			return true
		}
		select {
		case <-more:
		case code := <-d.code:
			d.code <- code
			return strings.Contains(d.stderr.text(), want)
		case <-deadline:
			t.Fatalf("%q was not printed; what was:\n%s", want, text)
		}
	}
}
