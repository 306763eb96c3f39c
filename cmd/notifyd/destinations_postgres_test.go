package main

import (
	"os"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/internal/testenv"
)

// TestPostgresPage: the table of the page is the one of the package, and a worker by the page's statements handles
// what a relay by the page's configuration has written.
func TestPostgresPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(root + "docs/destinations/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, part := range strings.Split(string(page), "```sql\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, block)
	}
	if len(blocks) != 3 || blocks[0] != postgres.Schema(postgres.Config{}) {
		t.Fatalf("%d statements; the first is %s", len(blocks), blocks[0])
	}
	url, inbox := database(t), testenv.Database(t)
	execute(t, inbox, blocks[0])
	execute(t, inbox, blocks[1])
	path := file(t, "database: {url: \""+url+"\"}\n"+pasted(t, "postgres.md"))
	if got := commandIn(t, vars{"INBOX_URL": inbox}, "check-config", "-c", path); got.code != 0 {
		t.Fatalf("check-config: %+v", got)
	}
	d := startDaemon(t, vars{"INBOX_URL": inbox}, "run", "-c", path)
	publishTo(t, url, "order.placed", order, "--aggregate", "order/7")
	until(t, inbox, `SELECT count(*) = 1 FROM received_events WHERE handled_at IS NULL`)
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
	execute(t, inbox, blocks[2])
	if n := query[int](t, inbox, `SELECT count(*) FROM received_events WHERE handled_at IS NOT NULL AND payload::text = '`+order+`'`); n != 1 {
		t.Errorf("%d events are handled", n)
	}
}

func TestPostgresMistakes(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nroutes: [{match: \"*\", to: p}]\ndestinations:\n  p:\n    type: postgres\n"
	const good = "    url: postgres://a:hush@h/x\n    source: shop\n"
	for settings, want := range map[string]string{
		"    source: shop\n":                              "destinations.p.url",
		"    url: postgres://a:hush@h\n":                  "destinations.p.source: missing: name this outbox",
		"    url: https://a:hush@h/x\n    source: shop\n": "is not a connection string",
		good + "    timeout: 10s\n":                       "longer than request_timeout",
		good + "    tabel: x\n":                           "tabel",
		good + "    concurrency: 0\n":                     "concurrency",
	} {
		got := command(t, "check-config", "-c", file(t, head+settings))
		if got.code != exitConfig || !strings.Contains(got.stdout+got.stderr, want) || strings.Contains(got.stdout+got.stderr, "hush") {
			t.Errorf("%s\nexit %d, want one about %s:\n%s%s", settings, got.code, want, got.stdout, got.stderr)
		}
	}
}
