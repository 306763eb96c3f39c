package main

import (
	"bufio"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// behind returns a visitor of a reverse proxy that serves v below a prefix. The proxy cuts the prefix off, or not.
func (v visitor) behind(prefix string, cuts bool) visitor {
	v.Helper()
	target, err := url.Parse(v.base)
	if err != nil {
		v.Fatal(err)
	}
	var proxy http.Handler = &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}}
	if cuts {
		proxy = http.StripPrefix(prefix, proxy)
	}
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", proxy)
	server := httptest.NewServer(mux)
	v.Cleanup(server.Close)

	return visitor{v.T, v.newClient(server.Client().Transport), server.URL}
}

// links are the attributes of a page that lead elsewhere.
var links = regexp.MustCompile(`\b(href|src|action|data-live)="([^"]*)"`)

// follow follows all links from a page of the console, also to streams, and returns the paths that it has seen. Each must be
// below the prefix, and answer.
func (v visitor) follow(prefix, from string) (seen map[string]bool) {
	v.Helper()
	seen = map[string]bool{from: true}
	for todo := []string{from}; len(todo) > 0; todo = todo[1:] {
		path := todo[0]
		code, page := v.get(path)
		if code != http.StatusOK {
			v.Errorf("%s: %d\n%s", path, code, page)
		}
		for _, m := range links.FindAllStringSubmatch(page, -1) {
			kind, to := m[1], html.UnescapeString(m[2])
			to, _, _ = strings.Cut(to, "#")
			if to == "" || seen[to] {
				continue
			}
			seen[to] = true
			switch {
			case !strings.HasPrefix(to, prefix+"/console/"):
				v.Errorf("%s leads to %s", path, to)
			case kind == "data-live":
				v.stream(to)
			case kind != "action":
				todo = append(todo, to)
			}
		}
	}
	return seen
}

// stream reads the first line of a stream of figures.
func (v visitor) stream(path string) {
	v.Helper()
	request, err := http.NewRequestWithContext(v.Context(), http.MethodGet, v.base+path, http.NoBody)
	if err != nil {
		v.Fatal(err)
	}
	response, err := v.client.Do(request)
	if err != nil {
		v.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if line, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || line != "event: page\n" {
		v.Errorf("the stream %s begins with %q: %d, %v", path, line, response.StatusCode, err)
	}
}

// walk logs in to a console below a prefix, follows all links, acts, and logs out.
func (v visitor) walk(prefix, token string) {
	v.Helper()
	if code, page := v.get(prefix + "/livez"); code != http.StatusOK || page != "ok\n" {
		v.Errorf("/livez: %d %s", code, page)
	}
	if code, page := v.get(prefix + "/"); code != http.StatusOK || !strings.Contains(page, `action="`+prefix+`/console/login"`) {
		v.Fatalf("without a login: %d\n%s", code, page)
	}
	form := url.Values{"token": {token}, "next": {prefix + "/console/dead"}}
	if code, page := v.post(prefix+"/console/login", form); code != http.StatusOK || !strings.Contains(page, "<h1>Dead letters</h1>") {
		v.Fatalf("with the token: %d\n%s", code, page)
	}
	at, err := url.Parse(v.base + prefix + "/console/")
	if err != nil {
		v.Fatal(err)
	}
	outside := at.JoinPath("../..")
	if len(v.client.Jar.Cookies(at)) != 1 || len(v.client.Jar.Cookies(outside)) != 0 {
		v.Errorf("cookies %v, and outside %v", v.client.Jar.Cookies(at), v.client.Jar.Cookies(outside))
	}

	v.awaits(prefix+"/console/", "audit")
	seen := v.follow(prefix, prefix+"/console/")
	for _, want := range []string{
		"static/style.css", "static/console.js", "static/icon.svg", "live/overview", "destinations", "destination?name=audit", "events", "events/1", "dead",
		"relays", "logout",
	} {
		if !seen[prefix+"/console/"+want] {
			v.Errorf("%s is linked nowhere", want)
		}
	}

	for _, act := range []struct{ action, says string }{{"pause", "The pause is stored."}, {"resume", "Resumed."}} {
		code, page := v.post(prefix+"/console/destinations/"+act.action, url.Values{"destination": {"audit"}})
		if code != http.StatusOK || !strings.Contains(page, act.says) {
			v.Errorf("%s: %d\n%s", act.action, code, page)
		}
	}
	if code, page := v.post(prefix+"/console/logout", nil); code != http.StatusOK || !strings.Contains(page, `name="token"`) {
		v.Errorf("log out: %d\n%s", code, page)
	}
}

// TestConsoleBehindProxy: the console of a daemon works behind a reverse proxy that serves it below a prefix.
func TestConsoleBehindProxy(t *testing.T) {
	t.Parallel()
	const token = "5c1f0e2b-not-to-be-seen-77aa"
	database := buried(t, 1)
	execute(t, database, `UPDATE outbox_deliveries SET destination = 'audit'`)
	r := startReloadable(t, nil, fmt.Sprintf(`version: 1
database: {url: '%s'}
admin: {listen: '127.0.0.1:0', prefix: /team/ops, token: %s, console: true}
destinations: {audit: {type: log, payload: false}}
routes: [{match: '*', to: audit}]
`, database, token))
	direct := visit(t, r)
	untilReady(t, direct.base+"/readyz") // a probe needs no prefix
	if !strings.Contains(r.stderr.text(), `"console":"`+direct.base+`/team/ops/console/"`) {
		t.Errorf("the address of the console is not said:\n%s", r.stderr.text())
	}
	for _, cuts := range []bool{true, false} {
		direct.behind("/team/ops", cuts).walk("/team/ops", token)
	}
	if code := r.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, r.stderr.text())
	}
}
