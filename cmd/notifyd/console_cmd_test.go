package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// startConsole starts "notifyd console", and returns a visitor of the address that it prints.
func startConsole(t *testing.T, args ...string) (*runningDaemon, visitor) {
	t.Helper()
	d := startDaemon(t, nil, append([]string{"console"}, args...)...)
	d.stdout.await(t, "/console/\n")
	at, err := url.Parse(strings.TrimSpace(d.stdout.text()))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	v := visitor{T: t, base: at.Scheme + "://" + at.Host}
	v.client = v.newClient(transport)
	return d, v
}

// TestConsoleCommand: a console without a relay shows the outbox of a relay that a Go program runs, and acts on it.
func TestConsoleCommand(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			if mode == "stream" {
				testenv.Long(t)
			}
			at := databaseOf(t, mode)
			var broken atomic.Bool
			broken.Store(true)
			stock := delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
				if broken.Load() {
					return delivery.Permanent(errors.New("no such shelf"))
				}
				return nil
			})
			embed(t, at, notifyd.Destination{Name: "stock", Handler: stock})
			deadLetter(t, at, publishTo(t, at, "stock.low", `{"shelf": 7}`))
			until(t, at, `SELECT EXISTS (SELECT FROM outbox_relays WHERE destinations @> '[{"name": "stock", "failures": 1}]')`)
			d, v := startConsole(t, "--database-url", at, "--prefix", "/ops", "--actor", "ann@desk")

			page := v.awaits("/ops/console/", "stock has 1 dead letter.")
			for _, want := range []string{"No relay serves this console: rates", `<span class="badge bad">failing</span>`, `data-label="Delivered">–<`, ">ann@desk<"} {
				if !strings.Contains(page, want) {
					t.Errorf("the overview does not say %s:\n%s", want, page)
				}
			}
			seen := v.follow("/ops", "/ops/console/")
			for _, want := range []string{"live/overview", "live/destination?name=stock", "events/1", "relays", "dead?destination=stock"} {
				if !seen["/ops/console/"+want] {
					t.Errorf("%s is linked nowhere", want)
				}
			}
			if _, page := v.get("/ops/console/destination?name=stock"); strings.Contains(page, "<dt>Released</dt>") || !strings.Contains(page, `<span class="small">delivery.HandlerFunc</span>`) {
				t.Errorf("counters that no one knows, or no type:\n%s", page)
			}
			v.awaits("/ops/console/relays", `stock</td>`)

			v.acts("/ops/console/destinations/pause", url.Values{"destination": {"stock"}}, "The pause is stored.")
			until(t, at, `SELECT paused_by = 'ann@desk' FROM outbox_pauses WHERE destination = 'stock'`)
			until(t, at, `SELECT paused = '{stock}' AND destinations @> '[{"name": "stock", "paused": true}]' FROM outbox_relays`)
			v.awaits("/ops/console/destinations", `<span class="badge paused">paused</span>`)
			v.acts("/ops/console/destinations/resume", url.Values{"destination": {"stock"}}, "Resumed.")

			broken.Store(false)
			v.acts("/ops/console/dead/replay", url.Values{"destination": {"stock"}, "event": {"1"}, "reason": {"shelf built"}}, "")
			until(t, at, `SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
			if got := query[string](t, at, `SELECT actor || ': ' || (details->>'reason') FROM outbox_audit WHERE action = 'replay'`); got != "ann@desk: shelf built" {
				t.Errorf("recorded: %s", got)
			}
			if code := d.end(t); code != command.ExitOK {
				t.Errorf("exit code %d: %s", code, d.stderr.text())
			}
		})
	}
}

// acts sends a form, and the answer must say something.
func (v visitor) acts(path string, form url.Values, says string) {
	v.Helper()
	if code, page := v.post(path, form); code != http.StatusOK || !strings.Contains(page, says) {
		v.Errorf("%s: %d\n%s", path, code, page)
	}
}

// TestConsoleCommandWithoutRelays: the state of a destination is unknown while no relay lives, and the console says what to do.
func TestConsoleCommandWithoutRelays(t *testing.T) {
	t.Parallel()
	at := buried(t, 1)
	publishTo(t, at, "order.placed", "{}")
	_, v := startConsole(t, "--database-url", at)
	v.awaits("/console/", "No relay uses this database, and events wait.")
	page := v.awaits("/console/destinations", ">mail</a>")
	if !strings.Contains(page, `<span class="badge paused">?</span>`) {
		t.Errorf("%s", page)
	}
	if code, page := v.post("/console/destinations/pause", url.Values{"destination": {"mail"}}); code != http.StatusNotFound || !strings.Contains(page, "No relay of this page has a destination of that name.") {
		t.Errorf("%d\n%s", code, page)
	}
	v.acts("/console/dead/discard", url.Values{"destination": {"mail"}, "event": {"1"}, "sure": {"yes"}}, "")
	if left := query[int](t, at, `SELECT count(*)::int FROM outbox_deliveries`); left != 0 {
		t.Errorf("%d dead letters are left", left)
	}
	if got := query[string](t, at, `SELECT actor FROM outbox_audit`); got != command.CurrentActor() {
		t.Errorf("recorded: %s", got)
	}
}

// TestConsoleCommandReadOnly: nobody acts at a console that is read-only, and a token keeps others out.
func TestConsoleCommandReadOnly(t *testing.T) {
	t.Parallel()
	const token = "5c1f0e2b-not-to-be-seen-77aa"
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := buried(t, 1)
	d, v := startConsole(t, "--database-url", at, "--read-only", "--hide-payloads", "--token-file", path, "--listen", "0.0.0.0:0")
	v.base = strings.Replace(v.base, "[::]", "127.0.0.1", 1)
	if code, page := v.get("/console/dead"); code != http.StatusOK || !strings.Contains(page, `name="token"`) || strings.Contains(page, "order") {
		t.Errorf("without a login: %d\n%s", code, page)
	}
	v.acts("/console/login", url.Values{"token": {token}}, `<span class="badge">read-only</span>`)
	if code, _ := v.post("/console/dead/discard", url.Values{"destination": {"mail"}, "event": {"1"}, "sure": {"yes"}}); code != http.StatusForbidden {
		t.Errorf("discard: %d", code)
	}
	if _, page := v.get("/console/events/1"); !strings.Contains(page, "order.placed") || regexp.MustCompile(`&#34;a&#34;`).MatchString(page) {
		t.Errorf("the event:\n%s", page)
	}
	if strings.Contains(d.stderr.text()+d.stdout.text(), "not-to-be-seen") {
		t.Error("the token is shown")
	}
}

