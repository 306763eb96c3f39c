package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/demo"
)

func newDemoCmd(a *app) *cobra.Command {
	var (
		orders   int
		database string
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
one. It exits with 1 if anything was lost.`,
		Example: "  notifyd demo\n  notifyd demo --orders 500 --json\n  notifyd demo --keep",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if orders < 1 {
				return usageErrorf("--orders %d is below 1", orders)
			}
			out := cmd.OutOrStdout()
			if asJSON {
				out = cmd.ErrOrStderr() // standard output is for the result alone
			}
			log := newLogger(cmd.ErrOrStderr(), config.Log{Level: first(a.logLevel.value, "warn"), Format: first(a.logFormat.value, "auto")})
			ctx, stop := untilSignal(cmd.Context(), log)
			defer stop()
			result, err := demo.Run(ctx, demo.Options{
				Orders: orders, DatabaseURL: database, Keep: keep, Out: out, Live: isTerminal(out) && canRewrite(a), Log: log,
			})
			if err != nil {
				return err
			}
			return finish(cmd.OutOrStdout(), result, asJSON)
		},
	}
	cmd.Flags().IntVar(&orders, "orders", 50, "`number` of orders to commit")
	cmd.Flags().StringVar(&database, "database-url", "", "use this database, in a schema of its own that is dropped at the end")
	cmd.Flags().BoolVar(&keep, "keep", false, "leave everything running afterwards, to play with")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as one line of JSON on standard output")
	return cmd
}

// canRewrite reports whether a line can be written over: not on a dumb terminal.
func canRewrite(a *app) bool {
	term, _ := a.lookup("TERM")
	return term != "dumb"
}

// errDemo is returned after a demo that shows that something is wrong.
var errDemo = errors.New("not everything arrived as it should have")

func finish(stdout io.Writer, result demo.Result, asJSON bool) error {
	if asJSON {
		line, err := json.Marshal(result)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(stdout, string(line)); err != nil {
			return err
		}
	}
	if !result.OK() {
		return errDemo
	}
	return nil
}
