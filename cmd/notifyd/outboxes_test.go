package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// tenantsConfig has four outboxes in a list, one of which has routes of its own, one no tables, and one a
// server that is not there, and those of the table tenants.
const tenantsConfig = `version: 1
database: {url: '%s'}
admin: {listen: '%s'}
log: {format: json}
destinations:
  audit: {type: log}
  ledger: {type: log, payload: false}
routes: [{match: '*', to: [audit]}]
outboxes:
  list:
    - {name: north, schema: north}
    - {name: south, schema: south, routes: [{match: 'order.*', to: [audit, %s]}]}
    - {name: bare, schema: bare}
    - {name: away, url: 'postgres://u@127.0.0.1:1/d?sslmode=disable'}
  query: SELECT name, schema FROM public.tenants
  every: 1s
`

type tenants struct {
	*reloadable
	url, path, address string
}

func startTenants(t *testing.T) *tenants {
	t.Helper()
	s := &tenants{url: testenv.Database(t)}
	execute(t, s.url, `CREATE TABLE public.tenants (name text, schema text); INSERT INTO public.tenants VALUES ('east', 'east'), ('no.name', 'x')`)
	for _, schema := range []string{"north", "south", "east", "west"} {
		mode := "stream"
		if schema == "south" {
			mode = "queue"
		}
		if got := invoke(t, "migrate", "--database-url", s.url, "--schema", schema, "--mode", mode); got.code != 0 {
			t.Fatalf("migrate: %+v", got)
		}
	}
	port, err := freeport.Pick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.address = fmt.Sprintf("127.0.0.1:%d", port)
	s.reloadable = startReloadable(t, nil, s.config("ledger"))
	s.path = s.reloadable.path
	return s
}

func (s *tenants) config(second string) string {
	return fmt.Sprintf(tenantsConfig, s.url, s.address, second)
}

// in runs a command for one outbox, with the file.
func (s *tenants) in(t *testing.T, outbox string, args ...string) {
	t.Helper()
	got := invoke(t, append(args, "-c", s.path, "--outbox", outbox)...)
	if got.code != 0 {
		t.Fatalf("%q: %+v", args, got)
	}
}

// get returns an answer of the admin server once it is as wanted.
func (s *tenants) get(t *testing.T, path string, wanted func(code int, body string) bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	var body string
	for {
		if response, err := http.Get("http://" + s.address + path); err == nil {
			text, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if body = string(text); wanted(response.StatusCode, body) {
				return
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s is never as wanted:\n%s\n%s", path, body, s.stderr.text())
		}
	}
}

// up waits until outboxes are relayed.
func (s *tenants) up(t *testing.T, names ...string) {
	t.Helper()
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = `notifyd_outbox_up{outbox="` + name + `"} 1`
	}
	s.get(t, "/metrics", has(parts...)) // a scrape queries every outbox
}

func has(parts ...string) func(int, string) bool {
	return func(_ int, body string) bool {
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(body, p) })
	}
}

