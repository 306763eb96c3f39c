package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newCheckConfigCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check-config",
		Short: "Check the configuration file",
		Long: `check-config reads the configuration file as "notifyd run" would, and reports
every mistake in it with its line and column. It contacts nothing, neither the
database nor a destination.`,
		Example: "  notifyd check-config\n  notifyd check-config -c /etc/notifyd/config.yaml",
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
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok, %s, %s\n", path,
				count(len(c.Destinations), "destination"), count(len(c.Routes), "route"))
			return err
		},
	}
}

// count returns "1 route" or "2 routes".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
