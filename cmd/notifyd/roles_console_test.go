package main

import (
	"bufio"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	neturl "net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/textview"
)

const operatorToken, viewerToken = "0123456789abcdef", "fedcba9876543210"

// guardedConfig has a console with a token for operators and one for viewers.
func guardedConfig(url string) string {
	return fmt.Sprintf(`version: 1
database: {url: %q}
log: {format: json}
admin: {listen: '127.0.0.1:0', console: true, token: %s, read_only_token: %s, pprof: true}
destinations: {audit: {type: log}}
routes: [{match: '*', to: audit}]
`, url, operatorToken, viewerToken)
}

// login opens a session of the console.
func (v visitor) login(token string) {
	v.Helper()
	if code, page := v.post("/console/login", neturl.Values{"token": {token}}); code != http.StatusOK {
		v.Fatalf("login: %d\n%s", code, page)
	}
}

// crawl loads the pages that these lead to, and returns them by path.
func (v visitor) crawl(paths ...string) (pages map[string]string) {
	v.Helper()
	link := regexp.MustCompile(`href="(/console/[^"#]*)"`)
	pages = make(map[string]string)
	for len(paths) > 0 && len(pages) < 200 {
		path := paths[0]
		paths = paths[1:]
		if _, known := pages[path]; known || strings.Contains(path, "/static/") {
			continue
		}
		_, pages[path] = v.get(path)
		for _, to := range link.FindAllStringSubmatch(pages[path], -1) {
			paths = append(paths, html.UnescapeString(to[1]))
		}
	}
	return pages
}

// TestOperator: an operator reads, replays, discards and edits events, gives some up, pauses a destination and moves its position, by the
// console or by a command. Each act has an entry in outbox_audit, with the name of the operator.
func TestOperator(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }))
	t.Cleanup(server.Close)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			r := startReloadable(t, nil, strings.NewReplacer("pprof: true", "actor_header: X-User, trusted_proxies: [127.0.0.1]",
				"{audit: {type: log}}", "{audit: {type: log}, hook: {type: webhook, url: '"+server.URL+"', backoff: {initial: 1h, max: 1h}}}",
				"to: audit", "to: [audit, hook]").Replace(guardedConfig(url)))
			v := visit(t, r)
			v.login(operatorToken)
			first := publishTo(t, url, "order.placed", order)
			second := publishTo(t, url, "order.placed", order)
			until(t, url, `SELECT count(*) = 2 FROM outbox_deliveries WHERE destination = 'hook' AND state = 'retry'`)
			v.awaits("/console/events/"+first, "ann@example.com")

			entries := func() int { return query[int](t, url, `SELECT count(*)::int FROM outbox_audit`) }
			audited := func(before int, action, actor string) {
				t.Helper()
				until(t, url, `SELECT count(*) > $1 FROM outbox_audit`, before)
				if got := query[string](t, url, `SELECT action || ' ' || actor FROM outbox_audit ORDER BY id OFFSET $1 LIMIT 1`, before); got != action+" "+actor {
					t.Errorf("the entry is %q, want %s %s", got, action, actor)
				}
			}
			for _, act := range []struct{ path, form, action string }{
				{"events/retry", "destination=hook&event=" + first, "retry"},
				{"events/bury", "destination=hook&event=" + first + "&reason=enough", "bury"},
				{"events/edit", "payload=7&event=" + first, "edit"},
				{"dead/replay", "destination=hook&event=" + first, "replay"},
				{"events/bury", "destination=hook&event=" + first, "bury"},
				{"dead/discard", "sure=yes&destination=hook&event=" + first, "discard"},
				{"destinations/pause", "destination=audit", "pause"},
				{"destinations/resume", "destination=audit", "resume"},
				{"position/seek", "name=audit&to=beginning&sure=yes", "seek"},
			} {
				if act.action == "seek" && mode == "queue" {
					continue
				}
				if act.action == "bury" { // it is not being delivered at this moment
					until(t, url, `SELECT state = 'retry' FROM outbox_deliveries WHERE destination = 'hook' AND event_id = $1::text::bigint`, first)
				}
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, v.base+"/console/"+act.path, strings.NewReader(act.form))
				if err != nil {
					t.Fatal(err)
				}
				before := entries()
				request.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "X-User": {"ann"}}
				if code, page := v.do(request); code != http.StatusOK {
					t.Errorf("%s: %d\n%s", act.path, code, page)
				}
				audited(before, act.action, "ann")
			}
			for _, args := range []string{"dlq bury " + second + " --destination hook", "dlq edit " + second + " 8", "dlq replay " + second, "pause hook", "resume hook", "positions seek hook now --yes"} {
				words := strings.Fields(args)
				action := words[0]
				if words[1] != "hook" {
					action = words[1]
				}
				if action == "seek" && mode == "queue" {
					continue
				}
				before := entries()
				if got := invoke(t, append(words, "-c", r.path, "--actor", "bob")...); got.code != command.ExitOK {
					t.Errorf("%s: %+v", args, got)
				}
				audited(before, action, "bob")
			}
		})
	}
}

