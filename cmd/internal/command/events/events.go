package events

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/daemon"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/internal/when"
	"github.com/notifyd/notifyd/ops"
)

// NewEvents returns the command events.
func NewEvents(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "List events, show what became of them, try waiting ones again",
		Long: `events shows for each event which destinations it was delivered to, where it is dead
or waits, and for what. It needs the database only, and shows no more than the tables
hold: a queue does not store which destinations an event was routed to, nor whether
each has received it or passed it over by expires_after or a condition.`,
		Example: "  notifyd events list --state dead --since 2h\n  notifyd events show 42",
	}
	cmd.AddCommand(newEventsListCmd(a), newEventsShowCmd(a), newEventsRetryCmd(a))
	return cmd
}

// eventsFlags are the flags of all commands of "notifyd events".
type eventsFlags struct{ command.OpsFlags }

// eventsList is "notifyd events list".
type eventsList struct {
	eventsFlags

	filter    ops.EventFilter
	limit     int
	state     string
	aggregate string
	after     string
	since     command.Bound
	where     string
}

func newEventsListCmd(a *command.App) *cobra.Command {
	f := &eventsList{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List events with what became of them, the newest first",
		Long: `list shows events from the newest down, in the order of their ids. There is no index
on types, aggregates or times: a search reads --scan events at most, along the
primary key, and reports where it ended; --after continues there. For --state dead it
reads only events that have a stored delivery, for --state waiting those that were
not tried yet as well. With --since, the time at which an event was written, it ends with
the first thousand events of which none is as new.

With --destination it shows the events for one destination, and --state is then that of
their deliveries to it. A queue does not store the destinations of an event that was not
tried yet, nor those that have received it: there the routes of the file count. With
--where it reads the payload of each event that the other flags leave, and shows those
that meet the condition; an event for which the condition fails does not.

States: waiting (a destination has yet to receive it), dead (a delivery was given
up; with --state dead others may still wait), discarded (by a person), done.
--state finds the discarded ones among the done.`,
		Example: `  notifyd events list
  notifyd events list --state dead --since 2h
  notifyd events list --type 'order.*' --aggregate order/1042 -o json
  notifyd events list --destination partner --state waiting
  notifyd events list --since 1d --where 'payload.order == 42'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(); err != nil {
				return err
			}
			return f.With(cmd.Context(), a, false, func(s *ops.Client) error { return f.list(cmd, a, s) })
		},
	}

	f.Register(cmd)
	command.AddType(cmd, &f.filter.Type)
	command.AddAggregate(cmd, &f.aggregate)
	command.AddSince(cmd, &f.since)
	command.AddLimit(cmd, &f.limit, shownRows)
	command.AddAfter(cmd, &f.after)
	command.AddScan(cmd, &f.filter.Search, ops.DefaultSearch)
	command.AddDestination(cmd, &f.filter.Destination)
	cmd.Flags().StringVar(&f.where, "where", "", "`condition` as in a route: payload.order == 42")

	cmd.Flags().StringVar(&f.state, "state", "", "in this `state`: waiting, dead or done")
	states := []string{"waiting", "dead", "done"}
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)) // the flag is there

	return cmd
}

// complete completes the filter from the flags.
func (f *eventsList) complete() error {
	f.filter.State = ops.State(f.state)
	f.filter.NewerThan = f.since.Age
	f.filter.Since = f.since.At

	if f.after != "" {
		id, err := strconv.ParseInt(f.after, 10, 64)
		if err != nil || id == math.MinInt64 {
			return command.UsageErrorf("--after %q is not the id of an event, a number such as 42", f.after)
		}
		id--
		f.filter.Upto = &id
	}

	if f.aggregate != "" {
		aggregateType, aggregateID, isPair := strings.Cut(f.aggregate, "/")
		if !isPair {
			return command.UsageErrorf("--aggregate %q is not TYPE/ID, such as order/1042", f.aggregate)
		}
		f.filter.AggregateType = aggregateType
		f.filter.AggregateID = aggregateID
	}

	if f.where != "" {
		isMet, err := meeting(f.where)
		if err != nil {
			return command.UsageErrorf("--where: %w", err)
		}
		f.filter.Where = isMet
	}

	return nil
}

// list prints a page of events. For a destination it asks the routes of the configuration file, unless --database-url may
// name another database than the file does.
func (f *eventsList) list(cmd *cobra.Command, a *command.App, s *ops.Client) error {
	nothing := "no events match"
	if f.filter.Destination != "" && f.DB.Given == "" {
		c, path, err := f.DB.Optional(cmd.Context(), a, config.LoadRoutes)
		if err != nil {
			return err
		}
		if c != nil {
			f.filter.Routes = c.RouteOf
			nothing += otherName(c, path, f.filter.Destination)
		}
	}

	page, err := s.Events(cmd.Context(), f.filter, f.limit)
	if err != nil {
		return err
	}

	p := printer{command.NewPrinter(cmd, f.JSON())}
	return p.events(&page, f.limit, nothing)
}

// otherName says that a destination is not configured, which is why nothing may match: rows of a removed destination would.
func otherName(c *config.Config, path, destination string) string {
	all := command.NamesOf(c)
	if slices.Contains(all, destination) {
		return ""
	}
	return fmt.Sprintf("; %s has no destination %q: it has %s", path, destination, strings.Join(all, ", "))
}

func newEventsShowCmd(a *command.App) *cobra.Command {
	var f eventsFlags
	var payload bool

	cmd := &cobra.Command{
		Use:   "show EVENT",
		Short: "Show what became of one event at each destination",
		Long: `show reports for each destination whether the event is delivered, dead, waits (with its
attempts, next try and last error), is under way, is parked behind another event of
its aggregate, was not reached yet, or is not for it, by the tables at this moment, and
by the conditions (when) of the routes in the configuration file, if there is one.
"notifyd dlq show" adds the actions of people.`,
		Example: "  notifyd events show 42\n  notifyd events show 42 --payload\n  notifyd events show 42 -o json | jq .destinations",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := command.EventID(args[0])
			if err != nil {
				return err
			}

			return f.With(cmd.Context(), a, false, func(s *ops.Client) error {
				e, err := s.WholeEvent(cmd.Context(), id)
				if err != nil {
					return err
				}

				if err := f.annotate(cmd.Context(), a, &e); err != nil {
					cmd.PrintErrf("conditions of routes are left out: %v\n", err)
				}

				if !payload {
					e.Headers = nil
					e.Payload = nil
					e.PayloadBytes = nil
					e.ContentType = ""
				}

				p := printer{command.NewPrinter(cmd, f.JSON())}

				if p.JSON {
					return p.Encode(e)
				}
				return p.event(&e)
			})
		},
	}

	f.Register(cmd)
	cmd.Flags().BoolVar(&payload, "payload", false, "print headers and payload, too")

	return cmd
}

// annotate adds facts to an event that no table stores: conditions of the configuration file, and pauses that destinations
// have requested. --database-url may name another database than the file does, so annotate does nothing then.
func (f *eventsFlags) annotate(ctx context.Context, a *command.App, e *ops.Event) error {
	if f.DB.Given != "" || e.Gone {
		return nil
	}

	c, path, err := f.DB.Optional(ctx, a, config.LoadRoutes)
	if err != nil || c == nil {
		return err
	}

	e.Route(c.RouteOf(e.Type))
	filter(c, e)

	if e.Has(ops.State.Pending) {
		f.throttle(ctx, c, path, e)
	}

	return nil
}

// throttle adds the pauses that destinations have requested from the relay at admin.listen, if it answers.
func (f *eventsFlags) throttle(ctx context.Context, c *config.Config, path string, e *ops.Event) {
	relay := status.Scrape(ctx, daemon.AdminAccess(c, path), f.DB.Outbox)
	now := time.Now()
	routed := c.RouteOf(e.Type)

	for _, name := range command.NamesOf(c) {
		until, event := relay.Throttled(name, now)
		if until.IsZero() {
			continue
		}

		pause := ops.Throttled{Destination: name, Until: until.UTC().Truncate(time.Second), ByEvent: event}
		e.Throttle(pause, slices.Contains(routed, name))
	}
}

// filter marks the destinations that an event is kept from by a condition of the configuration file.
func filter(c *config.Config, e *ops.Event) {
	candidate := candidateOf(e)
	for _, r := range c.RoutesOf(e.Type) {
		condition := r.Filter()
		if condition == nil {
			continue
		}

		if met, err := condition.Match(candidate); met || err != nil {
			continue // an event that could not be evaluated has a row
		}

		for _, name := range r.To {
			e.Filter(name, condition.String())
		}
	}
}

// candidateOf returns an event that was read whole as conditions see it.
func candidateOf(e *ops.Event) *delivery.Candidate {
	ev := &delivery.Event{
		ID:            e.ID,
		Type:          e.Type,
		AggregateType: e.AggregateType,
		AggregateID:   e.AggregateID,
		CreatedAt:     e.CreatedAt,
	}
	ev.Payload, ev.ContentType = e.Content()
	if len(e.Headers) > 0 {
		_ = json.Unmarshal(e.Headers, &ev.Headers) // a relay ignores headers that are not a map of strings, too
	}
	return &delivery.Candidate{Event: ev}
}

// meeting returns the filter of a condition. An event for which the condition fails, as for want of a member, does not meet it.
func meeting(condition string) (func(e *ops.Event) bool, error) {
	language, err := when.New()
	if err != nil {
		return nil, err
	}

	x, err := language.Compile(condition)
	if err != nil {
		return nil, err
	}

	return func(e *ops.Event) bool {
		met, err := x.Match(candidateOf(e))
		return met && err == nil
	}, nil
}
