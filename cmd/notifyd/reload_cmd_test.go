package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command/configuration"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/store"
)

// TestReloadCommand reloads a relay by its file: it takes one, refuses one that only its own
// environment makes wrong, and is left alone with one that is wrong for all.
func TestReloadCommand(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			plain := fmt.Sprintf("version: 1\ndatabase: {url: %q}\nlog: {format: json}\ndestinations:\n  audit: {type: log}\nroutes: [{match: '*', to: [audit]}]\n", url)
			path := file(t, plain)
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			env := vars{"ONLY_HERE": "http://127.0.0.1:1/"}
			reload := func(code int, want ...string) {
				t.Helper()
				r := commandIn(t, env, "reload", "-c", path)
				for _, w := range want {
					if r.code != code || !strings.Contains(r.stdout+r.stderr, w) {
						t.Errorf("want %d, %q, got %+v", code, w, r)
					}
				}
			}
			status := func() string {
				t.Helper()
				return commandIn(t, env, "status", "-c", path).stdout
			}
			reload(command.ExitFailure, "no relay on this host ("+store.ThisHost()+") runs with "+path)
			p := startProcess(t, "", "run", "-c", path)
			p.stderr.await(t, `"relay started"`)
			until(t, url, `SELECT EXISTS (SELECT FROM outbox_relays)`)
			process := fmt.Sprintf("process %d", p.cmd.Process.Pid)
			if text := status(); !regexp.MustCompile(`(?m)^relays +` + regexp.QuoteMeta(store.ThisHost()) + ", " + process + `, .*, up \w+, configuration read \w+ ago \(session \d+, notifyd/` + map[string]string{"queue": "maintenance", "stream": "leases"}[mode] + `, `).MatchString(text) {
				t.Errorf("status says\n%s", text)
			}

			write(strings.Replace(plain, "audit: {type: log}", "audit: {type: log}\n  more: {type: log}", 1))
			reload(command.ExitOK, process+": has taken the new configuration")
			p.stderr.awaitN(t, saidReloaded, 1)

			write(strings.Replace(plain, "audit: {type: log}", "audit: {type: log}\n  hook: {type: webhook, url: \"${env:ONLY_HERE}\"}", 1))
			reload(command.ExitFailure, process+": refused, it continues with the previous configuration: ", "ONLY_HERE", "1 relay of 1 not reloaded")
			if text := status(); !strings.Contains(text, "("+process+") has refused the last reload and continues with the previous configuration: ") {
				t.Errorf("status says\n%s", text)
			}

			write(plain + "nonsense: 1\n")
			reload(command.ExitConfig, "nonsense")
			write(plain)
			reload(command.ExitOK, process+": has taken the new configuration")
			p.stderr.awaitN(t, saidReloaded, 2)
			if text := status(); strings.Contains(text, "refused") {
				t.Errorf("status says\n%s", text)
			}
			if n := strings.Count(p.stderr.text(), saidWrong); n != 1 {
				t.Errorf("the relay has refused %d files", n)
			}
		})
	}
}

