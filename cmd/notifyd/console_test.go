package main

import (
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/daemon"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// visitor is a browser without JavaScript.
type visitor struct {
	*testing.T

	client *http.Client
	base   string
}

// visit opens the console of a relay that has started, as a browser would.
func visit(t *testing.T, r *reloadable) visitor {
	t.Helper()
	r.stderr.await(t, `"relay started"`)
	address := regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(r.stderr.text())
	if address == nil {
		t.Fatalf("the address is not said:\n%s", r.stderr.text())
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	v := visitor{T: t, base: "http://" + address[1]}
	v.client = v.newClient(transport)
	return v
}

// newClient returns a client that keeps cookies.
func (v visitor) newClient(transport http.RoundTripper) *http.Client {
	v.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		v.Fatal(err)
	}
	return &http.Client{Jar: jar, Transport: transport}
}

func (v visitor) get(path string) (code int, text string) {
	v.Helper()
	request, err := http.NewRequestWithContext(v.Context(), http.MethodGet, v.base+path, http.NoBody)
	if err != nil {
		v.Fatal(err)
	}
	return v.do(request)
}

func (v visitor) post(path string, form url.Values) (code int, text string) {
	v.Helper()
	request, err := http.NewRequestWithContext(v.Context(), http.MethodPost, v.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		v.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Origin", v.base)
	return v.do(request)
}

func (v visitor) do(request *http.Request) (code int, text string) {
	v.Helper()
	a := testenv.Ask(v, v.client, request)
	return a.Code, a.Body
}

// awaits loads a page until it says something.
func (v visitor) awaits(path, want string) (text string) {
	v.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if _, text = v.get(path); strings.Contains(text, want) {
			return text
		}
	}
	v.Fatalf("%s never says %q:\n%s", path, want, text)
	return ""
}

// TestConsole logs in at a daemon, pauses a destination, and reloads: the console
// goes on with the relay that took over, and pauses last.
func TestConsole(t *testing.T) {
	t.Parallel()
	const token = "5c1f0e2b-not-to-be-seen-77aa"
	text := fmt.Sprintf(`version: 1
database: {url: '%s'}
admin: {listen: '127.0.0.1:0', token: %s, console: true}
destinations: {audit: {type: log, payload: false}}
routes: [{match: '*', to: audit}]
`, database(t), token)
	r := startReloadable(t, nil, text)
	v := visit(t, r)

	if code, page := v.get("/"); code != http.StatusOK || !strings.Contains(page, `name="token"`) || strings.Contains(page, "audit") {
		t.Errorf("without a login: %d\n%s", code, page)
	}
	if code, page := v.post("/console/login", url.Values{"token": {token + "0"}}); code != http.StatusUnauthorized || !strings.Contains(page, "That is not the token.") {
		t.Errorf("with a wrong token: %d\n%s", code, page)
	}
	if code, _ := v.get("/metrics"); code != http.StatusUnauthorized {
		t.Errorf("/metrics without the token: %d", code)
	}
	if code, page := v.post("/console/login", url.Values{"token": {token}}); code != http.StatusOK {
		t.Fatalf("with the token: %d\n%s", code, page)
	}
	v.awaits("/console/", "audit")
	v.awaits("/console/destinations", "/console/destinations/pause")
	if code, page := v.post("/console/destinations/pause", url.Values{"destination": {"audit"}}); code != http.StatusOK {
		t.Fatalf("pause: %d\n%s", code, page)
	}
	r.write(t, strings.Replace(text, "\nroutes", "\nretention: {keep: 0}\nroutes", 1))
	r.reloads <- struct{}{}
	r.stderr.await(t, saidReloaded)
	v.awaits("/console/", "The destination audit was paused ")
	// With all that it has paused, the relay has nothing to begin with before this.
	if code, page := v.post("/console/destinations/resume", url.Values{"destination": {"audit"}}); code != http.StatusOK {
		t.Fatalf("resume: %d\n%s", code, page)
	}
	r.stderr.await(t, saidDelivers)
	if code := r.end(t); code != command.ExitOK {
		t.Errorf("exit code %d:\n%s", code, r.stderr.text())
	}
	if strings.Contains(r.stderr.text(), "not-to-be-seen") {
		t.Error("the token is shown")
	}
}

// TestConsoleFollows reloads a daemon with another database, and with another
// retention: the console shows that database, discards as is said there, and leaves
// no connection behind at the one before. So does a reload that changes nothing of it.
func TestConsoleFollows(t *testing.T) {
	t.Parallel()
	first, second := buried(t, 1), buried(t, 2)
	execute(t, first, `UPDATE outbox_events SET event_type = 'of.first'; UPDATE outbox_deliveries SET destination = 'audit'`)
	execute(t, second, `UPDATE outbox_events SET event_type = 'of.second'; UPDATE outbox_deliveries SET destination = 'audit'`)
	p := startPausable(t, first)
	shows := func(want, other string) {
		t.Helper()
		if page := p.awaits("/console/events", want); strings.Contains(page, other) {
			t.Errorf("%s is shown as well:\n%s", other, page)
		}
	}
	shows("of.first", "of.second")
	if n := query[int](t, first, `SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'notifyd/console' AND datname = current_database()`); n < 1 || n > daemon.ConsoleConns {
		t.Errorf("%d connections of the console", n)
	}

	p.reloads <- struct{}{}
	p.stderr.awaitN(t, saidDelivers, 1)
	shows("of.first", "of.second")

	p.write(t, strings.Replace(fmt.Sprintf(pausableConfig, second, "127.0.0.1:0"), "\nroutes", "\nretention: {keep: 0}\nroutes", 1))
	p.reloads <- struct{}{}
	p.stderr.awaitN(t, saidDelivers, 2)
	shows("of.second", "of.first")
	until(t, first, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'notifyd/%' AND datname = current_database())`)
	if strings.Contains(p.stderr.text(), "need a restart") || strings.Contains(p.stderr.text(), "restart notifyd") {
		t.Errorf("a restart is asked for:\n%s", p.stderr.text())
	}
	form := url.Values{"destination": {"audit"}, "event": {"1"}, "sure": {"yes"}}
	if code, page := p.post("/console/dead/discard", form); code != http.StatusOK {
		t.Errorf("discard: %d\n%s", code, page)
	}
	if left := query[string](t, second, `SELECT string_agg(id::text, ' ') FROM outbox_events`); left != "2" {
		t.Errorf("events %s are left of the second database", left)
	}
	if left := query[string](t, first, `SELECT string_agg(id::text, ' ') FROM outbox_events`); left != "1" {
		t.Errorf("events %s are left of the first database", left)
	}
	if code := p.end(t); code != command.ExitOK {
		t.Errorf("exit code %d:\n%s", code, p.stderr.text())
	}
}

// TestConsoleOfOutboxes: the console of a daemon with many outboxes has pages for each, follows the query and a reload, and an
// outbox that is down says so.
func TestConsoleOfOutboxes(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := startTenants(t)
	// With the console, from the start: a reload does not start one.
	s.end(t)
	withConsole := strings.Replace(s.config("ledger"), "admin: {", "admin: {console: true, ", 1)
	s.reloadable = startReloadable(t, nil, withConsole)
	s.up(t, "north", "south", "east")
	v := visit(t, s.reloadable)
	list := v.awaits("/console/", `/console/outbox/east/`)
	last := -1
	for _, name := range []string{"away", "bare", "east", "north", "south"} {
		at := strings.Index(list, `<a href="/console/outbox/`+name+`/">`)
		if at <= last {
			t.Errorf("%s is not in its place:\n%s", name, list)
		}
		last = at
	}
	v.awaits("/console/outbox/north/", `/console/outbox/north/destination?name=audit`)
	if page := v.awaits("/console/outbox/south/destinations", ">ledger</a>"); !strings.Contains(page, "<option selected>south</option>") {
		t.Errorf("the switcher:\n%s", page)
	}
	v.awaits("/console/outbox/bare/", "The tables are missing or of an older version: run notifyd migrate.")
	v.awaits("/console/outbox/away/", "The database does not answer the relay")
	if code, page := v.get("/console/outbox/away/dead"); code != http.StatusServiceUnavailable || !strings.Contains(page, "The database does not answer.") {
		t.Errorf("of the outbox without a server: %d\n%s", code, page)
	}
	execute(t, s.url, `INSERT INTO south.outbox_events (event_type, payload, state) VALUES ('of.south', '1', 'done');
		INSERT INTO south.outbox_deliveries (event_id, destination, event_type, state) SELECT id, 'ledger', 'of.south', 'dead' FROM south.outbox_events`)
	if page := v.awaits("/console/outbox/south/dead", "of.south"); !strings.Contains(page, `action="/console/outbox/south/dead/confirm"`) {
		t.Errorf("the dead letters:\n%s", page)
	}
	if _, page := v.get("/console/outbox/north/dead"); strings.Contains(page, "of.south") {
		t.Errorf("north has the dead letters of south:\n%s", page)
	}
	if code, page := v.post("/console/outbox/south/dead/discard", url.Values{"all": {"yes"}, "n": {"1"}, "sure": {"yes"}}); code != http.StatusOK || !strings.Contains(page, "Discarded: 1.") {
		t.Errorf("discard: %d\n%s", code, page)
	}
	if code, page := v.post("/console/outbox/south/destinations/pause", url.Values{"destination": {"audit"}}); code != http.StatusOK {
		t.Errorf("pause: %d\n%s", code, page)
	}
	v.awaits("/console/outbox/south/", "The destination audit was paused ")
	if _, page := v.get("/console/outbox/north/"); strings.Contains(page, "was paused") {
		t.Errorf("north is paused, too:\n%s", page)
	}

	execute(t, s.url, `DELETE FROM public.tenants; INSERT INTO public.tenants VALUES ('west', 'west')`)
	v.awaits("/console/", "/console/outbox/west/")
	if code, _ := v.get("/console/outbox/east/"); code != http.StatusNotFound {
		t.Errorf("an outbox that is gone: %d", code)
	}
	v.awaits("/console/outbox/west/", "/console/outbox/west/destination?name=audit")
	s.write(t, strings.Replace(withConsole, "{name: north, schema: north}", "{name: north, schema: east}", 1))
	s.reloads <- struct{}{}
	s.stderr.await(t, saidReloaded)
	execute(t, s.url, `INSERT INTO east.outbox_events (event_type, payload) VALUES ('of.east', '1')`)
	v.awaits("/console/outbox/north/events", "of.east")
	if strings.Contains(s.stderr.text(), "restart notifyd") {
		t.Errorf("a restart is asked for:\n%s", s.stderr.text())
	}
}

// TestConsoleActor: a daemon takes the actor from the header of a trusted proxy, and the second token only shows.
func TestConsoleActor(t *testing.T) {
	t.Parallel()
	url1 := buried(t, 1)
	r := startReloadable(t, nil, fmt.Sprintf(`version: 1
database: {url: '%s'}
admin: {listen: '127.0.0.1:0', console: true, token: 0123456789abcdef, read_only_token: fedcba9876543210, actor_header: X-User, trusted_proxies: [127.0.0.1]}
destinations: {audit: {type: log, payload: false}}
routes: [{match: '*', to: audit}]
`, url1))
	v := visit(t, r)
	if code, page := v.post("/console/login", url.Values{"token": {"fedcba9876543210"}}); code != http.StatusOK || !strings.Contains(page, "read-only") {
		t.Fatalf("login: %d\n%s", code, page)
	}
	if code, page := v.post("/console/destinations/pause", url.Values{"destination": {"audit"}}); code != http.StatusForbidden {
		t.Errorf("the read-only login acts: %d\n%s", code, page)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.base+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer fedcba9876543210")
	if code, _ := v.do(request); code != http.StatusUnauthorized {
		t.Errorf("the read-only token opens the metrics: %d", code)
	}
	if code, page := v.post("/console/login", url.Values{"token": {"0123456789abcdef"}}); code != http.StatusOK || strings.Contains(page, "read-only") {
		t.Fatalf("login: %d\n%s", code, page)
	}
	pause := func(by string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, v.base+"/console/destinations/pause", strings.NewReader("destination=audit"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Origin", v.base)
		if by != "" {
			request.Header.Set("X-User", by)
		}
		code, _ := v.do(request)
		return code
	}
	if code := pause(""); code != http.StatusBadRequest {
		t.Errorf("without a name: %d", code)
	}
	if code := pause("ann@example.com"); code != http.StatusOK {
		t.Errorf("with a name: %d", code)
	}
	if got := query[string](t, url1, `SELECT string_agg(paused_by, ',') || (SELECT actor FROM outbox_audit WHERE action = 'pause') FROM outbox_pauses`); got != "ann@example.comann@example.com" {
		t.Error(got)
	}
}

// TestConsoleMistakes: a console without a login is refused where others reach it.
func TestConsoleMistakes(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"{console: true}":                                                  "admin.console: needs an address: set admin.listen",
		"{console: true, listen: '0.0.0.0:9470'}":                          "admin.console: would admit everybody who reaches admin.listen: set admin.token, or listen on a loopback address",
		"{console: true, listen: ':9470'}":                                 "admin.console: would admit everybody",
		"{console: true, listen: '127.0.0.1:9470'}":                        "",
		"{console: true, listen: '0.0.0.0:9470', token: 0123456789abcdef}": "",

		"{console: true, listen: '127.0.0.1:9470', read_only_token: 0123456789abcdef}":                             "admin.read_only_token: needs admin.token",
		"{console: true, listen: ':9470', token: 0123456789abcdef, read_only_token: 0123456789abcdef}":             "admin.read_only_token: is admin.token, whose logins may act",
		"{console: true, listen: ':9470', token: 0123456789abcdef, read_only_token: short}":                        "admin.read_only_token: is shorter than 16 characters",
		"{listen: ':9470', token: 0123456789abcdef, read_only_token: 0123456789abcdeg}":                            "admin.read_only_token: has no effect without admin.console",
		"{console: true, listen: ':9470', token: 0123456789abcdef, read_only_token: 0123456789abcdeg}":             "",
		"{console: true, listen: '127.0.0.1:9470', actor_header: X-User}":                                          "admin.actor_header: needs admin.trusted_proxies: any client may send the header",
		"{console: true, listen: '127.0.0.1:9470', trusted_proxies: [127.0.0.1]}":                                  "admin.trusted_proxies: has no effect without admin.actor_header",
		"{console: true, listen: '127.0.0.1:9470', actor_header: X_User, trusted_proxies: [127.0.0.1]}":            "admin.actor_header: must be the name of a header",
		"{console: true, listen: '127.0.0.1:9470', actor_header: cookie, trusted_proxies: [127.0.0.1]}":            "admin.actor_header: cookie holds a secret",
		"{listen: '127.0.0.1:9470', actor_header: X-User, trusted_proxies: [127.0.0.1]}":                           "admin.actor_header: has no effect without admin.console",
		"{console: true, listen: '127.0.0.1:9470', actor_header: X-User, trusted_proxies: [127.0.0.1, proxy]}":     "admin.trusted_proxies.1: must be an address or a network",
		"{console: true, listen: '127.0.0.1:9470', actor_header: X-User, trusted_proxies: ['0.0.0.0/0']}":          "admin.trusted_proxies.0: trusts every client",
		"{console: true, listen: '127.0.0.1:9470', actor_header: X-User, trusted_proxies: ['::1', '10.1.0.0/16']}": "",
	} {
		got := invoke(t, "check-config", "-c", file(t, good+"admin: "+settings+"\n"))
		if want == "" && got.code != command.ExitOK || want != "" && (got.code == command.ExitOK || !strings.Contains(got.stderr, want)) {
			t.Errorf("%s: %+v, want %q", settings, got, want)
		}
	}
}
