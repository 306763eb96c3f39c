package store

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestPoolerIsRefused before any setting on connections that other clients get next.
func TestPoolerIsRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := testenv.PgBouncer(t, testenv.Database(t), mode)
			for range 5 {
				conn, err := connector(t, url).Connect(t.Context(), "test")
				if !errors.Is(err, ErrPooler) {
					t.Fatalf("Connect returned %v, %v", conn, err)
				}
			}
			other, err := pgx.Connect(t.Context(), url+"&default_query_exec_mode=exec")
			if err != nil {
				t.Fatal(err)
			}
			defer Close(context.WithoutCancel(t.Context()), other)
			var left string
			if err := other.QueryRow(t.Context(), `SELECT current_setting('synchronous_commit')`).Scan(&left); err != nil || left != "on" {
				t.Errorf("another client of the pooler finds synchronous_commit = %s, %v", left, err)
			}
		})
	}
}

// TestPoolerIsBusy: a pooler with many clients reveals itself as well.
func TestPoolerIsBusy(t *testing.T) {
	t.Parallel()
	url := testenv.PgBouncer(t, testenv.Database(t), "transaction")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	for range 8 {
		go func() {
			defer func() { done <- struct{}{} }()
			other, err := pgx.Connect(ctx, url+"&default_query_exec_mode=exec")
			if err != nil {
				return
			}
			defer Close(ctx, other)
			for ctx.Err() == nil {
				_, _ = other.Exec(ctx, `SELECT 1`) // it ends with ctx
			}
		}()
	}
	for range 10 {
		if _, err := connector(t, url).Connect(t.Context(), "test"); !errors.Is(err, ErrPooler) {
			t.Errorf("Connect returned %v", err)
		}
	}
	cancel()
	for range 8 {
		<-done
	}
}

// TestPoolerThatKeepsSessions: it counts as a direct connection.
func TestPoolerThatKeepsSessions(t *testing.T) {
	t.Parallel()
	c := connector(t, testenv.PgBouncer(t, testenv.Database(t), "session"))
	for range 3 {
		conn, err := c.Connect(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer Close(context.WithoutCancel(t.Context()), conn)
		var path string
		if err := conn.QueryRow(t.Context(), `SELECT current_setting('search_path')`).Scan(&path); err != nil || !strings.Contains(path, "public") {
			t.Errorf("search_path is %q, %v", path, err)
		}
	}
	if !c.keepsSessions.Load() {
		t.Error("it is not remembered that sessions are kept")
	}
}

// TestRedirect: connections go past a pooler after Redirect.
func TestRedirect(t *testing.T) {
	t.Parallel()
	direct := testenv.Database(t)
	c := connector(t, testenv.PgBouncer(t, direct, "transaction"))
	if _, err := c.Connect(t.Context(), "test"); !errors.Is(err, ErrPooler) {
		t.Fatalf("Connect returned %v", err)
	}
	c.Redirect(connector(t, direct).Config)
	conn, err := c.Connect(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	Close(t.Context(), conn)
}
