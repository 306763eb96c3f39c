package main

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/testenv"
)

// TestDeployRoles follows docs/deploy.md: roles, migration, grants, a relay and
// a writer. Roles belong to the whole server, so they get names of their own.
func TestDeployRoles(t *testing.T) {
	t.Parallel()
	admin := testenv.Database(t)
	page := read(t, "../../docs/deploy.md")
	db := query[string](t, admin, "SELECT current_database()")
	suffix := db[len(db)-10:]
	owner, app, relay := "o_"+suffix, "w_"+suffix, "r_"+suffix
	unique := strings.NewReplacer("shop_owner", owner, "shop_app", app, "ROLE notifyd", "ROLE "+relay, "--relay notifyd", "--relay "+relay)
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
	lines := unique.Replace(regexp.MustCompile("(?s)```\n(notifyd migrate.*?)```").FindStringSubmatch(page)[1])
	ran := 0
	for line := range strings.Lines(lines) {
		words, psql, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "notifyd "), " | psql ")
		got := command(t, strings.Fields(strings.ReplaceAll(words, `"$OWNER_URL"`, as(owner)))...)
		if got.code != 0 || got.stderr != "" {
			t.Fatalf("%s: %+v", line, got)
		}
		if psql != "" {
			execute(t, as(owner), got.stdout)
		}
		ran++
	}
	if ran != 2 {
		t.Errorf("%d lines were run", ran)
	}
	config := "version: 1\ndatabase: {url: '" + as(relay) + "', schema: events}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n"
	d := startDaemon(t, nil, "run", "-c", file(t, config))
	execute(t, as(app), `INSERT INTO events.outbox_events (event_type, payload) VALUES ('order.placed', '{"order": 7}')`)
	until(t, admin, "SELECT bool_and(state = 'done') FROM events.outbox_events")
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
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

// TestDeployLinks: what the pages about production point at is there.
func TestDeployLinks(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"../../docs/deploy.md", "../../docs/runbook.md", "../../SECURITY.md", "../../README.md"} {
		for _, link := range regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`).FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), link[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}
