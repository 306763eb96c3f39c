package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/observe/admin"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	token    = "0123456789abcdef0123456789abcdef"
	patience = time.Minute
)

// newRelay returns a relay that does not run yet.
func newRelay(t *testing.T, url string, cfg notifyd.Config) *notifyd.Relay {
	t.Helper()
	relay, err := notifyd.New(testdb.Pool(t, url), cfg)
	if err != nil {
		t.Fatal(err)
	}
	stock := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
	if err := relay.Handle("*", notifyd.Destination{Name: "stock", Handler: stock}); err != nil {
		t.Fatal(err)
	}
	return relay
}

// begin runs a relay until stop is called, or the test ends. It returns once the relay is ready.
func begin(t *testing.T, relay *notifyd.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := relay.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	testenv.Receive(t, patience, "the relay is not ready", relay.Ready())
	return stop
}

// answer is the answer to a GET, with a token unless that is empty.
func answer(t *testing.T, h http.Handler, path, token string) (code int, text string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://shop.example"+path, http.NoBody)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// TestHandler: what a program's own server answers before, while and after its relay runs.
func TestHandler(t *testing.T) {
	t.Parallel()
	relay := newRelay(t, testdb.URL(t, testdb.Tables{}), notifyd.Config{Program: notifyd.Program{Version: "v7"}})
	own := prometheus.NewRegistry()
	orders := prometheus.NewCounter(prometheus.CounterOpts{Name: "shop_orders_total", Help: "Orders."})
	own.MustRegister(orders)
	h, err := admin.New(admin.Config{Prefix: "/ops", Token: handlers.NewSecret(token), Metrics: own}, relay)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	mux := http.NewServeMux()
	mux.Handle("/ops/", h)
	mux.Handle("/cut/ops/", http.StripPrefix("/cut/ops", h))

	says := func(path, token string, code int, texts ...string) {
		t.Helper()
		got, text := answer(t, mux, path, token)
		if got != code || slices.ContainsFunc(texts, func(want string) bool { return !strings.Contains(text, want) }) {
			t.Errorf("%s: %d %s; want %d with %q", path, got, text, code, texts)
		}
	}
	says("/ops/livez", "", http.StatusOK, "ok\n")
	says("/ops/readyz", "", http.StatusServiceUnavailable, "not ready; with the token")
	says("/ops/readyz?verbose", token, http.StatusServiceUnavailable, "[-] started: the table has not been read yet\n")

	stop := begin(t, relay)
	for _, at := range []string{"/ops", "/cut/ops"} {
		says(at+"/readyz", "", http.StatusOK, "ok\n")
		says(at+"/readyz?verbose", token, http.StatusOK, "[+] started: ok\n", "[+] relay: ok\n")
		says(at+"/version", token, http.StatusOK, "v7\n")
		says(at+"/metrics", token, http.StatusOK, "\nnotifyd_database_up 1\n", `notifyd_destination_down{destination="stock"} 0`, "\nshop_orders_total 0\n")
		says(at+"/metrics", "", http.StatusUnauthorized)
		says(at+"/metrics", token[1:], http.StatusUnauthorized)
		says(at+"/console/", token, http.StatusNotFound)
		says(at+"/debug/pprof/", token, http.StatusNotFound)
	}

	stop()
	says("/ops/livez", "", http.StatusOK)
	says("/ops/readyz?verbose", token, http.StatusServiceUnavailable, "[-] relay: the relay has stopped\n")
}

// TestRelayThatFails: readyz says why Run has returned.
func TestRelayThatFails(t *testing.T) {
	t.Parallel()
	relay := newRelay(t, testenv.Database(t), notifyd.Config{}) // without tables
	h, err := admin.New(admin.Config{}, relay)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := relay.Run(t.Context()); err == nil {
		t.Fatal("it has run without tables")
	}
	if code, text := answer(t, h, "/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(text, "the relay has stopped: notifyd: ") {
		t.Errorf("%d %s", code, text)
	}
}

// TestSeveralRelays: each has its metrics and a line of its own, and one that does not work does not make the others useless.
func TestSeveralRelays(t *testing.T) {
	t.Parallel()
	north := newRelay(t, testdb.URL(t, testdb.Tables{}), notifyd.Config{Outbox: "north"})
	south := newRelay(t, testdb.URL(t, testdb.Tables{}), notifyd.Config{Outbox: "south"})
	h, err := admin.New(admin.Config{}, north, south)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if code, text := answer(t, h, "/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(text, "none of 2 relays works") {
		t.Errorf("before they run: %d %s", code, text)
	}
	begin(t, north)
	code, text := answer(t, h, "/readyz?verbose", "")
	if code != http.StatusOK || !strings.Contains(text, "[!] outbox: south: the table has not been read yet\n") || strings.Contains(text, "north") {
		t.Errorf("while one runs: %d %s", code, text)
	}
	begin(t, south)
	if code, text := answer(t, h, "/readyz?verbose", ""); code != http.StatusOK || text != "[+] started: ok\n[+] outbox: ok\n" {
		t.Errorf("while both run: %d %s", code, text)
	}
	if _, text := answer(t, h, "/metrics", ""); !strings.Contains(text, `notifyd_database_up{outbox="north"} 1`) || !strings.Contains(text, `notifyd_database_up{outbox="south"} 1`) {
		t.Errorf("%s", text)
	}
}

// TestHandlerMistakes: a mistake is an error of New, with its cure; so is a console that would admit everyone.
func TestHandlerMistakes(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t, testdb.Tables{})
	one, other := newRelay(t, url, notifyd.Config{Outbox: "north"}), newRelay(t, url, notifyd.Config{Outbox: "north"})
	secret := handlers.NewSecret(token)
	for want, c := range map[string]struct {
		cfg    admin.Config
		relays []*notifyd.Relay
	}{
		"no relay: give at least one": {},
		`the outbox "north" of several relays: give each relay a Config.Outbox of its own`: {relays: []*notifyd.Relay{one, other}},
		"Prefix: must be a path":                       {admin.Config{Prefix: "ops/"}, []*notifyd.Relay{one}},
		"Token: is shorter than 16 characters":         {admin.Config{Token: handlers.NewSecret("tiny")}, []*notifyd.Relay{one}},
		"without a Token it would admit every":         {admin.Config{Console: &admin.Console{}}, []*notifyd.Relay{one}},
		"ReadOnlyToken: is the Token":                  {admin.Config{Token: secret, Console: &admin.Console{ReadOnlyToken: secret}}, []*notifyd.Relay{one}},
		"ReadOnlyToken: is shorter than 16 characters": {admin.Config{Token: secret, Console: &admin.Console{ReadOnlyToken: handlers.NewSecret("tiny")}}, []*notifyd.Relay{one}},
		"ActorHeader: needs TrustedProxies":            {admin.Config{Token: secret, Console: &admin.Console{ActorHeader: "X-User"}}, []*notifyd.Relay{one}},
		"ActorHeader: Cookie holds a secret":           {admin.Config{Token: secret, Console: &admin.Console{ActorHeader: "Cookie"}}, []*notifyd.Relay{one}},
	} {
		h, err := admin.New(c.cfg, c.relays...)
		if h != nil || err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), token) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestProgram: a program answers while its relay runs, and stops with it.
