package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fence is one block of a page.
type fence struct{ language, text string }

func fences(page string) (list []fence) {
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		list = append(list, fence{m[1], m[2]})
	}
	return list
}

// section returns what stands between a heading of the second level and the next one.
func section(t *testing.T, page, heading string) []fence {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n## "+heading+"\n")
	if !found {
		t.Fatalf("no heading %q", heading)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return fences(text)
}

// docPages are all that a reader may copy from.
func docPages(t *testing.T) (list []string) {
	t.Helper()
	for _, pattern := range []string{"README.md", "SECURITY.md", "docs/*.md", "docs/destinations/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob(root + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		list = append(list, found...)
	}
	return list
}

// completed makes a file of a section that a page shows alone.
func completed(config string) string {
	if !regexp.MustCompile(`(?m)^version:`).MatchString(config) {
		config = "version: 1\n" + config
	}
	if !regexp.MustCompile(`(?m)^destinations:`).MatchString(config) {
		config += "destinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n"
	}
	return config
}

// checked has the program check a configuration, with the variables and the secret
// files that it names.
func checked(t *testing.T, page, config string) {
	t.Helper()
	path := file(t, completed(config))
	for _, m := range regexp.MustCompile(`\$\{file:([\w-]+)\}`).FindAllStringSubmatch(config, -1) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), m[1]), []byte("https://hooks.example.com/services/T000/B000/XXXX"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := commandIn(t, variablesOf(config), "check-config", "-c", path); r.code != 0 {
		t.Errorf("%s: %s\n%s", page, r.stderr, config)
	}
}

// typed finds the command lines of notifyd in a block: behind a prompt or without.
var typed = regexp.MustCompile(`(?m)^(?:\$ )?(?:sudo )?(?:-u notifyd )?(?:bin/)?notifyd +(.*?)(?:\\\n *.*)?(?: *(?:#|\||>|&).*)?$`)

// TestDocsBlocks checks the configurations of all pages, has the program parse
// their command lines, and runs the statements of those pages that no test of
// their own plays.
func TestDocsBlocks(t *testing.T) {
	t.Parallel()
	url, ran := database(t), map[string]int{}
	for _, page := range docPages(t) {
		for _, f := range fences(read(t, page)) {
			switch f.language {
			case "sql":
				if name := filepath.Base(page); name == "README.md" || name == "concepts.md" || name == "faq.md" {
					execute(t, url, f.text)
				}
			case "yaml":
				checked(t, page, f.text)
			case "", "sh", "console":
				for _, m := range typed.FindAllStringSubmatch(f.text, -1) {
					parsed(t, page, words(m[1]))
					ran["commands"]++
				}
			case "mermaid":
				if !regexp.MustCompile(`^(flowchart|sequenceDiagram|stateDiagram-v2|erDiagram)\b`).MatchString(f.text) {
					t.Errorf("%s: not a diagram:\n%s", page, f.text)
				}
			case "go", "text", "html", "json":
			default:
				t.Errorf("%s: nothing checks a block of %q", page, f.language)
			}
			ran[f.language]++
		}
	}
	if ran["sql"] < 20 || ran["yaml"] < 25 || ran["commands"] < 40 || ran["mermaid"] < 8 {
		t.Errorf("found: %v", ran)
	}
}

// parsed has the program parse a command line. An unknown command gets the help of the
// one above it, so what the help is about has to be the command itself.
func parsed(t *testing.T, page string, args []string) {
	t.Helper()
	path := "notifyd"
	for _, a := range args {
		if !regexp.MustCompile(`^[a-z-]+$`).MatchString(a) || strings.HasPrefix(a, "-") {
			break
		}
		path += " " + a
	}
	if r := command(t, append(args, "--help")...); r.code != 0 || !strings.Contains(r.stdout, "Usage:\n  "+path) {
		t.Errorf("%s: notifyd %q is not understood: %s%s", page, args, r.stdout, r.stderr)
	}
}

// statements returns the SQL of a section of docs/migrating.md.
func statements(t *testing.T, heading string, n int) (list []string) {
	t.Helper()
	for _, f := range section(t, read(t, root+"docs/migrating.md"), heading) {
		if f.language == "sql" {
			list = append(list, f.text)
		}
	}
	if len(list) != n {
		t.Fatalf("%q has %d blocks of SQL, want %d", heading, len(list), n)
	}
	return list
}

