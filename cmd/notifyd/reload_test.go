package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	neturl "net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/daemon"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// reloadable is a daemon in this process that is reloaded without a signal: all
// daemons of the process would get that.
type reloadable struct {
	*runningDaemon
	path    string
	reloads chan struct{}
}

// startReloadable starts a daemon. Pairs are the names of files beside the configuration, and their texts.
func startReloadable(t *testing.T, env vars, text string, pairs ...string) *reloadable {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	d := &runningDaemon{stdout: newOutput(), stderr: newOutput(), stop: stop, code: make(chan int, 1)}
	r := &reloadable{runningDaemon: d, path: file(t, text), reloads: make(chan struct{}, 1)}
	for i := 0; i < len(pairs); i += 2 {
		testenv.WriteFile(t, filepath.Join(filepath.Dir(r.path), pairs[i]), pairs[i+1])
	}
	a := &command.App{Lookup: env.lookup, Stdout: d.stdout, Stderr: d.stderr, ConfigPath: r.path}
	c, err := a.LoadAt(r.path, "")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if err := daemon.Run(ctx, daemon.Options{
			Config: c, Path: r.path, Load: func() (*config.Config, error) { return a.LoadAt(r.path, "") }, Lookup: env.lookup,
			Version: "test", Started: time.Now(), Log: cli.NewLogger(d.stderr, c.Log.Level, c.Log.Format), Logs: d.stderr, Reloads: r.reloads,
		}); err != nil {
			_, _ = fmt.Fprintln(d.stderr, "notifyd:", err)
			d.code <- command.ExitFailure
			return
		}
		d.code <- command.ExitOK
	}()
	t.Cleanup(func() { d.end(t) })
	return r
}

func (r *reloadable) write(t *testing.T, text string) {
	t.Helper()
	testenv.WriteFile(t, r.path, text)
}

const (
	saidDelivers = `"relay delivers with the new configuration"`
	saidWrong    = `"configuration refused: the previous one stays in force"`
	saidReloaded = `"configuration reloaded"`
)

// awaitN waits until a text was printed n times.
func (o *output) awaitN(t *testing.T, want string, n int) {
	t.Helper()
	deadline := time.After(patience)
	for {
		text, more := o.read()
		if strings.Count(text, want) >= n {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%q was printed %d times of %d; what was:\n%s", want, strings.Count(text, want), n, text)
		}
	}
}

// TestReloadWithoutADatabase: where the database takes connections and does not answer, a file that is
// wrong is refused all the same, and the next one is read.
func TestReloadWithoutADatabase(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts what the kernel does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	text := "version: 1\ndatabase: {url: 'postgres://u@" + silent.Addr().String() + "/d?sslmode=disable'}\nlog: {format: json}\n" +
		"destinations:\n  audit: {type: log}\nroutes: [{match: '*', to: [audit]}]\n"
	r := startReloadable(t, nil, text)
	r.write(t, text+"nonsense: 1\n")
	for n := range 2 {
		r.reloads <- struct{}{}
		r.stderr.awaitN(t, saidWrong, n+1)
	}
}

// orders is a receiver of webhooks that takes its time and keeps what it got.
type orders struct {
	*httptest.Server
	mu  sync.Mutex
	ids []string
}

func startOrders(t *testing.T) *orders {
	t.Helper()
	o := &orders{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(2 * time.Millisecond) //nolint:forbidigo // so that there is something under way all the time
		o.mu.Lock()
		defer o.mu.Unlock()
		o.ids = append(o.ids, r.Header.Get("Webhook-Id"))
	}))
	t.Cleanup(o.Close)
	return o
}

// loadConfig has other settings for each n.
func loadConfig(url, hook string, n int) string {
	return fmt.Sprintf(`version: 1
database: {url: "%s"}
log: {level: info, format: json}
relay: {batch: %d}
destinations:
  audit: {type: log, concurrency: %d}
  hook: {type: webhook, url: "%s", concurrency: %d}
routes:
  - {match: "*", to: [audit, hook]}
`, url, 100+n, 1+n%4, hook, 4+n%3)
}

// TestReloadUnderLoad reloads twenty times while events are written: each is
// delivered once to each destination, and in a stream those of an aggregate in order.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reloadUnderLoad(t, mode)
		})
	}
}

