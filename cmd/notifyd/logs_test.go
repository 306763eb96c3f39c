package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestLogOfADaemon: the log says which mode the relay has, where its console is and how long a destination was down. Equal
// failures are counted from the eleventh on.
func TestLogOfADaemon(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var up atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/picky":
					w.WriteHeader(http.StatusUnprocessableEntity)
				case !up.Load():
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}))
			t.Cleanup(server.Close)
			url := databaseOf(t, mode)
			d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(`version: 1
database: {url: %q}
log: {format: json}
admin: {listen: "127.0.0.1:0", console: true}
destinations:
  picky: {type: webhook, url: "%s/picky"}
  shaky: {type: webhook, url: "%[2]s/shaky"}
routes:
  - {match: order.placed, to: picky}
  - {match: order.sent, to: shaky}
`, url, server.URL)))
			d.stderr.await(t, `"msg":"relay started","schema":"public","mode":"`+mode+`"`)
			if console := `"console":"http://` + listenOf(d) + `/console/"`; !strings.Contains(d.stderr.text(), console) {
				t.Errorf("no %s in\n%s", console, d.stderr.text())
			}

			publishTo(t, url, "order.sent", order)
			d.stderr.await(t, `"destination down"`)
			up.Store(true)
			d.stderr.await(t, `"msg":"destination up","destination":"shaky","after":"`)

			const events = 60
			execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload) SELECT 'order.placed', '1' FROM generate_series(1, %d)`, events))
			until(t, url, fmt.Sprintf(`SELECT count(*) = %d FROM outbox_deliveries WHERE state = 'dead'`, events))
			if code := d.end(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			text := d.stderr.text()
			lines, counted := regexp.MustCompile(`"event is a dead letter".*"event_id"`).FindAllString(text, -1), 0
			for _, m := range regexp.MustCompile(`"event is a dead letter","destination":"picky","more_like_it":(\d+),`).FindAllStringSubmatch(text, -1) {
				var n int
				if err := json.Unmarshal([]byte(m[1]), &n); err != nil {
					t.Error(err)
				}
				counted += n
			}
			if len(lines) != 10 || counted != events-10 || strings.Contains(text, `:null`) {
				t.Errorf("%d lines, and %d more:\n%s", len(lines), counted, text)
			}
		})
	}
}

// TestFailedStartEndsInJSON: where the log is JSON, the error that ends the daemon is, too.
func TestFailedStartEndsInJSON(t *testing.T) {
	t.Parallel()
	empty := testenv.Database(t)
	config := fmt.Sprintf("version: 1\ndatabase: {url: %q}\nlog: {format: json}\ndestinations:\n  audit: {type: log}\nroutes: [{match: '*', to: [audit]}]\n", empty)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-c", file(t, config)}, command.ExitFailure, "schema is not migrated"},
		{[]string{"-c", file(t, config+"x: 1\n"), "--log-format", "json"}, command.ExitConfig, "unknown key"},
		{[]string{"-c", file(t, config+"admin: {listen: '127.0.0.1:0', tls: {cert_file: none.crt, key_file: none.key}}\n")}, command.ExitConfig, ":7:49: admin.tls: stat "},
		{[]string{"-c", file(t, config+"admin: {listen: '192.0.2.1:1'}\n")}, command.ExitFailure, "no network interface of this host has the address"},
	} {
		r := invoke(t, append([]string{"run"}, c.args...)...)
		lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
		for _, line := range lines {
			if !json.Valid([]byte(line)) {
				t.Errorf("not JSON: %s", line)
			}
		}
		last := lines[len(lines)-1]
		if r.code != c.code || !strings.Contains(last, `"level":"ERROR","msg":"notifyd ends","err":"`) || !strings.Contains(last, c.says) {
			t.Errorf("%+v", r)
		}
	}
}