// TestBrowsers: a page of another site, in the browser of someone who is logged in or of a machine with an open console, sends no form and
// reads nothing by a name that leads here, and no link leads to another site.
func TestBrowsers(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]bool{"with a token": true, "without a token": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := buried(t, 1)
			config := guardedConfig(url)
			if !guarded {
				config = strings.Replace(config, ", token: "+operatorToken+", read_only_token: "+viewerToken, "", 1)
			}
			r := startReloadable(t, nil, config)
			v := visit(t, r)
			if guarded {
				v.login(operatorToken)
			}
			v.awaits("/console/", "audit")
			send := func(method, path, form string, headers ...string) (int, string) {
				t.Helper()
				request, err := http.NewRequestWithContext(t.Context(), method, v.base+path, strings.NewReader(form))
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				for i := 0; i < len(headers); i += 2 {
					request.Header.Set(headers[i], headers[i+1])
				}
				request.Host = request.Header.Get("Host")
				request.Header.Del("Host")
				return v.do(request)
			}

			before := query[string](t, url, `SELECT string_agg(d::text, ' ') FROM outbox_deliveries AS d`)
			form := "destination=mail&event=1&sure=yes&payload=1&name=audit&to=now&from=1&id=1&all=yes&n=1&token=" + operatorToken
			for _, from := range [][]string{
				{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"},
				{"Sec-Fetch-Site", "cross-site", "Origin", "null"},
				{"Sec-Fetch-Site", "cross-site"},
				{"Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:1"},
				{"Sec-Fetch-Site", "nonsense", "Origin", v.base},
				{"Origin", "https://evil.example"},
				{"Origin", "null"},
				{"Origin", v.base + ".evil.example"},
			} {
				for _, path := range []string{
					"destinations/pause", "destinations/resume", "position/seek", "position/replay", "position/stop", "events/edit", "events/retry", "events/bury",
					"dead/confirm", "dead/replay", "dead/replays/stop", "dead/discard", "login", "logout",
				} {
					if code, page := send(http.MethodPost, "/console/"+path, form, from...); code != http.StatusForbidden {
						t.Errorf("%v: %s: %d\n%s", from, path, code, page)
					}
				}
			}
			for _, path := range []string{"destinations/pause?destination=audit", "dead/discard?all=yes&sure=yes", "logout"} {
				_, _ = send(http.MethodGet, "/console/"+path, "", "Sec-Fetch-Site", "cross-site")
			}
			if after := query[string](t, url, `SELECT string_agg(d::text, ' ') FROM outbox_deliveries AS d`); after != before {
				t.Errorf("a form of another site has changed\n%s\nto\n%s", before, after)
			}
			if n := query[int](t, url, `SELECT count(*)::int FROM outbox_pauses`); n > 0 {
				t.Error("a form of another site has paused a destination")
			}

			for _, host := range []string{"evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example"} {
				for _, path := range []string{"/console/", "/console/events/1", "/console/live/overview", "/metrics", "/version", "/debug/pprof/heap", "/"} {
					code, page := send(http.MethodGet, path, "", "Host", host) // the browser keeps the cookie of another name
					isRefused := code == http.StatusForbidden || code == http.StatusMisdirectedRequest || code == http.StatusUnauthorized || strings.Contains(page, `name="token"`)
					if !isRefused || strings.Contains(page, "audit") {
						t.Errorf("%s of %s: %d\n%s", path, host, code, page)
					}
				}
			}
			if guarded {
				elsewhere(t, v)
			}
			if code, page := v.post("/console/destinations/pause", neturl.Values{"destination": {"audit"}}); code != http.StatusOK || !strings.Contains(page, "The pause is stored") {
				t.Errorf("a form of the console: %d\n%s", code, page)
			}
		})
	}
}