func reloadUnderLoad(t *testing.T, mode string) {
	t.Helper()
	url := databaseOf(t, mode)
	const reloads, writers = 20, 4
	hook := startOrders(t)
	r := startReloadable(t, nil, loadConfig(url, hook.URL, 0))
	r.stderr.await(t, `"relay started"`)

	stop, written := make(chan struct{}), make(chan int, writers)
	for w := range writers {
		go func() { written <- writeOrders(t, url, w, stop) }()
	}
	for n := 1; n <= reloads; n++ {
		was := strings.Count(r.stdout.text(), "\n")
		r.write(t, loadConfig(url, hook.URL, n))
		r.reloads <- struct{}{}
		r.stderr.awaitN(t, saidDelivers, n)
		r.stdout.awaitN(t, "\n", was+20) // each generation does some work
	}
	close(stop)
	total := 0
	for range writers {
		total += <-written
	}
	untilDone(t, url)
	if code := r.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	checkAudit(t, mode, r.stdout.text(), total)
	seen := make(map[string]int)
	for _, id := range hook.ids {
		seen[id]++
	}
	if len(seen) != total || len(hook.ids) != total {
		t.Errorf("the hook got %d events, %d requests; %d were written", len(seen), len(hook.ids), total)
	}
	longest := time.Duration(0)
	for _, m := range regexp.MustCompile(`"paused":"([^"]+)"`).FindAllStringSubmatch(r.stderr.text(), -1) {
		if d, err := time.ParseDuration(m[1]); err == nil {
			longest = max(longest, d)
		}
	}
	if longest == 0 {
		t.Error("no pause is logged")
	}
	t.Logf("%d events through %d reloads; the longest pause was %v", total, reloads, longest)
}

// writeOrders inserts events of aggregates that no other writer has until stop
// is closed, and returns how many.
func writeOrders(t *testing.T, url string, writer int, stop <-chan struct{}) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	tick := time.NewTicker(20 * time.Millisecond) // a busy machine must not fall behind
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return n
		case <-tick.C:
		}
		_, err := conn.Exec(t.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			VALUES ('order.placed', CASE WHEN $2 % 3 > 0 THEN 'order' END, CASE WHEN $2 % 3 > 0 THEN $1::text END, '{}')`,
			fmt.Sprintf("%d-%d", writer, n%5), n)
		if err != nil {
			t.Error(err)
			return n
		}
		n++
	}
}

// checkAudit finds each event once in the lines of the log destination, and in a
// stream those of each aggregate in the order of ids.
func checkAudit(t *testing.T, mode, text string, total int) {
	t.Helper()
	seen, last := make(map[int64]int), make(map[string]int64)
	for line := range strings.Lines(text) {
		var e struct {
			EventID     int64  `json:"event_id"`
			AggregateID string `json:"aggregate_id"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if seen[e.EventID]++; seen[e.EventID] > 1 {
			t.Errorf("event %d was delivered %d times", e.EventID, seen[e.EventID])
		}
		if e.AggregateID == "" {
			continue
		}
		if mode == "stream" && e.EventID <= last[e.AggregateID] {
			t.Errorf("event %d of %s came after %d", e.EventID, e.AggregateID, last[e.AggregateID])
		}
		last[e.AggregateID] = e.EventID
	}
	if len(seen) != total || len(last) == 0 {
		t.Errorf("%d events of %d were delivered, with %d aggregates", len(seen), total, len(last))
	}
}

