package pgserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestStandby(t *testing.T) {
	t.Parallel()
	primary := startServer(t, Config{Settings: map[string]string{"max_connections": "20"}})
	standby, err := StartStandby(t.Context(), primary, Config{Settings: map[string]string{"max_connections": "30"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if _, err := connect(t, primary.URL("")).Exec(t.Context(), `CREATE TABLE followed AS SELECT 42 AS n`); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, standby.URL(""))
	if got := queryText(t, conn, "SHOW max_connections"); got != "30" {
		t.Errorf("max_connections = %s, want 30", got)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		var there bool
		if err := conn.QueryRow(t.Context(), `SELECT to_regclass('followed') IS NOT NULL`).Scan(&there); err != nil || time.Now().After(deadline) {
			t.Fatalf("the standby does not follow: %v", err)
		}
		if there {
			break
		}
	}
	_, err = conn.Exec(t.Context(), `INSERT INTO followed VALUES (1)`)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "25006" {
		t.Errorf("a write on a standby: %v", err)
	}
	if err := primary.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO followed VALUES (1)`); err != nil {
		t.Errorf("a write after the promotion: %v", err)
	}
}
