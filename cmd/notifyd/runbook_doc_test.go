//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

const runbookConfig = `version: 1
database: {url: "${env:DATABASE_URL}"}
admin: {listen: 127.0.0.1:9470, console: true}
log: {format: json}
destinations:
  mail: {type: email, host: 127.0.0.1, port: %d, tls: none, from: shop@example.com, to: "{{ .Payload.email }}", subject: Hello, text: Hello}
  audit: {type: log}
routes: [{match: "*", to: [mail, audit]}]
`

// runbook is a relay that goes through the alerts of the page.
type runbook struct {
	*stage

	sink *smtpsink.Sink
}

// TestRunbookPage runs docs/runbook.md beside a relay that is in the state which
// each entry is about.
func TestRunbookPage(t *testing.T) {
	t.Parallel()
	testenv.Program(t, "curl")
	b := &runbook{newStage(t, database(t)), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})}
	b.write("etc/notifyd/config.yaml", b.own.Replace(fmt.Sprintf(runbookConfig, b.sink.Port())))
	if err := os.Symlink("etc/notifyd/config.yaml", filepath.Join(b.dir, "notifyd.yaml")); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.follow("docs/runbook.md", map[string]act{
		"notifyd status":      {before: b.mailDown, says: `(?m)^mail +down `},
		"notifyd doctor":      {code: command.ExitFailure, says: `(?m)^error +destination mail `},
		"notifyd healthcheck": {says: `(?m)^\[\+\] database: ok$`},
		"curl -s http://127.0.0.1:9470/metrics | grep ^notifyd_": {says: `(?m)^notifyd_destination_down\{destination="mail"\} 1\r?$`},

		// NotifydDatabaseDown, NotifydEventsWaiting
		"sql 3": {before: b.databaseDown, says: `application_name *\| *state *\| *count *\| *longest(?s:.*)notifyd/claim *\| *idle`},
		"sql 4": {before: b.oldSnapshot, says: snapshotRow, after: b.endSnapshot},

		// NotifydDeadLetters, after the mail server and the pause
		"sql 5": {before: b.deadMail, says: `\| mail *\| *1 *\|.*no such field`},
		`notifyd dlq discard --destination mail --reason "not needed" --yes`: {before: b.awaitDead},

		// NotifydDeliveriesFailing, NotifydListenerDown
		"sql 6": {before: b.failing, says: `mail *\| *order\.placed *\| *event *\| *1 *\| *.*450`},
		"sql 7": {before: b.triggerGone, says: `outbox_events_notify *\| *outbox_notify`},

		// NotifydReloadFailed
		"notifyd check-config -c /etc/notifyd/config.yaml": {before: b.wrongReload, code: command.ExitConfig, says: `config\.yaml:\d+:\d+: unknown key "routse"`},
		"curl -s 'http://127.0.0.1:9470/readyz?verbose'":   {says: `(?m)^\[!\] configuration: the last reload failed.*routse`},
	})
	b.recovered()
	b.awaitLog(`"database answers again"`)
	b.stop()
	for _, said := range []string{`"database does not answer`, `"destination paused`} {
		if !strings.Contains(b.log(), said) {
			t.Errorf("the log does not say %s:\n%s", said, b.log())
		}
	}
	b.notifydDown()
}

func (b *runbook) log() string {
	b.Helper()
	return testenv.ReadFile(b.T, filepath.Join(b.dir, "notifyd.log"))
}

// awaitLog waits until the relay has logged something.
func (b *runbook) awaitLog(want string) {
	b.Helper()
	b.until("grep -c '" + want + "' notifyd.log")
}

// metric waits until the relay has a figure.
func (b *runbook) metric(line string) {
	b.Helper()
	untilSays(b.T, "http://"+b.address+"/metrics", "\n"+line+"\n")
}

// mailDown stops the mail server, and has the relay meet that.
func (b *runbook) mailDown() {
	b.Helper()
	if err := b.sink.Close(); err != nil {
		b.Fatal(err)
	}
	publishTo(b.T, b.url, "order.placed", order)
	b.metric(`notifyd_destination_down{destination="mail"} 1`)
}