// TestReloadWrong: a configuration that cannot be used changes nothing, and is
// reported with its place and without its secrets.
func TestReloadWrong(t *testing.T) {
	t.Parallel()
	url := database(t)
	secret := file(t, "marker-secret")
	text := func(more string) string {
		return fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nlog: {format: json}\nadmin: {listen: 127.0.0.1:0}\ndestinations:\n  audit: {type: log}\n%sroutes: [{match: '*', to: audit}]\n", url, more)
	}
	hook := "  hook: {type: webhook, url: 'https://example.com', bearer_token: '${file:" + secret + "}'}\n"
	r := startReloadable(t, nil, text(hook))
	r.stderr.await(t, `"relay started"`)
	address := regexp.MustCompile(`"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(r.stderr.text())
	if address == nil {
		t.Fatal("the address is not said")
	}
	base := "http://" + address[1]
	untilReady(t, base+"/readyz")
	untilSays(t, base+"/metrics", "\nnotifyd_config_last_reload_successful 1\n")

	cases := []struct{ name, text, want string }{
		{"a setting", strings.Replace(text(""), "type: log", "type: lgo", 1), r.path + `:6:17: unknown destination type`},
		{"two mistakes", strings.Replace(text(""), "admin:", "amin: {}\nadmin: {listen: x}\nrelay:", 1), r.path + ":4:1: unknown key"},
		{"not YAML", "version: [", r.path + ":2:1: not valid YAML"},
		{"a secret file", text(strings.Replace(hook, secret, secret+".gone", 1)), r.path + ":7:"},
		{"another database", strings.Replace(text(""), url, "postgres://u:marker-url@127.0.0.1:1/none", 1), "database: "},
		{"another schema", strings.Replace(text(""), "database: {", "database: {schema: nowhere, ", 1), "notifyd migrate"},
		{"many outboxes", text("") + "outboxes: {list: [{name: a}]}\n", "does not lead from one outbox to many"},
		{"no file", "", "cannot be read"},
	}
	for n, c := range cases {
		if c.text == "" {
			if err := os.Remove(r.path); err != nil {
				t.Fatal(err)
			}
		} else {
			r.write(t, c.text)
		}
		r.reloads <- struct{}{}
		r.stderr.awaitN(t, saidWrong, n+1)
		if log := r.stderr.text(); !strings.Contains(log[strings.LastIndex(log, saidWrong):], c.want) {
			t.Errorf("%s: %q is not said in\n%s", c.name, c.want, log[strings.LastIndex(log, saidWrong):])
		}
		if code, page := fetch(t, base+"/readyz?verbose"); code != http.StatusOK || !strings.Contains(page, "[!] configuration: the last reload failed") || !strings.Contains(page, c.want) {
			t.Errorf("%s: /readyz?verbose says %d, %s", c.name, code, page)
		}
		untilSays(t, base+"/metrics", "\nnotifyd_config_last_reload_successful 0\n")
	}
	publishTo(t, url, "order.placed", order)
	until(t, url, "SELECT state = 'done' FROM outbox_events") // by the configuration of the start

	r.write(t, strings.Replace(text(""), "127.0.0.1:0", "127.0.0.1:1", 1))
	r.reloads <- struct{}{}
	r.stderr.await(t, saidDelivers)
	r.stderr.await(t, `"settings":["admin.listen"]`)
	untilSays(t, base+"/readyz?verbose", "[!] configuration: a restart is needed for admin.listen\n")
	untilSays(t, base+"/metrics", "\nnotifyd_config_last_reload_successful 1\n")
	r.write(t, text(""))
	r.reloads <- struct{}{}
	r.stderr.awaitN(t, saidDelivers, 2)
	untilSays(t, base+"/readyz?verbose", "[+] configuration: ok\n")
	publishTo(t, url, "order.placed", order)
	until(t, url, "SELECT count(*) = 2 FROM outbox_events WHERE state = 'done'")
	untilSays(t, base+"/metrics", "\n"+`notifyd_deliveries_total{destination="audit",outcome="delivered"} 2`+"\n")
	if code := r.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if log := r.stderr.text(); strings.Contains(log, "marker") {
		t.Errorf("a secret is shown:\n%s", log)
	}
}

// TestReloadTellsSystemd: the service manager hears of a reload and of its end,
// and that it has failed.
func TestReloadTellsSystemd(t *testing.T) {
	t.Parallel()
	url := database(t)
	env, said := manage(t)
	text := fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nlog: {format: json}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n", url)
	r := startReloadable(t, env, text)
	hear(t, said, "READY=1\nSTATUS=delivering")
	r.reloads <- struct{}{}
	hear(t, said, "RELOADING=1\nMONOTONIC_USEC=")
	hear(t, said, "READY=1\nSTATUS=delivering")
	r.write(t, "version: 2\n")
	r.reloads <- struct{}{}
	hear(t, said, "RELOADING=1\nMONOTONIC_USEC=")
	hear(t, said, "READY=1\nSTATUS=delivering with the previous configuration")
	hear(t, said, "WATCHDOG=1")
	r.stop()
	hear(t, said, "STOPPING=1")
}

// TestReloadWaitsForDelivery: a delivery that is under way is finished by the
// generation that has begun it; a SIGTERM meanwhile stops all.
func TestReloadWaitsForDelivery(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"goes on", "stops"} {
		t.Run(then, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			begun, answer := make(chan struct{}, 10), make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				begun <- struct{}{}
				<-answer
			}))
			t.Cleanup(server.Close)
			r := startReloadable(t, nil, loadConfig(url, server.URL, 0))
			publishTo(t, url, "order.placed", order)
			<-begun
			r.reloads <- struct{}{}
			r.stderr.await(t, `"reloading the configuration"`)
			if then == "stops" {
				r.stop()
			}
			close(answer)
			if then == "stops" {
				if code := r.wait(t); code != 0 {
					t.Errorf("exit code %d", code)
				}
			} else {
				r.stderr.await(t, saidDelivers)
				publishTo(t, url, "order.placed", order)
			}
			until(t, url, "SELECT NOT EXISTS (SELECT FROM outbox_events WHERE state <> 'done')")
			r.end(t)
			if n := query[int](t, url, "SELECT count(*)::int FROM outbox_events"); len(begun) != n-1 {
				t.Errorf("%d further requests for %d events", len(begun), n)
			}
		})
	}
}

// TestEarlySIGHUP: a SIGHUP that arrives while the configuration is read requests a reload.
func TestEarlySIGHUP(t *testing.T) {
	t.Parallel()
	hangups := make(chan os.Signal, 1)
	hangups <- syscall.SIGHUP
	ctx, reloads, stop := untilSignalOrReload(t.Context(), slog.New(slog.DiscardHandler), hangups)
	defer stop()
	select {
	case <-reloads:
	case <-ctx.Done():
		t.Error("it stops")
	}
}

// TestSIGHUP sends the signal to a process, a crowd of them, and one that stops.
func TestSIGHUP(t *testing.T) {
	t.Parallel()
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("this process was started with nohup, and so are its children")
	}
	url, hook := database(t), startOrders(t)
	path := file(t, loadConfig(url, hook.URL, 0))
	p := startProcess(t, "", "run", "-c", path)
	p.stderr.await(t, `"relay started"`)
	p.signal(t, syscall.SIGHUP)
	p.stderr.awaitN(t, saidDelivers, 1)
	for range 50 {
		p.signal(t, syscall.SIGHUP)
	}
	p.stderr.awaitN(t, saidDelivers, 2)
	publishTo(t, url, "order.placed", order)
	until(t, url, "SELECT state = 'done' FROM outbox_events")
	for range 5 {
		p.signal(t, syscall.SIGHUP)
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.stderr.text())
	}
	if n := strings.Count(p.stdout.text(), "\n"); n != 1 {
		t.Errorf("delivered %d times", n)
	}
}

// TestSIGHUPIgnored: starting notifyd with nohup is intended.
func TestSIGHUPIgnored(t *testing.T) {
	t.Parallel()
	url, hook := database(t), startOrders(t)
	path := file(t, loadConfig(url, hook.URL, 0))
	p := startWith(t, "nohup", "run", "-c", path)
	p.stderr.await(t, "SIGHUP is ignored, as under nohup")
	p.stderr.await(t, `"relay started"`)
	p.signal(t, syscall.SIGHUP)
	publishTo(t, url, "order.placed", order)
	until(t, url, "SELECT state = 'done' FROM outbox_events")
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.stderr.text())
	}
	if strings.Contains(p.stderr.text(), "reloading") {
		t.Errorf("it has reloaded:\n%s", p.stderr.text())
	}
}

// TestReloadTokens: a reload replaces the tokens of the admin server, and ends the logins with the former ones.
func TestReloadTokens(t *testing.T) {
	t.Parallel()
	url := database(t)
	text := func(token, readOnly string) string {
		return fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nlog: {format: json}\nadmin: {listen: 127.0.0.1:0, console: true, token: %s, read_only_token: %s}\ndestinations:\n  audit: {type: log}\nroutes: [{match: '*', to: audit}]\n", url, token, readOnly)
	}
	const former, viewer, next = "former-0123456789", "viewer-0123456789", "next-0123456789abc"
	r := startReloadable(t, nil, text(former, viewer))
	r.stderr.await(t, `"relay started"`)
	base := "http://" + listenOf(r.runningDaemon)
	metrics := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/metrics", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	browser := func(token string) (page func() int) {
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		do := func(response *http.Response, err error) int {
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			return response.StatusCode
		}
		if code := do(client.PostForm(base+"/console/login", neturl.Values{"token": {token}})); code != http.StatusSeeOther { //nolint:bodyclose // do closes it
			t.Fatalf("login: %d", code)
		}
		return func() int { return do(client.Get(base + "/console/events")) } //nolint:bodyclose // do closes it
	}
	acting, looking := browser(former), browser(viewer)
	if metrics(former) != http.StatusOK || acting() != http.StatusOK || looking() != http.StatusOK {
		t.Fatal("the tokens of the start are refused")
	}

	r.write(t, text(next, viewer))
	r.reloads <- struct{}{}
	r.stderr.await(t, saidReloaded)
	if a, b := metrics(former), metrics(next); a != http.StatusUnauthorized || b != http.StatusOK {
		t.Errorf("after the reload: the former token %d, the next %d", a, b)
	}
	if a, b := acting(), looking(); a != http.StatusSeeOther || b != http.StatusSeeOther {
		t.Errorf("logins with former tokens stay open: %d, %d", a, b)
	}
	if code := browser(next)(); code != http.StatusOK {
		t.Errorf("a login with the next token: %d", code)
	}
	if strings.Contains(r.stderr.text(), "need a restart") {
		t.Errorf("a restart is asked for:\n%s", r.stderr.text())
	}
	if code := r.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
