package schema

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/notifyd/notifyd/internal/command"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// NewMigrate returns the command migrate.
func NewMigrate(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make or update the tables and the trigger",
		Long: `migrate makes the tables outbox_events and outbox_deliveries and the trigger that
notifies of new events, or brings them up to date. Versions only go up. Several
relays or deployments may run it at once.

With --partitions daily it then makes outbox_events a table with a partition for
each day, which retention drops as a whole. The table may be in use, and of any
size: it becomes the first partition as it is. There is no command for the way
back. Relays need "partitions: daily" below "retention" to continue.

With --serialize-writers on it serializes writers: a transaction that
inserts an event waits until those that have inserted before it have ended, and
only then draws ids, which are in the order of commits therefore. Relays and the
mode of the table have no part in that, and off takes it away again.

With --print-grants it changes nothing and prints the SQL that gives two roles
the privileges that they need and no more: writers may insert events, and the
relay may deliver them. The owner of the tables runs it, after each migration.`,
		Example: "  notifyd migrate\n  notifyd migrate --notify always\n  notifyd migrate --partitions daily\n  notifyd migrate --mode stream\n  notifyd migrate --serialize-writers on\n  notifyd migrate status\n  notifyd migrate --print-grants --writer app --relay notifyd | psql app",
	}
	cmd.AddCommand(newMigrateUpCmd(a), newMigrateStatusCmd(a), newMigratePrintCmd(a))
	up := newMigrateUpCmd(a)
	cmd.Flags().AddFlagSet(up.Flags())
	registerGrants(a, cmd, up.RunE)
	return cmd
}

// upFlags are the flags of "migrate up".
type upFlags struct {
	command.DatabaseFlags
	notify     string
	partitions string
	mode       string
	serialize  cli.OneOf
	wait       time.Duration
	yes        bool
}

func newMigrateUpCmd(a *command.App) *cobra.Command {
	f := upFlags{serialize: cli.OneOf{Words: []string{"on", "off"}}}
	cmd := &cobra.Command{
		Use:     "up", // other tools' name for "notifyd migrate"
		Hidden:  true,
		Short:   "Apply the missing versions",
		Example: "  notifyd migrate up\n  notifyd migrate up --notify always --database-url postgres://owner@localhost/app",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := outboxsql.NotifyMode(f.notify).Validate(); err != nil {
				return command.UsageErrorf("--notify: %w", err)
			}
			if cmd.Flags().Changed("partitions") && f.partitions != "daily" {
				return command.UsageErrorf("--partitions: %q is unknown: use daily; there is no command that takes partitions away", f.partitions)
			}
			if cmd.Flags().Changed("mode") {
				if err := outboxsql.Mode(f.mode).Validate(); err != nil {
					return command.UsageErrorf("--mode: %w", err)
				}
			}
			if f.wait <= 0 {
				return command.UsageErrorf("--wait: %v is not above 0", f.wait)
			}
			return f.Each(cmd, a, func(db command.DatabaseFlags) error {
				one := f
				one.DatabaseFlags = db
				return one.migrate(cmd, a)
			})
		},
	}
	f.Register(cmd)
	registerNotify(cmd, &f.notify)
	cmd.Flags().StringVar(&f.partitions, "partitions", "", "daily makes outbox_events a table with a partition for each `day`, for good")
	cmd.Flags().StringVar(&f.mode, "mode", "", "how relays read outbox_events: `mode` queue or stream; default: as it is, queue for new tables")
	cmd.Flags().Var(&f.serialize, "serialize-writers", "whether writers are serialized, so that ids are in the order of commits: on or off; default: as it is, off for new tables")
	cmd.Flags().DurationVar(&f.wait, "wait", outboxsql.DefaultLockPatience, "how long to try for locks on tables in use; each try holds up writers for 200ms at most")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "with --mode queue: do not ask before events are given up that wait for destinations which the configuration lacks")
	return cmd
}

func registerNotify(cmd *cobra.Command, notify *string) {
	cmd.Flags().StringVar(notify, "notify", "", "when the trigger notifies: `mode` auto (unless a relay polls), always or off (relays poll); default: as it is, auto for new tables")
}

