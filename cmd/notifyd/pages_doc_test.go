//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestReadmePage runs README.md: its configuration, its commands and its SQL.
func TestReadmePage(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS, Username: "shop", Password: "swordfish"})
	s := newStage(t, testenv.Database(t), "host: smtp.example.com", fmt.Sprintf("host: 127.0.0.1, port: %d, tls: none", sink.Port()))
	config, placing := s.config("README.md"), ""
	s.write("notifyd.yaml", config)
	s.run("export SMTP_PASSWORD=swordfish")
	s.follow("README.md", map[string]act{
		"notifyd check-config": {says: `: ok, 2 destinations, 2 routes`},
		"notifyd migrate":      {says: `version`},
		"sql 1":                {run: func(st step) { placing = st.text }},
		"notifyd run": {run: func(step) {
			s.relay(config)
			s.psql("CREATE TABLE orders (id bigint PRIMARY KEY, email text);\n"+placing, act{})
			if m, err := mails(t, sink, 1)[0].Parse(); err != nil || m.To != "<ann@example.com>" || m.Subject != "Your order 1042" {
				t.Errorf("the mail %+v, %v", m, err)
			}
			until(t, s.url, "SELECT state = 'done' FROM outbox_events")
		}},
		"notifyd status":                                  {says: `nothing waits`},
		"notifyd doctor":                                  {says: `ok +destination mail .*\n.*ok +destination audit`},
		"notifyd events list --state dead":                {before: func() { s.dead("order.placed") }, says: `order\.placed .* dead +mail dead`},
		"notifyd dlq list --group":                        {says: `mail +order\.placed`},
		"notifyd dlq replay --destination mail --rate 50": {says: `replayed 1 of 1 dead letter`},
		"notifyd console":                                 {run: func(step) {}}, // TestConsoleCommand runs it: it does not end
		"notifyd plan -c new.yaml --against notifyd.yaml": {
			before: func() { s.write("new.yaml", strings.Replace(config, "to: audit}", "to: [audit, mail]}", 1)) },
			says:   `\*: audit -> audit, mail`,
		},
	})
	s.stop()
}

// dead writes an event without the fields that the destinations look for, and waits
// until it is a dead letter.
func (s *stage) dead(event string) {
	s.Helper()
	deadLetter(s.T, s.url, publishTo(s.T, s.url, event, "{}"))
}

const auditOnly = "version: 1\ndatabase: {url: '${env:DATABASE_URL}'}\nadmin: {listen: 127.0.0.1:9470}\n" +
	"destinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n"

// TestShortPages runs the pages that have a command or two, beside one relay.
func TestShortPages(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	s.relay(auditOnly)
	s.follow("docs/README.md", map[string]act{"notifyd run --help": {says: `Usage:\n  notifyd run`}, "notifyd doctor --help": {says: `Usage:\n  notifyd doctor`}})
	s.follow("docs/concepts.md", map[string]act{
		"notifyd status":                {says: `(?m)^relays +\S+, process \d+, .* \(session \d+, notifyd/maintenance`},
		"notifyd migrate --mode stream": {as: "%s --database-url '" + testenv.Database(t) + "'", says: `mode stream\n$`}, // here a relay runs
	})
	s.follow("docs/faq.md", map[string]act{"notifyd migrate --notify off": {after: func(string) {
		equal(t, s.url, `SELECT count(*)::text FROM pg_trigger WHERE tgrelid = 'outbox_events'::regclass AND tgname = 'outbox_events_notify'`, "0")
	}}})
	s.stop()
}

// TestTemplatesPageCommands shows what the page's event becomes.
func TestTemplatesPageCommands(t *testing.T) {
	t.Parallel()
	s := newStage(t, "postgres://127.0.0.1:1/none")
	s.write("notifyd.yaml", shopConfig("", 25))
	s.follow("docs/templates.md", map[string]act{
		"cat event.json": {run: func(st step) { s.write("event.json", st.shown) }},
	})
}

