package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	outboxsql "github.com/notifyd/notifyd/sql"
	"github.com/notifyd/notifyd/store"
)

func newMigrateCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make or update the tables and the trigger",
		Long: `migrate makes the tables outbox_events and outbox_deliveries and the trigger that
rings for new events, or brings them up to date. Versions only go up. Several
relays or deployments may run it at once. Without a command it is "migrate up".

With --partitions daily it then makes outbox_events a table with a partition for
each day, of which retention drops whole ones. The table may be in use, and of any
size: it becomes the first partition as it is. There is no command for the way
back. Relays need "partitions: daily" below "retention" to go on with it.

With --print-grants it changes nothing and prints the SQL that gives two roles
what they need and no more: those who write events may insert them, and the
relay may deliver them. The owner of the tables runs it, after each migration.`,
		Example: "  notifyd migrate\n  notifyd migrate --bell always\n  notifyd migrate --partitions daily\n  notifyd migrate status\n  notifyd migrate --print-grants --writer app --relay notifyd | psql app",
	}
	cmd.AddCommand(newMigrateUpCmd(a), newMigrateStatusCmd(a), newMigratePrintCmd(a))
	up := newMigrateUpCmd(a)
	// "notifyd migrate --bell always" is "notifyd migrate up --bell always".
	cmd.Flags().AddFlagSet(up.Flags())
	registerGrants(a, cmd, up.RunE)
	return cmd
}

func newMigrateUpCmd(a *app) *cobra.Command {
	var db databaseFlags
	var bell, partitions string
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Apply what is missing",
		Example: "  notifyd migrate up\n  notifyd migrate up --bell always --database-url postgres://owner@localhost/app",
		RunE: func(cmd *cobra.Command, _ []string) error {
			mode := outboxsql.Bell(bell)
			if err := mode.Validate(); err != nil {
				return usageErrorf("--bell: %w", err)
			}
			if cmd.Flags().Changed("partitions") && partitions != "daily" {
				return usageErrorf("--partitions: %q is unknown: use daily; there is no command that takes partitions away", partitions)
			}
			return migrateUp(cmd.Context(), a, &db, mode, partitions, cmd.OutOrStdout())
		},
	}
	db.register(cmd)
	registerBell(cmd, &bell)
	cmd.Flags().StringVar(&partitions, "partitions", "", "daily makes outbox_events a table with a partition for each `day`, for good")
	return cmd
}

func registerBell(cmd *cobra.Command, bell *string) {
	cmd.Flags().StringVar(bell, "bell", "", "when the trigger notifies: `mode` auto (unless a relay is awake), always or off (relays poll); default: as it is, auto for new tables")
}

//nolint:revive // each of them is one of the command's flags
func migrateUp(ctx context.Context, a *app, db *databaseFlags, bell outboxsql.Bell, partitions string, out io.Writer) error {
	conn, err := db.connect(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)
	applied, err := outboxsql.Migrate(ctx, conn, db.schema, bell)
	if err != nil {
		return err
	}
	if partitions != "" {
		say := func(step string) { _, _ = fmt.Fprintln(out, step) } // the report below will not come through either
		if err := outboxsql.Partition(ctx, conn, db.schema, outboxsql.PartitionOptions{Progress: say}); err != nil {
			return err
		}
	}
	state, err := outboxsql.ReadState(ctx, conn, db.schema)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, v := range applied {
		fmt.Fprintf(&text, "applied version %d: %s\n", v.Number, v.Name)
	}
	partitioned := ""
	if yes, err := outboxsql.Partitioned(ctx, conn, db.schema); err != nil {
		return err
	} else if yes {
		partitioned = ", partitions daily"
	}
	fmt.Fprintf(&text, "schema %s is at version %d, bell %s%s\n", db.schema, state.Current, state.Bell, partitioned)
	_, err = io.WriteString(out, text.String())
	return err
}

func newMigrateStatusCmd(a *app) *cobra.Command {
	var db databaseFlags
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the versions and the bell",
		Long:    "status shows which versions are applied and when the trigger notifies. It exits\nwith 1 if this notifyd would not run with the schema as it is.",
		Example: "  notifyd migrate status\n  notifyd migrate status -c /etc/notifyd/config.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := db.connect(cmd.Context(), a)
			if err != nil {
				return err
			}
			defer store.Close(cmd.Context(), conn)
			state, err := outboxsql.ReadState(cmd.Context(), conn, db.schema)
			if err != nil {
				return err
			}
			if err := printState(cmd.OutOrStdout(), state); err != nil {
				return err
			}
			return outboxsql.Check(cmd.Context(), conn, db.schema)
		},
	}
	db.register(cmd)
	return cmd
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
	_, err := fmt.Fprintf(out, "bell: %s\n", state.Bell)
	return err
}

func newMigratePrintCmd(a *app) *cobra.Command {
	var db databaseFlags
	var bell string
	cmd := &cobra.Command{
		Use:     "print",
		Short:   "Print the SQL, for those who apply it by other means",
		Example: "  notifyd migrate print | psql app\n  notifyd migrate print --schema shop --bell always > migrations/0042_notifyd.sql",
		RunE: func(cmd *cobra.Command, _ []string) error {
			mode := outboxsql.Bell(bell)
			if err := mode.Validate(); err != nil {
				return usageErrorf("--bell: %w", err)
			}
			db.url = first(db.url, "unused") // printing connects to nothing
			if err := db.resolve(a); err != nil {
				return err
			}
			script, err := outboxsql.Script(db.schema, mode)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), script)
			return err
		},
	}
	db.registerSchema(cmd)
	registerBell(cmd, &bell)
	return cmd
}
