package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/ops"
)

// dlqAction is a command that acts on many dead letters.
type dlqAction struct {
	dlqFlags
	filter dlqFilter
	action ops.BulkAction
	all    bool
	yes    bool

	// wait makes a replay wait until each letter is delivered or dead again, for timeout at most.
	wait    bool
	timeout command.Duration

	// past is the past tense of the command: replayed, discarded.
	past string
	do   func(s *ops.Client, ctx context.Context, f ops.DeadLetterFilter, a ops.BulkAction) (ops.BulkResult, error)
}

func newDLQReplayCmd(a *command.App) *cobra.Command {
	d := &dlqAction{past: "replayed", do: (*ops.Client).ReplayDeadLetters}
	cmd := &cobra.Command{
		Use:   "replay [EVENT...]",
		Short: "Deliver dead letters anew",
		Long: `replay makes dead letters due at once, with no attempt counted. They get a new id
for consumers that drop duplicates: event 42 is 42r1 after its first replay. Choose
by event, by the filters, or --all. Letters that die while replay runs are left alone.

With --wait it reports the outcome: it waits until each one is delivered or
dead again, or --timeout has passed, and exits with 1 unless all were delivered.`,
		Example: `  notifyd dlq replay 42
  notifyd dlq replay --destination mail --fingerprint 0a1b2c3d4e5f --dry-run
  notifyd dlq replay --destination mail --since 2h --rate 50 --reason "mail server is back" --yes --wait`,
		RunE: func(cmd *cobra.Command, args []string) error { return d.run(cmd, a, args) },
	}

	d.register(cmd)
	command.AddWait(cmd, &d.wait)
	command.AddTimeout(cmd, &d.timeout, time.Minute)
	return cmd
}

