package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/console"
)

// consoleConns bounds the connections that the console has of its own.
const consoleConns = 4

// consoleRestart says of a setting that a reload applies it everywhere else.
const consoleRestart = " (for the console)"

// webConsole is the web console, and its connections: those of the relay end with
// a reload.
type webConsole struct {
	*console.Console

	pool *pgxpool.Pool
}

// newConsole makes the console, nil if the configuration asks for none. It
// contacts nobody yet. The caller closes it.
func newConsole(ctx context.Context, c *config.Config, path string, relay *live, log *slog.Logger) (*webConsole, error) {
	if !c.Admin.Console {
		return nil, nil //nolint:nilnil // none is what was asked for
	}
	poolConfig, err := parsePool(c, path)
	if err != nil {
		return nil, err
	}
	poolConfig.MaxConns = consoleConns
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, fmt.Errorf("database.url: %w", err)
	}
	cfg := console.Config{
		Relay: relay, Pauser: relay, Pool: pool, Schema: c.Database.Schema, DeleteEvents: c.Retention.Keep == 0,
		ReadOnly: c.Admin.ReadOnly, HidePayloads: c.Admin.Payloads == "hidden", Version: readBuildInfo().Version, Log: log,
	}
	if !c.Admin.Token.IsZero() {
		cfg.Token = admin.NewVerifier(c.Admin.Token)
	}
	look, err := console.New(cfg)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &webConsole{Console: look, pool: pool}, nil
}

// close closes the connections, once Run has returned and nobody is answered any
// more. It may be called for none.
func (w *webConsole) close() {
	if w != nil {
		w.pool.Close()
	}
}
