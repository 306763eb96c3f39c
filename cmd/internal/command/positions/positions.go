package positions

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// NewPositions returns the command positions.
func NewPositions(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "positions",
		Short: "List and move the positions of a stream",
		Long: `positions shows how far each destination of a stream has come, moves one to an id or
a time, and forgets that of a destination that is gone. It needs the database only,
and relays keep running.`,
		Example: "  notifyd positions list\n  notifyd positions seek warehouse 2026-11-01T00:00:00Z --dry-run",
	}
	cmd.AddCommand(newPositionsListCmd(a), newPositionsShowCmd(a), newPositionsSeekCmd(a), newPositionsForgetCmd(a))
	return cmd
}

// positionsFlags are the flags of all commands of "notifyd positions".
type positionsFlags struct {
	command.OpsFlags

	action ops.Action
	yes    bool
}

func (f *positionsFlags) registerAction(cmd *cobra.Command) {
	f.Register(cmd)
	command.AddActor(cmd, &f.action.Actor, &f.action.Reason)
	command.AddDryRun(cmd, &f.action.DryRun)
}

func newPositionsListCmd(a *command.App) *cobra.Command {
	var f positionsFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the positions",
		Long: `list shows for each destination the id up to which it has come, and its lag: how many
ids it has not handled yet, some of which have no event, or one for others. It
counts no rows. "held" in the column purge says that no position is lower: no event
above it is deleted before it moves. A replay that is lower stands there instead.`,
		Example: "  notifyd positions list\n  notifyd positions list -o json | jq '.[] | select(.lag > 1000)'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.With(cmd.Context(), a, false, func(s *ops.Client) error {
				all, err := s.Positions(cmd.Context())
				if err != nil {
					return err
				}
				if f.JSON() {
					return command.WriteJSON(cmd.OutOrStdout(), append([]observe.Position{}, all...))
				}
				return printPositions(cmd.OutOrStdout(), all)
			})
		},
	}

	f.Register(cmd)
	return cmd
}

func newPositionsShowCmd(a *command.App) *cobra.Command {
	var f positionsFlags
	cmd := &cobra.Command{
		Use:     "show DESTINATION",
		Short:   "Show the position of one destination, and by which routes it has read",
		Long:    "show says how far a destination has come, since when it exists, and from which id on it has read by which routes.",
		Example: "  notifyd positions show warehouse",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.With(cmd.Context(), a, false, func(s *ops.Client) error {
				d, err := s.Position(cmd.Context(), args[0])
				if err != nil {
					return err
				}

				if f.JSON() {
					return command.WriteJSON(cmd.OutOrStdout(), d)
				}
				return printPosition(cmd.OutOrStdout(), &d)
			})
		},
	}

	f.Register(cmd)
	return cmd
}

func newPositionsSeekCmd(a *command.App) *cobra.Command {
	var f positionsFlags
	cmd := &cobra.Command{
		Use:   "seek DESTINATION beginning|now|ID|TIME",
		Short: "Move the position of a destination, back or forward",
		Long: `seek makes a destination continue with the first event that is kept, with what is
written from now on, with the event of an id, or with the first one written at a
time or later: 2026-11-01T00:00:00Z, or an age such as 90m, 12h or 7d. Backwards, it receives again what it has received since,
under the same ids for those who drop duplicates. Forwards, what is skipped is not
delivered to it. Retries and dead letters that are stored stay as they are. The
relay that delivers goes on from there within about a second; stop nothing.`,
		Example: `  notifyd positions seek warehouse beginning
  notifyd positions seek warehouse 2026-11-01T00:00:00Z --reason "rebuild of the stock" --yes
  notifyd positions seek warehouse now --dry-run`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.With(cmd.Context(), a, false, func(s *ops.Client) error { return f.seek(cmd, s, args[0], args[1]) })
		},
	}

	f.registerAction(cmd)
	command.AddYes(cmd, &f.yes)
	return cmd
}

// seek says what will be done, asks, and does it.
func (f *positionsFlags) seek(cmd *cobra.Command, s *ops.Client, name, to string) error {
	ctx := cmd.Context()
	to = command.Place(to, time.Now())

	action := f.action
	action.Actor = command.First(action.Actor, command.CurrentActor())
	action.DryRun = true
	m, err := s.Seek(ctx, name, to, action)
	if err != nil {
		return err
	}

	if !f.action.DryRun {
		if err := f.Agree(cmd, f.yes, moved(name, &m, "will continue")); err != nil {
			return err
		}

		action.DryRun = false
		f.Progress.Say("moving the position of %s", name)
		m, err = s.Seek(ctx, name, to, action)
		if err != nil {
			return err
		}
	}

	if f.JSON() {
		return command.WriteJSON(cmd.OutOrStdout(), m)
	}

	verb := "continues"
	if f.action.DryRun {
		verb = "would continue"
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), moved(name, &m, verb)); err != nil || f.action.DryRun {
		return err
	}

	cmd.PrintErrln("the relay that has the destination goes on from there within about a second; deliveries that it has begun end as usual")
	return nil
}

func newPositionsForgetCmd(a *command.App) *cobra.Command {
	var f positionsFlags
	cmd := &cobra.Command{
		Use:   "forget DESTINATION",
		Short: "Remove what is stored about a destination that is gone",
		Long: `forget deletes the position of a destination that is no longer configured, and its
stored deliveries, dead letters among them. Its position no longer keeps events from
being purged. While a relay delivers to it, forget refuses. A destination of that
name that comes back is a new one.`,
		Example: `  notifyd positions forget crm --dry-run
  notifyd positions forget crm --reason "replaced by the warehouse"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.With(cmd.Context(), a, false, func(s *ops.Client) error { return f.forget(cmd, s, args[0]) })
		},
	}

	f.registerAction(cmd)
	command.AddYes(cmd, &f.yes)
	return cmd
}

func (f *positionsFlags) forget(cmd *cobra.Command, s *ops.Client, name string) error {
	ctx := cmd.Context()
	action := f.action
	action.Actor = command.First(action.Actor, command.CurrentActor())
	action.DryRun = true
	done, err := s.Forget(ctx, name, action)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("the position of %s (head %d) and its %d stored deliveries",
		command.Printable(name), done.Head, done.Deliveries)

	verb := "would remove "
	if !f.action.DryRun {
		if err := f.Agree(cmd, f.yes, "remove "+what); err != nil {
			return err
		}

		action.DryRun = false
		f.Progress.Say("removing what is stored about %s", name)
		done, err = s.Forget(ctx, name, action)
		if err != nil {
			return err
		}
		verb = "removed "
	}

	if f.JSON() {
		return command.WriteJSON(cmd.OutOrStdout(), done)
	}

	_, err = fmt.Fprintln(cmd.OutOrStdout(), verb+what)
	return err
}

func (f *positionsFlags) outcome(cmd *cobra.Command, at *ReplayAt) error {
	if f.JSON() {
		return command.WriteJSON(cmd.OutOrStdout(), at)
	}
	return printReplay(cmd.OutOrStdout(), at)
}