// TestConsoleCommandMistakes: a mistake shows at once, and no console is open to other machines without a token.
func TestConsoleCommandMistakes(t *testing.T) {
	t.Parallel()
	at := database(t)
	short := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(short, []byte("tiny\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	busy := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	startConsole(t, "--database-url", at, "--listen", busy)
	for args, want := range map[string]result{
		"--listen 0.0.0.0:0":          {command.ExitUsage, "", "the console would admit everyone: give --token-file, or a loopback address"},
		"--listen :0":                 {command.ExitUsage, "", "the console would admit everyone"},
		"--token-file " + short:       {command.ExitUsage, "", "--token-file: is shorter than 16 characters"},
		"--token-file /nowhere/token": {command.ExitFailure, "", "--token-file: open /nowhere/token"},
		"--prefix ops/":               {command.ExitUsage, "", "--prefix: must be a path"},
		"--schema nowhere":            {command.ExitFailure, "", "notifyd migrate"},
		"--listen " + busy:            {command.ExitFailure, "", "--listen: listen tcp " + busy + ": bind: address already in use: another process has this port"},
	} {
		got := invoke(t, append([]string{"console", "--database-url", at}, strings.Fields(args)...)...)
		if got.code != want.code || !strings.Contains(got.stderr, want.stderr) || got.stdout != "" {
			t.Errorf("%s: %+v", args, got)
		}
	}
}
