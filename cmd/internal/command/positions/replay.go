package positions

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// replayCmd is "notifyd replay".
type replayCmd struct {
	positionsFlags
	what    ops.ReplayRange
	wait    bool
	timeout command.Duration
}

// NewReplay returns the command replay.
func NewReplay(a *command.App) *cobra.Command {
	f := &replayCmd{}

	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Send what a destination of a stream has received again, on the side",
		Long: `replay has a range of events delivered to a destination again, while what is live goes
on: it takes only the room that live events leave. The events come in the order of each
aggregate, with new ids for consumers that drop duplicates: event 42 is 42r1000 in the
first replay of a destination, and 42r2000 in the second. What fails is retried, and may
become a dead letter. An event of which a retry or a dead letter is stored is passed over.
--type may be repeated.
A relay that runs begins within about a second. "positions seek" goes back instead: live
events then wait until the old ones have come again.

With --wait it reports the outcome: it waits until each event is delivered or dead, or
--timeout has passed, and exits with 1 unless all were delivered.`,
		Example: `  notifyd replay --destination stock --from 2026-11-01T00:00:00Z --dry-run
  notifyd replay --destination stock --from 12h --dry-run
  notifyd replay --destination stock --type 'order.*' --rate 500 --reason "restored" --yes
  notifyd replay list
  notifyd replay stop 3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.what.Destination == "" {
				return command.UsageErrorf("which destination? Say --destination; notifyd positions list has their names")
			}

			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return f.With(ctx, a, false, func(s *ops.Client) error { return f.run(ctx, cmd, s) })
		},
	}

	f.registerAction(cmd)
	command.AddYes(cmd, &f.yes)
	command.AddDestination(cmd, &f.what.Destination)
	command.AddTypes(cmd, &f.what.Types)
	command.AddRate(cmd, &f.what.Rate)
	command.AddWait(cmd, &f.wait)
	command.AddTimeout(cmd, &f.timeout, 24*time.Hour)

	flags := cmd.Flags()
	flags.StringVar(&f.what.From, "from", "beginning", "`place` of the first event: beginning, an id, a time, or an age such as 12h")
	flags.StringVar(&f.what.To, "to", "now",
		"`place` of the last event: now, an id, or a time or age, which is the last one written before it")
	flags.BoolVar(&f.what.KeepIDs, "keep-ids", false, "the ids that the events had: whoever drops duplicates drops them")

	cmd.AddCommand(newReplayListCmd(a), newReplayShowCmd(a), newReplayStopCmd(a))
	return cmd
}

// countLimit bounds how many events are counted before a replay begins. A dry run counts all.
const countLimit = 1_000_000

// plannedReplay is the result of a dry run.
type plannedReplay struct {
	observe.Replay
	Events []ops.TypeCount `json:"events"`
	Total  int64           `json:"total"`
}

// run says what will be sent, asks, and requests it.
func (f *replayCmd) run(ctx context.Context, cmd *cobra.Command, s *ops.Client) error {
	now := time.Now()
	f.what.From = command.Place(f.what.From, now)
	f.what.To = command.Place(f.what.To, now)

	action := f.action
	action.Actor = command.First(action.Actor, command.CurrentActor())
	action.DryRun = true
	r, err := s.StartReplay(ctx, f.what, action)
	if err != nil {
		return err
	}

	if f.action.DryRun {
		return f.preview(ctx, cmd, s, r)
	}
	if !f.yes {
		if err := f.ask(ctx, cmd, s, r); err != nil {
			return err
		}
	}

	action.DryRun = false
	r, err = s.StartReplay(ctx, f.what, action)
	if err != nil {
		return err
	}

	if f.wait {
		return f.await(ctx, cmd, s, r.ID)
	}
	if f.JSON() {
		return command.WriteJSON(cmd.OutOrStdout(), r)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "replay %d: %s receives events %d to %d again%s; `notifyd replay show %d` says how far it has come\n",
		r.ID, command.Printable(r.Destination), r.From, r.To, underIDs(&r), r.ID)
	return err
}

// preview prints the number of events that the replay would send, by type.
func (f *replayCmd) preview(ctx context.Context, cmd *cobra.Command, s *ops.Client, r observe.Replay) error {
	f.Progress.Say("counting events")
	counts, _, err := s.CountReplay(ctx, r, 0)
	if err != nil {
		return err
	}

	all := plannedReplay{Replay: r, Events: append([]ops.TypeCount{}, counts...), Total: total(counts)}
	if f.JSON() {
		return command.WriteJSON(cmd.OutOrStdout(), all)
	}
	return printPlanned(cmd.OutOrStdout(), &all)
}

// ask prints how many events the replay will send, and waits for consent.
func (f *replayCmd) ask(ctx context.Context, cmd *cobra.Command, s *ops.Client, r observe.Replay) error {
	f.Progress.Say("counting events")
	counts, more, err := s.CountReplay(ctx, r, countLimit)
	if err != nil {
		return err
	}
	return f.Agree(cmd, f.yes, willReplay(&r, counts, more))
}

func total(counts []ops.TypeCount) (n int64) {
	for _, c := range counts {
		n += c.Count
	}
	return n
}

// await waits for the outcome, and prints it.
func (f *replayCmd) await(ctx context.Context, cmd *cobra.Command, s *ops.Client, id int64) error {
	errLate := f.timeout.LateError()
	f.Progress.Say("replay %d: waiting for a relay", id)

	limited, cancel := context.WithTimeoutCause(ctx, time.Duration(f.timeout), errLate)
	defer cancel()

	var at ReplayAt
	_, _, err := s.AwaitReplay(limited, id, func(r observe.Replay, o ops.ReplayOutcome) {
		at = ReplayAt{r, o}
		f.Progress.Say("replay %d: delivered %d, %d ids left", id, o.Delivered, r.Remaining)
	})

	if at.ID != 0 {
		if err := f.outcome(cmd, &at); err != nil {
			return err
		}
	}

	switch {
	case errors.Is(err, errLate):
		return fmt.Errorf("replay %d is still under way %w: see `notifyd replay show %[1]d`", id, errLate)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted: the replay goes on; `notifyd replay stop %d` stops it", id)
	case err != nil:
		return err
	case at.State == observe.ReplayStopped:
		return fmt.Errorf("replay %d was stopped", id)
	case at.Outcome.Dead > 0:
		return fmt.Errorf("%s died", command.LetterCount(at.Outcome.Dead))
	case at.Outcome.Gone > 0:
		return fmt.Errorf("%s of replay %d not delivered: discarded, or removed without an acknowledgement",
			cli.Count(int(at.Outcome.Gone), "event"), id)
	}
	return nil
}

func newReplayListCmd(a *command.App) *cobra.Command {
	var f positionsFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the replays of a stream, the newest first",
		Long:    "list shows which ranges were sent to which destination again, and how far those that run have come.",
		Example: "  notifyd replay list",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.With(cmd.Context(), a, false, func(s *ops.Client) error {
				all, err := s.Replays(cmd.Context())
				if err != nil {
					return err
				}

				if f.JSON() {
					return command.WriteJSON(cmd.OutOrStdout(), append([]observe.Replay{}, all...))
				}
				return printReplays(cmd.OutOrStdout(), all)
			})
		},
	}

	f.Register(cmd)
	return cmd
}

func newReplayShowCmd(a *command.App) *cobra.Command {
	var f positionsFlags
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show how far a replay has come, and what became of its events",
		Long: "show says what a replay sends, how far it has come, and how many of its events were delivered, " +
			"wait for another attempt, or are dead letters.",
		Example: "  notifyd replay show 3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := replayID(args[0])
			if err != nil {
				return err
			}

			return f.With(cmd.Context(), a, false, func(s *ops.Client) error {
				r, o, err := s.Replay(cmd.Context(), id)
				if err != nil {
					return err
				}
				return f.outcome(cmd, &ReplayAt{r, o})
			})
		},
	}

	f.Register(cmd)
	return cmd
}

func newReplayStopCmd(a *command.App) *cobra.Command {
	var f positionsFlags
	cmd := &cobra.Command{
		Use:   "stop ID",
		Short: "End a replay that runs",
		Long: `stop ends a replay: nothing of it begins any more. What has failed goes on as a retry or a
dead letter does.`,
		Example: "  notifyd replay stop 3 --reason \"the wrong month\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := replayID(args[0])
			if err != nil {
				return err
			}

			action := f.action
			action.Actor = command.First(action.Actor, command.CurrentActor())
			return f.With(cmd.Context(), a, false, func(s *ops.Client) error { return stopReplay(cmd, s, id, action, f.JSON()) })
		},
	}
	f.registerAction(cmd)
	return cmd
}

// stopReplay ends a replay, and prints how far it has come.
func stopReplay(cmd *cobra.Command, s *ops.Client, id int64, action ops.Action, asJSON bool) error {
	r, err := s.StopReplay(cmd.Context(), id, action)
	switch {
	case err != nil:
		return err
	case asJSON:
		return command.WriteJSON(cmd.OutOrStdout(), r)
	}

	verb := "is stopped"
	if action.DryRun {
		verb = "would be stopped"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "replay %d of %s %s at event %d of %d to %d\n",
		r.ID, command.Printable(r.Destination), verb, r.Head, r.From, r.To)
	if err != nil || action.DryRun {
		return err
	}

	cmd.PrintErrln("deliveries that the relay has begun end as usual; it begins no more of it within about a second")
	return nil
}

func replayID(arg string) (int64, error) {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return 0, command.UsageErrorf("ID %q is not the number of a replay: `notifyd replay list` has them", arg)
	}
	return id, nil
}
