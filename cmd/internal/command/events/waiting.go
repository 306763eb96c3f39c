package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/ops"
)

// waitingAction is a command that acts on deliveries that wait for their next try.
type waitingAction struct {
	command.OpsFlags

	filter ops.WaitingFilter
	action ops.BulkAction
	yes    bool

	// past is the past tense of the command: retried, buried.
	past string
	do   func(s *ops.Client, ctx context.Context, f ops.WaitingFilter, a ops.BulkAction) (ops.BulkResult, error)
}

func newEventsRetryCmd(a *command.App) *cobra.Command {
	w := &waitingAction{past: "retried", do: (*ops.Client).RetryWaiting}
	cmd := &cobra.Command{
		Use:   "retry [EVENT...]",
		Short: "Try waiting deliveries again now",
		Long: `retry makes deliveries due that wait for their next try. Their attempts count on.
Choose by event, by --destination, --type, or --all. Without the ids of events it
leaves delayed events alone that were not tried yet. A destination that is down is
still probed by one event at a time, and one that throttles is not asked earlier.
To deliver dead letters again, see "dlq replay".`,
		Example: `  notifyd events retry 42
  notifyd events retry --destination mail --reason "mail server is back" --yes`,
		RunE: func(cmd *cobra.Command, args []string) error { return w.run(cmd, a, args) },
	}

	w.register(cmd)
	return cmd
}

func newDLQBuryCmd(a *command.App) *cobra.Command {
	w := &waitingAction{past: "buried", do: (*ops.Client).BuryWaiting}
	w.Reports = true
	cmd := &cobra.Command{
		Use:   "bury [EVENT...]",
		Short: "Make waiting deliveries dead letters",
		Long: `bury gives deliveries up that wait for their next try: they become dead letters,
whatever max_attempts says, and can be replayed or discarded. Choose by event, by
--destination, --type, or --all. Later events of their aggregates continue, or wait
with on_dead: block. A destination in on_dead.to of the configuration file gets a
report of each. A delivery that a relay is delivering at this moment is left alone.`,
		Example: `  notifyd dlq bury 42 --destination mail --reason "the address does not exist"
  notifyd dlq bury --destination mail --type 'test.*' --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error { return w.run(cmd, a, args) },
	}

	w.register(cmd)
	return cmd
}

func (w *waitingAction) register(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs
	w.Register(cmd)
	command.AddDestination(cmd, &w.filter.Destination)
	command.AddType(cmd, &w.filter.Type)
	command.AddActor(cmd, &w.action.Actor, &w.action.Reason)
	command.AddDryRun(cmd, &w.action.DryRun)
	command.AddYes(cmd, &w.yes)
	command.AddRate(cmd, &w.action.Rate)
	command.AddAll(cmd, &w.filter.All)
}

func (w *waitingAction) run(cmd *cobra.Command, a *command.App, args []string) error {
	for _, arg := range args {
		id, err := command.EventID(arg)
		if err != nil {
			return err
		}
		w.filter.Events = append(w.filter.Events, id)
	}

	isChosen := w.filter.Destination != "" || w.filter.Type != "" || w.filter.Events != nil
	switch {
	case !isChosen && !w.filter.All:
		return command.UsageErrorf("which deliveries? Name events, choose with --destination, --type, or say --all")
	case isChosen && w.filter.All:
		return command.UsageErrorf("--all and a choice of deliveries: leave out one of them")
	}

	if err := command.Mistaken(errors.Join(w.filter.Validate(), w.action.Validate())); err != nil {
		return err
	}

	w.action.Actor = command.First(w.action.Actor, command.CurrentActor())

	// The first signal ends it between two transactions, and the result so far is printed.
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	return w.With(ctx, a, false, func(s *ops.Client) error { return w.act(ctx, cmd, s) })
}

// act counts the deliveries, asks, and acts.
func (w *waitingAction) act(ctx context.Context, cmd *cobra.Command, s *ops.Client) error {
	p := printer{command.NewPrinter(cmd, w.JSON())}
	w.Progress.Say("counting waiting deliveries")

	dry := w.action
	dry.DryRun = true
	r, err := w.do(s, ctx, w.filter, dry)
	if err != nil {
		return err
	}

	if r.Matched == 0 && len(w.filter.Events) > 0 {
		return fmt.Errorf("no delivery of these events waits for its next try: see `notifyd events show EVENT`: %w",
			ops.ErrNotWaiting)
	}

	if w.action.DryRun {
		return p.waitingPreview(w.past, r)
	}

	if r.Matched > 1 && len(w.filter.Events) == 0 {
		if err := w.Agree(cmd, w.yes, fmt.Sprintf("%s will be %s", waitingCount(r.Matched), w.past)); err != nil {
			return err
		}
	}

	waited := r.Matched // a relay may take some before the action finds them
	w.action.Progress = func(r ops.BulkResult) { w.Progress.Say("%s %d of %s", w.past, r.Done, waitingCount(r.Matched)) }

	r, err = w.do(s, ctx, w.filter, w.action)
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted: the remaining deliveries are unchanged")
	}

	if perr := p.waitingResult(w.past, r); perr != nil || err != nil {
		return errors.Join(err, perr)
	}

	if w.past == "retried" && r.Done > 0 && !p.JSON {
		fmt.Fprintln(p.Err, "due now; to see the outcome: `notifyd events list --state waiting`") //nolint:errcheck // nothing depends on it
	}

	if r.Done < max(waited, r.Matched) && len(w.filter.Events) > 0 {
		return fmt.Errorf("a relay is delivering the others at this moment, or has ended them: see `notifyd events show EVENT`: %w",
			ops.ErrNotWaiting)
	}

	return nil
}