// TestOutboxes: each of many outboxes is relayed; those that cannot be keep nothing from the others, and are
// named; outboxes come and go by a query.
func TestOutboxes(t *testing.T) {
	t.Parallel()
	s := startTenants(t)
	for _, name := range []string{"north", "south", "east"} {
		s.in(t, name, "publish", "order.placed", `{"from": "`+name+`"}`)
	}
	for _, name := range []string{"north", "south", "east"} {
		s.stdout.await(t, `"outbox":"`+name+`"`)
	}
	s.get(t, "/readyz?verbose", has("[+] started: ok", "[!] outbox: away: ", "[!] outbox: bare: ", "[!] outboxes: "+placed(s.path, s.config("ledger"), "SELECT name, schema FROM")+`: outboxes.query: outbox "no.name"`))
	s.get(t, "/metrics", has(
		`notifyd_outbox_up{outbox="north"} 1`, `notifyd_outbox_up{outbox="bare"} 0`, `notifyd_outbox_up{outbox="away"} 0`, "\nnotifyd_outboxes_found 0\n",
		`notifyd_deliveries_total{destination="audit",outbox="north",outcome="delivered"} 1`,
		`notifyd_deliveries_total{destination="ledger",outbox="south",outcome="delivered"} 1`))

	// Tables that are made, and rows that come and go.
	if got := invoke(t, "migrate", "-c", s.path, "--outbox", "bare", "--mode", "stream"); got.code != 0 {
		t.Fatalf("migrate: %+v", got)
	}
	execute(t, s.url, `UPDATE public.tenants SET name = 'west', schema = 'west' WHERE name = 'no.name'`)
	for _, name := range []string{"bare", "west"} {
		s.get(t, "/metrics", has(`notifyd_outbox_up{outbox="`+name+`"} 1`))
		s.in(t, name, "publish", "order.placed", `{}`)
		s.stdout.await(t, `"outbox":"`+name+`"`)
	}
	s.get(t, "/metrics", has("\nnotifyd_outboxes_found 1\n"))
	execute(t, s.url, `DELETE FROM public.tenants WHERE name = 'west'`)
	s.get(t, "/metrics", func(_ int, body string) bool { return !strings.Contains(body, "west") })
	until(t, s.url, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'notifyd/%' AND query LIKE '%west%' AND datname = current_database())`)
	if code := s.end(t); code != command.ExitOK {
		t.Errorf("it ended with %d:\n%s", code, s.stderr.text())
	}
}

// TestOutboxesURLs: what is no connection string is a mistake, at the outbox that has it; the daemon does not start, or
// goes on as before a reload. In a row of the query, it concerns that outbox only.
func TestOutboxesURLs(t *testing.T) {
	t.Parallel()
	s := startTenants(t)
	s.up(t, "north", "south", "east")
	text := strings.Replace(s.config("ledger"), "    - {name: bare, ", "    - {name: two, url: 'postgres://u:mar@ker@h/db'}\n    - {name: port, url: 'postgres://u@h/db', listen_url: 'postgres://u:marker@h:99999/db'}\n    - {name: bare, ", 1)
	path := file(t, text)
	want := placed(path, text, "'postgres://u:mar@") + ": outbox two: url: " + notURL("it has more than one @") + "\n" + placed(path, text, "'postgres://u:marker@") + ": outbox port: listen_url: " + notURL("invalid port")
	for _, name := range []string{"run", "check-config"} {
		if got := invoke(t, name, "-c", path); got.code != command.ExitConfig || got.stdout != "" || got.ended() != want {
			t.Errorf("%s:\ngot  %+v\nwant %s", name, got, want)
		}
	}
	s.write(t, text)
	s.reloads <- struct{}{}
	s.stderr.await(t, placed(s.path, text, "'postgres://u:mar@")+": outbox two: url: not a connection string: it has more than one @: ")
	s.get(t, "/readyz?verbose", has("[!] configuration: the last reload failed"))

	s.write(t, s.config("ledger"))
	execute(t, s.url, `ALTER TABLE public.tenants ADD COLUMN url text; INSERT INTO public.tenants VALUES ('wrong', NULL, 'postgres://u:mar@ker@h/db')`)
	s.write(t, strings.Replace(s.config("ledger"), "SELECT name, schema FROM", "SELECT name, schema, url FROM", 1))
	s.reloads <- struct{}{}
	s.get(t, "/readyz?verbose", has(`: outboxes.query: outbox "wrong": its url: not a connection string: it has more than one @: `, "[+] configuration: ok"))
	if all := s.stderr.text(); strings.Contains(all, "ker@h") || strings.Contains(all, `"two"`) {
		t.Errorf("a part of the password is shown, or an outbox of a refused file was begun:\n%s", all)
	}
}

// TestOutboxesRefusedQuery: the query of a file that is refused says nothing of the file in force.
func TestOutboxesRefusedQuery(t *testing.T) {
	t.Parallel()
	s := startTenants(t)
	listed := strings.Replace(s.config("ledger"), "  query: SELECT name, schema FROM public.tenants\n", "", 1)
	s.write(t, listed)
	s.reloads <- struct{}{}
	s.get(t, "/metrics", has("\nnotifyd_outboxes_found 1\n"))
	s.write(t, strings.Replace(listed, "  every: 1s", "  query: SELECT nonsense\n  every: 1s", 1))
	s.reloads <- struct{}{}
	s.get(t, "/readyz?verbose", has("[!] configuration: the last reload failed"))
	s.get(t, "/readyz?verbose", has("[+] outboxes: ok"))
	s.get(t, "/metrics", has("\nnotifyd_outboxes_found 1\n"))
}

// TestOutboxesUnlisted: before the first query has ended the daemon is not ready, and does not claim to have found
// anything.
func TestOutboxesUnlisted(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	d := startDaemon(t, nil, "run", "-c", file(t, `version: 1
database: {url: 'postgres://u@`+silent.Addr().String()+`/d?sslmode=disable'}
admin: {listen: '127.0.0.1:0'}
log: {format: json}
destinations: {audit: {type: log}}
routes: [{match: '*', to: audit}]
outboxes: {query: SELECT name FROM tenants}
`))
	d.stderr.await(t, `"msg":"admin server listening"`)
	address := "http://" + listenOf(d)
	if code, body := fetch(t, address+"/readyz?verbose"); code != http.StatusServiceUnavailable || !strings.Contains(body, "[-] started") {
		t.Errorf("%d:\n%s", code, body)
	}
	if _, body := fetch(t, address+"/metrics"); !strings.Contains(body, "\nnotifyd_outboxes_found 0\n") {
		t.Errorf("outboxes are found:\n%s", body)
	}
	d.end(t)
}

// TestOutboxesDatabase: the database of an outbox counts, in whatever way the one of the file is written; and two
// outboxes of one place are refused in whatever way it is written.
func TestOutboxesDatabase(t *testing.T) {
	t.Parallel()
	there, empty := database(t), testenv.Database(t)
	u, err := url.Parse(there)
	if err != nil {
		t.Fatal(err)
	}
	name, other := strings.TrimPrefix(u.Path, "/"), empty[strings.LastIndex(empty, "/")+1:strings.Index(empty, "?")]
	server := "postgres://" + u.User.String() + "@" + u.Host
	write := func(main, outboxes string) string {
		return file(t, "version: 1\ndatabase: {url: \""+main+"\"}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\noutboxes: {list: ["+outboxes+"]}\n")
	}
	for _, main := range []string{
		empty, server + "/x?sslmode=disable&dbname=" + other, server + "/?database=" + other + "&sslmode=disable", server + "?db%6eame=" + other,
		"host=" + u.Hostname() + " port=" + u.Port() + " user=" + u.User.Username() + " sslmode=disable dbname=" + other,
	} {
		path := write(main, "{name: shop, database: "+name+"}")
		if got := invoke(t, "check-config", "--online", "-c", path); got.code != 0 {
			t.Errorf("%s: %+v", main, got)
		}
		got := invoke(t, "publish", "-c", path, "--outbox", "shop", "order.placed", order)
		if got.code != 0 {
			t.Errorf("%s: %+v", main, got)
		}
		path = write(main, "{name: shop, database: "+name+"}, {name: again, url: \"postgres://other@"+u.Host+"?dbname="+name+"&sslmode=require\"}")
		if got := invoke(t, "check-config", "-c", path); got.code != command.ExitConfig || !strings.Contains(got.stderr, `"shop" has the same schema of the same database`) {
			t.Errorf("%s: %+v", main, got)
		}
	}
	if n := query[int](t, there, `SELECT count(*) FROM outbox_events`); n != 5 {
		t.Errorf("%d events are in the database of the outbox, want 5", n)
	}
}

// TestOutboxesStopInReload: a stop during a reload does not wait for the deliveries of an outbox that the reload stops.
func TestOutboxesStopInReload(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := startTenants(t)
	s.up(t, "north", "south", "east")
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	defer close(release)
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	t.Cleanup(hook.Close)
	text := strings.Replace(s.config("ledger"), "destinations:\n", "relay: {shutdown_timeout: 1h}\ndestinations:\n  hook: {type: webhook, url: '"+hook.URL+"', response_timeout: 8m, request_timeout: 9m, timeout: 10m}\n", 1)
	s.write(t, strings.Replace(text, "{name: north, schema: north}", "{name: north, schema: north, routes: [{match: '*', to: hook}]}", 1))
	s.reloads <- struct{}{}
	s.stderr.await(t, `"destination begins","outbox":"north","destination":"hook"`)
	s.in(t, "north", "publish", "order.placed", `{}`)
	<-arrived
	stopped := func(name string) string { return `"msg":"relay stopped","outbox":"` + name + `"` }
	before := strings.Count(s.stderr.text(), stopped("east"))
	s.write(t, strings.Replace(text, "    - {name: north, schema: north}\n", "", 1))
	s.reloads <- struct{}{}
	s.stderr.awaitN(t, `"msg":"released a shard","outbox":"north","destination":"(unrouted scanner)"`, 2) // it waits for the delivery now
	s.stop()
	s.stderr.awaitN(t, stopped("east"), before+1)
	s.stderr.await(t, stopped("south"))
}

// TestOutboxesReload: a reload changes what has changed, and touches nothing else.
func TestOutboxesReload(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := startTenants(t)
	for _, name := range []string{"north", "south", "east"} {
		s.get(t, "/metrics", has(`notifyd_outbox_up{outbox="`+name+`"} 1`))
	}
	s.write(t, s.config("nobody"))
	s.reloads <- struct{}{}
	s.stderr.await(t, `there is no destination \"nobody\"`)
	// A database that is there must not be exchanged for one that does not answer; the change of the other waits with it.
	s.write(t, strings.NewReplacer("[audit, audit]", "[audit]", "{name: north, schema: north}", "{name: north, url: 'postgres://u@127.0.0.1:2/d?sslmode=disable'}").Replace(s.config("audit")))
	s.reloads <- struct{}{}
	s.stderr.await(t, `"err":"outbox north: database: `)
	// One that is down may be moved to a place that does not answer either.
	s.write(t, strings.NewReplacer("[audit, audit]", "[audit]", "127.0.0.1:1/d", "127.0.0.1:3/d").Replace(s.config("audit")))
	s.reloads <- struct{}{}
	s.stderr.await(t, saidReloaded)
	s.get(t, "/metrics", func(_ int, body string) bool {
		return !strings.Contains(body, `{destination="ledger",outbox="south",state="closed"}`) && strings.Contains(body, `notifyd_outbox_up{outbox="south"} 1`)
	})
	s.in(t, "south", "publish", "order.placed", `{}`)
	s.stdout.await(t, `"outbox":"south"`)
	text := s.stderr.text()
	for name, want := range map[string]int{"north": 1, "south": 2, "east": 1} {
		if got := len(regexp.MustCompile(`"msg":"relay started".*"outbox":"`+name+`"`).FindAllString(text, -1)) +
			len(regexp.MustCompile(`"outbox":"`+name+`".*"msg":"relay started"`).FindAllString(text, -1)); got != want {
			t.Errorf("the relay of %s was started %d times, want %d:\n%s", name, got, want, text)
		}
	}
	s.write(t, "version: 1\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: [audit]}]\n")
	s.reloads <- struct{}{}
	s.stderr.await(t, "a reload does not lead from one outbox to many, or back: restart notifyd")
}