// migrate applies the flags, step by step, and prints the result, and on errOut the sessions that it
// waits for.
func (f *upFlags) migrate(cmd *cobra.Command, a *command.App) error {
	ctx, out, errOut := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	conn, err := f.Connect(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)
	if conn.PgConn().ParameterStatus("server_encoding") == "SQL_ASCII" {
		_, _ = fmt.Fprintln(errOut, "warning: "+outboxsql.NoEncoding)
	}
	waiting := func(line string) { _, _ = fmt.Fprintln(errOut, line) }
	applied, err := outboxsql.MigrateWith(ctx, conn, f.Schema, outboxsql.MigrateOptions{Notify: outboxsql.NotifyMode(f.notify), Mode: outboxsql.Mode(f.mode), LockPatience: f.wait, Waiting: waiting})
	if err != nil {
		return err
	}
	if err := noteOthers(ctx, conn, f.Schema, applied, errOut); err != nil {
		return err
	}
	say := func(step string) { _, _ = fmt.Fprintln(out, step) } // the report below fails as well
	if f.partitions != "" {
		if err := outboxsql.Partition(ctx, conn, f.Schema, outboxsql.PartitionOptions{LockPatience: f.wait, Progress: say, Waiting: waiting}); err != nil {
			return err
		}
	}
	if f.mode != "" {
		o, err := f.modeOptions(ctx, a)
		if err != nil {
			return err
		}
		o.LockPatience, o.Progress, o.Waiting = f.wait, say, waiting
		if err := f.setMode(cmd, conn, o); err != nil {
			return err
		}
	}
	if f.serialize.Value != "" {
		o := outboxsql.SerializeOptions{LockPatience: f.wait, Waiting: waiting}
		if err := outboxsql.SerializeWriters(ctx, conn, f.Schema, f.serialize.Value == "on", o); err != nil {
			return err
		}
	}
	return reportMigrated(ctx, conn, f.Schema, applied, out)
}

// setMode changes the mode, and asks before events are given up.
func (f *upFlags) setMode(cmd *cobra.Command, conn *pgx.Conn, o outboxsql.ModeOptions) error {
	o.Drop = f.yes
	err := outboxsql.SetMode(cmd.Context(), conn, f.Schema, outboxsql.Mode(f.mode), o)
	if !errors.Is(err, outboxsql.ErrAbandoned) {
		return err
	}
	if !cli.IsTerminal(cmd.InOrStdin()) {
		return fmt.Errorf("%w with --yes", err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%v. Drop their positions, so that they never get these events? [y/N] ", err) //nolint:errcheck // the answer is what counts
	if !command.Agreed(cmd.InOrStdin()) {
		return command.ErrNotAgreed
	}
	o.Drop = true
	return outboxsql.SetMode(cmd.Context(), conn, f.Schema, outboxsql.Mode(f.mode), o)
}

// noteOthers lists the other outboxes of the database when a new one is created in the default schema, perhaps by mistake.
func noteOthers(ctx context.Context, conn *pgx.Conn, schema string, applied []outboxsql.Version, errOut io.Writer) error {
	if schema != outboxsql.DefaultSchema || len(applied) == 0 || applied[0].Number != 1 {
		return nil
	}
	others, err := outboxsql.Elsewhere(ctx, conn, schema)
	if err == nil && len(others) > 0 {
		_, err = fmt.Fprintf(errOut, "schema %s has a new outbox; the database has others in schema %s: if you meant one of these, set database.schema or --schema\n",
			pgx.Identifier{schema}.Sanitize(), strings.Join(others, ", "))
	}
	return err
}

// modeOptions has the routes and the order of the configuration, if there is one.
func (f *upFlags) modeOptions(ctx context.Context, a *command.App) (o outboxsql.ModeOptions, err error) {
	c, _, err := f.Optional(ctx, a, config.LoadRoutes)
	if err != nil || c == nil {
		return o, err
	}
	unordered := make(map[string]bool, len(c.Destinations)) // has each of them
	for _, d := range c.Destinations {
		unordered[d.Name] = d.Order == delivery.OrderNone
	}
	o.Known = func(destination string) bool { _, ok := unordered[destination]; return ok }
	o.Route, o.Unordered = c.RouteOf, func(destination string) bool { return unordered[destination] }
	return o, nil
}

func reportMigrated(ctx context.Context, conn *pgx.Conn, schema string, applied []outboxsql.Version, out io.Writer) error {
	state, err := outboxsql.ReadState(ctx, conn, schema)
	if err != nil {
		return err
	}
	partitioned, err := outboxsql.Partitioned(ctx, conn, schema)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, v := range applied {
		fmt.Fprintf(&text, "applied version %d: %s\n", v.Number, v.Name)
	}
	fmt.Fprintf(&text, "schema %s is at version %d, notify %s", schema, state.Current, state.Notify)
	if state.Mode != outboxsql.ModeQueue {
		fmt.Fprintf(&text, ", mode %s", state.Mode)
	}
	if partitioned {
		text.WriteString(", partitions daily")
	}
	if state.Serialized {
		text.WriteString(", writers serialized")
	}
	text.WriteString("\n")
	_, err = io.WriteString(out, text.String())
	return err
}

func newMigrateStatusCmd(a *command.App) *cobra.Command {
	var db command.DatabaseFlags
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the versions and the notify mode",
		Long:    "status shows which versions are applied, when the trigger notifies, and whether the\ntable is a queue or a stream. It exits with 1 if this notifyd would not run with the schema as it is.",
		Example: "  notifyd migrate status\n  notifyd migrate status -c /etc/notifyd/config.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return db.Each(cmd, a, func(one command.DatabaseFlags) error { return migrateStatus(cmd, a, one) })
		},
	}
	db.Register(cmd)
	return cmd
}

