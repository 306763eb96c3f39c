package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/smtpsink"
)

// masked makes what differs from run to run the same.
func masked(s string) string {
	s = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`).ReplaceAllString(s, "TIME")
	s = regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(s, "")
	return strings.TrimSpace(s)
}

// words splits a command line as a shell does, as far as the page needs it.
func words(line string) (list []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		list = append(list, m[1]+m[2]+m[3])
	}
	return list
}

// TestDeadLettersPage runs the commands of docs/dead-letters.md in their order,
// beside a running relay, and compares what they print with what it says.
func TestDeadLettersPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/dead-letters.md")
	if err != nil {
		t.Fatal(err)
	}
	url, sink := database(t), startSink(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	config := strings.Replace(shopConfig(url, sink.Port()), "    from:", "    headers: {X-Shop: \"${env:SHOP_SECRET}\"}\n    from:", 1)
	path := file(t, config)
	startDaemon(t, vars{"SHOP_SECRET": "x"}, "run", "-c", path)
	publishTo(t, url, "order.placed", `{"order": 1042, "mail": "ann@example.com"}`, "--aggregate", "order/1042")
	deadLetter(t, url, "1")
	publishTo(t, url, "order.placed", `{"order": 1043, "mail": "bob@example.com"}`, "--aggregate", "order/1043")
	deadLetter(t, url, "2")
	until(t, url, "SELECT bool_and(state = 'done') FROM outbox_events")

	ran := 0
	for _, block := range regexp.MustCompile("(?s)```\n(\\$ .*?)```").FindAllStringSubmatch(string(page), -1) {
		for step := range strings.SplitSeq("\n"+strings.TrimSpace(block[1]), "\n$ ") {
			if step == "" {
				continue
			}
			line, want, _ := strings.Cut(step, "\n")
			args := words(line)
			if strings.Contains(line, "discard 2") { // it has died again by now
				deadLetter(t, url, "2")
			}
			got := command(t, append(args[1:], "-c", path)...) // the variable is not set
			if got.code != 0 || masked(got.stdout) != masked(want) {
				t.Fatalf("$ %s\nexit code %d: %s%s\nwant\n%s", line, got.code, got.stderr, got.stdout, want)
			}
			ran++
		}
	}
	if ran < 7 {
		t.Errorf("%d commands were run", ran)
	}
	m, err := mails(t, sink, 1)[0].Parse()
	if err != nil || m.To != "<ann@example.com>" || m.MessageID != "<notifyd.1r1.mail@example.com>" {
		t.Errorf("the mail %+v, %v", m, err)
	}
	sql := regexp.MustCompile("(?s)```sql\n(.*?);?\n```").FindStringSubmatch(string(page))[1]
	if n := query[int](t, url, "SELECT count(*)::int FROM ("+sql+") AS t"); n != 4 {
		t.Errorf("%d rows in the audit", n)
	}
}