func TestProgram(t *testing.T) {
	t.Parallel()
	relay := newRelay(t, testdb.URL(t, testdb.Tables{}), notifyd.Config{})
	server := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), ReadHeaderTimeout: patience}
	if err := serve(server, relay, token); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, relay, server) }()
	testenv.Await(t, "ready", func() bool {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Addr+"/ops/readyz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			return false
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	})
	stop()
	if err := testenv.Receive(t, patience, "the program does not stop", ended); err != nil {
		t.Error(err)
	}
}

// TestShutdown: a server stops although a browser has a page with live figures open.
func TestShutdown(t *testing.T) {
	t.Parallel()
	relay := newRelay(t, testdb.URL(t, testdb.Tables{}), notifyd.Config{})
	begin(t, relay)
	h, err := admin.New(admin.Config{Token: handlers.NewSecret(token), Console: &admin.Console{}}, relay)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h)
	server.Config.RegisterOnShutdown(h.Close)
	server.Start()
	defer server.Close()
	stream := openStream(t, server)
	defer func() { _ = stream.Body.Close() }()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := server.Config.Shutdown(ctx); err != nil {
		t.Errorf("the server did not stop: %v", err)
	}
}

// openStream logs in, and opens the figures of the overview.
func openStream(t *testing.T, server *httptest.Server) *http.Response {
	t.Helper()
	send := func(method, path, body string, cookie *http.Cookie) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if cookie != nil {
			r.AddCookie(cookie)
		}
		response, err := server.Client().Transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	login := send(http.MethodPost, "/console/login", "token="+token, nil)
	_ = login.Body.Close()
	if len(login.Cookies()) != 1 {
		t.Fatalf("login: %s", login.Status)
	}
	stream := send(http.MethodGet, "/console/live/overview", "", login.Cookies()[0])
	if stream.StatusCode != http.StatusOK || stream.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("stream: %s", stream.Status)
	}
	return stream
}

// TestForeignHost: without a token, a web page whose name leads to this machine gets nothing.
func TestForeignHost(t *testing.T) {
	t.Parallel()
	h, err := admin.New(admin.Config{}, newRelay(t, testdb.URL(t, testdb.Tables{}), notifyd.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ask := func(ip net.IP, host string) int {
		r := httptest.NewRequest(http.MethodGet, "/version", http.NoBody)
		r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: ip}))
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	loopback, public := net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 7)
	if code := ask(loopback, "evil.example"); code != http.StatusMisdirectedRequest {
		t.Errorf("a foreign name: %d", code)
	}
	if code := errors.Join(okay(ask(loopback, "localhost:8080")), okay(ask(loopback, "127.0.0.1")), okay(ask(public, "shop.svc"))); code != nil {
		t.Error(code)
	}
}

func okay(code int) error {
	if code != http.StatusOK {
		return errors.New(http.StatusText(code))
	}
	return nil
}

// TestLinked: a program gets what it uses: no profiles and no commands with the endpoints, and no endpoints with the relay.
func TestLinked(t *testing.T) {
	t.Parallel()
	links := func(pkg string) []string {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	const module = "github.com/notifyd/notifyd"
	for pkg, without := range map[string][]string{
		module:                    {module + "/observe/admin", module + "/internal/admin", module + "/internal/console", "github.com/prometheus/client_golang/prometheus", "net/http"},
		module + "/observe/admin": {"net/http/pprof", module + "/cmd/internal/config", "github.com/spf13/cobra"},
	} {
		all := links(pkg)
		for _, other := range without {
			if slices.Contains(all, other) {
				t.Errorf("%s links %s", pkg, other)
			}
		}
	}
}
