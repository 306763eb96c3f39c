package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/store"
)

// adminOf returns the address of a daemon's admin server, once it has said so.
func adminOf(t *testing.T, d *runningDaemon) string {
	t.Helper()
	d.stderr.await(t, `"relay started"`)
	return listenOf(d)
}

// listenOf is the same of a daemon that has said so, and may not have started.
func listenOf(d *runningDaemon) string {
	return regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(d.stderr.text())[1]
}

const pauseConfig = `version: 1
database: {url: "%s"}
log: {level: debug, format: json}
admin: {listen: "%s"}
destinations:
  audit: {type: log}
  other: {type: log}
routes:
  - {match: '*', to: [audit, other]}
`

// TestPauseIsForAllRelays pauses a destination: each relay honours it, one that starts later too, and
// the events that have waited cost no attempt.
func TestPauseIsForAllRelays(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			path := file(t, fmt.Sprintf(pauseConfig, url, "127.0.0.1:0"))
			first, second := startDaemon(t, nil, "run", "-c", path), startDaemon(t, nil, "run", "-c", path)
			one, two := adminOf(t, first), adminOf(t, second)
			untilReady(t, "http://"+one+"/readyz")
			untilReady(t, "http://"+two+"/readyz")
			say := func(code int, want string, args ...string) {
				t.Helper()
				if r := invoke(t, append(args, "-c", path)...); r.code != code || !strings.Contains(r.stdout+r.stderr, want) {
					t.Errorf("%v: %+v", args, r)
				}
			}
			say(command.ExitUsage, `has no destination "adit": it has audit, other`, "pause", "adit")
			say(command.ExitOK, "audit is paused at all relays (2)", "pause", "audit", "--reason", "the disk is full", "--actor", "ann@web-1")
			const paused = "\nnotifyd_destination_paused{destination=\"audit\"} 1\n"
			for _, address := range []string{one, two} { // at once: the command has waited for both
				if text := metricsOf(t, address); !strings.Contains(text, paused) || !strings.Contains(text, "\nnotifyd_destination_paused{destination=\"other\"} 0\n") {
					t.Errorf("a relay has not paused audit yet, or has paused other:\n%s", text)
				}
			}
			untilDelivered := func(name string, at ...string) {
				t.Helper()
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for deadline := time.Now().Add(patience); !slices.ContainsFunc(at, func(address string) bool { return delivers(metricsOf(t, address), name) }); <-tick.C {
					if time.Now().After(deadline) {
						t.Fatalf("%s gets nothing", name)
					}
				}
			}
			publishTo(t, url, "order.placed", order)
			untilDelivered("other", one, two)
			if code := first.end(t); code != command.ExitOK {
				t.Errorf("exit code %d", code)
			}
			third := startDaemon(t, nil, "run", "-c", path)
			three := adminOf(t, third)
			untilReady(t, "http://"+three+"/readyz")
			untilSays(t, "http://"+three+"/metrics", paused)
			shown := file(t, fmt.Sprintf(pauseConfig, url, three))
			r := commandUntil(t, "paused", func(r result) bool { return strings.Contains(r.stdout, "admin ") }, "status", "-c", shown)
			if !regexp.MustCompile(`(?m)^audit +paused .* resume `).MatchString(r.stdout) || !regexp.MustCompile(`was paused \S+ ago by ann@web-1: the disk is full\.\n +notifyd resume audit;`).MatchString(r.stdout) {
				t.Errorf("%s", r.stdout)
			}
			if found, _ := examineBy(t, shown); !strings.Contains(found["audit"].Text, "It is paused, since") || !strings.Contains(found["audit"].Text, "by ann@web-1: the disk is full") {
				t.Errorf("%+v", found["audit"])
			}
			if delivers(metricsOf(t, two), "audit") || delivers(metricsOf(t, three), "audit") {
				t.Error("the paused destination got an event")
			}

			say(command.ExitOK, "audit is resumed at all relays (2)", "resume", "audit")
			say(command.ExitOK, "audit was not paused", "resume", "audit")
			const resumed = "\nnotifyd_destination_paused{destination=\"audit\"} 0\n"
			if !strings.Contains(metricsOf(t, two), resumed) || !strings.Contains(metricsOf(t, three), resumed) {
				t.Error("a relay has not resumed audit yet")
			}
			untilDone(t, url)
			untilDelivered("audit", two, three)
			for _, address := range []string{two, three} {
				text := metricsOf(t, address)
				if strings.Contains(text, `notifyd_deliveries_total{destination="audit",outcome="failed"} 1`) {
					t.Error("the pause has cost an attempt")
				}
			}
		})
	}
}

// TestPauseNamesRelaysThatHang: a relay that holds its lock and confirms nothing is named, and so is the lack of any relay.
func TestPauseNamesRelaysThatHang(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			path := file(t, fmt.Sprintf(pauseConfig, url, "127.0.0.1:0"))
			say := func(code int, want string, args ...string) {
				t.Helper()
				if r := invoke(t, append(args, "-c", path)...); r.code != code || !strings.Contains(r.stdout+r.stderr, want) {
					t.Errorf("%v: %+v", args, r)
				}
			}
			say(command.ExitOK, "audit is paused: no relay is at work; notifyd resume audit ends that", "pause", "audit")
			d := startDaemon(t, nil, "run", "-c", path)
			untilReady(t, "http://"+adminOf(t, d)+"/readyz")
			say(command.ExitOK, "other is paused at all relays (1)", "pause", "other")
			execute(t, url, `CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
				CREATE TRIGGER hang BEFORE UPDATE ON outbox_relays FOR EACH ROW EXECUTE FUNCTION hang()`)
			say(command.ExitFailure, fmt.Sprintf("audit is stored as resumed, but 1 relay of 1 has not confirmed that after 300ms: %s, process %d", store.ThisHost(), os.Getpid()),
				"resume", "audit", "--timeout", "300ms")
		})
	}
}

// delivers reports whether the relay has delivered the one event to a destination.
func delivers(metrics, name string) bool {
	return strings.Contains(metrics, `notifyd_deliveries_total{destination="`+name+`",outcome="delivered"} 1`)
}

func metricsOf(t *testing.T, address string) string {
	t.Helper()
	_, text := fetch(t, "http://"+address+"/metrics")
	return text
}