// TestOutboxesReloadCommand: "notifyd reload" hears from relays that a reload does not touch.
func TestOutboxesReloadCommand(t *testing.T) {
	t.Parallel()
	databaseURL := database(t)
	text := fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nlog: {format: json}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n"+
		"outboxes:\n  list:\n    - {name: one, schema: public}\n", databaseURL)
	path := file(t, text)
	p := startProcess(t, "", "run", "-c", path)
	p.stderr.await(t, `"relay started"`)
	process := fmt.Sprintf("process %d: ", p.cmd.Process.Pid)
	reload := func(code int, want string) {
		t.Helper()
		if got := invoke(t, "reload", "-c", path); got.code != code || !strings.Contains(got.stdout, process+want) {
			t.Errorf("want %d, %q, got %+v; the relays:\n%s", code, want, got, p.stderr.text())
		}
	}
	reload(command.ExitOK, "has taken the new configuration")
	write := func(changed string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(text + "    - {name: two, schema: two}\n")
	reload(command.ExitOK, "has taken the new configuration")
	p.stderr.await(t, `"added":["two"]`)
	write(strings.Replace(text, "type: log", "type: log, order: total", 1))
	reload(command.ExitFailure, "refused, it continues with the previous configuration: outbox one: ")
	if n := strings.Count(p.stderr.text(), `"relay started"`); n != 1 {
		t.Errorf("the relay was started %d times", n)
	}
}

