package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// stranger creates a role that may connect to the database and create nothing in it.
func stranger(t *testing.T, url string) (keywords string) {
	t.Helper()
	conn := testdb.Connect(t, url)
	role := "demo_" + strings.ToLower(rand.Text())
	if _, err := conn.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	return keywordsOf(conn.Config()) + " user=" + role + " password=secret"
}

// keywordsOf names a server and its database as keywords and values.
func keywordsOf(cfg *pgx.ConnConfig) string {
	return fmt.Sprintf("host=%s port=%d dbname=%s", cfg.Host, cfg.Port, cfg.Database)
}

// TestFind: unusable databases are passed over, with the reason in the error.
func TestFind(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	silent := Database{URL: fmt.Sprintf("host=127.0.0.1 port=%d", testenv.FreePort(t)), Place: "silent", Guessed: true}
	powerless := Database{URL: stranger(t, url), Place: "powerless", Guessed: true}
	cfg, about, err := find(t.Context(), []Database{silent, powerless, {URL: url, Place: "the third"}, {URL: "nonsense", Place: "never looked at"}})
	if err != nil || cfg.ConnString() != url || !regexp.MustCompile(`^database t_testfind_\w+ at .*:\d+ \(PostgreSQL \d.*; the third\)$`).MatchString(about) {
		t.Fatalf("%q, %v", about, err)
	}
	_, _, err = find(t.Context(), []Database{silent, powerless})
	missing, ok := errors.AsType[*NotFoundError](err)
	if !ok || len(missing.Tried) != 2 || missing.Tried[0].Place != "silent" || missing.Tried[1].Place != "powerless" {
		t.Fatalf("%v", err)
	}
	want := `demo_\w+ may not create a schema in the database t_testfind_\w+ \(GRANT CREATE ON DATABASE "t_testfind_\w+" TO "demo_\w+"\)$`
	if text := missing.Tried[1].Err.Error(); !regexp.MustCompile(want).MatchString(text) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%q, %v", text, err)
	}
}

// TestFindGuessed: without a database of the user's, the demo uses postgres, which always
// exists; but not in place of a database that the user has named.
func TestFindGuessed(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Postgres(t).URL(""))
	cfg := conn.Config()
	none := fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=not_there", cfg.Host, cfg.Port, cfg.User, cfg.Password)
	found, _, err := find(t.Context(), []Database{{URL: none, Guessed: true}})
	if err != nil || found.ConnConfig.Database != "postgres" || !strings.HasSuffix(found.ConnString(), " dbname=postgres") {
		t.Errorf("%v", err)
	}
	if _, _, err := find(t.Context(), []Database{{URL: none}}); err == nil || !strings.Contains(err.Error(), `database "not_there" does not exist`) {
		t.Errorf("%v", err)
	}
}

func TestFindStandby(t *testing.T) {
	t.Parallel()
	standby := testenv.Standby(t, testenv.OwnPostgres(t, nil), 0)
	if _, _, err := find(t.Context(), []Database{{URL: standby.URL("")}}); err == nil || !strings.Contains(err.Error(), "a standby, which takes no writes") {
		t.Errorf("%v", err)
	}
}

// TestFindEnds: an interrupted search returns the interruption, not a list of servers.
func TestFindEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := find(ctx, Local()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestSchemaIsOurs: the demo drops the schema that it has created, and no other.
func TestSchemaIsOurs(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := testdb.Connect(t, url)
	d := &demo{Options: Options{Databases: []Database{{URL: url, Place: "the test"}}, Out: &bytes.Buffer{}}}
	if err := d.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "DROP SCHEMA "+d.schema); err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err == nil || !strings.Contains(err.Error(), "DROP SCHEMA "+pgx.Identifier{d.schema}.Sanitize()+" CASCADE removes it") {
		t.Errorf("%v", err)
	}
}
