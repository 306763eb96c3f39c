package main

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

// as returns the URL of a database for another role, or of another database.
func as(t *testing.T, of, role, database string) string {
	t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	if role != "" {
		u.User = url.UserPassword(role, "marker")
	}
	if database != "" {
		u.Path = "/" + database
	}
	return u.String()
}

// TestRefusedAtTheStart: a role or a database that is not there is an error with its cure,
// for the daemon, which waits, and for every command.
func TestRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	own := database(t)
	for _, c := range []struct{ url, says, cure string }{
		{as(t, own, "nobody_of_that_name", ""), "does not exist", "create the role with LOGIN"},
		{as(t, own, "", "none_of_that_name"), "does not exist", "create the database, or fix its name"},
		// Of the attempts with and without TLS, the one with the server's answer is shown.
		{strings.ReplaceAll(as(t, own, "", "none_of_that_name"), "sslmode=disable", "sslmode=prefer"), "does not exist", "create the database, or fix its name"},
		{strings.ReplaceAll(own, "sslmode=disable", "sslmode=require"), "server refused TLS connection", "have the server offer TLS"},
	} {
		d := startDaemon(t, vars{"DATABASE_URL": c.url}, "run", "--log-format", "json", "-c", file(t, good+"admin: {listen: \"127.0.0.1:0\"}\n"))
		d.stderr.await(t, `"level":"ERROR","msg":"database refuses the relay"`)
		d.stderr.await(t, `"cure":"`+c.cure)
		untilSays(t, "http://"+listenOf(d)+"/readyz?verbose", "[-] database: the database refuses the relay since ", ": "+c.cure)
		twoCauses := c.says == "does not exist" && strings.Contains(d.stderr.text(), "tls error")
		if code := d.end(t); code != 0 || twoCauses || !strings.Contains(d.stderr.text(), c.says) || strings.Contains(d.stderr.text(), "marker") {
			t.Errorf("exit code %d:\n%s", code, d.stderr.text())
		}
		for _, args := range []string{"status", "publish x", "dlq list", "migrate"} {
			r := invoke(t, append(strings.Fields(args), "--database-url", c.url)...)
			if r.code != command.ExitFailure || !strings.Contains(r.stderr, ": "+c.cure) || strings.Contains(r.stderr, "start the server") || strings.Contains(r.stderr, "marker") {
				t.Errorf("%s: %+v", args, r)
			}
		}
		if r := invoke(t, "doctor", "--database-url", c.url); r.code != command.ExitFailure || strings.Count(r.stdout, c.cure) != 1 {
			t.Errorf("doctor: %+v", r)
		}
	}
}

// TestRefusedWhileRunning takes from a relay's role the right to log in, and ends its sessions.
func TestRefusedWhileRunning(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			own := databaseOf(t, mode)
			role := query[string](t, own, "SELECT 'refused_' || oid FROM pg_database WHERE datname = current_database()")
			execute(t, own, fmt.Sprintf("CREATE ROLE %s LOGIN SUPERUSER", role))
			d := startDaemon(t, vars{"DATABASE_URL": as(t, own, role, "")}, "run", "--log-format", "json", "-c", file(t, good))
			d.stderr.await(t, `"relay started"`)
			execute(t, own, fmt.Sprintf("ALTER ROLE %s NOLOGIN", role))
			execute(t, own, fmt.Sprintf("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '%s'", role))
			d.stderr.await(t, `"level":"ERROR","msg":"database refuses the relay"`)
			d.stderr.await(t, "is not permitted to log in")
			if code := d.end(t); code != 0 {
				t.Errorf("exit code %d:\n%s", code, d.stderr.text())
			}
			execute(t, own, "DROP ROLE "+role)
		})
	}
}

// TestEmptyURLIsNamed: a connection string that is there and holds nothing is no wish for
// the server of the PG* variables.
func TestEmptyURLIsNamed(t *testing.T) {
	t.Parallel()
	empty := vars{"DATABASE_URL": "", "URL": ""}
	named := file(t, "version: 1\ndatabase: {url: '${env:URL}'}\n")
	for _, args := range []string{"run", "check-config", "status", "publish x", "migrate", "dlq list"} {
		words := strings.Fields(args)
		for path, says := range map[string]string{
			file(t, good): "the environment variable DATABASE_URL, which stands in for database.url, " + config.EmptyURL,
			named:         "database.url: the expanded value " + config.EmptyURL,
		} {
			if r := commandIn(t, empty, append(words, "-c", path)...); r.code != command.ExitConfig || !strings.Contains(r.stderr, says) {
				t.Errorf("%s: %+v", args, r)
			}
		}
	}
	if r := commandIn(t, empty, "migrate"); r.code != command.ExitConfig || !strings.Contains(r.stderr, "$DATABASE_URL: "+config.EmptyURL) {
		t.Errorf("without a file: %+v", r)
	}
	if r := commandIn(t, empty, "migrate", "--database-url", ""); r.code != command.ExitUsage || !strings.Contains(r.stderr, "--database-url: "+config.EmptyURL) {
		t.Errorf("the flag: %+v", r)
	}
	if r := commandIn(t, empty, "check-config", "-c", file(t, "version: 1\ndatabase: {url: '${env:URL:-}'}\n"), "--log-level", "info"); r.code != command.ExitConfig {
		t.Errorf("an empty default falls back to DATABASE_URL, which is empty: %+v", r)
	}
	if r := commandIn(t, vars{}, "check-config", "-c", file(t, "version: 1\ndatabase: {url: '${env:URL:-}'}\n")); r.code != 0 {
		t.Errorf("an empty default is a wish for PG*: %+v", r)
	}
}
