package events

import (
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/ops"
)

// NewDeadLetters returns the command dlq.
func NewDeadLetters(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "List, show, replay, discard, edit and make dead letters",
		Long: `dlq lists and changes dead letters: deliveries that were given up. It needs the
database only: of the configuration file it reads database and retention, bury also
on_dead. Its actions are recorded in outbox_audit.`,
		Example: "  notifyd dlq list --group\n  notifyd dlq show 42\n  notifyd dlq replay --destination mail --rate 50",
	}

	cmd.AddCommand(newDLQListCmd(a), newDLQShowCmd(a), newDLQReplayCmd(a), newDLQDiscardCmd(a), newDLQEditCmd(a), newDLQBuryCmd(a))
	return cmd
}

// dlqFlags are the flags of all commands of "notifyd dlq".
type dlqFlags struct {
	command.OpsFlags

	forget bool // delete an event with its last dead letter, whatever retention.keep is
}

// shownRows is how many rows a list shows without --limit.
const shownRows = 50

// dlqFilter are the flags that choose dead letters.
type dlqFilter struct {
	ops.DeadLetterFilter
	since, until command.Bound
}

func (f *dlqFilter) register(cmd *cobra.Command, missing bool) {
	command.AddDestination(cmd, &f.Destination)
	command.AddType(cmd, &f.Type)
	command.AddSince(cmd, &f.since)
	command.AddUntil(cmd, &f.until)
	cmd.Flags().StringVar(&f.Fingerprint, "fingerprint", "", "with errors of this `group`, see dlq list --group")
	if missing {
		cmd.Flags().BoolVar(&f.Missing, "missing", false, "all deliveries whose event is missing, dead or waiting, in place of dead letters")
	}
}

// filter returns the choice; args are the ids of events.
func (f *dlqFilter) filter(args []string) (ops.DeadLetterFilter, error) {
	f.NewerThan = f.since.Age
	f.Since = f.since.At
	f.OlderThan = f.until.Age
	f.Until = f.until.At

	for _, arg := range args {
		id, err := command.EventID(arg)
		if err != nil {
			return f.DeadLetterFilter, err
		}
		f.Events = append(f.Events, id)
	}

	return f.DeadLetterFilter, command.Mistaken(f.Validate())
}

// given reports whether anything was chosen at all.
func (f *dlqFilter) given() bool {
	isAbout := f.Destination != "" || f.Type != "" || f.Fingerprint != ""
	isDated := !f.since.IsZero() || !f.until.IsZero()
	isListed := f.Events != nil || f.Missing
	return isAbout || isDated || isListed
}

func newDLQListCmd(a *command.App) *cobra.Command {
	var f dlqFlags
	var filter dlqFilter
	var group bool
	var after string
	var limit int

	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, or groups of them",
		Long: `list shows dead letters by destination and event, a page at a time. With --group it
shows how many have the same destination, event type and kind of error, the
largest group first: errors that differ only in numbers, ids, addresses and
quoted values are of one kind, and have one fingerprint. --since and --until are
about the time at which a letter died.`,
		Example: `  notifyd dlq list --group
  notifyd dlq list --destination mail --since 2h
  notifyd dlq list --type 'order.*' -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			chosen, err := filter.filter(nil)
			if err != nil {
				return err
			}

			from, err := parseAfter(after)
			if err != nil {
				return err
			}

			return f.With(cmd.Context(), a, f.forget, func(s *ops.Client) error {
				p := printer{command.NewPrinter(cmd, f.JSON())}
				if group {
					groups, err := s.DeadLetterGroups(cmd.Context(), chosen, limit)
					if err != nil {
						return err
					}
					return p.groups(groups)
				}

				page, err := s.DeadLetters(cmd.Context(), chosen, from, limit)
				if err != nil {
					return err
				}
				return p.page(page)
			})
		},
	}

	f.Register(cmd)
	filter.register(cmd, true)
	cmd.Flags().BoolVar(&group, "group", false, "show groups")
	command.AddLimit(cmd, &limit, shownRows)
	command.AddAfter(cmd, &after)
	cmd.MarkFlagsMutuallyExclusive("group", "after")

	return cmd
}

// parseAfter parses DESTINATION/EVENT. The name may contain slashes.
func parseAfter(s string) (ops.DeliveryRef, error) {
	if s == "" {
		return ops.DeliveryRef{}, nil
	}

	at := strings.LastIndexByte(s, '/')
	id, err := strconv.ParseInt(s[at+1:], 10, 64)
	if at < 0 || err != nil {
		return ops.DeliveryRef{}, command.UsageErrorf("--after %q is not DESTINATION/EVENT, such as mail/42", s)
	}

	return ops.DeliveryRef{Destination: s[:at], EventID: id}, nil
}

func newDLQShowCmd(a *command.App) *cobra.Command {
	var f dlqFlags
	cmd := &cobra.Command{
		Use:   "show EVENT",
		Short: "Show everything about one event: payload, deliveries, what people did to it",
		Long: `show prints an event with its payload, what became of it at each destination (see
notifyd events), and its entries in outbox_audit, with the payloads that edits
have replaced.`,
		Example: "  notifyd dlq show 42\n  notifyd dlq show 42 -o json | jq .event.payload",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := command.EventID(args[0])
			if err != nil {
				return err
			}

			return f.With(cmd.Context(), a, f.forget, func(s *ops.Client) error {
				c, err := s.Case(cmd.Context(), id)
				if err != nil {
					return err
				}

				p := printer{command.NewPrinter(cmd, f.JSON())}
				return p.show(c)
			})
		},
	}

	f.Register(cmd)
	return cmd
}