// TestOutboxesCommands: commands have a section for each outbox, or say which there are to choose from.
func TestOutboxesCommands(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := startTenants(t)
	s.get(t, "/metrics", has(`notifyd_outbox_up{outbox="east"} 1`))
	for _, args := range []string{"dlq list", "positions list", "publish a.b {}", "events list", "pause audit", "status --watch"} {
		got := invoke(t, append(strings.Fields(args), "-c", s.path)...)
		if want := "choose one with --outbox: there are away, bare, east, north, south\n"; got.code != command.ExitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: got %+v, want %s", args, got, want)
		}
	}
	if got := invoke(t, "dlq", "list", "-c", s.path, "--outbox", "nort"); got.code != command.ExitUsage || !strings.Contains(got.stderr, `there is no outbox "nort": there are away, `) {
		t.Errorf("a name that is none: %+v", got)
	}
	if got := invoke(t, "dlq", "list", "-c", s.path, "--schema", "north"); got.code != 0 {
		t.Errorf("--schema without --outbox: %+v", got)
	}
	for _, args := range [][]string{{"status"}, {"migrate", "status"}, {"doctor"}} {
		got := invoke(t, append(args, "-c", s.path)...)
		for _, want := range []string{"outbox away\nfailed: ", "\noutbox north\n", "\noutbox south\n", "\noutbox east\n"} {
			if args[0] == "doctor" {
				want = strings.TrimSuffix(want, "failed: ")
			}
			if !strings.Contains(got.stdout, want) {
				t.Errorf("%q: no %q in %+v", args, want, got)
			}
		}
		if got.code != command.ExitFailure {
			t.Errorf("%q: exit code %d although an outbox fails: %s", args, got.code, got.stderr)
		}
	}
	type section struct {
		Error string
		Mode  string
		Relay *struct{ Destinations []struct{ Name string } }
	}
	var all map[string]section
	got := commandUntil(t, "the relays answer", func(r result) bool {
		all = nil
		return json.Unmarshal([]byte(r.stdout), &all) == nil && all["north"].Relay != nil && all["south"].Relay != nil
	}, "status", "-c", s.path, "-o", "json")
	if all["away"].Error == "" || all["north"].Mode != "stream" || all["south"].Mode != "queue" {
		t.Errorf("status: %s", got.stdout)
	}
	if len(all["south"].Relay.Destinations) != 2 {
		t.Errorf("the relay of south: %s", got.stdout)
	}
	if len(all["north"].Relay.Destinations) != 1 {
		t.Errorf("the relay of north: %s", got.stdout)
	}
}
