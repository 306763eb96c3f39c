package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestStandardOutputFails: a destination "log" that cannot write is down, with a line in the log and
// no event lost; the other destinations go on.
func TestStandardOutputFails(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		start func(t *testing.T, args ...string) *process
		want  string
	}{
		"reader gone": {func(t *testing.T, args ...string) *process {
			t.Helper()
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = writer.Close() }()
			if err := reader.Close(); err != nil {
				t.Fatal(err)
			}
			return startProgramTo(t, writer, strings.NewReader(""), self, args...)
		}, "broken pipe"},
		"closed": {func(t *testing.T, args ...string) *process {
			t.Helper()
			return startProgram(t, strings.NewReader(""), "sh", append([]string{"-c", `exec "$0" "$@" >&-`, self}, args...)...)
		}, "was closed when the program began"},
		"full": {func(t *testing.T, args ...string) *process {
			t.Helper()
			return startProgram(t, strings.NewReader(""), "sh", append([]string{"-c", `exec "$0" "$@" >/dev/full`, self}, args...)...)
		}, "no space left"},
	} {
		for _, mode := range modes() {
			t.Run(name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				url := databaseOf(t, mode)
				path := file(t, "version: 1\ndatabase: {url: '"+url+"'}\nlog: {format: text}\ndestinations: {out: {type: log}, other: {type: log, output: stderr}}\nroutes: [{match: '*', to: [out, other]}]\n")
				p := c.start(t, "run", "-c", path)
				first := publishTo(t, url, "order.created", "{}")
				p.stderr.await(t, "destination down")
				p.stderr.await(t, c.want)
				p.stderr.await(t, `"event_id":`+first+`,"event_type":"order.created"`)
				second := publishTo(t, url, "order.created", "{}") // it goes on
				p.stderr.await(t, `"event_id":`+second+`,"event_type":"order.created"`)
				p.signal(t, syscall.SIGTERM)
				if code := p.wait(t); code != 0 {
					t.Errorf("exit code %d:\n%s", code, p.stderr.text())
				}
				// What has no line waits for the next relay, which has an output.
				again := startProcess(t, "", "run", "-c", path)
				again.stdout.await(t, `"event_id":`+first+`,`)
				again.stdout.await(t, `"event_id":`+second+`,`)
			})
		}
	}
}

// TestStatusIntoHead: a command whose reader goes away ends without a word, as others do.
func TestStatusIntoHead(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close() }()
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	p := startProgramTo(t, writer, strings.NewReader(""), self, "status", "--database-url", database(t))
	p.wait(t)
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !s.Signaled() || s.Signal() != syscall.SIGPIPE || p.stderr.text() != "" {
		t.Errorf("it ended with %v and said %q", p.cmd.ProcessState, p.stderr.text())
	}
}
