package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestPasswordCommand: a relay and commands log in with what a program prints. A password that changes while
// connections live is used for the next connection, and the log has neither.
func TestPasswordCommand(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, nil)
			admin := server.URL("postgres")
			for _, sql := range []string{
				`CREATE ROLE relay LOGIN SUPERUSER PASSWORD 'f1rst-w0rd'`,
				`COPY (VALUES ('host all relay 0.0.0.0/0 scram-sha-256'), ('host sameuser,postgres all 0.0.0.0/0 trust'), ('local postgres all trust')) TO '` + query[string](t, admin, `SHOW hba_file`) + `'`,
			} {
				execute(t, admin, sql)
			}
			query[bool](t, admin, `SELECT pg_reload_conf()`)
			if got := invoke(t, "migrate", "--database-url", admin, "--mode", mode); got.code != 0 {
				t.Fatalf("migrate: %+v", got)
			}
			secret := filepath.Join(t.TempDir(), "secret")
			testenv.WriteFile(t, secret, "f1rst-w0rd\n")
			cfg, err := pgx.ParseConfig(admin)
			if err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf("version: 1\ndatabase: {url: 'postgres://relay@%s:%d/postgres', password_command: [cat, %q], password_lifetime: 0s}\n"+
				"destinations: {out: {type: log}}\nroutes: [{match: '*', to: out}]\n", cfg.Host, cfg.Port, secret)
			r := startReloadable(t, nil, text)
			publishTo(t, admin, "one", `{}`)
			r.stdout.await(t, `"event_type":"one"`)

			execute(t, admin, `ALTER ROLE relay PASSWORD 's3cond-w0rd'`)
			testenv.WriteFile(t, secret, "s3cond-w0rd\n")
			query[int64](t, admin, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'relay'`)
			publishTo(t, admin, "two", `{}`)
			r.stdout.await(t, `"event_type":"two"`)
			if got := invoke(t, "status", "--config", r.path); got.code != 0 {
				t.Errorf("status: %+v", got)
			}
			if log := r.stderr.text(); strings.Contains(log, "f1rst") || strings.Contains(log, "s3cond") {
				t.Errorf("the log has a password:\n%s", log)
			}

			if err := os.Remove(secret); err != nil {
				t.Fatal(err)
			}
			if got := invoke(t, "events", "list", "--config", r.path); got.code == 0 || !strings.Contains(got.stderr, "database.password_command: run cat: exit status 1: cat: ") || strings.Contains(got.stderr, "AfterNetConnect") {
				t.Errorf("a program that fails: %+v", got)
			}
			// A connection string with a password needs no program.
			own := strings.Replace(text, "relay@", "relay:s3cond-w0rd@", 1)
			if got := invoke(t, "events", "list", "--config", file(t, own)); got.code != 0 {
				t.Errorf("with its own password: %+v", got)
			}
		})
	}
}
