package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/notifyd/notifyd/internal/outboxes"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/console"
)

// ConsoleConns is the maximum size of the console's own connection pool.
const ConsoleConns = 4

// webConsole is the web console, and its connections: those of the relay end with
// a reload.
type webConsole struct {
	*console.Console

	path   string
	config *config.Config // whose database it shows
	pool   *pgxpool.Pool
	past   sync.WaitGroup // pools that a reload has replaced, while requests use them
}

// newConsole returns the console, or nil if it is not configured. It opens no connection yet. The caller closes it.
func newConsole(ctx context.Context, c *config.Config, path, version string, relay *live, log *slog.Logger) (*webConsole, error) {
	if !c.Admin.Console {
		return nil, nil //nolint:nilnil // none is configured
	}
	pool, err := consolePool(ctx, c, path)
	if err != nil {
		return nil, err
	}
	cfg := console.Config{
		Relay: relay, Pauser: relay, Router: relay, Database: consoleDatabase(c, pool),
		ReadOnly: c.Admin.ReadOnly, HidePayloads: c.Admin.Payloads == "hidden", Version: version, Log: log,
	}
	if !c.Admin.Token.IsZero() {
		cfg.Token = admin.NewVerifier(c.Admin.Token)
	}
	look, err := console.New(cfg)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &webConsole{Console: look, path: path, config: c, pool: pool}, nil
}

func consolePool(ctx context.Context, c *config.Config, path string) (*pgxpool.Pool, error) {
	cfg, err := outboxes.ParsePool(c, path)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = ConsoleConns
	cfg.ConnConfig.RuntimeParams["application_name"] = "notifyd/console"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("database.url: %w", err)
	}
	return pool, nil
}

func consoleDatabase(c *config.Config, pool *pgxpool.Pool) console.Database {
	return console.Database{Pool: pool, Schema: c.Database.Schema, DeleteEvents: c.Retention.Keep == 0}
}

// follow makes the console show the database of the reloaded relay. The console may
// be nil.
func (w *webConsole) follow(ctx context.Context, c *config.Config) error {
	if w == nil {
		return nil
	}
	if d := config.Diff(w.config, c); !d.Touches("database.") && !d.Touches("retention.keep") {
		return nil
	}
	pool, err := consolePool(ctx, c, w.path)
	if err != nil {
		return err
	}
	if err := w.Use(consoleDatabase(c, pool)); err != nil {
		pool.Close()
		return err
	}
	w.past.Go(w.pool.Close)
	w.config, w.pool = c, pool
	return nil
}

// close closes the connections. Run must have returned before. The console may be nil.
func (w *webConsole) close() {
	if w != nil {
		w.pool.Close()
		w.past.Wait()
	}
}
