package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/smtpsink"
	"github.com/notifyd/notifyd/internal/textview"
)

// The tests of this file try what SECURITY.md says that a role can and cannot do.

// TestPlacesOfWriters: a writer chooses the recipient that a template takes from the payload, and reaches no private address by the
// host of a URL.
func TestPlacesOfWriters(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	var asked atomic.Int64
	private := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(private.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(private.URL, "http://"), ":")
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			owner, sink := databaseOf(t, mode), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
			writer, asWriter := login(t, owner, "writer")
			grants := invoke(t, "migrate", "--print-grants", "--writer", writer)
			execute(t, owner, grants.stdout)
			d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf(`version: 1
database: {url: "%s"}
relay: {poll_interval: 50ms}
destinations:
  mail: {type: email, host: 127.0.0.1, port: %d, tls: none, from: shop@example.com, to: "{{ .Payload.email }}", subject: Hello, text: Hello}
  hook: {type: webhook, url: "{{ .Payload.url }}", dynamic_host: true}
routes: [{match: mail, to: mail}, {match: hook, to: hook}]
`, owner, sink.Port())))

			execute(t, asWriter, `INSERT INTO outbox_events (event_type, payload) VALUES ('mail', '{"email": "anyone@example.org"}')`)
			if to := mails(t, sink, 1)[0].To; len(to) != 1 || to[0] != "anyone@example.org" {
				t.Errorf("to %v", to)
			}
			hosts := []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "0.0.0.0", "169.254.169.254", "user@127.0.0.1"}
			for _, host := range hosts {
				execute(t, asWriter, `INSERT INTO outbox_events (event_type, payload) VALUES ('hook', '{"url": "http://`+host+`:`+port+`/"}')`)
			}
			until(t, owner, `SELECT count(*) = $1 FROM outbox_deliveries WHERE destination = 'hook' AND state = 'dead'`, len(hosts))
			if n := asked.Load(); n > 0 {
				t.Errorf("the private server was asked %d times", n)
			}
			if code := d.end(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestRolesOfTheDatabase: a role that may only connect hears the ids of new events and wakes relays. It reads and changes nothing,
// and no notification of it is taken for an event.
func TestRolesOfTheDatabase(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			owner := databaseOf(t, mode)
			if got := invoke(t, "migrate", "--database-url", owner, "--notify", "always"); got.code != 0 {
				t.Fatalf("%+v", got)
			}
			_, as := login(t, owner, "stranger")
			stranger := testdb.Connect(t, as)
			for table := range strings.FieldsSeq(query[string](t, owner, `SELECT string_agg(relname, ' ') FROM pg_class
				WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'S', 'v') AND relname LIKE 'outbox%'`)) {
				for _, statement := range []string{"SELECT * FROM ", "INSERT INTO " + table + " DEFAULT VALUES --", "DELETE FROM ", "TRUNCATE "} {
					_, err := stranger.Exec(t.Context(), statement+table)
					// Or the object is a view or a sequence, which takes no such statement from anyone.
					if state := testdb.SQLState(err); state != "42501" && state != "42809" && state != "55000" {
						t.Errorf("%s%s: %v", statement, table, err)
					}
				}
			}

			// By this lock a new destination of a stream did not begin.
			testdb.Exec(t, stranger, `SELECT pg_advisory_lock('outbox_positions'::regclass::oid::bigint::bit(32)::int, 0)`)
			r := startReloadable(t, nil, "version: 1\ndatabase: {url: '"+owner+"'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n")
			r.stderr.await(t, `"relay started"`)
			testdb.Exec(t, stranger, `SET application_name = 'notifyd/relay'; LISTEN outbox_events`)
			testdb.Exec(t, stranger, `SELECT pg_notify('outbox_events', n::text) FROM generate_series(1, 2000) AS n`)
			for _, text := range []string{strings.Repeat("x", 7999), "-1", "9223372036854775807", "18446744073709551616", "1 OR true", "\u202e", "", "polling", "shards", "deliveries"} {
				testdb.Exec(t, stranger, `SELECT pg_notify('outbox_events', $1)`, text)
			}
			const secret = "nobody-else-reads-this"
			id := publishTo(t, owner, "order.placed", `{"v": "`+secret+`"}`)
			r.stdout.await(t, secret)
			for {
				heard, err := stranger.WaitForNotification(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_, err = strconv.Atoi(heard.Payload)
				if heard.PID == stranger.PgConn().PID() || err != nil { // its own, or a word of the relay
					continue
				}
				if heard.Payload != id {
					t.Errorf("heard %q, want %s", heard.Payload, id)
				}
				break
			}
			untilDone(t, owner)
			if code := r.end(t); code != command.ExitOK {
				t.Errorf("exit code %d:\n%s", code, r.stderr.text())
			}
			if n := strings.Count(r.stdout.text(), "\n"); n != 1 {
				t.Errorf("%d events were delivered", n)
			}
		})
	}
}

