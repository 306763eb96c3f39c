package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/command/configuration"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestReloadUnderNohup: reload answers at once for a relay that ignores SIGHUP. The timeout is longer than the test.
func TestReloadUnderNohup(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: %q}\nlog: {format: json}\ndestinations:\n  audit: {type: log}\nroutes: [{match: '*', to: [audit]}]\n", url))
			p := startWith(t, "nohup", "run", "-c", path)
			p.stderr.await(t, `"relay started"`)
			until(t, url, `SELECT EXISTS (SELECT FROM outbox_relays)`)

			r := invoke(t, "reload", "-c", path, "--timeout", "1h")
			const want = "it ignores SIGHUP, as under nohup: restart it without nohup"
			if r.code != command.ExitFailure || !strings.Contains(r.stdout, want) || !strings.Contains(r.stderr, "1 relay of 1 not reloaded") {
				t.Errorf("no %q in %+v", want, r)
			}
		})
	}
}

// TestHangUpStopped: a process that is stopped would not answer.
func TestHangUpStopped(t *testing.T) {
	t.Parallel()
	path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: %q}\nlog: {format: json}\ndestinations:\n  audit: {type: log}\nroutes: [{match: '*', to: [audit]}]\n", database(t)))
	p := startProcess(t, "", "run", "-c", path)
	p.stderr.await(t, `"relay started"`)
	pid := p.cmd.Process.Pid
	p.signal(t, syscall.SIGSTOP)
	testenv.Await(t, "the process is stopped", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))

		return err == nil && strings.Contains(string(text), "\nState:\tT")
	})
	if err := configuration.HangUp(pid); err == nil || !strings.Contains(err.Error(), "it is stopped: continue it with kill -CONT") {
		t.Error(err)
	}
	p.signal(t, syscall.SIGCONT)
}
