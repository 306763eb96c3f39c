//go:build unix

package main

import (
	"context"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/testenv"
)

const managedPage = root + "docs/managed-postgresql.md"

// managedURL is a connection string on the page. Those of managed pooling lead through a pooler.
var managedURL = regexp.MustCompile(`postgres://\S+`)

// TestManagedPage delivers an event with each configuration of docs/managed-postgresql.md, and plays its commands on a relay that
// rests.
func TestManagedPage(t *testing.T) {
	t.Parallel()
	var commands []string
	ran := 0
	for _, st := range steps(read(t, managedPage)) {
		switch st.language {
		case "sh":
			commands = append(commands, st.text)
		case "inline":
		case "yaml":
			ran++
			t.Run(st.heading, func(t *testing.T) {
				t.Parallel()
				if strings.Contains(st.text, "rest:") {
					restsAndWakes(t, st.text, commands)
					return
				}
				deliversWith(t, st.text)
			})
		default:
			t.Errorf("%s is not played", st.language)
		}
	}
	if ran != 6 {
		t.Errorf("%d configurations, want one of each service", ran)
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
		if got := command(t, append([]string{"migrate"}, flags...)...); got.code != 0 {
			t.Fatalf("%+v", got)
		}
	}
	d := startDaemon(t, variablesOf(config), "run", "-c", file(t, connected(t, config, url)), "--log-format", "json")
	if !d.says(t, `"relay started"`) {
		t.Fatalf("exit code %d: %s", d.wait(t), d.stderr.text())
	}
	if got := command(t, append([]string{"publish", "order.placed", order}, flags...)...); got.code != 0 {
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

// restsAndWakes plays the commands of the page on a relay that rests, and looks at it meanwhile.
func restsAndWakes(t *testing.T, config string, commands []string) {
	t.Helper()
	const token = "0123456789abcdef0123456789abcdef"
	url, port := database(t), testenv.FreePort(t)
	address := "127.0.0.1:" + strconv.Itoa(port)
	path := file(t, strings.ReplaceAll(connected(t, config, url), "127.0.0.1:9470", address))
	env := vars{"DB_PASSWORD": "x", "ADMIN_TOKEN": token}
	d := startDaemon(t, env, "run", "-c", path, "--log-format", "json")
	d.stderr.await(t, `"relay started"`)
	const rests = `"the relay rests: it has no connection to the database"`
	awaitTimes(t, d.stderr, rests, 1)
	wakeIsGuarded(t, address)
	for n, line := range commands {
		awaitTimes(t, d.stderr, rests, n+1)
		until(t, url, `SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd%'`)
		isResting(t, env, path, url)
		publishTo(t, url, "order.placed", order)
		if program, isOurs := strings.CutPrefix(line, "notifyd "); isOurs {
			if got := commandIn(t, env, append(strings.Fields(program), "-c", path)...); got.code != 0 {
				t.Errorf("%s: %+v", line, got)
			}
		} else {
			sh := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(line, "127.0.0.1:9470", address))
			sh.Env = []string{"ADMIN_TOKEN=" + token, "PATH=/usr/bin:/bin"}
			if out, err := sh.CombinedOutput(); err != nil || string(out) != "ok\n" {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
		awaitTimes(t, d.stdout, `"destination":"audit"`, n+1)
	}
	awaitTimes(t, d.stderr, rests, len(commands)+1)
	if code := d.end(t); code != 0 { // from its rest
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
}

// awaitTimes waits until a text was printed so many times.
func awaitTimes(t *testing.T, o *output, want string, times int) {
	t.Helper()
	for deadline := time.After(patience); ; {
		text, more := o.read()
		if strings.Count(text, want) >= times {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%q was not printed %d times; what was:\n%s", want, times, text)
		}
	}
}

// wakeIsGuarded tries what strangers may send.
func wakeIsGuarded(t *testing.T, address string) {
	t.Helper()
	for _, header := range [][2]string{{"Authorization", "Bearer wrong"}, {"Accept", "*/*"}} {
		if code, text := post(t, "http://"+address+"/wake", header[0], header[1]); code != http.StatusUnauthorized {
			t.Errorf("%v: %d %s", header, code, text)
		}
	}
}

// isResting checks that all who ask are told that the relay rests, and that nobody takes it for a fault.
func isResting(t *testing.T, env vars, path, url string) {
	t.Helper()
	if got := commandIn(t, env, "healthcheck", "-c", path, "--timeout", "1m"); got.code != 0 || !strings.Contains(got.stdout, "[+] relay: ok, resting until ") || strings.Contains(got.stdout, "[!]") {
		t.Errorf("%+v", got)
	}
	if got := commandIn(t, env, "status", "-c", path); got.code != 0 || !strings.Contains(got.stdout, "no session: it rests for another ") {
		t.Errorf("%+v", got)
	}
	if got := commandIn(t, env, "doctor", "-c", path); got.code != 0 || !strings.Contains(got.stdout, "Of those rest, without a session: 1.") {
		t.Errorf("%+v", got)
	}
	until(t, url, `SELECT count(*) = 1 FROM outbox_relays WHERE rests_until > now()`)
}

// post sends a POST with a header, and returns the answer.
func post(t *testing.T, url, name, value string) (code int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(name, value)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// TestManagedRoles: what the first role of a managed service may do is enough. It is no superuser, owns its database, and makes roles.
func TestManagedRoles(t *testing.T) {
	t.Parallel()
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
	if got := command(t, "migrate", "--database-url", asAdmin); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	writer, asWriter := login(t, super, "writer")
	relay, asRelay := login(t, super, "relay")
	grants := command(t, "migrate", "--print-grants", "--writer", writer, "--relay", relay)
	execute(t, asAdmin, grants.stdout)
	for _, mode := range []string{"queue", "stream"} {
		if got := command(t, "migrate", "--mode", mode, "--database-url", asAdmin); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		path := file(t, logConfig("database: {url: '"+asRelay+"'}\n"))
		d := startDaemon(t, nil, "run", "-c", path)
		d.stderr.await(t, `"relay started"`)
		execute(t, asWriter, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '{}')`)
		d.stdout.await(t, `"destination":"audit"`)
		for role, url := range map[string]string{"relay": asRelay, "owner": asAdmin} {
			if got := command(t, "doctor", "--database-url", url, "-c", path); got.code != 0 || strings.Contains(got.stdout, "\nerror") || strings.Contains(got.stdout, "\nwarning") {
				t.Errorf("doctor as the %s, of a %s: %+v", role, mode, got)
			}
			if got := command(t, "status", "--database-url", url, "-c", path); got.code != 0 {
				t.Errorf("status as the %s, of a %s: %+v", role, mode, got)
			}
		}
		if code := d.end(t); code != 0 {
			t.Errorf("exit code %d:\n%s", code, d.stderr.text())
		}
		until(t, asAdmin, `SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename <> current_user`)
	}
}
