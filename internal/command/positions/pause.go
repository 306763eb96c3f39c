package positions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/command"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// pauseFlags are the flags of "notifyd pause" and "notifyd resume".
type pauseFlags struct {
	db            command.DatabaseFlags
	actor, reason string
	timeout       command.Age
}

func (f *pauseFlags) register(cmd *cobra.Command) {
	f.db.Register(cmd)
	f.timeout = command.Age(10 * time.Second)
	cmd.Flags().Var(&f.timeout, "timeout", "wait no longer than this for the relays: 30s, 2m")
}

// NewPause returns the command pause.
func NewPause(a *command.App) *cobra.Command {
	var f pauseFlags
	cmd := &cobra.Command{
		Use:   "pause DESTINATION...",
		Short: "Stop deliveries to a destination, at all relays",
		Long: `pause stops the deliveries to destinations at every relay of the tables, until
notifyd resume. It is stored, with who and why, and lasts through restarts.
Running deliveries end as usual; the events wait and lose no attempt.

Relays look about once a second. pause waits until each live relay has confirmed
that it begins no delivery any more. If one has not after --timeout, pause names it
and exits with 1; the pause stays, and that relay honours it when it looks again.`,
		Example: "  notifyd pause mail --reason \"mail server moves until 14:00\"",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := f.unknownDestination(cmd.Context(), a, names); err != nil {
				return err
			}
			return f.each(cmd.Context(), a, names, func(ctx context.Context, conn *pgx.Conn, name string) (string, error) {
				client, err := ops.New(conn, ops.Config{Schema: f.db.Schema})
				if err == nil {
					err = client.Pause(ctx, name, ops.Action{Actor: command.First(f.actor, command.CurrentActor()), Reason: f.reason})
				}
				if err != nil {
					return "", err
				}
				return f.await(ctx, conn, name, "paused")
			})
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&f.actor, "actor", "", "`who` does it; default: user@host")
	cmd.Flags().StringVar(&f.reason, "reason", "", "`why`, for people who find it paused")
	return cmd
}

// NewResume returns the command resume.
func NewResume(a *command.App) *cobra.Command {
	var f pauseFlags
	cmd := &cobra.Command{
		Use:   "resume DESTINATION...",
		Short: "End the pause of a destination",
		Long: `resume ends the pauses of destinations, at every relay of the tables. It waits until
each live relay has confirmed that, --timeout at most.`,
		Example: "  notifyd resume mail",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			return f.each(cmd.Context(), a, names, func(ctx context.Context, conn *pgx.Conn, name string) (string, error) {
				client, err := ops.New(conn, ops.Config{Schema: f.db.Schema})
				was := false
				if err == nil {
					was, err = client.Resume(ctx, name, ops.Action{Actor: command.CurrentActor()})
				}
				switch {
				case err != nil:
					return "", err
				case !was:
					return name + " was not paused", nil
				}
				return f.await(ctx, conn, name, "resumed")
			})
		},
	}
	f.register(cmd)
	return cmd
}

// each acts on each destination, and prints the result.
func (f *pauseFlags) each(ctx context.Context, a *command.App, names []string, do func(context.Context, *pgx.Conn, string) (string, error)) error {
	conn, err := f.db.ConnectTable(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)
	var late error
	for _, name := range names {
		said, err := do(ctx, conn, name)
		if errors.Is(err, ops.ErrInvalid) {
			return command.UsageErrorf("%w", err)
		}
		if err != nil && !errors.Is(err, errUnconfirmed) {
			return err
		}
		late = errors.Join(late, err)
		if said == "" {
			continue
		}
		if _, err := fmt.Fprintln(a.Stdout, command.Printable(said)); err != nil {
			return err
		}
	}
	return late
}

// errUnconfirmed is wrapped by the error about relays that have not confirmed a pause, or its end.
var errUnconfirmed = errors.New("has not confirmed")

// confirmPoll is how often the table is read for the confirmations of relays.
const confirmPoll = 50 * time.Millisecond

// await waits until each live relay has confirmed the pause or its end. It returns the last known state.
func (f *pauseFlags) await(ctx context.Context, conn *pgx.Conn, name, state string) (string, error) {
	cure := ""
	if state == "paused" {
		cure = "; notifyd resume " + name + " ends that"
	}
	table, err := outboxsql.ReadState(ctx, conn, f.db.Schema)
	if err != nil {
		return "", err
	}
	request := store.PauseRequest{Schema: f.db.Schema, Mode: table.Mode, Destination: name, Paused: state == "paused"}
	tick := time.NewTicker(confirmPoll)
	defer tick.Stop()
	for deadline := time.After(time.Duration(f.timeout)); ; {
		late, confirmed, err := request.Unconfirmed(ctx, conn)
		switch {
		case err != nil:
			return "", err
		case len(late) == 0 && confirmed == 0:
			return fmt.Sprintf("%s is %s: no relay is at work%s", name, state, cure), nil
		case len(late) == 0:
			return fmt.Sprintf("%s is %s at all relays (%d)%s", name, state, confirmed, cure), nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return "", fmt.Errorf("%s is stored as %s, but %s of %d %w that after %v: %s: it honours it when it looks again; if it hangs, restart it",
				name, state, cli.Count(len(late), "relay"), len(late)+confirmed, errUnconfirmed, time.Duration(f.timeout), whoIs(late))
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// whoIs names relays, for people.
func whoIs(all []store.RelaySession) string {
	names := make([]string, len(all))
	for i, r := range all {
		if r.Program == nil {
			names[i] = fmt.Sprintf("session %d", r.PID)
			continue
		}
		names[i] = fmt.Sprintf("%s, process %d", r.Program.Host, r.Program.Process)
	}
	return strings.Join(names, "; ")
}

// unknownDestination returns an error if a configuration exists and does not have the destinations: a misspelt name would
// pause nothing.
func (f *pauseFlags) unknownDestination(ctx context.Context, a *command.App, names []string) error {
	c, path, err := f.db.Optional(ctx, a, config.LoadRoutes)
	if err != nil || c == nil {
		return err
	}
	for _, name := range names {
		if all := command.NamesOf(c); !slices.Contains(all, name) {
			return command.UsageErrorf("%s has no destination %q: it has %s", path, name, strings.Join(all, ", "))
		}
	}
	return nil
}