// TestViewer: the read-only token opens all pages, with payloads unless these are hidden, and nothing else. However many logins
// and streams its holder has, operators stay logged in and have streams.
func TestViewer(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const operator, viewer, secret = "0123456789abcdef", "fedcba9876543210", "payload-of-an-event"
	for _, payloads := range []string{"shown", "hidden"} {
		t.Run(payloads, func(t *testing.T) {
			t.Parallel()
			url := buried(t, 1)
			execute(t, url, `UPDATE outbox_events SET payload = '{"v": "`+secret+`"}'`)
			r := startReloadable(t, nil, fmt.Sprintf(`version: 1
database: {url: '%s'}
admin: {listen: '127.0.0.1:0', console: true, token: %s, read_only_token: %s, payloads: %s}
destinations: {audit: {type: log}}
routes: [{match: '*', to: audit}]
`, url, operator, viewer, payloads))
			acts, looks := visit(t, r), visit(t, r)
			enter := func(v visitor, token string) {
				t.Helper()
				if code, page := v.post("/console/login", neturl.Values{"token": {token}}); code != http.StatusOK {
					t.Fatalf("login: %d\n%s", code, page)
				}
			}
			enter(acts, operator)
			enter(looks, viewer)

			seen, todo := make(map[string]string), []string{"/console/", "/console/events/1"}
			link := regexp.MustCompile(`href="(/console/[^"#]*)"`)
			for len(todo) > 0 && len(seen) < 200 {
				path := strings.ReplaceAll(todo[0], "&amp;", "&")
				todo = todo[1:]
				if _, known := seen[path]; known || strings.Contains(path, "/static/") {
					continue
				}
				code, page := looks.get(path)
				seen[path] = page
				if code != http.StatusOK || strings.Contains(page, `method="post" action="/console/d`) {
					t.Errorf("%s: %d\n%s", path, code, page)
				}
				for _, to := range link.FindAllStringSubmatch(page, -1) {
					todo = append(todo, to[1])
				}
			}
			shows := 0
			for _, page := range seen {
				shows += strings.Count(page, secret)
			}
			if (shows > 0) != (payloads == "shown") || len(seen) < 6 {
				t.Errorf("the payload is there %d times on %d pages", shows, len(seen))
			}
			form := neturl.Values{"destination": {"mail"}, "event": {"1"}, "sure": {"yes"}, "payload": {"1"}, "name": {"mail"}, "to": {"now"}, "from": {"1"}, "id": {"1"}, "all": {"yes"}, "n": {"1"}}
			for _, action := range []string{
				"destinations/pause", "destinations/resume", "position/seek", "position/replay", "position/stop", "events/edit", "events/retry", "events/bury",
				"dead/confirm", "dead/replay", "dead/replays/stop", "dead/discard",
			} {
				if code, page := looks.post("/console/"+action, form); code != http.StatusForbidden {
					t.Errorf("%s: %d\n%s", action, code, page)
				}
			}
			for _, path := range []string{"/metrics", "/version", "/debug/pprof/heap"} {
				if code, _ := looks.get(path); code == http.StatusOK {
					t.Errorf("a viewer gets %s", path)
				}
			}

			refused := 0
			for range 300 {
				another := visit(t, r)
				enter(another, viewer)
				if stream(t, another) != http.StatusOK {
					refused++
				}
			}
			if refused < 100 {
				t.Errorf("%d of 300 streams were refused", refused)
			}
			if code := stream(t, acts); code != http.StatusOK {
				t.Errorf("the stream of an operator: %d", code)
			}
			if code, page := acts.post("/console/destinations/pause", neturl.Values{"destination": {"audit"}}); code != http.StatusOK || strings.Contains(page, `name="token"`) {
				t.Errorf("the operator: %d\n%s", code, page)
			}
		})
	}
}

// stream opens a stream of the console, which the end of the test closes, and returns the status, or 0 for another page.
func stream(t *testing.T, v visitor) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.base+"/console/live/overview", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := v.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode == http.StatusOK && response.Header.Get("Content-Type") != "text/event-stream" {
		return 0
	}
	return response.StatusCode
}

