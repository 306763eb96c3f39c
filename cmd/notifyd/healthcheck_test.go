package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command/inspect"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestHealthcheck asks a daemon, and then where it was.
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	url, port := database(t), testenv.FreePort(t)
	const config = "version: 1\ndatabase: {url: '%s'}\nadmin: {listen: '%s:%d'}\n"
	path := file(t, fmt.Sprintf(config, url, "0.0.0.0", port)) // to be asked on the loopback
	d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(config, url, "127.0.0.1", port)))
	d.stderr.await(t, `admin server listening`)
	ready := fmt.Sprintf("http://127.0.0.1:%d/readyz", port)
	untilReady(t, ready)
	untilSays(t, ready+"?verbose", "[+] listener: ok")
	if got := invoke(t, "healthcheck", "-c", path, "--timeout", "1m"); got != (result{0, "[+] started: ok\n[+] database: ok\n[+] relay: ok\n[+] listener: ok\n[+] outcomes: ok\n[+] configuration: ok\n", ""}) {
		t.Errorf("%+v", got)
	}
	d.end(t)
	if got := invoke(t, "healthcheck", "-c", path); got.code != 1 || !strings.Contains(got.stderr, fmt.Sprintf("notifyd at 127.0.0.1:%d does not answer: ", port)) {
		t.Errorf("%+v", got)
	}
}

func TestHealthcheckBadAnswers(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Host, "localhost") { // the second question
			<-release
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("[-] database: the database does not answer\n"))
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	for name, c := range map[string]struct{ listen, args, want string }{
		"not ready":  {"127.0.0.1:" + port, "", "is not ready (503 Service Unavailable):\n[-] database: the database does not answer\n"},
		"late":       {"localhost:" + port, "--timeout 20ms", "does not answer: no answer within 20ms\n"},
		"no address": {"", "", "admin.listen: missing, so no relay can be asked"},
		"any port":   {"127.0.0.1:0", "", "admin.listen: port 0 is another one at each start"},
		"a mistake":  {"nonsense", "", "admin.listen: must be an address and a port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := file(t, "version: 1\nadmin: {listen: '"+c.listen+"'}\n")
			got := invoke(t, append([]string{"healthcheck", "-c", path}, strings.Fields(c.args)...)...)
			if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, c.want) {
				t.Errorf("got %+v, want %q", got, c.want)
			}
		})
	}
}

func TestReachable(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		":9470": "127.0.0.1:9470", "0.0.0.0:9470": "127.0.0.1:9470", "[::]:9470": "[::1]:9470", "10.0.0.7:80": "10.0.0.7:80", "relay:1": "relay:1",
	} {
		if got, err := inspect.Reachable(listen); got != want || err != nil {
			t.Errorf("%s: %s, %v", listen, got, err)
		}
	}
}