// TestInlineCommands runs every command of notifyd that stands in a sentence or a
// table of a page, beside a relay.
func TestInlineCommands(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	s := newStage(t, database(t))
	s.relay(shopConfig(s.url, sink.Port()) + "admin: {listen: 127.0.0.1:9470}\n")
	s.write("event.json", `{"event_type": "order.placed", "payload": `+order+`}`)
	preview := act{as: "notifyd template test --destination mail --event event.json", says: `Order 7`}
	acts := map[string]act{
		"notifyd capture add":                {before: func() { execute(t, s.url, `CREATE TABLE orders (id int PRIMARY KEY)`) }, as: "%s orders", says: `CREATE OR REPLACE TRIGGER`},
		"notifyd config init":                {as: "(mkdir -p new && cd new && %s && cat notifyd.yaml)", says: `version: 1`},
		"notifyd config schema":              {says: `"\$schema"`},
		"notifyd demo --keep":                {run: func(step) {}}, // TestDemoKeep ends it, too
		"notifyd console":                    {run: func(step) {}}, // TestConsoleCommand ends it, too
		"notifyd console --database-url URL": {run: func(step) {}}, // the same
		"notifyd dlq replay":                 {code: command.ExitUsage, says: `which dead letters`},
		"notifyd positions forget":           {code: command.ExitUsage, says: `accepts 1 arg`},
		"notifyd dlq bury":                   {code: command.ExitUsage, says: `which deliveries`},
		"notifyd dlq":                        {code: command.ExitUsage, says: `needs a command`},
		"notifyd events":                     {code: command.ExitUsage, says: `needs a command`},
		"notifyd migrate --notify always":    {after: func(string) { s.notifiesBy("outbox_notify_always") }},
		"notifyd migrate --partitions daily": {as: "%s --yes", says: `, partitions daily`},
		"notifyd migrate --mode stream":      {code: command.ExitFailure, says: `relays are at work`},
		"notifyd pause":                      {as: "%s audit", says: `audit is paused at all relays`},
		"notifyd resume":                     {as: "%s audit", says: `audit (is resumed at all relays|was not paused)`},
		"notifyd resume NAME":                {as: "notifyd resume audit", says: `audit (is resumed at all relays|was not paused)`},
		"notifyd reload":                     {says: `process \d+: has taken the new configuration`},
		"notifyd publish":                    {as: "%s order.placed '" + order + "'", says: `^\d+\n$`},
		"notifyd run":                        {run: func(step) {}}, // it is what all this is beside of
		"notifyd run --until-idle":           {run: func(step) {}}, // TestManagedPage runs it; here it would find the address of the relay in use
		"notifyd status --watch":             {as: "%s | grep -m 2 ^events", says: `^events .*\nevents `},
		"notifyd template test":              preview,
		"notifyd template test --destination NAME --event FILE": preview,
	}
	var done []string
	fenced := make(map[string]bool)
	for _, page := range docPages(t) {
		for _, st := range steps(testenv.ReadFile(t, page)) {
			st.text = strings.TrimPrefix(st.text, "bin/")
			line := st.line()
			fenced[line] = fenced[line] || st.language == "sh"
			if st.language != "inline" || !strings.HasPrefix(line, "notifyd ") || fenced["done "+line] {
				continue
			}
			fenced["done "+line] = true
			done = append(done, line)
			s.do(st, acts[line])
		}
	}
	for line := range acts {
		if !fenced["done "+line] {
			t.Errorf("no page says %q any more", line)
		}
	}
	if len(done) < 20 {
		t.Errorf("ran %q", done)
	}
	s.stop()
}

// notifiesBy checks the function of the notify trigger.
func (s *stage) notifiesBy(function string) {
	s.Helper()
	equal(s.T, s.url, `SELECT tgfoid::regproc::text FROM pg_trigger WHERE tgrelid = 'outbox_events'::regclass AND tgname = 'outbox_events_notify'`, function)
}
