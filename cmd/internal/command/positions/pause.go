package positions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// pauseFlags are the flags of "notifyd pause" and "notifyd resume".
type pauseFlags struct {
	db       command.DatabaseFlags
	form     *cli.OneOf
	action   ops.Action
	timeout  command.Duration
	progress *command.Progress
}

func (f *pauseFlags) register(cmd *cobra.Command) {
	f.db.Register(cmd)
	f.form = command.AddFormat(cmd)
	command.AddActor(cmd, &f.action.Actor, &f.action.Reason)
	command.AddTimeout(cmd, &f.timeout, 10*time.Second)
}

// PauseResult is the result of pause or resume for one destination, as JSON.
type PauseResult struct {
	Destination string `json:"destination"`
	// State is paused or resumed, or "not paused" where there was nothing to resume.
	State string `json:"state"`
	// Confirmed is the number of relays that have confirmed the state.
	Confirmed int `json:"confirmed"`
	// Unconfirmed names the relays that have not.
	Unconfirmed []string `json:"unconfirmed"`
}

// text describes the result for people.
func (r *PauseResult) text() string {
	cure := ""
	if r.State == statePaused {
		cure = "; notifyd resume " + r.Destination + " ends that"
	}

	switch {
	case r.State == stateNotPaused:
		return r.Destination + " was not paused"
	case r.Confirmed == 0:
		return fmt.Sprintf("%s is %s: no relay is at work%s", r.Destination, r.State, cure)
	default:
		return fmt.Sprintf("%s is %s at all relays (%d)%s", r.Destination, r.State, r.Confirmed, cure)
	}
}

// The values of PauseResult.State.
const (
	statePaused    = "paused"
	stateResumed   = "resumed"
	stateNotPaused = "not paused"
)

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

			return f.each(cmd, a, names, func(ctx context.Context, client *ops.Client, name string) (string, error) {
				return statePaused, client.Pause(ctx, name, f.action)
			})
		},
	}

	f.register(cmd)
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
			return f.each(cmd, a, names, func(ctx context.Context, client *ops.Client, name string) (string, error) {
				was, err := client.Resume(ctx, name, f.action)
				if !was {
					return stateNotPaused, err
				}
				return stateResumed, err
			})
		},
	}

	f.register(cmd)
	return cmd
}

// each acts on each destination, and prints the results. do returns the new state of one.
func (f *pauseFlags) each(cmd *cobra.Command, a *command.App, names []string, do func(context.Context, *ops.Client, string) (string, error)) error {
	ctx := cmd.Context()
	f.progress = command.StartProgress(cmd, command.Connecting)
	defer f.progress.Stop()

	conn, err := f.db.ConnectTable(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)

	client, err := ops.New(conn, ops.Config{Schema: f.db.Schema})
	if err != nil {
		return err
	}

	f.action.Actor = command.First(f.action.Actor, command.CurrentActor())
	p := command.NewPrinter(cmd, f.form.Value == "json")

	all := []*PauseResult{}
	var late error
	for _, name := range names {
		state, err := do(ctx, client, name)
		if err != nil {
			return command.Mistaken(err)
		}

		r := &PauseResult{Destination: name, State: state, Unconfirmed: []string{}}
		all = append(all, r)

		if state != stateNotPaused {
			if err := f.await(ctx, conn, r); err != nil {
				if !errors.Is(err, errUnconfirmed) {
					return err
				}
				late = errors.Join(late, err)
				continue
			}
		}

		if p.JSON {
			continue
		}
		if _, err := fmt.Fprintln(p.Out, command.Printable(r.text())); err != nil {
			return err
		}
	}

	if p.JSON {
		return errors.Join(late, p.Encode(all))
	}
	return late
}

// errUnconfirmed is wrapped by the error about relays that have not confirmed a pause, or its end.
var errUnconfirmed = errors.New("has not confirmed")

// confirmPoll is how often the table is read for the confirmations of relays.
const confirmPoll = 50 * time.Millisecond

// await waits until each live relay has confirmed the pause or its end, and completes the result.
func (f *pauseFlags) await(ctx context.Context, conn *pgx.Conn, r *PauseResult) error {
	table, err := outboxsql.ReadState(ctx, conn, f.db.Schema)
	if err != nil {
		return err
	}

	request := store.PauseRequest{
		Schema:      f.db.Schema,
		Mode:        table.Mode,
		Destination: r.Destination,
		Paused:      r.State == statePaused,
	}

	tick := time.NewTicker(confirmPoll)
	defer tick.Stop()

	for deadline := time.After(time.Duration(f.timeout)); ; {
		late, confirmed, err := request.Unconfirmed(ctx, conn)
		if err != nil {
			return err
		}

		r.Confirmed = confirmed
		if len(late) == 0 {
			return nil
		}

		names := whoIs(late)
		f.progress.Say("%s is stored as %s: waiting for %s", r.Destination, r.State, strings.Join(names, "; "))

		select {
		case <-tick.C:
		case <-deadline:
			r.Unconfirmed = names
			return fmt.Errorf("%s is stored as %s, but %s of %d %w that after %v: %s: "+
				"it honours it when it looks again; if it hangs, restart it",
				r.Destination, r.State, cli.Count(len(late), "relay"), len(late)+confirmed,
				errUnconfirmed, time.Duration(f.timeout), strings.Join(names, "; "))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// whoIs names relays, for people.
func whoIs(all []store.RelaySession) []string {
	names := make([]string, len(all))
	for i, r := range all {
		if r.Program == nil {
			names[i] = fmt.Sprintf("session %d", r.PID)
			continue
		}
		names[i] = fmt.Sprintf("%s, process %d", r.Program.Host, r.Program.Process)
	}
	return names
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
