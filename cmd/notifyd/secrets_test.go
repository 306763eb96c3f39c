package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestSecrets lets everything fail that has a password, at the lowest log
// level, and looks for the passwords.
func TestSecrets(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, nil) // takes any password
	open := testenv.Mail(t, smtpsink.Options{Username: "u", Password: "marker-smtp", Faults: []smtpsink.Fault{
		{Stage: smtpsink.Rcpt, Code: 550, Text: "5.1.1 no, marker-smtp", Times: smtpsink.Always},
	}})
	locked := testenv.Mail(t, smtpsink.Options{Username: "u", Password: "another", Faults: []smtpsink.Fault{
		{Stage: smtpsink.Auth, Code: 535, Text: "5.7.8 AUTH failed for marker-smtp", Times: smtpsink.Always},
	}})
	destination := func(name string, sink *smtpsink.Sink, text string) string {
		ca := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(ca, sink.CertPEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("  %s: {type: email, host: 127.0.0.1, port: %d, username: u, password: '${env:SMTP_PASSWORD}', ca_file: %s,\n"+
			"    from: shop@example.com, to: ann@example.com, subject: Hello, text: '%s'}\n", name, sink.Port(), ca, text)
	}
	path := file(t, fmt.Sprintf("version: 1\ndatabase:\n  url: postgres://postgres:marker-url@127.0.0.1:%d/postgres\n", server.Port())+
		fmt.Sprintf("  listen_url: host=127.0.0.1 port=%d user=postgres password=marker-listen dbname=postgres\n", server.Port())+
		"log: {level: debug, format: json}\ndestinations:\n"+
		destination("refused", open, "Hello ${env:TOKEN}")+
		destination("failing", open, "{{ .Payload.absent }} ${env:TOKEN}")+
		destination("locked", locked, "Hello ${env:TOKEN}")+
		"routes: [{match: '*', to: [refused, failing, locked]}]\n")
	env := vars{"SMTP_PASSWORD": "marker-smtp", "TOKEN": "marker-token"}

	var all strings.Builder
	for _, args := range []string{"check-config", "config print", "migrate", "migrate status", "publish order.placed"} {
		got := commandIn(t, env, append(strings.Fields(args), "-c", path)...)
		if got.code != 0 {
			t.Errorf("%s: %+v", args, got)
		}
		all.WriteString(got.stdout + got.stderr)
	}
	d := startDaemon(t, env, "run", "-c", path, "--log-level", "debug")
	d.stderr.await(t, `"destination down"`)
	url := server.URL("")
	until(t, url, "SELECT count(*) = 2 FROM outbox_deliveries WHERE state = 'dead'")
	all.WriteString(query[string](t, url, "SELECT string_agg(d::text, E'\n') FROM outbox_deliveries d"))
	if err := server.Halt(t.Context(), pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	d.stderr.await(t, `"database does not answer"`)
	d.stderr.await(t, `"not listening"`)
	for _, args := range []string{"migrate", "publish order.placed"} {
		got := commandIn(t, env, append(strings.Fields(args), "-c", path)...)
		if got.code != 1 {
			t.Errorf("%s: %+v", args, got)
		}
		all.WriteString(got.stdout + got.stderr)
	}
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	all.WriteString(d.stdout.text() + d.stderr.text())
	// base64 of marker-smtp, and of NUL u NUL marker-smtp, as in AUTH.
	for _, secret := range []string{"marker", "bWFya2VyLXNtdHA", "AHUAbWFya2VyLXNtdHA"} {
		for line := range strings.Lines(all.String()) {
			if strings.Contains(line, secret) {
				t.Errorf("%s is shown: %s", secret, line)
			}
		}
	}
}

// TestMistakesKeepTheirWords: a mistake says what is wrong, whatever words there are in the connection strings beside it.
func TestMistakesKeepTheirWords(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://notifyd:marker5@h/db", "host=h user=notifyd password=marker5", "${env:ALL}"} {
		path := file(t, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations:\n  mail: {type: email, host: h, from: shop, to: a@example.com, subject: x, text: y}\n"+
			"  rows: {type: postgres, url: 'postgres://notifyd:marker5', source: shop}\nroutes: [{match: '*', to: [mail, rows]}]\n")
		got := commandIn(t, vars{"ALL": "postgres://notifyd:marker5@h/db"}, "check-config", "-c", path)
		if got.code != command.ExitConfig || !strings.Contains(got.stderr, ".from: is not an e-mail address: ") || !strings.Contains(got.stderr, ".url: is not a connection string: ") ||
			strings.Contains(got.stdout+got.stderr, "marker5") || strings.Contains(got.stderr, "[redacted]") {
			t.Errorf("%s: %+v", url, got)
		}
	}
}
