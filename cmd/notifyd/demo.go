package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/demo"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func newDemoCmd(a *app) *cobra.Command {
	var (
		orders   int
		database string
		mode     string
		keep     bool
		asJSON   bool
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole way from an order to its mail",
		Long: `demo starts a private PostgreSQL and a mail server, places orders in real
transactions, some of which are rolled back, and delivers their events: a mail
for each order, a line in a log, and a call of a Go function. At the end it
counts what arrived. It needs nothing: where there is no PostgreSQL it installs
one. It exits with 1 if anything was lost. With --mode stream the relay reads the
events like a log, by a position for each destination.`,
		Example: "  notifyd demo\n  notifyd demo --mode stream\n  notifyd demo --orders 500 --json\n  notifyd demo --keep",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if orders < 1 {
				return usageErrorf("--orders %d is below 1", orders)
			}
			if err := outboxsql.Mode(mode).Validate(); err != nil {
				return usageErrorf("--mode: %w", err)
			}
			out := cmd.OutOrStdout()
			if asJSON {
				out = cmd.ErrOrStderr() // standard output is for the result alone
			}
			if database != "" {
				if _, err := parseURL(databaseFlag, database, pgxpool.ParseConfig); err != nil {
					return err
				}
			}
			log := newLogger(cmd.ErrOrStderr(), config.Log{Level: first(a.logLevel.Value, "warn"), Format: first(a.logFormat.Value, "auto")})
			ctx, stop := untilSignal(cmd.Context(), log)
			defer stop()
			result, err := demo.Run(ctx, demo.Options{
				Orders: orders, DatabaseURL: database, Mode: outboxsql.Mode(mode), Keep: keep, Out: out, Width: widthOf(out, a), Log: log,
			})
			if err != nil {
				return demoError(ctx, err)
			}
			if asJSON {
				if err := printJSON(cmd.OutOrStdout(), result); err != nil {
					return err
				}
			}
			return verdict(result)
		},
	}
	cmd.Flags().IntVar(&orders, "orders", 50, "`number` of orders to commit")
	cmd.Flags().StringVar(&database, "database-url", "", "use this database, in a schema of its own that is dropped at the end")
	cmd.Flags().StringVar(&mode, "mode", string(outboxsql.ModeQueue), "how the relay reads the events: `mode` queue or stream")
	cmd.Flags().BoolVar(&keep, "keep", false, "leave everything running afterwards, to play with")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as one line of JSON on standard output")
	return cmd
}

// demoError says what ended a demo early.
func demoError(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("the demo was interrupted")
	}
	if refused, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return connectError(refused)
	}
	return err
}

// widthOf returns how to ask for the width of a terminal, nil for what is none
// or cannot write over a line.
func widthOf(out any, a *app) func() int {
	f, ok := out.(*os.File)
	if kind, _ := a.lookup("TERM"); !ok || kind == "dumb" || !cli.IsTerminal(f) {
		return nil
	}
	return func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width < 1 {
			return 80 // a terminal that does not tell
		}
		return width
	}
}

// errDemo is returned after a demo that shows that something is wrong.
var errDemo = errors.New("not everything arrived as it should have")

func verdict(result demo.Result) error {
	if !result.OK() {
		return errDemo
	}
	return nil
}

func printJSON(w io.Writer, result demo.Result) error {
	line, err := json.Marshal(result)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
