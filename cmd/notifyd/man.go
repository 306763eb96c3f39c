package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCmd is for packagers of notifyd, and hidden from the help.
func newManCmd(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the man pages",
		Hidden: true,
		Long: `man writes a page for every command into a directory, which it makes. With
SOURCE_DATE_EPOCH in the environment the pages bear that date, so that they are
the same each time.`,
		Example: "  notifyd man /usr/local/share/man/man1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			date := time.Now()
			if text, _ := a.Lookup("SOURCE_DATE_EPOCH"); text != "" {
				seconds, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					return fmt.Errorf("$SOURCE_DATE_EPOCH is %q: must be a number of seconds", text)
				}
				date = time.Unix(seconds, 0).UTC()
			}

			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // everybody reads man pages
				return err
			}

			root := cmd.Root()
			root.DisableAutoGenTag = true // it would hold the time of generation
			header := &doc.GenManHeader{
				Title:   "NOTIFYD",
				Section: "1",
				Date:    &date,
				Source:  "notifyd " + readBuildInfo().Version,
				Manual:  "notifyd",
			}
			return doc.GenManTree(root, header, args[0])
		},
	}
}
