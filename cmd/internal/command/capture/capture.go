package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/capture"
	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// New returns the command capture.
func New(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "capture",
		Short: "Write events for the changes of a table, by triggers",
		Long: `capture is for tables whose application writes no events. Triggers write one for
each inserted, changed and deleted row, in the transaction of the change, with the
old and the new values.`,
		Example: "  notifyd capture add shop.orders --exclude password_hash\n  notifyd capture add shop.orders --install\n  notifyd capture list",
	}
	cmd.AddCommand(newAdd(a), newList(a), newRemove(a))
	return cmd
}

// connected calls do with the connection that connect opens. Captures can be listed and removed where the tables of the outbox
// are gone: writes of captured tables fail then.
func connected(
	cmd *cobra.Command, a *command.App,
	connect func(context.Context, *command.App) (*pgx.Conn, error), do func(ctx context.Context, conn *pgx.Conn) error,
) error {
	progress := command.StartProgress(cmd, command.Connecting)
	defer progress.Stop()

	conn, err := connect(cmd.Context(), a)
	if err != nil {
		return err
	}
	defer store.Close(cmd.Context(), conn)

	progress.Say("%s", cmd.CommandPath())
	return mistaken(do(cmd.Context(), conn))
}

// mistaken returns a mistake in the command line if the request does not fit the table, and err otherwise.
func mistaken(err error) error {
	if errors.Is(err, capture.ErrInvalid) {
		return command.UsageErrorf("%w", err)
	}
	return err
}

// addFlags are the flags of "notifyd capture add".
type addFlags struct {
	db      command.DatabaseFlags
	request capture.Request
	install bool
	timeout command.Duration
	form    *cli.OneOf
}

// AddResult is the result of "capture add", as JSON.
type AddResult struct {
	capture.Capture

	// Installed reports whether the command has executed SQL.
	Installed bool     `json:"installed"`
	SQL       string   `json:"sql"`
	Warnings  []string `json:"warnings"`
}

func newAdd(a *command.App) *cobra.Command {
	var f addFlags
	cmd := &cobra.Command{
		Use:   "add TABLE",
		Args:  cobra.ExactArgs(1),
		Short: "Print or install the triggers of a table",
		Long: `add prints the SQL that makes the triggers, for a migration of the application, and
with --install executes it. TABLE is named as in SQL: orders, shop.orders,
'shop."Orders"'. The role must own the table and may insert events; the triggers
write events with its rights, whoever changes the table.

The columns are fixed: one that the table gets later is not in the events until the
command is repeated. Repeating it replaces the triggers of the table.`,
		Example: "  notifyd capture add orders --exclude password_hash | psql --single-transaction app\n" +
			"  notifyd capture add shop.orders --columns status,total --types order.placed,order.changed,order.removed " +
			"--aggregate-type order --install\n" +
			"  notifyd capture add shop.orders --operations insert,delete --install",
		RunE: func(cmd *cobra.Command, args []string) error {
			f.request.Table = args[0]
			return connected(cmd, a, f.db.ConnectTable, func(ctx context.Context, conn *pgx.Conn) error { return f.add(ctx, cmd, conn) })
		},
	}

	f.db.Register(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&f.request.Key, "key", nil, "`columns` that identify a row, for aggregate_id; default: the primary key")
	flags.StringSliceVar(&f.request.Columns, "columns", nil, "the `columns` in the events, next to the key; default: all")
	flags.StringSliceVar(&f.request.Exclude, "exclude", nil, "`columns` that are not in the events")
	flags.StringSliceVar(&f.request.Operations, "operations", nil,
		"`operations` that write events: insert, update, delete, truncate; default: the first three")
	flags.StringSliceVar(&f.request.Types, "types", nil,
		"event `types`, one for each operation; default: TABLE.inserted, TABLE.updated, TABLE.deleted, TABLE.truncated")
	flags.StringVar(&f.request.AggregateType, "aggregate-type", "", "aggregate_type of the events, a `name`; default: the name of the table")
	flags.BoolVar(&f.install, "install", false, "execute the SQL instead of printing it")
	command.AddTimeout(cmd, &f.timeout, outboxsql.DefaultLockPatience)
	f.form = command.AddFormat(cmd)

	return cmd
}

func (f *addFlags) add(ctx context.Context, cmd *cobra.Command, conn *pgx.Conn) error {
	f.request.Outbox = f.db.Schema
	plan, err := capture.Prepare(ctx, conn, f.request)
	if err != nil {
		return err
	}

	for _, warning := range plan.Warnings {
		if _, err := fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+command.Clean(warning)); err != nil {
			return err
		}
	}

	if f.install {
		if err := capture.Run(ctx, conn, plan.SQL, time.Duration(f.timeout)); err != nil {
			return fmt.Errorf("capture %s: %w", plan.Name(), err)
		}
	}

	out := cmd.OutOrStdout()
	switch {
	case f.form.Value == "json":
		return command.WriteJSON(out, AddResult{plan.Capture, f.install, plan.SQL, append([]string{}, plan.Warnings...)})
	case f.install:
		return printInstalled(out, &plan.Capture)
	default:
		_, err := io.WriteString(out, plan.Script())
		return err
	}
}

// printInstalled prints what was installed.
func printInstalled(out io.Writer, c *capture.Capture) error {
	var b strings.Builder
	fmt.Fprintf(&b, "captured %s\n", command.Clean(c.Name()))
	for _, operation := range c.Operations() {
		fmt.Fprintf(&b, "  %-9s %s\n", operation, command.Clean(c.Types[operation]))
	}

	fmt.Fprintf(&b, "  %-9s %s\n  %-9s %s\n", "key", listed(c.Key), "columns", listed(c.Columns))
	if len(c.Excluded) > 0 {
		fmt.Fprintf(&b, "  %-9s %s\n", "excluded", listed(c.Excluded))
	}

	_, err := io.WriteString(out, b.String())
	return err
}

