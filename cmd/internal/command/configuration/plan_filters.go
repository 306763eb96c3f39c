package configuration

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// planSample is how many of the waiting events "plan" evaluates by the conditions of their routes.
const planSample = 1000

// planCondition says how many of the first waiting events of a type meet the condition that leads to some
// destinations.
type planCondition struct {
	EventType string   `json:"event_type"`
	To        []string `json:"to"`
	When      string   `json:"when"`
	Meet      int      `json:"meet"`
	Not       int      `json:"do_not_meet"`
	Fail      int      `json:"fail"`
	// Error is of the first event for which the condition fails.
	Error string `json:"error,omitempty"`
}

// checkWaiting evaluates the conditions of a configuration for the first waiting events.
func checkWaiting(ctx context.Context, conn outboxsql.DB, c *config.Config, waiting []store.WaitCount) ([]planCondition, error) {
	var types []string
	for _, w := range waiting {
		conditional := slices.ContainsFunc(c.RoutesOf(w.EventType), func(r config.Route) bool { return r.Filter() != nil })
		if w.State == "fresh" && conditional && !slices.Contains(types, w.EventType) {
			types = append(types, w.EventType)
		}
	}

	if types == nil {
		return nil, nil
	}

	events, err := store.SampleWaiting(ctx, conn, types, planSample)
	if err != nil {
		return nil, err
	}

	var all []planCondition
	for i := range events {
		all = checkOne(all, c, &events[i])
	}

	slices.SortStableFunc(all, func(a, b planCondition) int { return cmp.Compare(a.EventType, b.EventType) })
	return all, nil
}

// checkOne counts an event.
func checkOne(all []planCondition, c *config.Config, e *delivery.Event) []planCondition {
	candidate := delivery.Candidate{Event: e}
	for _, r := range c.RoutesOf(e.Type) {
		f := r.Filter()
		if f == nil {
			continue
		}

		i := slices.IndexFunc(all, func(p planCondition) bool { return p.EventType == e.Type && slices.Equal(p.To, r.To) })
		if i < 0 {
			i = len(all)
			all = append(all, planCondition{EventType: e.Type, To: r.To, When: f.String()})
		}

		switch met, err := f.Match(&candidate); {
		case err != nil:
			all[i].Fail++
			all[i].Error = cmp.Or(all[i].Error, fmt.Sprintf("event %d: %v", e.ID, err))
		case met:
			all[i].Meet++
		default:
			all[i].Not++
		}
	}
	return all
}

// conditions prints how the first waiting events fare.
func (p planPrinter) conditions(all []planCondition) error {
	if len(all) == 0 {
		return nil
	}

	rows := [][]string{{"TYPE", "TO", "WHEN", "MEET", "DO NOT", "FAIL"}}
	for _, c := range all {
		rows = append(rows, []string{c.EventType, joined(c.To), c.When, fmt.Sprint(c.Meet), fmt.Sprint(c.Not), fmt.Sprint(c.Fail)})
	}

	if _, err := fmt.Fprintf(p.Out, "waiting events by the conditions of their routes, of the first %d\n", planSample); err != nil {
		return err
	}

	if err := p.Table(rows); err != nil {
		return err
	}

	for _, c := range all {
		if c.Error == "" {
			continue
		}
		if _, err := fmt.Fprintf(p.Out, "  %s\n", command.Clean(c.Error)); err != nil {
			return err
		}
	}
	return nil
}
