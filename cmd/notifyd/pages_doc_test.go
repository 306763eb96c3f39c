//go:build unix

package main

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
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
		"sql 1": {run: func(st step) { placing = st.text }},
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
		"notifyd migrate --mode stream": {as: "%s --database-url '" + testenv.Database(t) + "'"}, // here a relay runs
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

// TestDeadLettersPage types docs/dead-letters.md beside a relay. The commands do without the secret of a destination.
func TestDeadLettersPage(t *testing.T) {
	t.Parallel()
	const page = "docs/dead-letters.md"
	s, sink := newStage(t, database(t)), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	config := shopConfig(s.url, sink.Port()) + "admin: {listen: 127.0.0.1:9470}\n"
	s.run("export SHOP_SECRET=x")
	s.relay(strings.Replace(config, "    from:", "    headers: {X-Shop: \"${env:SHOP_SECRET}\"}\n    from:", 1))
	s.run("unset SHOP_SECRET")
	publishTo(t, s.url, "order.placed", `{"order": 1042, "mail": "ann@example.com"}`, "--aggregate", "order/1042")
	deadLetter(t, s.url, "1")
	publishTo(t, s.url, "order.placed", `{"order": 1043, "mail": "bob@example.com"}`, "--aggregate", "order/1043")
	deadLetter(t, s.url, "2")
	until(t, s.url, "SELECT bool_and(state = 'done') FROM outbox_events")

	s.follow(page, map[string]act{
		`notifyd dlq discard 2 --reason "test order"`: {before: func() { deadLetter(t, s.url, "2") }}, // it has died again
		`notifyd dlq bury 3 --destination mail --reason "the address does not exist"`: {before: func() {
			execute(t, s.url, `INSERT INTO outbox_events (id, event_type, payload, state) VALUES (3, 'order.placed', '3', 'deferred');
				INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, error_class, last_error)
				VALUES (3, 'mail', 'order.placed', 'retry', 2, now() + interval '1 h', 'event', '451 try later')`)
		}},
		"sql 1": {after: func(printed string) {
			if rows := strings.Count(printed, "@"); rows != 5 || !strings.Contains(printed, "| delivered |") {
				t.Errorf("%d lines of the audit by a person:\n%s", rows, printed)
			}
		}},
	})
	for _, st := range steps(testenv.ReadFile(t, root+page)) {
		if st.language == "go" && !strings.Contains(testenv.ReadFile(t, root+"example_test.go"), strings.ReplaceAll(strings.TrimSpace(st.text), "\n", "\n\t")) {
			t.Errorf("the example of the package does not have\n%s", st.text)
		}
	}

	m, err := mails(t, sink, 1)[0].Parse()
	if err != nil || m.To != "<ann@example.com>" || m.MessageID != "<notifyd.1r1.mail@example.com>" {
		t.Errorf("the mail %+v, %v", m, err)
	}
}

// TestBytesPage types docs/bytes.md beside a relay with a log.
func TestBytesPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	s.relay(auditOnly)
	s.follow("docs/bytes.md", map[string]act{
		"notifyd publish order.created @order.pb --content-type application/x-protobuf --aggregate order/1042": {
			after: func(string) { until(t, s.url, `SELECT bool_and(state = 'done') FROM outbox_events`) },
		},
		"sql 1": {after: func(string) { until(t, s.url, `SELECT count(*) = 2 AND bool_and(state = 'done') FROM outbox_events`) }},
	})
	if got := testenv.ReadFile(t, s.dir+"/events.log"); strings.Count(got, `"content_type":"application/x-protobuf","payload_size":8}`) != 2 {
		t.Errorf("the log has\n%s", got)
	}
}

