package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/daemon"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/console"
	"github.com/notifyd/notifyd/internal/store"
)

// consoleFlags are the flags of "notifyd console".
type consoleFlags struct {
	db           command.DatabaseFlags
	listen       string
	prefix       string
	tokenFile    string
	actor        string
	readOnly     bool
	hidePayloads bool
}

func newConsoleCmd(a *command.App) *cobra.Command {
	var f consoleFlags
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Serve the web console without a relay",
		Long: `console serves the web console for the tables of a database, until it is stopped. It needs no relay
and no configuration file, so it shows the outbox of a relay in a Go program, too: the backlog, events, dead
letters and positions, the live relays, and the states that they report. Rates, latency of a
stream and counters are those of a relay: its own console has them.

Actions are recorded in outbox_audit under --actor. The role of the connection needs the rights of a relay; with
--read-only, and rights to read, nothing can be changed.

It prints its address. On a loopback address it admits every client of this machine that uses
a loopback name; any other address needs --token-file, and people log in with that token.`,
		Example: "  notifyd console --database-url postgres://localhost/shop\n  notifyd console --listen 127.0.0.1:9471 --read-only",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := cli.NewLogger(cmd.ErrOrStderr(), cmp.Or(a.LogLevel.Value, "info"), cmp.Or(a.LogFormat.Value, "auto"))
			ctx, stop := untilSignal(cmd.Context(), log)
			defer stop()
			return f.serve(ctx, a, cmd, log)
		},
	}

	f.db.Register(cmd)
	command.AddWho(cmd, &f.actor)
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:0", "`address` and port to serve at; port 0 is any free one")
	flags.StringVar(&f.prefix, "prefix", "", "`path` below which browsers see the console, such as /ops, for a reverse proxy")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` with the token to log in with, 16 characters or more")
	flags.BoolVar(&f.readOnly, "read-only", false, "refuse every action")
	flags.BoolVar(&f.hidePayloads, "hide-payloads", false, "hide the payloads of events")

	return cmd
}

// serve serves the console until ctx ends.
func (f *consoleFlags) serve(ctx context.Context, a *command.App, cmd *cobra.Command, log *slog.Logger) error {
	token, err := f.token()
	if err != nil {
		return err
	}

	if err := admin.CheckPrefix("--prefix", f.prefix); err != nil {
		return command.UsageErrorf("%w", err)
	}

	conn, err := f.db.ConnectTable(ctx, a) // a mistake shows at once
	if err != nil {
		return err
	}
	store.Close(ctx, conn)

	pool, err := f.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()

	cfg := console.Config{
		Prefix:       f.prefix,
		ReadOnly:     f.readOnly,
		HidePayloads: f.hidePayloads,
		Version:      readBuildInfo().Version,
		Log:          log,
		Person:       cmp.Or(f.actor, command.CurrentActor()),
	}
	if token != nil {
		cfg.Token = token
	}
	pages, err := console.New(cfg)
	if err != nil {
		return err
	}

	database := console.Database{Pool: pool, Schema: f.db.Schema, DeleteEvents: f.db.Keep == 0}
	if err := pages.Add("", console.Outbox{Database: database}); err != nil {
		return err
	}

	server, err := admin.Listen(ctx, admin.Config{
		Address: f.listen,
		Setting: "--listen",
		Prefix:  f.prefix,
		Token:   token,
		Version: cfg.Version,
		Metrics: prometheus.NewRegistry(),
		Console: pages,
	}, log)
	if err != nil {
		return err
	}

	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "http://%s%s%s\n", server.Addr(), f.prefix, console.Path); err != nil {
		log.WarnContext(ctx, "the address cannot be printed", "listen", server.Addr(), "err", err)
	}

	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { pages.Run(ctx) })
	return server.Run(ctx)
}

// token returns the token of the file; nil without one, which only an address of this machine can do without.
func (f *consoleFlags) token() (*admin.Verifier, error) {
	if f.tokenFile == "" {
		if !(config.Admin{Listen: f.listen}).Local() {
			return nil, command.UsageErrorf("--listen %s: other machines reach it, and the console would admit everyone: "+
				"give --token-file, or a loopback address", f.listen)
		}
		return nil, nil //nolint:nilnil // none is needed
	}

	text, err := os.ReadFile(f.tokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}

	token := handlers.NewSecret(strings.TrimSpace(string(text)))
	if token.IsZero() {
		return nil, command.UsageErrorf("--token-file: %s is empty", f.tokenFile)
	}

	if err := admin.CheckToken("--token-file", token); err != nil {
		return nil, command.UsageErrorf("%w", err)
	}
	return admin.NewVerifier(token), nil
}

// pool returns a pool for the console, after resolve. It makes no connection yet.
func (f *consoleFlags) pool(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := f.db.ParsePool()
	if err != nil {
		return nil, err
	}

	cfg.MaxConns = daemon.ConsoleConns
	cfg.ConnConfig.RuntimeParams["application_name"] = "notifyd/console"

	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.db.Place, err)
	}
	return pool, nil
}