// TestReloadBesideAContainer: the relay of a container that goes by the name of this host, and has the
// same process id, is not taken for what became of a reload.
func TestReloadBesideAContainer(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			plain := fmt.Sprintf("version: 1\ndatabase: {url: %q}\nlog: {format: json}\ndestinations:\n  audit: {type: log}\nroutes: [{match: '*', to: [audit]}]\n", url)
			path := file(t, plain)
			env := vars{"ONLY_HERE": "http://127.0.0.1:1/"}
			p := startProcess(t, "", "run", "-c", path)
			p.stderr.await(t, `"relay started"`)
			until(t, url, `SELECT EXISTS (SELECT FROM outbox_relays)`)
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close(context.WithoutCancel(t.Context()), conn) })
			if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock_shared(1853122159::bigint << 32 | 7)`); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), `INSERT INTO outbox_relays (owner, process, host, config, started_at, loaded_at)
				SELECT 1853122159::bigint << 32 | 7, process, host, config, now(), now() FROM outbox_relays`); err != nil {
				t.Fatal(err)
			}
			process := fmt.Sprintf("process %d", p.cmd.Process.Pid)
			if err := os.WriteFile(path, []byte(strings.Replace(plain, "audit: {type: log}", "audit: {type: log}\n  hook: {type: webhook, url: \"${env:ONLY_HERE}\"}", 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			if r := commandIn(t, env, "reload", "-c", path); r.code != command.ExitFailure || !strings.Contains(r.stdout, process+": another relay goes by this id") ||
				!strings.Contains(r.stdout, process+": refused, it continues with the previous configuration: ") || !strings.Contains(r.stdout+r.stderr, "1 relay of 1 not reloaded") {
				t.Errorf("a file that it refuses: %+v", r)
			}
			if err := os.WriteFile(path, []byte(plain), 0o600); err != nil {
				t.Fatal(err)
			}
			if r := commandIn(t, env, "reload", "-c", path); r.code != command.ExitOK || !strings.Contains(r.stdout, process+": has taken the new configuration") {
				t.Errorf("a file that it takes: %+v", r)
			}
		})
	}
}

// TestHangUpStranger: a process that is not a relay gets no signal, which would end it.
func TestHangUpStranger(t *testing.T) {
	t.Parallel()
	p := startProgram(t, strings.NewReader(""), "sleep", "1000")
	if err := configuration.HangUp(p.cmd.Process.Pid); err == nil || !strings.Contains(err.Error(), "not a relay") {
		t.Errorf("got %v", err)
	}
	for _, pid := range []int{0, -1, -p.cmd.Process.Pid} {
		if err := configuration.HangUp(pid); err == nil || !strings.Contains(err.Error(), "not the number of a process") {
			t.Errorf("%d: %v", pid, err)
		}
	}
}

// TestReloadChangedNumber: who has the rights of a relay cannot have another process or process group signalled.
func TestReloadChangedNumber(t *testing.T) {
	t.Parallel()
	stranger := startProgram(t, strings.NewReader(""), "sleep", "1000")
	url := databaseOf(t, "stream")
	path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: %q}\ndestinations:\n  audit: {type: log}\nroutes: [{match: '*', to: [audit]}]\n", url))
	p := startProcess(t, "", "run", "-c", path)
	until(t, url, `SELECT EXISTS (SELECT FROM outbox_relays)`)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close(context.WithoutCancel(t.Context()), conn) })
	change := func(pid int) error {
		_, err := conn.Exec(t.Context(), `UPDATE outbox_relays SET process = $1`, pid)
		return err
	}
	if err := change(-stranger.cmd.Process.Pid); testdb.SQLState(err) != "23514" {
		t.Fatalf("a negative number was taken: %v", err)
	}

	if _, err := conn.Exec(t.Context(), `ALTER TABLE outbox_relays DROP CONSTRAINT outbox_relays_process_positive`); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]string{
		stranger.cmd.Process.Pid:  "is sleep, not a relay",
		-stranger.cmd.Process.Pid: "not the number of a process",
		-1:                        "not the number of a process",
		0:                         "",
	} {
		if err := change(pid); err != nil {
			t.Fatal(err)
		}
		if r := commandIn(t, nil, "reload", "-c", path); r.code != command.ExitFailure || !strings.Contains(r.stdout, want) {
			t.Errorf("%d: %+v", pid, r)
		}
	}
	if err := errors.Join(change(p.cmd.Process.Pid), stranger.cmd.Process.Signal(syscall.Signal(0))); err != nil {
		t.Fatal(err)
	}
	if r := commandIn(t, nil, "reload", "-c", path); r.code != command.ExitOK {
		t.Errorf("the relay itself: %+v", r)
	}
}
