//go:build unix

package main

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestDeployRoles follows docs/deploy.md: roles, migration, grants, a relay and
// a writer. Roles belong to the whole server, so they get names of their own.
func TestDeployRoles(t *testing.T) {
	t.Parallel()
	admin := testenv.Database(t)
	page := testenv.ReadFile(t, root+"docs/deploy.md")
	db := query[string](t, admin, "SELECT current_database()")
	suffix := db[len(db)-10:]
	owner, app, relay := "o_"+suffix, "w_"+suffix, "r_"+suffix
	unique := strings.NewReplacer("shop_owner", owner, "shop_app", app, "ROLE notifyd", "ROLE "+relay, "relay notifyd", "relay "+relay)
	roles := unique.Replace(regexp.MustCompile("(?s)## Roles.*?```sql\n(.*?)```").FindStringSubmatch(page)[1])
	execute(t, admin, strings.ReplaceAll(roles, " LOGIN;", " LOGIN PASSWORD 'secret';"))
	t.Cleanup(func() { dropRoles(t, admin, []string{owner, app, relay}) })
	as := func(role string) string {
		u, err := url.Parse(admin)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(role, "secret")
		return u.String()
	}
	s := newStage(t, admin, "shop_app", app, "relay notifyd", "relay "+relay, "-u notifyd ", "")
	s.run("export OWNER_URL='" + as(owner) + "' RELAY_URL='" + as(relay) + "'")
	s.follow("docs/deploy.md", s.deployed())
	config := "version: 1\ndatabase: {url: '" + as(relay) + "', schema: events}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n"
	d := startDaemon(t, nil, "run", "-c", file(t, config))
	execute(t, as(app), `INSERT INTO events.outbox_events (event_type, payload) VALUES ('order.placed', '{"order": 7}')`)
	until(t, admin, "SELECT bool_and(state = 'done') FROM events.outbox_events")
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
}

// deployed are the steps of the page that are not simply typed. The directories of the
// system are those of the stage.
func (s *stage) deployed() map[string]act {
	const environment = "/etc/notifyd/environment"
	secret := act{as: "%s --dry-run=client -o name", says: `^secret/notifyd-(db|owner)\n$`}
	if _, err := exec.LookPath("kubectl"); err != nil {
		secret = act{run: func(step) { s.Log("there is no kubectl to look at the secrets with") }}
	}
	return map[string]act{
		"sql 1": {run: func(step) {}}, // done above, with passwords
		`notifyd migrate --print-grants --schema events --writer shop_app --relay notifyd | psql "$OWNER_URL"`: {as: "set -o pipefail; %s -v ON_ERROR_STOP=1", says: `GRANT`},
		"notifyd migrate --print-grants --schema events --writer shop_app --relay notifyd >> 0042_notifyd.sql": {after: func(string) {
			script := testenv.ReadFile(s.T, filepath.Join(s.dir, "0042_notifyd.sql"))
			execute(s.T, s.url, script) // as a tool does that sends the file at once, for each version anew
			execute(s.T, s.url, script)
		}},
		"sudo install -d /etc/notifyd":                              {as: "%s"},
		"notifyd config init - | sudo tee /etc/notifyd/config.yaml": {says: `(?m)^version: 1$`},
		"echo 'DATABASE_URL=postgres://notifyd@db.example.com/app?sslmode=verify-full' | sudo install -m 600 /dev/stdin " + environment: {after: func(string) {
			if info, err := os.Stat(filepath.Join(s.dir, environment)); err != nil || info.Mode().Perm() != 0o600 {
				s.Errorf("%v, %v", info, err)
			}
		}},
		"sudo systemd-run --pipe --wait --quiet -p User=notifyd -p EnvironmentFile=/etc/notifyd/environment notifyd check-config -c /etc/notifyd/config.yaml": {as: "env $(cat " + s.dir + environment + ") notifyd check-config -c " + s.dir + "/etc/notifyd/config.yaml", says: `: ok, `},
		`kubectl create secret generic notifyd-db --from-literal=url="$RELAY_URL"`:                                                                            secret,
		`kubectl create secret generic notifyd-owner --from-literal=url="$OWNER_URL"`:                                                                         secret,
		"sed 's|runbook: |runbook_url: https://git.example.com/notifyd/blob/main/|' deploy/prometheus/rules.yaml > rules.yaml": {
			before: func() {
				s.write("deploy/prometheus/rules.yaml", testenv.ReadFile(s.T, deployDir+"/prometheus/rules.yaml"))
			},
			after: func(string) {
				rules := testenv.ReadFile(s.T, filepath.Join(s.dir, "rules.yaml"))
				if want := "runbook_url: https://git.example.com/notifyd/blob/main/docs/runbook.md#notifyddown\n"; !strings.Contains(rules, want) || strings.Contains(rules, "runbook: ") {
					s.Errorf("there is no %q in\n%s", want, rules)
				}
			},
		},
	}
}

func dropRoles(t *testing.T, admin string, roles []string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, r := range roles {
		quoted := pgx.Identifier{r}.Sanitize()
		if _, err := conn.Exec(ctx, "DROP OWNED BY "+quoted+" CASCADE; DROP ROLE "+quoted); err != nil {
			t.Errorf("drop the role of the test: %v", err)
		}
	}
}
