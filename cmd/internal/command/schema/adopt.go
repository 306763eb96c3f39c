package schema

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/ops"
)

// adoptFlags are the flags of "notifyd adopt".
type adoptFlags struct {
	command.OpsFlags

	action  ops.Action
	discard bool
	yes     bool
}

// NewAdopt returns the command adopt.
func NewAdopt(a *command.App) *cobra.Command {
	var f adoptFlags
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Have relays deliver from a copy of an outbox",
		Long: `adopt makes this database the home of the outbox. The tables store the place where they
were created. In a dump that was restored elsewhere, in a database made from a template,
after pg_upgrade and after a switch to a replica they are a copy. No relay delivers from
a copy before it is adopted, because the relays of the original may have delivered the
same events, or may still deliver them.

With --discard-waiting it first discards the events and retries that wait: no destination
gets an event that was written before. Use it for a copy for tests, which then sends to
customers only the events that are written in it. Dead letters stay.

It needs the role that owns the tables. Start relays again that the copy has refused, as
service managers do; a daemon with many outboxes tries again by itself.`,
		Example: `  notifyd adopt --dry-run
  notifyd adopt --reason "upgrade to PostgreSQL 18"
  notifyd adopt --discard-waiting --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.With(cmd.Context(), a, false, func(s *ops.Client) error { return f.adopt(cmd, s) })
		},
	}

	f.Register(cmd)
	cmd.Flags().BoolVar(&f.discard, "discard-waiting", false, "discard the events and retries that wait, so that no destination gets them")
	command.AddActor(cmd, &f.action.Actor, &f.action.Reason)
	command.AddDryRun(cmd, &f.action.DryRun)
	command.AddYes(cmd, &f.yes)

	return cmd
}

// adopt shows what will be done, asks, and does it.
func (f *adoptFlags) adopt(cmd *cobra.Command, s *ops.Client) error {
	ctx := cmd.Context()
	action := f.action
	action.Actor = command.First(action.Actor, command.CurrentActor())
	action.DryRun = true
	done, err := s.Adopt(ctx, f.discard, action)
	if err != nil {
		return err
	}

	if !f.action.DryRun && done.Copy() {
		if !f.yes {
			cmd.PrintErrln(described(&done))
		}
		if err := f.Agree(cmd, f.yes, f.deed()); err != nil {
			return err
		}

		action.DryRun = false
		f.Progress.Say("adopting the outbox")
		done, err = s.Adopt(ctx, f.discard, action)
		if err != nil {
			return err
		}
	}

	switch {
	case f.JSON():
		return command.WriteJSON(cmd.OutOrStdout(), done)
	case !done.Copy():
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "the outbox is at home: %v\n", done.To)
	case f.action.DryRun:
		_, err = fmt.Fprintln(cmd.OutOrStdout(), described(&done))
	default:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\nadopted: %s\n", described(&done), f.deed())
	}
	return err
}

// described returns the places, and what waits.
func described(a *ops.Adoption) string {
	return fmt.Sprintf("home: %v\nhere: %v\n%v, which stay", a.From, a.To, a.Waiting)
}

// deed describes the action to a person.
func (f *adoptFlags) deed() string {
	if f.discard {
		return "discard waiting events, and have relays deliver later ones from here"
	}
	return "have relays deliver waiting events and later ones from here"
}
