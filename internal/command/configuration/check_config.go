package configuration

import (
	"context"
	"errors"
	"fmt"

	"github.com/notifyd/notifyd/internal/command"

	"github.com/notifyd/notifyd/internal/outboxes"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
)

// NewCheckConfig returns the command check-config.
func NewCheckConfig(a *command.App) *cobra.Command {
	var online bool
	cmd := &cobra.Command{
		Use:   "check-config",
		Short: "Check the configuration file",
		Long: `check-config reads the configuration file as "notifyd run" would, and reports
every mistake in it with its line and column. It contacts nothing, neither the
database nor a destination. With --online it asks the database as well: whether
the table is there, and whether it is the stream that settings such as order: aggregate,
on_dead: block and shards need.`,
		Example: "  notifyd check-config\n  notifyd check-config -c /etc/notifyd/config.yaml --online",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, path, err := a.Load()
			if err != nil {
				return err
			}
			if err := outboxes.CheckURLs(c, path); err != nil {
				return err
			}
			for _, w := range c.Warnings {
				cmd.PrintErrln(w)
			}
			if err := checkOnline(cmd, c, path, online); err != nil {
				return err
			}
			text := fmt.Sprintf("%s: ok, %s, %s", path, cli.Count(len(c.Destinations), "destination"), cli.Count(len(c.Routes), "route"))
			if n := len(c.Outboxes.List); n > 0 {
				text += ", " + cli.Count(n, "outbox")
			}
			if c.Outboxes.Query != "" {
				text += ", and those of a query"
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().BoolVar(&online, "online", false, "ask the database, too, whether a relay could work with its table")
	return cmd
}

// checkOnline asks the database, or names the settings that only the database can check.
func checkOnline(cmd *cobra.Command, c *config.Config, path string, online bool) error {
	if !online {
		for _, s := range c.NeedsStream() {
			cmd.PrintErrf("%s: %s needs a table that is a stream (notifyd migrate --mode stream); --online asks the database\n", path, s)
		}
		return nil
	}
	if !c.Outboxes.Used() {
		return checkTableOf(cmd.Context(), c, path)
	}
	all, wrong, err := outboxes.Find(cmd.Context(), c, path)
	if err != nil {
		return err
	}
	errs := []error{wrong}
	for i := range all {
		if err := checkTableOf(cmd.Context(), c.For(&all[i]), path); err != nil {
			errs = append(errs, fmt.Errorf("outbox %s: %w", all[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

// checkTableOf is an error if no relay could work with the table of a configuration.
func checkTableOf(ctx context.Context, c *config.Config, path string) error {
	conn, err := outboxes.OpenTable(ctx, c, path, "check")
	if err == nil {
		store.Close(ctx, conn.Conn)
	}
	return err
}
