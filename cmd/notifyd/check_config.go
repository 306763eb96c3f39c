package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
)

func newCheckConfigCmd(a *app) *cobra.Command {
	var online bool
	cmd := &cobra.Command{
		Use:   "check-config",
		Short: "Check the configuration file",
		Long: `check-config reads the configuration file as "notifyd run" would, and reports
every mistake in it with its line and column. It contacts nothing, neither the
database nor a destination. With --online it asks the database as well: whether
the table is there, and whether it is the stream that order: aggregate, order: total,
on_dead: block and supersede: aggregate need.`,
		Example: "  notifyd check-config\n  notifyd check-config -c /etc/notifyd/config.yaml --online",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, path, err := a.load()
			if err != nil {
				return err
			}
			if _, err := parsePool(c, path); err != nil {
				return err
			}
			if _, err := parseListen(c, path); err != nil {
				return err
			}
			for _, w := range c.Warnings {
				cmd.PrintErrln(w)
			}
			if err := checkOnline(cmd, c, path, online); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok, %s, %s\n", path,
				count(len(c.Destinations), "destination"), count(len(c.Routes), "route"))
			return err
		},
	}
	cmd.Flags().BoolVar(&online, "online", false, "ask the database, too, whether a relay could work with its table")
	return cmd
}

// checkOnline asks the database, or names the settings that only the database can check.
func checkOnline(cmd *cobra.Command, c *config.Config, path string, online bool) error { //nolint:revive // the flag of the command
	if !online {
		for _, s := range c.NeedsStream() {
			cmd.PrintErrf("%s: %s needs a table that is a stream (notifyd migrate --mode stream); --online asks the database\n", path, s)
		}
		return nil
	}
	conn, err := openTable(cmd.Context(), c, path, "check")
	if err != nil {
		return err
	}
	store.Close(cmd.Context(), conn)
	return nil
}

// count returns "1 route" or "2 routes".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