// audited starts a relay that writes each event to its log.
func audited(t *testing.T, url string) *daemon {
	t.Helper()
	return startDaemon(t, nil, "run", "-c",
		file(t, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n"))
}

// equal compares the one text that a query returns.
func equal(t *testing.T, url, sql, want string) {
	t.Helper()
	if got := query[string](t, url, sql); got != want {
		t.Errorf("%s\nis   %s\nwant %s", sql, got, want)
	}
}

// TestMigratePolling cuts over from a table with rows that were sent and rows
// that were not, and back: nothing is left out, nothing is there twice.
func TestMigratePolling(t *testing.T) {
	t.Parallel()
	url, sql := database(t), statements(t, "From a polling table", 4)
	const insert = `INSERT INTO outbox (topic, key, payload) VALUES ('order.placed', '7', '{"n": `
	execute(t, url, sql[0])
	execute(t, url, insert+`1}')`)
	execute(t, url, `UPDATE outbox SET sent_at = now()`)
	execute(t, url, insert+`2}'); `+insert+`3}')`)
	execute(t, url, sql[1])
	execute(t, url, insert+`4}')`)
	execute(t, url, `BEGIN; `+insert+`99}'); ROLLBACK`)
	equal(t, url, `SELECT string_agg(payload->>'n', ' ' ORDER BY id) FROM outbox_events`, "2 3 4")
	equal(t, url, `SELECT count(*)::text FROM outbox WHERE sent_at IS NULL`, "0")
	d := audited(t, url)
	until(t, url, `SELECT count(*) = 3 FROM outbox_events WHERE state = 'done'`)
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
	execute(t, url, sql[2])
	execute(t, url, sql[3])
	execute(t, url, insert+`5}')`)
	equal(t, url, `SELECT string_agg(payload->>'n', ' ' ORDER BY id) FROM outbox WHERE sent_at IS NULL`, "5")
	equal(t, url, `SELECT count(*)::text FROM outbox_events`, "3")
}

// TestMigrateDebezium inserts as an application does that knows Debezium's
// columns only: before the change, after it, and after going back.
func TestMigrateDebezium(t *testing.T) {
	t.Parallel()
	url, sql := database(t), statements(t, "From Debezium", 4)
	insert := func(n string) {
		t.Helper()
		execute(t, url, `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES
			('00000000-0000-0000-0000-00000000000`+n+`', 'order', '7', 'OrderPlaced', '{"n": `+n+`}')`)
	}
	execute(t, url, sql[0])
	insert("1")
	execute(t, url, sql[1])
	insert("2")
	insert("3")
	equal(t, url, `SELECT string_agg(concat_ws(' ', event_type, aggregate_type, aggregate_id, right(idempotency_key, 2), right(headers->>'id', 2), payload->>'n'), ', ' ORDER BY id)
		FROM outbox_events`, "OrderPlaced order 7 02 02 2, OrderPlaced order 7 03 03 3")
	execute(t, url, sql[2])
	d := audited(t, url)
	until(t, url, `SELECT count(*) = 2 FROM outbox_events WHERE state = 'done'`)
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
	execute(t, url, sql[3])
	insert("4")
	equal(t, url, `SELECT string_agg(payload->>'n', ' ' ORDER BY id) FROM outbox`, "1 4")
}

// anchors are the headings of a page, as GitHub names them.
func anchors(page string) (list []string) {
	page = regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(page, "")
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.*)$`).FindAllStringSubmatch(page, -1) {
		name := strings.ToLower(strings.TrimSpace(m[1]))
		name = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(name, "")
		list = append(list, strings.ReplaceAll(name, " ", "-"))
	}
	return list
}

// TestDocsLinks: each relative link of the pages leads to a file that is there,
// and to a heading in it.
func TestDocsLinks(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, page := range docPages(t) {
		text := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(read(t, page), "")
		for _, link := range regexp.MustCompile(`\]\(([^)\s:#]*)(?:#([^)\s]*))?\)`).FindAllStringSubmatch(text, -1) {
			target := page
			if link[1] != "" {
				target = filepath.Join(filepath.Dir(page), link[1])
			}
			checked++
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if link[2] != "" && filepath.Ext(target) == ".md" && !slices.Contains(anchors(read(t, target)), link[2]) {
				t.Errorf("%s: %s has no heading #%s", page, target, link[2])
			}
		}
	}
	if checked < 40 {
		t.Errorf("%d links were found", checked)
	}
}