func newDLQDiscardCmd(a *command.App) *cobra.Command {
	d := &dlqAction{past: "discarded", do: (*ops.Client).DiscardDeadLetters}
	cmd := &cobra.Command{
		Use:   "discard [EVENT...]",
		Short: "Give up dead letters for good",
		Long: `discard deletes dead letters; outbox_audit keeps a record of them. With
retention.keep: 0 in the file, an event without other deliveries is deleted as
well; otherwise relays purge it when it is old enough. Choose by event, by the
filters, or --all.

With --missing it deletes stored deliveries whose event is missing from outbox_events,
also those that are not dead: they wait until the event is back. If it was deleted
for good, nothing else ends them.`,
		Example: `  notifyd dlq discard 42 --reason "test order"
  notifyd dlq discard --missing --dry-run
  notifyd dlq discard --type 'test.*' --until 30d --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error { return d.run(cmd, a, args) },
	}

	d.register(cmd)
	cmd.Flags().BoolVar(&d.forget, "forget", false, "delete events without other deliveries, despite retention.keep")
	return cmd
}

func (d *dlqAction) register(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs
	d.Register(cmd)
	d.filter.register(cmd, d.past == "discarded")
	command.AddActor(cmd, &d.action.Actor, &d.action.Reason)
	command.AddDryRun(cmd, &d.action.DryRun)
	command.AddYes(cmd, &d.yes)
	command.AddRate(cmd, &d.action.Rate)
	command.AddAll(cmd, &d.all)
	cmd.Flags().IntVar(&d.action.Batch, "batch", 500, "letters in one transaction")
}

func (d *dlqAction) run(cmd *cobra.Command, a *command.App, args []string) error {
	chosen, err := d.filter.filter(args)
	switch {
	case err != nil:
		return err
	case !d.filter.given() && !d.all:
		return command.UsageErrorf("which dead letters? " +
			"Name events, choose with --destination, --type, --fingerprint, --since, --until, or say --all")
	case d.filter.given() && d.all:
		return command.UsageErrorf("--all and a choice of dead letters: leave out one of them")
	}

	chosen.All = d.all
	if err := command.Mistaken(d.action.Validate()); err != nil {
		return err
	}

	d.action.Actor = command.First(d.action.Actor, command.CurrentActor())

	// The first signal ends it between two transactions, and the result so far is printed.
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	return d.With(ctx, a, d.forget, func(s *ops.Client) error { return d.act(ctx, cmd, s, chosen) })
}

// act counts the letters, asks, and acts.
func (d *dlqAction) act(ctx context.Context, cmd *cobra.Command, s *ops.Client, chosen ops.DeadLetterFilter) error {
	p := printer{command.NewPrinter(cmd, d.JSON())}

	d.Progress.Say("counting dead letters")

	dry := d.action
	dry.DryRun = true
	r, err := d.do(s, ctx, chosen, dry)
	if err != nil {
		return err
	}

	if r.Matched == 0 && len(chosen.Events) > 0 {
		return fmt.Errorf("no dead letter of these events matches: see `notifyd dlq show EVENT`: %w", ops.ErrNotDead)
	}

	if d.action.DryRun {
		return d.preview(ctx, p, s, chosen, r)
	}

	if r.Matched > 1 && len(chosen.Events) == 0 && !d.yes {
		if err := d.ask(cmd, r.Matched); err != nil {
			return err
		}
	}

	counted := r.Matched // somebody else may act on some before the action finds them
	d.Progress.Say("%s 0 of %s", d.past, command.LetterCount(r.Matched))
	d.action.Progress = func(r ops.BulkResult) { d.Progress.Say("%s %d of %s", d.past, r.Done, command.LetterCount(r.Matched)) }

	watch := s.Watch()
	if d.wait {
		d.action.Acted = watch.Add
	}

	r, err = d.do(s, ctx, chosen, d.action)
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted: the remaining letters are unchanged")
	}

	var errTaken error
	if r.Matched < counted && len(chosen.Events) > 0 {
		errTaken = fmt.Errorf("others were replayed, discarded or edited by somebody else meanwhile: see `notifyd dlq show EVENT`: %w",
			ops.ErrNotDead)
	}

	if d.wait && err == nil {
		return errors.Join(d.await(ctx, p, watch, r), errTaken)
	}

	if perr := p.result(d.past, r); perr != nil {
		return errors.Join(err, perr)
	}

	if d.past == "replayed" && r.Done > 0 && !p.JSON {
		how := "`notifyd events list --state waiting`, `notifyd dlq list --group`"
		if len(chosen.Events) == 1 {
			how = fmt.Sprintf("`notifyd events show %d`", chosen.Events[0])
		}
		fmt.Fprintf(p.Err, "due now; to see the outcome: --wait, or %s\n", how) //nolint:errcheck // nothing depends on it
	}

	return cmp.Or(err, errTaken)
}

// await waits for the outcome of replayed letters, and prints it.
func (d *dlqAction) await(ctx context.Context, p printer, watch *ops.Watch, r ops.BulkResult) error {
	errLate := d.timeout.LateError()
	d.Progress.Say("replayed %d of %s: waiting for the outcome", r.Done, command.LetterCount(r.Matched))

	limited, cancel := context.WithTimeoutCause(ctx, time.Duration(d.timeout), errLate)
	defer cancel()

	b, err := watch.Await(limited)
	if err := p.became(r, b); err != nil {
		return err
	}

	switch {
	case errors.Is(err, errLate):
		return fmt.Errorf("%s still waiting %w: see `notifyd status`, and `notifyd events list --state waiting`",
			command.LetterCount(b.Waiting), errLate)
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted: replayed letters stay replayed")
	case err != nil:
		return err
	case b.Dead > 0:
		return fmt.Errorf("%s died again", command.LetterCount(b.Dead))
	case b.Gone+b.Discarded > 0:
		return fmt.Errorf("%s not delivered: discarded, or removed without an acknowledgement", command.LetterCount(b.Gone+b.Discarded))
	case r.Orphans > 0:
		return fmt.Errorf("%s not replayed: the event is missing", command.LetterCount(r.Orphans))
	}
	return nil
}

// maxGroups is how many groups a dry run shows, the largest first.
const maxGroups = 50

func (d *dlqAction) preview(ctx context.Context, p printer, s *ops.Client, chosen ops.DeadLetterFilter, r ops.BulkResult) error {
	groups, err := s.DeadLetterGroups(ctx, chosen, maxGroups)
	if err != nil {
		return err
	}

	if p.JSON {
		return p.Encode(struct {
			ops.BulkResult
			Groups []ops.DeadLetterGroup `json:"groups"`
		}{r, groups})
	}

	if len(groups) > 0 {
		if err := p.groups(groups); err != nil {
			return err
		}
	}

	_, err = fmt.Fprintf(p.Out, "%s would be %s; nothing was done\n", command.LetterCount(r.Matched), d.past)
	return err
}

func (d *dlqAction) ask(cmd *cobra.Command, n int64) error {
	if !cli.IsTerminal(cmd.InOrStdin()) {
		return command.UsageErrorf("%s match: --yes if they are to be %s, --dry-run shows them", command.LetterCount(n), d.past)
	}

	d.Progress.Say("")
	fmt.Fprintf(cmd.ErrOrStderr(), "%s will be %s. Go on? [y/N] ", command.LetterCount(n), d.past) //nolint:errcheck // the answer is what counts
	if !command.Agreed(cmd.InOrStdin()) {
		return command.ErrNotAgreed
	}
	return nil
}

func newDLQEditCmd(a *command.App) *cobra.Command {
	var f dlqFlags
	var action ops.Action

	cmd := &cobra.Command{
		Use:   "edit EVENT PAYLOAD",
		Short: "Give a dead letter's event another payload",
		Long: `edit replaces the payload of an event that has a dead letter and no other delivery
under way; outbox_audit keeps the old payload. PAYLOAD is JSON, @FILE reads it from
a file and - from standard input. That of an event that was written as bytes is
any bytes, from a file or standard input. It delivers nothing: "dlq replay" does.`,
		Example: `  notifyd dlq edit 42 '{"order": 1042, "email": "ann@example.com"}' --reason "typo in the address"
  notifyd dlq edit 42 @order.json && notifyd dlq replay 42`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := command.EventID(args[0])
			if err != nil {
				return err
			}

			payload, err := command.ReadPayload(args[1], cmd.InOrStdin())
			if err != nil {
				return err
			}

			if inline := args[1] != "-" && !strings.HasPrefix(args[1], "@"); inline && !json.Valid(payload) {
				return command.UsageErrorf("PAYLOAD is not JSON: put it in single quotes, or write it to a file and give @FILE")
			}

			action.Actor = command.First(action.Actor, command.CurrentActor())

			return f.With(cmd.Context(), a, f.forget, func(s *ops.Client) error {
				if err := s.EditEvent(cmd.Context(), id, payload, action); err != nil {
					return err
				}

				p := printer{command.NewPrinter(cmd, f.JSON())}
				return p.edited(id)
			})
		},
	}

	f.Register(cmd)
	command.AddActor(cmd, &action.Actor, &action.Reason)

	return cmd
}
