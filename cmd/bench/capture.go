package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/bench"
)

func newCaptureCmd(p *program) *cobra.Command {
	var o bench.CaptureOptions
	cmd := &cobra.Command{
		Use:   "capture",
		Args:  cobra.NoArgs,
		Short: "What a captured table costs its writers",
		Long: `capture measures an update of all rows of a table, and updates of one row each, without
events; with the triggers of "notifyd capture add"; with the same triggers where the
function names each column; and with a trigger for each row. The four take turns, on one
connection each, and commits do not wait for a flush to disk. The exit code is 1 if a
variant has not written an event for each changed row.`,
		Example: "  bench capture\n  bench capture --rows 1000000 --seconds 9 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "rows", "seconds"); err != nil {
				return err
			}
			return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.CaptureResult, error) {
				o.Options = common
				return bench.Capture(ctx, o)
			})
		},
	}
	cmd.Flags().IntVar(&o.Rows, "rows", 100_000, "`number` of rows of the table")
	cmd.Flags().IntVar(&o.Seconds, "seconds", 5, "`seconds` to measure updates of one row of each of the four for")
	return cmd
}