// elsewhere fails the test if the login leads to another site, or the login page to one.
func elsewhere(t *testing.T, v visitor) {
	t.Helper()
	stays := *v.client
	stays.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, next := range []string{"https://evil.example/", "//evil.example/", `/\evil.example`, `/console/\evil`, "/metrics", "/console/../../metrics", "/console/%2e%2e/metrics", "javascript:alert(1)", "/console/\r\nX: y"} {
		form := neturl.Values{"token": {operatorToken}, "next": {next}}
		for _, path := range []string{"/console/login?next=" + neturl.QueryEscape(next), "/console/login"} {
			method, body := http.MethodGet, ""
			if path == "/console/login" {
				method, body = http.MethodPost, form.Encode()
			}
			request, err := http.NewRequestWithContext(t.Context(), method, v.base+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			answer := testenv.Ask(t, &stays, request)
			if to := answer.Header.Get("Location"); to != "/console/" || answer.Code != http.StatusSeeOther {
				t.Errorf("%s %s leads to %q: %d", method, next, to, answer.Code)
			}
		}
	}
}

// TestFiguresAreDrawnOnce: all streams of viewers get their pages from one drawing per change, whatever they add to their requests. The
// profile of the daemon counts the drawings.
func TestFiguresAreDrawnOnce(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := file(t, guardedConfig(database(t)))
	p := startProgram(t, strings.NewReader(""), "env", "GODEBUG=memprofilerate=512", self, "run", "-c", path)
	r := &reloadable{runningDaemon: &p.runningDaemon}
	operator := visit(t, r)
	before := drawings(t, operator)

	const logins, each, updates = 4, 16, 5
	begun := time.Now()
	var reading sync.WaitGroup
	for login := range logins {
		v := visit(t, r)
		v.login(viewerToken)
		if code, page := v.get("/console/live/destination?name=" + strconv.Itoa(login)); code != http.StatusNotFound {
			t.Errorf("a stream of no destination: %d\n%s", code, page)
		}
		for n := range each {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s/console/live/overview?name=%d&id=%d&x=%d", v.base, n, login, n), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := v.client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = response.Body.Close() })
			if response.StatusCode != http.StatusOK {
				t.Fatalf("stream %d of login %d: %s", n, login, response.Status)
			}
			reading.Go(func() {
				lines, seen := bufio.NewScanner(response.Body), 0
				lines.Buffer(nil, 1<<20)
				for seen < updates && lines.Scan() {
					if lines.Text() == "event: page" {
						seen++
					}
				}
				if seen < updates {
					t.Errorf("a stream ended after %d updates: %v", seen, lines.Err())
				}
			})
		}
	}
	reading.Wait()
	drawn := drawings(t, operator) - before
	changes := int(time.Since(begun)/time.Second) + 2 // there is one each second
	t.Logf("%d drawings for %d updates within %d changes", drawn, logins*each*updates, changes)
	if drawn < 1 || drawn > changes {
		t.Errorf("%d drawings within %d changes", drawn, changes)
	}
}

// drawings returns how often a daemon has drawn the figures of a page for a stream.
func drawings(t *testing.T, v visitor) (n int) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.base+"/debug/pprof/heap?debug=1&gc=1", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+operatorToken)
	code, text := v.do(request)
	if code != http.StatusOK {
		t.Fatalf("the profile: %d\n%s", code, text)
	}
	// A record has the number of allocations, their bytes and the stack. A drawing makes one of the largest that its text grows to.
	record := regexp.MustCompile(`(?m)^\d+: \d+ \[(\d+): (\d+)\] @[^\n]*\n((?:#[^\n]*\n)+)`)
	for _, found := range record.FindAllStringSubmatch(text, -1) {
		count, _ := strconv.Atoi(found[1])
		size, _ := strconv.Atoi(found[2])
		isDrawing := strings.Contains(found[3], "console.(*Console).draw+") && strings.Contains(found[3], "console.(*outbox).live+")
		if isDrawing && size >= 4096*count {
			n = max(n, count)
		}
	}
	return n
}

// TestViewersLeaveRoom: however many pages viewers ask for that the database does not answer, operators see theirs.
func TestViewersLeaveRoom(t *testing.T) {
	t.Parallel()
	url := buried(t, 1)
	r := startReloadable(t, nil, guardedConfig(url))
	operator, viewer := visit(t, r), visit(t, r)
	operator.client.Transport = &http.Transport{DisableKeepAlives: true} // it would repeat a request that has no answer
	operator.login(operatorToken)
	viewer.login(viewerToken)
	operator.awaits("/console/", "audit")

	holder := testdb.Connect(t, url)
	testdb.Exec(t, holder, `BEGIN; LOCK TABLE outbox_audit IN ACCESS EXCLUSIVE MODE`)
	var asking sync.WaitGroup
	const requests = 40
	asked := make(chan struct{}, requests)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { asked <- struct{}{} }})
	for range requests {
		asking.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, viewer.base+"/console/events/1", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			if response, err := viewer.client.Do(request); err == nil { // the server may give up
				_ = response.Body.Close()
			}
		})
	}
	for range requests {
		testenv.Receive(t, patience, "a request of a viewer", asked)
	}
	until(t, url, `SELECT count(*) >= 2 FROM pg_stat_activity WHERE application_name = 'notifyd/console' AND wait_event_type = 'Lock' AND datname = current_database()`)
	for range 5 {
		if code, page := operator.get("/console/dead"); code != http.StatusOK || !strings.Contains(page, "order.placed") {
			t.Errorf("a page of an operator: %d\n%s", code, page)
		}
	}
	testdb.Exec(t, holder, `ROLLBACK`)
	asking.Wait()
	if code, _ := viewer.get("/console/events/1"); code != http.StatusOK {
		t.Errorf("a page of a viewer, afterwards: %d", code)
	}
}