func migrateStatus(cmd *cobra.Command, a *command.App, db command.DatabaseFlags) error {
	conn, err := db.Connect(cmd.Context(), a)
	if err != nil {
		return err
	}
	defer store.Close(cmd.Context(), conn)
	state, err := outboxsql.ReadState(cmd.Context(), conn, db.Schema)
	if err != nil {
		return err
	}
	if err := printState(cmd.OutOrStdout(), state); err != nil {
		return err
	}
	return outboxsql.Check(cmd.Context(), conn, db.Schema)
}

func printState(out io.Writer, state outboxsql.State) error {
	var text strings.Builder
	text.WriteString("VERSION\tNAME\tAPPLIED\n")
	for _, v := range state.Versions {
		at := "no"
		if !v.AppliedAt.IsZero() {
			at = v.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(&text, "%d\t%s\t%s\n", v.Number, v.Name, at)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(w, text.String()); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	becoming := ""
	if state.Becoming != "" {
		becoming = fmt.Sprintf(", on its way to a %s: run notifyd migrate --mode %[1]s to its end", state.Becoming)
	}
	writers := ""
	if state.Serialized {
		writers = "writers: serialized\n"
	}
	_, err := fmt.Fprintf(out, "notify: %s\nmode: %s%s\n%s", state.Notify, state.Mode, becoming, writers)
	return err
}

func newMigratePrintCmd(a *command.App) *cobra.Command {
	var db command.DatabaseFlags
	var notify string
	cmd := &cobra.Command{
		Use:     "print",
		Short:   "Print the SQL, to apply it by other means",
		Example: "  notifyd migrate print | psql app\n  notifyd migrate print --schema shop --notify always > migrations/0042_notifyd.sql",
		RunE: func(cmd *cobra.Command, _ []string) error {
			mode := outboxsql.NotifyMode(notify)
			if err := mode.Validate(); err != nil {
				return command.UsageErrorf("--notify: %w", err)
			}
			db.URL = command.First(db.URL, "unused") // printing connects to nothing
			if err := db.Resolve(cmd.Context(), a); err != nil {
				return err
			}
			script, err := outboxsql.Script(db.Schema, mode)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), script)
			return err
		},
	}
	db.RegisterSchema(cmd)
	registerNotify(cmd, &notify)
	return cmd
}