// databaseDown closes the database for a while. Before that the mail
// server comes back, and nothing had to be replayed.
func (b *runbook) databaseDown() {
	b.Helper()
	if err := b.sink.Restart(); err != nil {
		b.Fatal(err)
	}
	mails(b.T, b.sink, 1)
	until(b.T, b.url, `SELECT bool_and(state = 'done') FROM outbox_events`)
	name := query[string](b.T, b.url, "SELECT quote_ident(current_database())")
	elsewhere := testenv.Postgres(b.T).URL("")
	execute(b.T, elsewhere, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false")
	execute(b.T, elsewhere, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE quote_ident(datname) = '"+name+"'")
	b.until("said=$(notifyd healthcheck 2>&1); [ $? -eq 1 ] && printf '%s' \"$said\" | grep -F '[-] database: '")
	execute(b.T, elsewhere, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS true")
	b.ready()
	until(b.T, b.url, `SELECT count(*) = 4 FROM pg_stat_activity WHERE application_name = 'notifyd/claim' AND state = 'idle' AND datname = current_database()`)
}

// snapshotRow is the transaction of oldSnapshot, as the page's query shows it.
const snapshotRow = `(?m)^ *(\d+) \|.*a_long_report.*pg_sleep`

// oldSnapshot is a transaction that keeps what is finished from being cleaned up.
func (b *runbook) oldSnapshot() {
	b.Helper()
	b.run(`PGAPPNAME=a_long_report psql -X -q "$DATABASE_URL" >report.log 2>&1 <<'EOF' & report=$!
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM outbox_events;
SELECT pg_sleep(3600);
EOF`)
	until(b.T, b.url, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'a_long_report' AND query LIKE '%pg_sleep%')`)
}

// endSnapshot ends it as the page says, by the process id that the query shows. There
// are other transactions on the server, of which it shows the five oldest.
func (b *runbook) endSnapshot(printed string) {
	b.Helper()
	pid := regexp.MustCompile(snapshotRow).FindStringSubmatch(printed)
	execute(b.T, b.url, "SELECT pg_terminate_backend("+pid[1]+")")
	if code, text := b.run("wait $report"); code == "0" {
		b.Errorf("the transaction goes on: %s", text)
	}
	b.pausedAtConsole()
}

// pausedAtConsole pauses a destination and resumes it, as NotifydDestinationPaused says.
func (b *runbook) pausedAtConsole() {
	b.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		b.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	v := visitor{b.T, &http.Client{Jar: jar, Transport: transport}, "http://" + b.address}
	v.awaits("/console/destinations", "/console/destinations/pause")
	form := url.Values{"destination": {"mail"}}
	for _, step := range []struct{ button, figure, state string }{{"pause", "1", "paused"}, {"resume", "0", "up"}} {
		if code, page := v.post("/console/destinations/"+step.button, form); code != http.StatusOK {
			b.Fatalf("%s: %d\n%s", step.button, code, page)
		}
		b.metric(`notifyd_destination_paused{destination="mail"} ` + step.figure)
		b.until(`notifyd status | grep -E '^mail +` + step.state + ` '`)
	}
}

// deadMail has an event be given up.
func (b *runbook) deadMail() {
	b.Helper()
	publishTo(b.T, b.url, "order.placed", "{}")
	b.awaitDead()
}

func (b *runbook) awaitDead() {
	b.Helper()
	until(b.T, b.url, `SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'dead'`)
}

// failing has the mail server refuse an event for now.
func (b *runbook) failing() {
	b.Helper()
	b.sink.Fail(smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 450, Times: smtpsink.Always})
	publishTo(b.T, b.url, "order.placed", order)
	until(b.T, b.url, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE state = 'retry' AND attempts > 0)`)
}

// triggerGone takes the trigger away, and puts it back as the page says.
func (b *runbook) triggerGone() {
	b.Helper()
	b.sink.Heal()
	for _, mode := range []string{"off", "auto"} {
		line := "notifyd migrate --notify " + mode
		if mode == "auto" && !strings.Contains(testenv.ReadFile(b.T, root+"docs/runbook.md"), "`"+line+"`") {
			b.Errorf("the page does not say %s", line)
		}
		b.command(step{text: line}, act{})
		equal(b.T, b.url, `SELECT count(*)::text FROM pg_trigger WHERE tgrelid = 'outbox_events'::regclass AND tgname = 'outbox_events_notify'`,
			map[string]string{"off": "0", "auto": "1"}[mode])
	}
}

// wrongReload makes a mistake, and sends what "systemctl reload" sends.
func (b *runbook) wrongReload() {
	b.Helper()
	b.rewrite("\nroutes:", "\nroutse:")
	b.metric("notifyd_config_last_reload_successful 0")
}

// recovered is the way back.
func (b *runbook) recovered() {
	b.Helper()
	b.rewrite("\nroutse:", "\nroutes:")
	b.metric("notifyd_config_last_reload_successful 1")
	mails(b.T, b.sink, 2) // it has delivered all the while
}

func (b *runbook) rewrite(from, to string) {
	b.Helper()
	const name = "etc/notifyd/config.yaml"
	b.write(name, strings.Replace(testenv.ReadFile(b.T, filepath.Join(b.dir, name)), from, to, 1))
	if code, text := b.run("kill -HUP $relay"); code != "0" {
		b.Fatal(text)
	}
}

// notifydDown is what the first alert tells of a relay that does not run.
func (b *runbook) notifydDown() {
	b.Helper()
	says := func(line string, code int, want string) {
		b.Helper()
		b.command(step{text: line}, act{code: code, says: want})
	}
	says("notifyd healthcheck", command.ExitFailure, `does not answer`)
	b.write("wrong.yaml", auditOnly+"more: 1\n")
	says("notifyd run -c wrong.yaml", command.ExitConfig, `unknown key "more"`)
	says("notifyd check-config -c wrong.yaml", command.ExitConfig, `wrong\.yaml:\d+:1: unknown key "more"`)
	says("notifyd run --never", command.ExitUsage, `unknown flag`)
	empty := testenv.Database(b.T)
	b.run("export DATABASE_URL='" + empty + "'")
	says("notifyd run", command.ExitFailure, `schema is not migrated`)
	says("notifyd migrate", command.ExitOK, ``)
	execute(b.T, empty, `INSERT INTO outbox_migrations (version, name) SELECT max(version) + 1, 'of tomorrow' FROM outbox_migrations`)
	says("notifyd run", command.ExitFailure, `newer than this notifyd`)
}
