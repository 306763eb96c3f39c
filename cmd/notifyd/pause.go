package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// pauseFlags are the flags of "notifyd pause" and "notifyd resume".
type pauseFlags struct {
	db            databaseFlags
	actor, reason string
}

func newPauseCmd(a *app) *cobra.Command {
	var f pauseFlags
	cmd := &cobra.Command{
		Use:   "pause DESTINATION...",
		Short: "Stop deliveries to a destination, at all relays",
		Long: `pause stops the deliveries to destinations at every relay of the tables, until
notifyd resume. It is stored, with who and why, and lasts through restarts.
Running deliveries end as usual; the events wait and lose no attempt. Relays
honour it within about a second.`,
		Example: "  notifyd pause mail --reason \"mail server moves until 14:00\"",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := f.unknownDestination(cmd.Context(), a, names); err != nil {
				return err
			}
			return f.each(cmd.Context(), a, names, func(ctx context.Context, conn *pgx.Conn, name string) (string, error) {
				err := store.SetPause(ctx, conn, f.db.schema, name, observe.Pause{By: first(f.actor, currentActor()), Reason: f.reason})
				return name + " is paused at all relays; notifyd resume " + name + " ends that", err
			})
		},
	}
	f.db.register(cmd)
	cmd.Flags().StringVar(&f.actor, "actor", "", "`who` does it; default: user@host")
	cmd.Flags().StringVar(&f.reason, "reason", "", "`why`, for people who find it paused")
	return cmd
}

func newResumeCmd(a *app) *cobra.Command {
	var f pauseFlags
	cmd := &cobra.Command{
		Use:     "resume DESTINATION...",
		Short:   "End the pause of a destination",
		Long:    "resume ends the pauses of destinations, at every relay of the tables.",
		Example: "  notifyd resume mail",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			return f.each(cmd.Context(), a, names, func(ctx context.Context, conn *pgx.Conn, name string) (string, error) {
				was, err := store.ClearPause(ctx, conn, f.db.schema, name)
				if !was {
					return name + " was not paused", err
				}
				return name + " is resumed at all relays", err
			})
		},
	}
	f.db.register(cmd)
	return cmd
}

// each acts on each destination, and prints the result.
func (f *pauseFlags) each(ctx context.Context, a *app, names []string, do func(context.Context, *pgx.Conn, string) (string, error)) error {
	conn, err := f.db.connectTable(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)
	for _, name := range names {
		said, err := do(ctx, conn, name)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(a.stdout, printable(said)); err != nil {
			return err
		}
	}
	return nil
}

// unknownDestination is an error unless the configuration has the destinations, or there is none: a
// misspelt name would pause nothing.
func (f *pauseFlags) unknownDestination(ctx context.Context, a *app, names []string) error {
	c, path, err := f.db.optional(ctx, a, config.LoadRoutes)
	if err != nil || c == nil {
		return err
	}
	for _, name := range names {
		if all := namesOf(c); !slices.Contains(all, name) {
			return usageErrorf("%s has no destination %q: it has %s", path, name, strings.Join(all, ", "))
		}
	}
	return nil
}