// TestTextsOfRoles: no text of a writer, a destination or the role of the relay is markup of a page, or controls a page or a terminal.
func TestTextsOfRoles(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const evil = "\"><script>alert(1)</script><img src=x>\u009b31m\u0085\u202e\u2066\x1b[2Jx"
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, evil, http.StatusUnprocessableEntity) }))
	t.Cleanup(receiver.Close)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			config := "admin: {listen: '127.0.0.1:0', console: true}\ndestinations: {audit: {type: log}, hook: {type: webhook, url: '" + receiver.URL + "'}}\nroutes: [{match: '*', to: [audit, hook]}]\n"
			s := startRoles(t, config, "--mode", mode)
			as := func(statement string) string {
				return regexp.MustCompile(`EVIL\d?`).ReplaceAllLiteralString(statement, "'"+evil+"'")
			}
			execute(t, s.asWriter, as(`INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id, headers, idempotency_key)
				VALUES (EVIL, json_build_object(EVIL, EVIL1), EVIL, EVIL1, jsonb_build_object(EVIL, EVIL1), EVIL)`))
			until(t, s.asOwner, `SELECT count(*) = 1 FROM outbox_deliveries WHERE destination = 'hook' AND state = 'dead'`)
			for _, statement := range []string{
				`UPDATE outbox_relays SET host = EVIL, version = EVIL, config = EVIL, refused = EVIL, paused = ARRAY[EVIL]`,
				`INSERT INTO outbox_audit (event_id, action, actor, destination, details) VALUES (1, EVIL, EVIL1, EVIL2, jsonb_build_object(EVIL, EVIL1))`,
				`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, error_class, last_error) VALUES (1, EVIL, EVIL1, 'dead', 1, 'event', EVIL)`,
				`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, error_class, last_error, ordering_key, available_at)
					VALUES (1, 'away', EVIL, 'retry', 1, 'event', EVIL, EVIL1, now() + interval '1 day')`,
				`INSERT INTO outbox_pauses (destination, paused_by, reason) VALUES (EVIL, EVIL1, EVIL2), ('audit', EVIL, EVIL1)`,
				`INSERT INTO outbox_positions (destination, head, last_error, failed_at) VALUES (EVIL, 0, EVIL, now())`,
				`INSERT INTO outbox_routes (destination, since, patterns, others, head) VALUES (EVIL, 1, ARRAY[EVIL], ARRAY[EVIL1], 0)`,
			} {
				execute(t, s.asRelay, as(statement))
			}
			v := visit(t, s.reloadable)
			v.awaits("/console/", "was paused")
			outputs := v.crawl("/console/", "/console/events/1", "/console/events?aggregate_type="+neturl.QueryEscape(evil), "/console/events?type="+neturl.QueryEscape(evil))
			if len(outputs) < 10 {
				t.Errorf("%d pages", len(outputs))
			}
			outputs["/console/live/overview"] = firstUpdate(t, v, "overview")
			outputs["/console/live/destinations"] = firstUpdate(t, v, "destinations")
			for path, page := range outputs {
				if strings.Contains(page, "<script>alert") || strings.Contains(page, "<img src") || strings.Contains(page, "ZgotmplZ") {
					t.Errorf("%s shows text as markup:\n%s", path, page)
				}
				// What forms send back is in attributes.
				outputs[path] = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, "")
			}
			for _, args := range []string{
				"status", "status -o json", "doctor", "doctor -o json", "events list", "events list -o json", "events show 1 --payload", "events show 1 --payload -o json",
				"dlq list", "dlq list -o json", "dlq list --group", "dlq show 1", "dlq show 1 -o json", "positions list", "positions list -o json", "plan", "reload", "migrate status",
			} {
				got := invoke(t, append(strings.Fields(args), "-c", s.path)...)
				outputs[args] = got.stdout + got.stderr
			}
			s.end(t)
			outputs["the log"], outputs["the destination log"] = s.stderr.text(), s.stdout.text()
			for name, output := range outputs {
				for _, c := range output {
					if textview.Controls(c) && c != '\n' && c != '\t' {
						t.Errorf("%s has %U: %q", name, c, output)
						break
					}
				}
			}
		})
	}
}

// firstUpdate returns what a stream of the console sends first.
func firstUpdate(t *testing.T, v visitor, page string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.base+"/console/live/"+page, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := v.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it does not end by itself
	var text strings.Builder
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && lines.Text() != "" {
		text.WriteString(lines.Text() + "\n")
	}
	return text.String()
}
