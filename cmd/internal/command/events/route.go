package events

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/cli"
)

// NewRoute returns the command route.
func NewRoute(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "route",
		Short:   "Try out the routes",
		Example: "  notifyd route test order.placed",
	}
	cmd.AddCommand(newRouteTestCmd(a))
	return cmd
}

// Routed is the result of "route test", as JSON.
type Routed struct {
	EventType string `json:"event_type"`
	// Match is the pattern of the routes that decide; empty if no route matches.
	Match  string      `json:"match"`
	Routes []RoutedOne `json:"routes"`
	// Destinations get the event. Without an event, routes with conditions add none.
	Destinations []string `json:"destinations"`
}

// RoutedOne is a route that decides.
type RoutedOne struct {
	Place string   `json:"place"`
	To    []string `json:"to"`
	When  string   `json:"when"`
	// Meets reports whether the event meets the condition; nil without an event, and where Error is set.
	Meets *bool `json:"meets"`
	// Error is why the condition fails for the event, which is a dead letter then.
	Error string `json:"error"`
}

func newRouteTestCmd(a *command.App) *cobra.Command {
	var path, outbox string
	var form *cli.OneOf

	cmd := &cobra.Command{
		Use:   "test [TYPE]",
		Short: "Show which destinations an event goes to, and why",
		Long: `test prints the routes that decide for an event type, with their lines in the file, and
the destinations. The routes with the most specific match decide; all others are ignored.
With --event it evaluates their conditions for an event. It contacts nothing.

FILE is JSON as for "notifyd template test". - reads standard input. It exits with 1 if no
route matches, or if a condition fails for the event.`,
		Example: "  notifyd route test order.placed\n  notifyd route test --event event.json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if path == "" && len(args) == 0 {
				return command.UsageErrorf("name an event type, or an event with --event")
			}

			event := &delivery.Event{}
			if path != "" {
				read, err := readEvent(path, cmd.InOrStdin())
				if err != nil {
					return err
				}
				event = read
			}
			if len(args) == 1 {
				event.Type = args[0]
			}

			c, err := routesOf(a, outbox)
			if err != nil {
				return err
			}

			r := routed(c, event, path != "")

			if form.Value == "json" {
				return errors.Join(command.WriteJSON(cmd.OutOrStdout(), r), r.trouble())
			}
			return errors.Join(r.print(command.NewPrinter(cmd, false)), r.trouble())
		},
	}

	cmd.Flags().StringVar(&path, "event", "", "`file` with the event, - for standard input")
	cmd.Flags().StringVar(&outbox, "outbox", "", "`name` of one of the outboxes of the file, where it has many")
	form = command.AddFormat(cmd)

	return cmd
}

// routesOf reads the routes of the file, or of one of its outboxes. It needs no secret.
func routesOf(a *command.App, outbox string) (*config.Config, error) {
	path, err := config.Find(a.ConfigPath, a.Lookup)
	if err != nil {
		return nil, err
	}

	const unused = "postgres://unused"
	c, err := config.LoadRoutes(path, unused, a.Lookup)
	if err != nil || outbox == "" {
		return c, err
	}

	var names []string
	for i := range c.Outboxes.List {
		if c.Outboxes.List[i].Name == outbox {
			return c.For(&c.Outboxes.List[i]), nil
		}
		names = append(names, c.Outboxes.List[i].Name)
	}

	return nil, command.UsageErrorf("there is no outbox %q in the file: it lists %s",
		outbox, command.First(strings.Join(names, ", "), "none"))
}

// routed finds the routes of an event. Conditions are evaluated if the whole event is known.
func routed(c *config.Config, e *delivery.Event, whole bool) Routed {
	r := Routed{EventType: e.Type, Routes: []RoutedOne{}, Destinations: []string{}}
	candidate := &delivery.Candidate{Event: e}
	routes := c.RoutesOf(e.Type)
	for i := range routes {
		one, meets := evaluated(&routes[i], candidate, whole)
		r.Match = routes[i].Match
		r.Routes = append(r.Routes, one)
		if meets {
			r.Destinations = append(r.Destinations, one.To...)
		}
	}
	return r
}

// evaluated describes a route, and reports whether the event goes there as far as is known.
func evaluated(route *config.Route, candidate *delivery.Candidate, whole bool) (one RoutedOne, meets bool) {
	one = RoutedOne{Place: route.Place(), To: route.To}
	condition := route.Filter()
	if condition == nil {
		meets = true
		one.Meets = &meets
		return one, meets
	}

	one.When = condition.String()
	if !whole {
		return one, false
	}

	meets, err := condition.Match(candidate)
	if err != nil {
		one.Error = err.Error()
		return one, meets
	}
	one.Meets = &meets
	return one, meets
}

// trouble returns an error if no route matches, or if a condition fails.
func (r *Routed) trouble() error {
	for _, one := range r.Routes {
		if one.Error != "" {
			return fmt.Errorf("the event would be a dead letter of %s: %s", strings.Join(one.To, ", "), one.Error)
		}
	}

	if r.Match == "" {
		return fmt.Errorf("no route matches %s: such an event waits until one does", r.EventType)
	}
	return nil
}

// print shows the routes, one per line.
func (r *Routed) print(p command.BasePrinter) error {
	if len(r.Routes) == 0 {
		return nil
	}

	rows := [][]string{{"ROUTE", "TO", "WHEN", "THE EVENT"}}
	for _, one := range r.Routes {
		says := "depends on it: --event FILE"
		switch {
		case one.Error != "":
			says = "is a dead letter"
		case one.Meets != nil && *one.Meets:
			says = "goes there"
		case one.Meets != nil:
			says = "does not meet the condition"
		}

		rows = append(rows, []string{one.Place, strings.Join(one.To, ", "), command.First(one.When, "-"), says})
	}

	if _, err := fmt.Fprintf(p.Out, "%s matches %q\n", command.Clean(r.EventType), r.Match); err != nil {
		return err
	}

	return p.Table(rows)
}
