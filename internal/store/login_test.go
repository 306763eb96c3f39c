package store

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestRefusedLogins: after a refusal no part of a relay logs in again before its time, and each gets the reason. Other
// credentials are tried at once.
func TestRefusedLogins(t *testing.T) {
	t.Parallel()
	c := connector(t, testenv.Database(t))
	user := c.Config.User
	c.Config.Host = "database.example.com"
	logins := 0
	c.Config.LookupFunc = func(context.Context, string) ([]string, error) {
		logins++
		return []string{"127.0.0.1"}, nil
	}
	c.Before = func(_ context.Context, cfg *pgx.ConnConfig) error {
		cfg.User = user
		return nil
	}
	user = "nobody_of_that_name"
	for range 5 {
		if _, err := c.Connect(t.Context(), "test"); !IsLogin(err) || !IsDown(err) || refusal(err) == "" {
			t.Fatalf("got %v", err)
		}
	}
	if logins != 1 {
		t.Errorf("%d logins", logins)
	}
	user = c.Config.User
	conn, err := c.Connect(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	Close(t.Context(), conn)
}