func listed(names []string) string { return command.Clean(strings.Join(names, ", ")) }

func newList(a *command.App) *cobra.Command {
	var db command.DatabaseFlags
	var form *cli.OneOf
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the captured tables, and what is wrong with them",
		Long: `list shows the captures of an outbox: operations with their event types, the key, the
columns, whether the triggers are enabled, and the differences from what add would
write now, each with its cure.`,
		Example: "  notifyd capture list\n  notifyd capture list -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := db.Several(cmd.Context(), a)
			if err != nil {
				return err
			}

			if names != nil && form.Value == "json" {
				return command.JSONSections(cmd.OutOrStdout(), names, func(name string) (any, error) {
					one := db.Of(name)
					return captures(cmd, a, &one)
				})
			}

			return db.Each(cmd, a, func(one command.DatabaseFlags) error {
				list, err := captures(cmd, a, &one)
				if err != nil {
					return err
				}
				if form.Value == "json" {
					return command.WriteJSON(cmd.OutOrStdout(), list)
				}
				return printList(cmd.OutOrStdout(), list)
			})
		},
	}

	db.Register(cmd)
	form = command.AddFormat(cmd)
	return cmd
}

// captures reads the captures of an outbox; never nil.
func captures(cmd *cobra.Command, a *command.App, db *command.DatabaseFlags) (list []capture.State, err error) {
	list = []capture.State{}
	err = connected(cmd, a, db.Connect, func(ctx context.Context, conn *pgx.Conn) error {
		found, err := capture.List(ctx, conn, db.Schema)
		list = append(list, found...)
		return err
	})
	return list, err
}

func printList(out io.Writer, list []capture.State) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "no table is captured: notifyd capture add")
		return err
	}

	rows := [][]string{{"TABLE", "EVENTS", "AGGREGATE", "KEY", "COLUMNS", "EXCLUDED", "ENABLED", "PROBLEMS"}}
	for i := range list {
		s := &list[i]
		var types []string
		for _, operation := range s.Operations() {
			types = append(types, s.Types[operation])
		}

		enabled := "no"
		if s.Enabled {
			enabled = "yes"
		}
		problems := "none"
		if len(s.Problems) > 0 {
			problems = cli.Count(len(s.Problems), "problem")
		}
		rows = append(rows, []string{
			command.First(s.Relation, s.Name()), dash(types), command.First(s.AggregateType, "-"),
			dash(s.Key), dash(s.Columns), dash(s.Excluded), enabled, problems,
		})
	}

	if err := (command.BasePrinter{Out: out}).Table(rows); err != nil {
		return err
	}

	for i := range list {
		for _, p := range list[i].Problems {
			if _, err := fmt.Fprintf(out, "\n%s: %s\n  %s\n", p.Level, command.Clean(p.Text), command.Clean(p.Cure)); err != nil {
				return err
			}
		}
	}
	return nil
}

func dash(names []string) string { return command.First(strings.Join(names, ", "), "-") }

// RemoveResult is the result of "capture remove", as JSON.
type RemoveResult struct {
	Table string `json:"table"`
	// Removed reports whether there was a capture, and whether it was removed.
	Removed bool `json:"removed"`
	// Relations are the tables whose triggers were dropped, or would be. SQL has the statements.
	Relations []string `json:"relations"`
	SQL       string   `json:"sql"`
}

// removeFlags are the flags of "notifyd capture remove".
type removeFlags struct {
	db      command.DatabaseFlags
	timeout command.Duration
	dryRun  bool
	form    *cli.OneOf
}

func newRemove(a *command.App) *cobra.Command {
	var f removeFlags
	cmd := &cobra.Command{
		Use:   "remove TABLE",
		Args:  cobra.ExactArgs(1),
		Short: "Drop the triggers of a captured table",
		Long: `remove drops the triggers of a table and their function. Events that were written stay.
Without a capture it does nothing. With --dry-run it prints the SQL.`,
		Example: "  notifyd capture remove shop.orders\n  notifyd capture remove shop.orders --dry-run",
		RunE: func(cmd *cobra.Command, args []string) error {
			return connected(cmd, a, f.db.Connect, func(ctx context.Context, conn *pgx.Conn) error {
				return f.remove(ctx, cmd.OutOrStdout(), conn, args[0])
			})
		},
	}

	f.db.Register(cmd)
	command.AddTimeout(cmd, &f.timeout, outboxsql.DefaultLockPatience)
	command.AddDryRun(cmd, &f.dryRun)
	f.form = command.AddFormat(cmd)
	return cmd
}

func (f *removeFlags) remove(ctx context.Context, out io.Writer, conn *pgx.Conn, table string) error {
	removal, err := capture.PrepareRemoval(ctx, conn, f.db.Schema, table)
	if err != nil {
		return err
	}

	isDone := removal.SQL != "" && !f.dryRun
	if isDone {
		if err := capture.Run(ctx, conn, removal.SQL, time.Duration(f.timeout)); err != nil {
			return fmt.Errorf("remove the capture of %s: %w", table, err)
		}
	}

	if f.form.Value == "json" {
		return command.WriteJSON(out, RemoveResult{table, isDone, append([]string{}, removal.Relations...), removal.SQL})
	}
	text := removal.SQL
	switch {
	case removal.SQL == "":
		text = "there is no capture of " + command.Clean(table) + "\n"
	case isDone:
		text = "removed the capture of " + command.Clean(table) + "\n"
	}
	_, err = io.WriteString(out, text)
	return err
}