// TestStrangersOfTheNetwork: who reaches the admin port and has no token learns whether the relay is ready, and hinders neither the
// deliveries nor those who have the token.
func TestStrangersOfTheNetwork(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef"
	url := database(t)
	r := startReloadable(t, nil, fmt.Sprintf(`version: 1
database: {url: '%s'}
admin: {listen: '127.0.0.1:0', console: true, token: %s, pprof: true}
destinations: {audit: {type: log}}
routes: [{match: '*', to: audit}]
`, url, token))
	v := visit(t, r)
	v.awaits("/readyz", "ok\n")
	for path, want := range map[string]int{
		"/livez": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusUnauthorized, "/version": http.StatusUnauthorized,
		"/debug/pprof/heap": http.StatusUnauthorized, "/console/live/overview": http.StatusUnauthorized, "/console/../metrics": http.StatusUnauthorized, "//metrics": http.StatusUnauthorized,
	} {
		code, page := v.get(path)
		isLogin := strings.Contains(page, `name="token"`)
		isAsWanted := code == want || want == http.StatusUnauthorized && isLogin
		if !isAsWanted || strings.Contains(page, "audit") {
			t.Errorf("%s: %d\n%s", path, code, page)
		}
	}
	if code, page := v.get("/readyz?verbose"); strings.Contains(page, "database") {
		t.Errorf("the checks are shown: %d\n%s", code, page)
	}
	for range 300 {
		if code, _ := v.post("/console/login", neturl.Values{"token": {"a guess"}}); code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
			t.Errorf("a wrong token: %d", code)
		}
	}

	if n := strings.Count(r.stderr.text(), "console login"); n > 100 { // one more in ten seconds
		t.Errorf("300 wrong tokens have %d lines in the log", n)
	}

	// From another address: connections that ask for nothing, half of a request, and one that does not end.
	address := strings.TrimPrefix(v.base, "http://")
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	for i := range 600 {
		conn, err := from.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, []string{"", "GET /met", "GET /livez HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 1<<14), "POST /console/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"}[i%4])
	}
	if code, page := v.post("/console/login", neturl.Values{"token": {token}}); code != http.StatusOK {
		t.Errorf("the right token: %d\n%s", code, page)
	}
	v.awaits("/console/", "audit")

	// A page of another site, in the browser of someone who is logged in.
	form := strings.NewReader("destination=audit")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, v.base+"/console/destinations/pause", form)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Origin", "https://evil.example")
	if code, _ := v.do(request); code != http.StatusForbidden {
		t.Errorf("a form of another site: %d", code)
	}
	publishTo(t, url, "order.placed", order)
	untilDone(t, url)
	if code := r.end(t); code != command.ExitOK {
		t.Errorf("exit code %d:\n%s", code, r.stderr.text())
	}
}

// TestAnswersOfDestinations: a receiver that answers without end, elsewhere, with text for a terminal, or never, keeps its events
// waiting or makes dead letters of them, and hinders no other destination.
func TestAnswersOfDestinations(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	const evil = "\x1b[2J\u202eevil\u2028"
	answers := map[string]string{
		"endless": "HTTP/1.1 422 X\r\n\r\n",
		"headers": "HTTP/1.1 200 OK\r\n",
		"moved":   "HTTP/1.1 307 X\r\nLocation: " + other.URL + "\r\nContent-Length: 0\r\n\r\n",
		"evil":    "HTTP/1.1 422 " + evil + "\r\nContent-Length: " + fmt.Sprint(len(evil)) + "\r\n\r\n" + evil,
		"garbage": "\x00\xff",
		"silent":  "",
	}
	address := answering(t, answers)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			config := "version: 1\ndatabase: {url: '" + url + "'}\nrelay: {poll_interval: 50ms}\ndestinations:\n  audit: {type: log}\n"
			names := ""
			for name := range answers {
				config += "  " + name + ": {type: webhook, url: 'http://" + address + "/" + name + "', response_timeout: 2s, request_timeout: 3s, timeout: 4s, signing_secrets: ['" + webhookSecret + "']}\n"
				names += ", " + name
			}
			path := file(t, config+"routes: [{match: '*', to: [audit"+names+"]}]\n")
			d := startDaemon(t, nil, "run", "-c", path, "--log-format", "json", "--log-level", "debug")
			d.stderr.await(t, `"relay started"`)
			const events = 20
			for i := range events {
				execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', 'order', '%d', '%d')`, i, i))
			}
			for i := range events {
				d.stdout.await(t, fmt.Sprintf(`"payload":%d`, i))
			}
			until(t, url, `SELECT count(DISTINCT destination) = 2 FROM outbox_deliveries WHERE state = 'dead' AND destination IN ('endless', 'evil')`)
			if n := query[int](t, url, `SELECT coalesce(max(octet_length(last_error)), 0)::int FROM outbox_deliveries`); n > 4096 {
				t.Errorf("an error has %d bytes", n)
			}
			shown := invoke(t, "dlq", "list", "-c", path).stdout + invoke(t, "dlq", "list", "-c", path, "-o", "json").stdout + invoke(t, "status", "-c", path).stdout
			d.end(t)
			for _, c := range shown + d.stderr.text() {
				if textview.Controls(c) && c != '\n' && c != '\t' {
					t.Fatalf("%U of an answer is shown:\n%q", c, shown)
				}
			}
			if strings.Contains(shown+d.stderr.text(), webhookSecret) {
				t.Error("the secret is shown")
			}
			if n := elsewhere.Load(); n > 0 {
				t.Errorf("%d requests went elsewhere", n)
			}
		})
	}
}

