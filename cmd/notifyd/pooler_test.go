package main

import (
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// databaseSections returns the examples of docs/operations.md.
func databaseSections(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		sections = append(sections, block[1])
	}
	if len(sections) != 2 {
		t.Fatalf("docs/operations.md has %d examples, want 2", len(sections))
	}
	return sections
}

// logConfig is a configuration that writes events to the standard output.
func logConfig(database string) string {
	return "version: 1\n" + database + "admin: {listen: 127.0.0.1:0}\nlog: {format: json}\n" +
		"destinations: {audit: {type: log}}\nroutes: [{match: '*', to: [audit]}]\n"
}

// TestRunBesideAPooler runs what docs/operations.md recommends, and what it warns of.
func TestRunBesideAPooler(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	sections := databaseSections(t)
	for name, c := range map[string]struct {
		database       func(t *testing.T, url string) string
		says, listener string
	}{
		"stream": {func(t *testing.T, url string) string {
			t.Helper()
			if got := invoke(t, "migrate", "--mode", "stream", "--database-url", url); got.code != 0 {
				t.Fatalf("migrate: %+v", got)
			}
			return "database: {url: '" + testenv.PgBouncer(t, url, "transaction") + "', listen_url: '" + url + "'}\n"
		}, "only LISTEN needs a direct database.listen_url", "[+] listener: ok"},
		"recommended": {func(t *testing.T, url string) string {
			t.Helper()
			pooler := testenv.PgBouncer(t, url, "transaction")
			return strings.NewReplacer("postgres://app@pooler:6432/shop", pooler, "postgres://app@database:5432/shop", url).Replace(sections[0])
		}, "all connections of the relay use database.listen_url instead", "[+] listener: ok"},
		"listen_url": {func(t *testing.T, url string) string {
			t.Helper()
			return "database: {url: '" + url + "', listen_url: '" + testenv.PgBouncer(t, url, "transaction") + "'}\n"
		}, "connect to PostgreSQL directly", "[!] listener: events are found by polling"},
		"session pool": {func(t *testing.T, url string) string {
			t.Helper()
			return "database: {url: '" + testenv.PgBouncer(t, url, "session") + "'}\n"
		}, "relay started", "[+] listener: ok"},
		"several hosts": {func(_ *testing.T, url string) string {
			return strings.Replace(sections[1], "postgres://app@db1:5432,db2:5432/shop", withDeadHost(url), 1)
		}, "relay started", "[+] listener: ok"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := database(t) // of its own, or another one's relay would deliver its event
			config := file(t, logConfig(c.database(t, url)))
			p := startProcess(t, "", "run", "-c", config)
			p.stderr.await(t, c.says)
			p.stderr.await(t, `"relay started"`)
			address := regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(p.stderr.text())
			if address == nil {
				t.Fatalf("the address is not said:\n%s", p.stderr.text())
			}
			publishTo(t, url, "order.placed", order)
			p.stdout.await(t, `"destination":"audit"`)
			untilReady(t, "http://"+address[1]+"/readyz")
			untilSays(t, "http://"+address[1]+"/readyz?verbose", c.listener)
			if n := strings.Count(p.stderr.text(), c.says); n != 1 {
				t.Errorf("%q is said %d times:\n%s", c.says, n, p.stderr.text())
			}
			status := invoke(t, "status", "-c", config)
			if pooled := strings.Contains(status.stdout, "behind a pooler, without a session") && strings.Contains(status.stdout, "pooled\n"); pooled != (name == "stream") {
				t.Errorf("the status is: %+v", status)
			}
			p.signal(t, syscall.SIGTERM)
			if code := p.wait(t); code != 0 {
				t.Errorf("exit code %d:\n%s", code, p.stderr.text())
			}
		})
	}
	pooler := testenv.PgBouncer(t, database(t), "transaction")
	for _, c := range []string{"database: {url: '" + pooler + "'}\n", "database: {url: '" + pooler + "', listen_url: '" + pooler + "'}\n"} {
		for _, args := range [][]string{{"run"}, {"plan"}, {"check-config", "--online"}} {
			got := invoke(t, append(args, "-c", file(t, logConfig(c)))...)
			if got.code != command.ExitFailure || !strings.Contains(got.stderr, "pooler in transaction mode") {
				t.Errorf("%v behind a pooler: %+v", args, got)
			}
		}
	}
}

// withDeadHost puts a host that does not answer before the one of a URL.
func withDeadHost(url string) string {
	return strings.Replace(url, "127.0.0.1", "127.0.0.1:1,127.0.0.1", 1)
}