// TestShardsPage runs docs/shards.md: a destination that has events waiting gets shards.
func TestShardsPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	if got := invoke(t, "migrate", "--mode", "stream", "--database-url", s.url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	config := s.config("docs/shards.md")
	s.relay(strings.Replace(config, ", shards: 3", "", 1))
	publish := func() {
		for range 3 {
			publishTo(t, s.url, "picture.added", `{"picture": 1}`)
		}
	}
	publish()
	s.until(`test "$(grep -c picture.added events.log)" = 3`)
	s.write("notifyd.yaml", config)
	s.follow("docs/shards.md", map[string]act{
		"notifyd positions list": {before: func() { s.until(`notifyd positions list | grep -q "shard 2 of 3"`) }},
	})
	publish()
	s.until(`test "$(grep -c picture.added events.log)" = 6`)
	s.stop()
}

// TestStreamsPage runs docs/streams.md: a destination that is new reads the past, reads it again, and is
// forgotten.
func TestStreamsPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	if got := invoke(t, "migrate", "--mode", "stream", "--database-url", s.url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	config := s.config("docs/streams.md")
	before := strings.NewReplacer("  stock: {type: log, output: stderr, payload: false, start_from: beginning}\n", "", "[mail, stock]", "[mail]").Replace(config)
	s.relay(before)
	for range 3 {
		publishTo(t, s.url, "order.placed", `{"order": 1}`)
	}
	const atEnd = `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = '%' AND head = outbox_last_id() AND open = '{}' AND delivered = `
	past := func(destination, delivered string) {
		t.Helper()
		until(t, s.url, strings.Replace(atEnd, "%", destination, 1)+delivered+`)`)
	}
	past("mail", "3")
	s.follow("docs/streams.md", map[string]act{
		"notifyd plan":                 {before: func() { s.write("notifyd.yaml", config) }},
		"notifyd positions show stock": {before: func() { past("stock", "3") }},
		"notifyd positions forget stock --dry-run": {
			before: func() {
				past("stock", "6")
				s.write("notifyd.yaml", before)
				s.until("notifyd reload")
				until(t, s.url, `SELECT owner IS NULL FROM outbox_positions WHERE destination = 'stock'`)
			},
		},
	})
	s.stop()
}

// TestReloadPage runs docs/reload.md, and brings about each exit code in its table.
func TestReloadPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	old, next := planFiles(t, s.url)
	s.write("etc/notifyd/config.yaml", testenv.ReadFile(t, old))
	s.write("new.yaml", testenv.ReadFile(t, next))
	const plan = "notifyd plan -c new.yaml --against /etc/notifyd/config.yaml"
	s.follow("docs/reload.md", map[string]act{
		"notifyd reload":                {as: "%s -c etc/notifyd/config.yaml", code: command.ExitFailure}, // none runs; TestReloadCommand has one
		plan + " -o json --exit-code":   {code: command.ExitChanges, says: `^\{`},
		plan + " --offline --exit-code": {code: command.ExitChanges, says: `~ audit \(log\)`},
	})
	s.write("gone.yaml", strings.Replace(testenv.ReadFile(t, next), "database:", "database: {url: 'postgres://127.0.0.1:1/none'}\n#", 1))
	s.write("wrong.yaml", testenv.ReadFile(t, next)+"more: 1\n")
	for line, want := range map[string]int{
		"plan -c new.yaml --against new.yaml --exit-code":                0,
		"plan -c gone.yaml --against new.yaml":                           1,
		"plan --more":                                                    64,
		"plan -c new.yaml --against etc/notifyd/config.yaml --exit-code": 3,
		"plan -c wrong.yaml":                                             78,
	} {
		s.command(step{language: "sh", text: "notifyd " + line}, act{code: want})
		if !regexp.MustCompile(`(?m)^\| ` + strconv.Itoa(want) + ` \|`).MatchString(testenv.ReadFile(t, root+"docs/reload.md")) {
			t.Errorf("the page does not have the exit code %d", want)
		}
	}
}