// answering serves each path with the beginning of an answer. The endless ones continue until the client leaves.
func answering(t *testing.T, answers map[string]string) (address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() { stop(); _ = l.Close() })
	serve := func(conn net.Conn) {
		defer conn.Close() //nolint:errcheck // the client sees it
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		name := strings.Trim(request.URL.Path, "/")
		more := map[string]string{"endless": strings.Repeat("x", 1<<16), "headers": "X: " + strings.Repeat("x", 1<<12) + "\r\n", "silent": ""}
		_, err = io.WriteString(conn, answers[name])
		text, endless := more[name]
		if text == "" && endless {
			<-ctx.Done()
		}
		for endless && err == nil && text != "" {
			_, err = io.WriteString(conn, text)
		}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go serve(conn)
			}
		}
	}()
	return l.Addr().String()
}

// TestSamplerOfTheRelay: where the sampler of the relay is not parent-based, no flag of a writer starts a span, and consumers see
// the relay's decision.
func TestSamplerOfTheRelay(t *testing.T) {
	t.Parallel()
	collected := startCollector(t)
	url := database(t)
	path := file(t, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations: {a: {type: log}}\nroutes: [{match: '*', to: a}]\n")
	for sampler, want := range map[string]int{"always_off": 0, "traceidratio OTEL_TRACES_SAMPLER_ARG=0": 0, "parentbased_always_off": 1} {
		before := len(collected.received())
		d := startTraced(t, collected.URL, path, strings.Fields("OTEL_TRACES_SAMPLER="+sampler)...)
		d.stderr.await(t, `"relay started"`)
		publishTo(t, url, "order.placed", "{}", "--header", "traceparent="+writer)
		untilDone(t, url)
		d.endInOrder(t)
		if n := len(collected.received()) - before; n != want {
			t.Errorf("%s: %d spans, want %d", sampler, n, want)
		}
		flag := map[bool]string{true: "-01", false: "-00"}[want > 0]
		if text := d.stdout.text(); !regexp.MustCompile(writerTrace + `-[0-9a-f]{16}` + flag).MatchString(text) {
			t.Errorf("%s: sent %s", sampler, text)
		}
	}
}

// TestNamesThatAreNoText: a database in SQL_ASCII takes any bytes as names. An aggregate whose name begins in the middle of a character
// hinders no event.
func TestNamesThatAreNoText(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := testenv.DatabaseIn(t, "SQL_ASCII")
			if got := invoke(t, "migrate", "--database-url", url, "--mode", mode); got.code != 0 {
				t.Fatalf("%+v", got)
			}
			r := startReloadable(t, nil, "version: 1\ndatabase: {url: '"+url+"'}\nrelay: {poll_interval: 50ms}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n")
			execute(t, url, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'a', repeat(E'\x80', 300), repeat(E'\x80', 300), '1' FROM generate_series(1, 3)`)
			publishTo(t, url, "order.placed", `"last"`)
			r.stdout.await(t, `"last"`)
			until(t, url, `SELECT CASE (SELECT mode FROM outbox_mode) WHEN 'queue' THEN NOT EXISTS (SELECT FROM outbox_events WHERE state = 'fresh') ELSE true END`)
			if code := r.end(t); code != command.ExitOK {
				t.Errorf("exit code %d:\n%s", code, r.stderr.text())
			}
		})
	}
}

// TestPlacesOfValues: a value of a writer stays in its place at each destination, or its event becomes a dead letter: it adds no recipient
// and no header, mentions no one, and changes neither host, path, topic nor file.
func TestPlacesOfValues(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			asked := make(map[string]string) // texts for Slack, by path
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var message struct{ Text string }
				_ = json.NewDecoder(r.Body).Decode(&message) // of Slack; others have none
				mu.Lock()
				defer mu.Unlock()
				asked[r.RequestURI] += message.Text + r.Header.Get("X-Evil")
				_, _ = io.WriteString(w, "ok")
			}))
			t.Cleanup(server.Close)
			sink, redis, nats := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS}), testenv.Redis(t), testenv.NATS(t)
			url, dir := databaseOf(t, mode), t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "in"), 0o700); err != nil {
				t.Fatal(err)
			}
			values := []string{
				"fine", "..", "../x", "a/b?c=1#d", "a.b", "a:b", "*", ">", "#", " ", "a b", "<!channel>", "<https://evil.example|x>",
				"a@example.com, b@example.com", "a\r\nBcc: b@example.com", "a\nX-Evil: 1", "evil.example/", "@evil.example", "\x1b[2J",
			}
			d := startDaemon(t, nil, "run", "-c", file(t, strings.NewReplacer("DB", url, "URL", server.URL, "PORT", fmt.Sprint(sink.Port()), "REDIS", redis.URL, "NATS", nats.URL,
				"STREAM", redis.Name, "SUBJECT", nats.Name, "DIR", dir).Replace(`version: 1
database: {url: "DB"}
relay: {poll_interval: 50ms}
destinations:
  mail: {type: email, host: 127.0.0.1, port: PORT, tls: none, from: a@example.com, to: 'x <{{ .Payload.v }}@example.com>', subject: 'about {{ .Payload.v }}', text: '{{ .Payload.v }}'}
  team: {type: slack, webhook_url: URL/team, text: 'hello {{ .Payload.v }}'}
  hook: {type: webhook, url: 'URL/o/{{ .Payload.v }}/items', headers: {X-Mine: '{{ .Payload.v }}'}}
  rows: {type: redis, url: 'REDIS', stream: 'STREAM:{{ .Payload.v }}'}
  subjects: {type: nats, servers: ['NATS'], mode: core, subject: 'SUBJECT.{{ .Payload.v }}'}
  archive: {type: file, path: 'DIR/in/{{ .Payload.v }}/events.jsonl'}
routes: [{match: placed, to: [mail, hook, rows, subjects, archive]}, {match: said, to: team}]
`)))
			for _, value := range values {
				payload, err := json.Marshal(map[string]string{"v": value})
				if err != nil {
					t.Fatal(err)
				}
				publishTo(t, url, "placed", string(payload))
				if value == "fine" || strings.Contains(value, "<") { // one a second
					publishTo(t, url, "said", string(payload))
				}
			}
			untilDone(t, url)
			if code := d.end(t); code != command.ExitOK {
				t.Errorf("exit code %d:\n%s", code, d.stderr.text())
			}

			for _, m := range sink.Mails() {
				head, _, _ := strings.Cut(string(m.Data), "\r\n\r\n")
				if len(m.To) != 1 || !strings.HasSuffix(m.To[0], "@example.com") || strings.Contains(head, "\nBcc") || strings.Contains(head, "\nX-Evil") {
					t.Errorf("a mail to %q:\n%s", m.To, head)
				}
			}
			for uri, body := range asked {
				isOfHook := regexp.MustCompile(`^/o/[^/?#]+/items$`).MatchString(uri) && !strings.Contains(uri, "..") && body == ""
				isOfTeam := uri == "/team" && strings.Contains(body, "hello fine") && !strings.Contains(body, "<")
				if !isOfHook && !isOfTeam {
					t.Errorf("a request to %s: %s", uri, body)
				}
			}
			if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				within, _ := filepath.Rel(dir, path)
				if err == nil && !d.IsDir() && !regexp.MustCompile(`^in/[^/]+/events\.jsonl$`).MatchString(filepath.ToSlash(within)) {
					t.Errorf("the file %q", within)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			for name, want := range map[string]string{"mail": "a@example.com", "hook": "..", "rows": "a:b", "subjects": "a.b", "archive": ".."} {
				if n := query[int](t, url, `SELECT count(*)::int FROM outbox_deliveries JOIN outbox_events ON id = event_id WHERE destination = $1 AND outbox_deliveries.state = 'dead' AND payload->>'v' LIKE $2 || '%'`, name, want); n == 0 {
					t.Errorf("%q is no dead letter of %s", want, name)
				}
			}
			if n := query[int](t, url, `SELECT count(*)::int FROM outbox_deliveries JOIN outbox_events ON id = event_id WHERE payload->>'v' = 'fine'`); n > 0 {
				t.Error("an event without such a value is a dead letter")
			}
		})
	}
}
