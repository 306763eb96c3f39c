package configuration

import (
	"context"
	"errors"
	"fmt"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/outboxes"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// NewCheckConfig returns the command check-config.
func NewCheckConfig(a *command.App) *cobra.Command {
	var online bool
	var form *cli.OneOf
	cmd := &cobra.Command{
		Use:   "check-config",
		Short: "Check the configuration file",
		Long: `check-config reads the configuration file as "notifyd run" would, and reports
every mistake in it with its line and column. It contacts nothing, neither the
database nor a destination. With --online it asks the database as well: whether
the table is there, whether it is the stream that settings such as order: aggregate,
on_dead: block and shards need, and which settings have no effect in a stream.`,
		Example: "  notifyd check-config\n  notifyd check-config -c /etc/notifyd/config.yaml --online",
		RunE: func(cmd *cobra.Command, _ []string) error {
			progress := command.StartProgress(cmd, "checking the configuration")
			defer progress.Stop()

			checked, err := check(cmd.Context(), a, online)

			if form.Value == "json" && checked.File != "" {
				return errors.Join(command.WriteJSON(cmd.OutOrStdout(), checked), err)
			}

			for _, w := range checked.Warnings {
				cmd.PrintErrln(config.Mistake(w))
			}
			if !online {
				for _, m := range checked.NeedsStream {
					cmd.PrintErrf("%s needs a table that is a stream (notifyd migrate --mode stream); --online asks the database\n",
						config.Mistake(m))
				}
			}

			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), checked.text())
			return err
		},
	}

	form = command.AddFormat(cmd)
	cmd.Flags().BoolVar(&online, "online", false, "ask the database, too, whether a relay could work with its table")
	return cmd
}

// Checked is the result of check-config, as JSON.
type Checked struct {
	File string `json:"file"`
	// OK reports that a relay would start with the file, and with --online that it could work with its table.
	OK           bool `json:"ok"`
	Destinations int  `json:"destinations"`
	Routes       int  `json:"routes"`
	// Outboxes are those that the file lists; Query reports that it has a query for others.
	Outboxes int       `json:"outboxes"`
	Query    bool      `json:"outboxes_query"`
	Mistakes []mistake `json:"mistakes"`
	Warnings []mistake `json:"warnings"`
	// NeedsStream lists settings that only a stream can honor; with --online, if the table is a queue.
	NeedsStream []mistake `json:"needs_stream"`
	// Error is the answer of the database, with --online.
	Error string `json:"error,omitempty"`
}

// mistake is a [config.Mistake] as JSON.
type mistake struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

func (c *Checked) text() string {
	text := fmt.Sprintf("%s: ok, %s, %s", c.File, cli.Count(c.Destinations, "destination"), cli.Count(c.Routes, "route"))
	if c.Outboxes > 0 {
		text += ", " + cli.Count(c.Outboxes, "outbox")
	}
	if c.Query {
		text += ", and those of a query"
	}
	return text
}

// check reads the file, and asks the database if it may. File is empty in the result if no file was found.
func check(ctx context.Context, a *command.App, online bool) (checked Checked, err error) {
	checked = Checked{Mistakes: []mistake{}, Warnings: []mistake{}, NeedsStream: []mistake{}}
	checked.File, err = config.Find(a.ConfigPath, a.Lookup)
	if err != nil {
		return checked, err
	}

	c, err := a.LoadAt(checked.File, "")
	if err == nil {
		err = outboxes.CheckURLs(c)
	}

	if list, ok := errors.AsType[*config.Error](err); ok {
		for _, m := range list.Mistakes {
			checked.Mistakes = append(checked.Mistakes, mistake(m))
		}
	}
	if err != nil {
		return checked, err
	}

	for _, w := range c.Warnings {
		checked.Warnings = append(checked.Warnings, mistake(w))
	}

	checked.Destinations = len(c.Destinations)
	checked.Routes = len(c.Routes)
	checked.Outboxes = len(c.Outboxes.List)
	checked.Query = c.Outboxes.Query != ""

	if online {
		var areStreams bool
		areStreams, err = checkTables(ctx, c)
		if err == nil && areStreams {
			for _, w := range c.IgnoredByStream() {
				checked.Warnings = append(checked.Warnings, mistake(w))
			}
		}
	}

	if !online || errors.Is(err, notifyd.ErrNeedsStream) {
		for _, m := range c.NeedsStream() {
			checked.NeedsStream = append(checked.NeedsStream, mistake(m))
		}
	}

	if err != nil {
		checked.Error = cli.OneLine(err)
		return checked, err
	}

	checked.OK = true
	return checked, nil
}

// checkTables is an error if a relay could not work with the table of an outbox. areStreams reports that there is a table, and
// that all are streams.
func checkTables(ctx context.Context, c *config.Config) (areStreams bool, err error) {
	if !c.Outboxes.Used() {
		return checkTableOf(ctx, c)
	}

	all, wrong, err := outboxes.Find(ctx, c)
	if err != nil {
		return false, err
	}

	errs := []error{wrong}
	areStreams = len(all) > 0
	for i := range all {
		one, err := checkTableOf(ctx, c.For(&all[i]))
		if err != nil {
			errs = append(errs, fmt.Errorf("outbox %s: %w", all[i].Name, err))
		}
		areStreams = areStreams && one
	}
	return areStreams, errors.Join(errs...)
}

// checkTableOf is an error if no relay could work with the table of a configuration. isStream reports that it is a stream.
func checkTableOf(ctx context.Context, c *config.Config) (isStream bool, err error) {
	conn, err := outboxes.OpenTable(ctx, c, "check")
	if err != nil {
		return false, err
	}
	defer store.Close(ctx, conn.Conn)

	state, err := outboxsql.ReadState(ctx, conn, c.Database.Schema)

	return state.Mode == outboxsql.ModeStream, err
}