// TestOutboxesPage types docs/outboxes.md: the configurations run, and the commands do what the page says.
func TestOutboxesPage(t *testing.T) {
	t.Parallel()
	billing, _, _ := strings.Cut(path.Base(testenv.Database(t)), "?")
	s := newStage(t, testenv.Database(t), "database: billing", "database: "+billing)
	execute(t, s.url, `CREATE TABLE tenants (name text, schema_name text, active bool); INSERT INTO tenants VALUES ('north', 'north', true), ('south', 'none', false)`)
	relayed := &tenants{address: s.address}
	up := func(names ...string) func(string) {
		return func(string) { relayed.up(t, names...) }
	}
	s.follow("docs/outboxes.md", map[string]act{
		"yaml 1":                        {run: s.launch, after: func(string) { relayed.get(t, "/metrics", has(`notifyd_outbox_up{outbox="north"} 0`)) }},
		"notifyd migrate --mode stream": {after: up("north", "south", "billing")},
		`notifyd publish invoice.sent '{"number": 7}' --outbox billing`: {after: func(string) {
			s.until(`grep -c '"destination":"ledger","outbox":"billing"' events.log`)
		}},
		"yaml 2": {run: s.serve, after: up("north")},
		"sql 1":  {after: func(string) { relayed.get(t, "/metrics", has(`notifyd_outbox_up{outbox="east"} 0`)) }},
		"notifyd migrate --outbox east --mode stream": {after: up("east")},
	})
	s.until("notifyd healthcheck")
	s.stop()
}

// TestUpgradesPage types docs/upgrades.md on a copy. The tests of integration/copies do the rest of the
// page: dumps, pg_upgrade, logical replication, pg_repack.
func TestUpgradesPage(t *testing.T) {
	t.Parallel()
	const elsewhere = "1/2/3/shop"
	s := newStage(t, database(t))
	s.types("notifyd migrate --partitions daily --yes", act{}, 0)
	atHome := func(want string) {
		t.Helper()
		equal(t, s.url, `SELECT (home = outbox_place(tableoid))::text FROM outbox_mode`, want)
	}
	copied := func() {
		execute(t, s.url, `UPDATE outbox_mode SET home = '`+elsewhere+`'`)
		publishTo(t, s.url, "a", "1")
		s.types("notifyd status --exit-code", act{code: command.ExitFailure, says: `(?s)The outbox is a copy: its home is database shop.*notifyd adopt`}, 0)
	}
	adopted := act{before: func() {
		copied()
		s.types("notifyd adopt </dev/null", act{code: command.ExitUsage, says: "--yes"}, 0)
	}, as: "%s --yes", after: func(string) { atHome("true") }}
	skipped := act{run: func(step) {}} // no session may use the database
	s.follow("docs/upgrades.md", map[string]act{
		"notifyd adopt --dry-run":                           {before: copied, after: func(string) { atHome("false") }},
		`notifyd adopt --reason "upgrade to PostgreSQL 18"`: adopted,
		"notifyd adopt --discard-waiting":                   adopted,
		"sql 1":                                             skipped,
		"sql 5":                                             skipped,
		"pg_repack --no-kill-backend --dbname shop --table outbox_events --table outbox_deliveries": {run: func(step) {}}, // TestRepack of integration/copies runs it
	})
	equal(t, s.url, `SELECT count(*)::text FROM outbox_events WHERE state = 'fresh'`, "0")

	s.types("notifyd migrate", act{}, 0) // the page has removed the home
	atHome("true")
	execute(t, s.url, `UPDATE outbox_mode SET home = '`+elsewhere+`'`)
	s.types("notifyd migrate", act{}, 0)
	equal(t, s.url, `SELECT home FROM outbox_mode`, elsewhere)
	s.types("notifyd adopt --dry-run -o json", act{says: `"from": "` + elsewhere + `"`}, 0)
}

