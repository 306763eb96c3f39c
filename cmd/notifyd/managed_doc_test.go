//go:build unix

package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const managedPage = root + "docs/managed-postgresql.md"

// managedURL is a connection string on the page. Those of managed pooling lead through a pooler.
var managedURL = regexp.MustCompile(`postgres://\S+`)

// TestManagedPage delivers an event with each configuration of docs/managed-postgresql.md, and with each command, also those in
// the examples for schedulers. The page has no sequence to follow: each configuration is for another service, and each
// command for another scheduler.
func TestManagedPage(t *testing.T) {
	t.Parallel()
	ran, commands := 0, 0
	for _, st := range steps(testenv.ReadFile(t, managedPage)) {
		switch st.language {
		case "sh":
			commands++
			endsIdle(t, strings.Fields(st.text)[1:])
		case "inline":
		case "text":
			for _, m := range schedulerRun.FindAllStringSubmatch(st.text, -1) {
				commands++
				endsIdle(t, strings.Fields(strings.ReplaceAll(m[1], ",", " ")))
			}
		case "yaml":
			ran++
			t.Run(st.heading, func(t *testing.T) {
				t.Parallel()
				deliversWith(t, identity.ReplaceAllString(st.text, "password_command: [echo, token]"))
			})
		default:
			t.Errorf("%s is not run", st.language)
		}
	}
	if ran != 8 {
		t.Errorf("%d configurations, want one of each service, and two with tokens", ran)
	}
	if commands != 4 {
		t.Errorf("%d commands, want one alone and one of each scheduler", commands)
	}
}

// identity is a setting that needs a cloud.
var identity = regexp.MustCompile(`(?m)(?:aws_region: |password_command: \[az,).*$`)

// schedulerRun is a run in a crontab, in a unit of systemd, or in the arguments of a container.
var schedulerRun = regexp.MustCompile(`(?m)(?:/notifyd |args: \[)(run\b[^\]\n]*)`)

// endsIdle runs a command that delivers an event and ends by itself.
func endsIdle(t *testing.T, args []string) {
	t.Helper()
	url := database(t)
	publishTo(t, url, "order.placed", order)
	path := file(t, logConfig("database: {url: '"+url+"'}\n"))
	if i := slices.Index(args, "-c"); i >= 0 {
		args[i+1] = path
	} else {
		args = append(args, "-c", path)
	}
	if got := invoke(t, args...); got.code != command.ExitOK || !strings.Contains(got.stdout, `"destination":"audit"`) {
		t.Errorf("%v: %+v", args, got)
	}
}

// connected is a configuration with connection strings that lead to a database here.
func connected(t *testing.T, config, url string) string {
	t.Helper()
	return managedURL.ReplaceAllStringFunc(completed(config), func(there string) string {
		if strings.Contains(there, ":6432/") {
			return testenv.PgBouncer(t, url, "transaction")
		}
		return url
	})
}

func deliversWith(t *testing.T, config string) {
	t.Helper()
	url := database(t)
	flags := []string{"--database-url", url}
	if schema := regexp.MustCompile(`schema: (\w+)`).FindStringSubmatch(config); schema != nil {
		execute(t, url, "CREATE SCHEMA "+schema[1])
		flags = append(flags, "--schema", schema[1])
		if got := invoke(t, append([]string{"migrate"}, flags...)...); got.code != 0 {
			t.Fatalf("%+v", got)
		}
	}
	d := startDaemon(t, variablesOf(config), "run", "-c", file(t, connected(t, config, url)), "--log-format", "json")
	if !d.says(t, `"relay started"`) {
		t.Fatalf("exit code %d: %s", d.wait(t), d.stderr.text())
	}
	if got := invoke(t, append([]string{"publish", "order.placed", order}, flags...)...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	d.stdout.await(t, `"destination":"audit"`)
	if past := "use database.listen_url instead"; strings.Contains(config, "listen_url") != strings.Contains(d.stderr.text(), past) {
		t.Errorf("%q:\n%s", past, d.stderr.text())
	}
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
}

// TestManagedRoles: what the first role of a managed service may do is enough. It is no superuser, owns its database, and makes roles.
func TestManagedRoles(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	super := testenv.Database(t)
	admin, asAdmin := login(t, super, "admin")
	quoted := pgx.Identifier{admin}.Sanitize()
	db := pgx.Identifier{query[string](t, super, "SELECT current_database()")}.Sanitize()
	execute(t, super, "ALTER ROLE "+quoted+" CREATEROLE CREATEDB; ALTER DATABASE "+db+" OWNER TO "+quoted+"; GRANT CREATE ON SCHEMA public TO "+quoted)
	t.Cleanup(func() { // before login drops the role
		conn, err := pgx.Connect(context.WithoutCancel(t.Context()), super)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), "ALTER DATABASE "+db+" OWNER TO current_user"); err != nil {
			t.Error(err)
		}
	})
	if got := invoke(t, "migrate", "--database-url", asAdmin); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	writer, asWriter := login(t, super, "writer")
	relay, asRelay := login(t, super, "relay")
	grants := invoke(t, "migrate", "--print-grants", "--writer", writer, "--relay", relay)
	execute(t, asAdmin, grants.stdout)
	for _, mode := range []string{"queue", "stream"} {
		if got := invoke(t, "migrate", "--mode", mode, "--database-url", asAdmin); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		path := file(t, logConfig("database: {url: '"+asRelay+"'}\n"))
		d := startDaemon(t, nil, "run", "-c", path)
		d.stderr.await(t, `"relay started"`)
		execute(t, asWriter, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '{}')`)
		d.stdout.await(t, `"destination":"audit"`)
		for role, url := range map[string]string{"relay": asRelay, "owner": asAdmin} {
			if got := invoke(t, "doctor", "--database-url", url, "-c", path); got.code != 0 || strings.Contains(got.stdout, "\nerror") || strings.Contains(got.stdout, "\nwarning") {
				t.Errorf("doctor as the %s, of a %s: %+v", role, mode, got)
			}
			if got := invoke(t, "status", "--database-url", url, "-c", path); got.code != 0 {
				t.Errorf("status as the %s, of a %s: %+v", role, mode, got)
			}
		}
		if code := d.end(t); code != 0 {
			t.Errorf("exit code %d:\n%s", code, d.stderr.text())
		}
		until(t, asAdmin, `SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename <> current_user`)
	}
}
