package main

import (
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestAdmin asks a daemon everything that its admin server answers, and holds
// the list of metrics in the documentation against what is exported.
func TestAdmin(t *testing.T) {
	t.Parallel()
	url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	d := startDaemon(t, nil, "run", "-c", file(t, shopConfig(url, sink.Port())+"\nadmin:\n  listen: 127.0.0.1:0\n"))
	d.stderr.await(t, `"relay started"`)
	address := regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(d.stderr.text())
	if address == nil {
		t.Fatalf("the address is not said:\n%s", d.stderr.text())
	}
	get := func(path string, want int) string {
		t.Helper()
		code, body := fetch(t, "http://"+address[1]+path)
		if code != want {
			t.Errorf("GET %s: %d, want %d:\n%s", path, code, want, body)
		}
		return body
	}
	publishTo(t, url, "order.placed", order)
	mails(t, sink, 1)
	until(t, url, "SELECT state = 'done' FROM outbox_events")
	get("/livez", http.StatusOK)
	untilReady(t, "http://"+address[1]+"/readyz")
	untilSays(t, "http://"+address[1]+"/readyz?verbose", "[+] listener: ok")
	get("/nowhere", http.StatusNotFound)
	if text := get("/readyz?verbose", http.StatusOK); text != "[+] started: ok\n[+] database: ok\n[+] relay: ok\n[+] listener: ok\n[+] outcomes: ok\n[+] configuration: ok\n" {
		t.Errorf("/readyz?verbose says %q", text)
	}
	if text := get("/version", http.StatusOK); strings.TrimSpace(text) != readBuildInfo().Version {
		t.Errorf("/version says %q", text)
	}
	// The database may be too busy to tell how long events wait.
	text := untilSays(t, "http://"+address[1]+"/metrics", "notifyd_canary_round_trip_seconds", "\nnotifyd_oldest_waiting_seconds 0")
	for _, want := range []string{
		`notifyd_deliveries_total{destination="mail",outcome="delivered"} 1`, `notifyd_deliveries_total{destination="audit",outcome="dead"} 0`,
		`notifyd_attempts_total{class="none",destination="mail"} 1`, `notifyd_commit_to_handler_seconds_count{destination="mail"} 1`,
		`notifyd_commit_to_ack_seconds_count{destination="mail"} 1`, `notifyd_commit_to_ack_seconds_bucket{destination="mail",le="0.00025"}`,
		`notifyd_backlog_deliveries{destination="mail",state="fresh"} 0`, `notifyd_backlog_oldest_seconds{destination="mail"} 0`, `notifyd_dead_letters{destination="mail"} 0`,
		`notifyd_connections{role="claim"} 4`, `notifyd_connections{role="notify"} 1`, `notifyd_connections{role="maintenance"} 1`, `notifyd_leases_held 0`,
		"notifyd_listener_connected 1", "notifyd_database_up 1", "notifyd_oldest_waiting_seconds 0", "notifyd_build_info{", "go_goroutines", "process_cpu_seconds_total",
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	exported := names(`(?m)^# TYPE (notifyd_\w+) `, text)
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := slices.DeleteFunc(names("(?m)^\\| `(notifyd_\\w+)`", string(page)), func(n string) bool {
		// Of a stream; of a database that refuses something; and of handlers that report their state, which these do not.
		return strings.HasPrefix(n, "notifyd_position_") || strings.HasPrefix(n, "notifyd_outbox") || n == "notifyd_replay_remaining" || n == "notifyd_database_refuses" || n == "notifyd_destination_connected" || n == "notifyd_destination_blocked" || n == "notifyd_destination_unconfirmed"
	})
	if !slices.Equal(exported, documented) {
		t.Errorf("exported:\n%v\ndocumented:\n%v", exported, documented)
	}
	if strings.Contains(text+d.stderr.text(), "secret") {
		t.Error("a secret is shown")
	}
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
}

// untilSays waits until a page has a text, and returns the page.
func untilSays(t *testing.T, url string, want ...string) (text string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		_, text = fetch(t, url)
		if !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(text, w) }) {
			return text
		}
	}
	t.Fatalf("%s does not say %q:\n%s", url, want, text)
	return ""
}

// untilReady waits until a daemon says that it is ready.
func untilReady(t *testing.T, url string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		code, body := fetch(t, url)
		if code == http.StatusOK {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not ready within %v: %d\n%s", patience, code, body)
		}
	}
}

// fetch returns the answer to a GET.
func fetch(t *testing.T, url string) (code int, text string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	a := testenv.Ask(t, client, request)
	return a.Code, a.Body
}

func names(pattern, text string) (all []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return all
}

func TestAdminMistakes(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"9470": "admin.listen: must be an address and a port", "127.0.0.1:http": "admin.listen: the port must be a number",
	} {
		r := invoke(t, "check-config", "-c", file(t, "version: 1\nadmin:\n  listen: \""+listen+"\"\n"))
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %q is not said in\n%s", listen, want, r.stderr)
		}
	}
}