// TestRetentionPage types docs/retention.md with a relay at work.
func TestRetentionPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	deliver := func() {
		publishTo(t, s.url, "a", "1")
		until(t, s.url, `SELECT bool_and(state = 'done') FROM outbox_events`)
	}
	s.follow("docs/retention.md", map[string]act{
		"yaml 1": {run: s.serve, after: func(string) { deliver() }},
		"notifyd migrate --partitions daily --yes": {after: func(string) {
			s.types("notifyd migrate --partitions daily --yes", act{says: `, partitions daily\n$`}, 0) // it goes on with what is there
		}},
		"yaml 2": {run: s.serve, after: func(string) {
			deliver()
			// The relay looks after partitions some seconds after its start.
			execute(t, s.url, `DROP TABLE outbox_events_p`+query[string](t, s.url, `SELECT to_char(max(day), 'YYYYMMDD') FROM outbox_partitions()`))
			until(t, s.url, `SELECT max(day) = (now() AT TIME ZONE 'UTC')::date + 3 FROM outbox_partitions()`)
		}},
		"sql 1": {run: func(st step) {
			s.psql(st.text, act{})
			s.psql(st.text, act{}) // the key is there already
			equal(t, s.url, `SELECT count(*)::text FROM outbox_events WHERE idempotency_key = 'invoice-7'`, "1")
		}},
		"notifyd doctor": {says: `(?sm)^ok +schema .*^ok +other triggers .*^ok +rights .*^ok +autovacuum `},
	})
	s.stop()
	if got := query[string](t, s.url, `SELECT string_agg(DISTINCT tableoid::regclass::text, ' ') FROM outbox_events`); !strings.HasPrefix(got, "outbox_events_before outbox_events_p") {
		t.Errorf("events are in %s", got)
	}
}

// TestMigratePartitionsMistakes: what cannot be meant is refused.
func TestMigratePartitionsMistakes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"migrate --partitions weekly":               `--partitions: "weekly" is unknown: use daily`,
		"migrate up --partitions none":              "no command that takes partitions away",
		"migrate --partitions daily --print-grants": "run them one after the other",
	} {
		got := commandIn(t, vars{"DATABASE_URL": "postgres://127.0.0.1:1/x"}, strings.Fields(args)...)
		if got.code != command.ExitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestTracingPage runs docs/tracing.md: variables and relay, SQL and the command. The
// spans that the collector gets are those of the page's events.
func TestTracingPage(t *testing.T) {
	t.Parallel()
	collected := startCollector(t)
	s := newStage(t, database(t), "http://localhost:4318", collected.URL)
	s.write("notifyd.yaml", s.own.Replace(auditOnly))
	written := func(column string) act {
		return act{after: func(string) {
			equal(t, s.url, `SELECT `+column+` FROM outbox_events ORDER BY id DESC LIMIT 1`, writer)
		}}
	}
	s.follow("docs/tracing.md", map[string]act{
		"notifyd run": {run: func(step) { s.start() }},
		"sql 1":       written("traceparent"),
		"sql 2":       written("traceparent"),
		`notifyd publish order.placed '{"order": 7}' --header traceparent=` + writer: written("headers->>'traceparent'"),
	})
	until(t, s.url, "SELECT count(*) = 3 AND bool_and(state = 'done') FROM outbox_events")
	s.stop() // which sends the last spans
	all := collected.received()
	if len(all) != 3 || collected.of["service.name"] != "shop-relay" || collected.of["deployment.environment.name"] != "production" {
		t.Errorf("%d spans of %v", len(all), collected.of)
	}
	for _, span := range all {
		if !strings.Contains(traceparentOf(span), writerTrace) || span.GetName() != "deliver audit" {
			t.Errorf("the span %s of %s", span.GetName(), traceparentOf(span))
		}
	}
	for _, st := range steps(testenv.ReadFile(t, root+"docs/tracing.md")) {
		if st.language == "go" && !strings.Contains(testenv.ReadFile(t, root+"observe/oteltrace/example_test.go"), st.text) {
			t.Errorf("the example of the package is not\n%s", st.text)
		}
	}
}
