package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestFewFiles: a daemon that may open too few files for its concurrency delivers with those that it has. Neither an
// event, nor a receiver that answers all requests that reach it, is at fault.
func TestFewFiles(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const events, limit = 200, 48
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var received atomic.Int64
			scarce := make(chan struct{}) // until then no request is answered, and none gives its file back
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				<-scarce
				received.Add(1)
			}))
			t.Cleanup(server.Close)
			url := databaseOf(t, mode)
			settings := "type: webhook, addresses: any, concurrency: 64, max_attempts: 2, backoff: {initial: 1ms, max: 1ms}"
			path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nlog: {level: debug}\ndestinations:\n"+
				"  one: {%s, url: '%s/'}\n  any: {%s, url: '{{ .Payload.at }}', dynamic_host: true}\nroutes: [{match: '*', to: [one, any]}]\n", url, settings, server.URL, settings))
			p := startProgram(t, strings.NewReader(""), "sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, limit), self, "run", "-c", path)
			p.stderr.await(t, `"relay started"`)
			execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload) SELECT 'x', '{"at": "%s/"}' FROM generate_series(1, %d)`, server.URL, events))
			p.stderr.await(t, "too many open files")
			close(scarce)
			untilDone(t, url)
			if n := query[int](t, url, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`); n > 0 || received.Load() < 2*events {
				t.Errorf("%d dead letters, %d requests", n, received.Load())
			}
			p.signal(t, syscall.SIGTERM)
			code, log := p.wait(t), p.stderr.text()
			if code != 0 || !strings.Contains(log, "(ulimit -n, ") || !strings.Contains(log, `"class":"relay"`) {
				t.Errorf("exit code %d, or no cure in the log", code)
			}
			for line := range strings.Lines(log) {
				if strings.Contains(line, "destination down") || strings.Contains(line, `"delivery failed"`) || strings.Contains(line, `"class":"event"`) {
					t.Error(line)
				}
			}
		})
	}
}

// TestFewFilesOfBatch: a batch whose events go to more files than the daemon may open is written in parts.
func TestFewFilesOfBatch(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const events, limit = 300, 48
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url, dir := databaseOf(t, mode), t.TempDir()
			execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload) SELECT 'x', '{}' FROM generate_series(1, %d)`, events))
			path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nlog: {level: debug}\ndestinations:\n"+
				"  archive: {type: file, path: '%s/{{ .Event.ID }}.jsonl'}\nroutes: [{match: '*', to: archive}]\n", url, dir))
			p := startProgram(t, strings.NewReader(""), "sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, limit), self, "run", "-c", path)
			untilDone(t, url)
			p.signal(t, syscall.SIGTERM)
			code, log := p.wait(t), p.stderr.text()
			written, err := os.ReadDir(dir)
			if code != 0 || err != nil || len(written) != events {
				t.Errorf("exit code %d, %d of %d files (%v):\n%s", code, len(written), events, err, log)
			}
		})
	}
}
