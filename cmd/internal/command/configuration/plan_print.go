package configuration

import (
	"fmt"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

// planPrinter prints plans.
type planPrinter struct{ command.BasePrinter }

// plan prints what would change, section by section; empty ones are left out.
func (p planPrinter) plan(plan *Plan) error {
	if p.JSON {
		return p.Encode(plan)
	}

	if !plan.Changes {
		if _, err := fmt.Fprintln(p.Out, "no changes"); err != nil {
			return err
		}
	} // the sections below are always printed

	for _, section := range []struct {
		title string
		lines []string
	}{
		{"destinations", destinationLines(plan.Configuration.Destinations)},
		{"routes", routeLines(plan.Configuration.Routes)},
		{"settings", settingLines(plan.Configuration.Settings, plan.Restart)},
		{"patterns that have no route any more", indent(plan.Uncovered)},
		{"where destinations of the stream begin or continue", beginLines(plan.Begins)},
	} {
		if err := p.section(section.title, section.lines); err != nil {
			return err
		}
	}

	moves := [][]string{{"TYPE", "STATE", "COUNT", "FROM", "TO"}}
	for _, m := range plan.Moves {
		moves = append(moves, []string{m.EventType, m.State, m.count(), joined(m.From), joined(m.To)})
	}

	unrouted := [][]string{{"TYPE", "STATE", "COUNT"}}
	for _, u := range plan.Unrouted {
		unrouted = append(unrouted, []string{u.EventType, u.State, u.count()})
	}

	gone := [][]string{{"DESTINATION", "TYPE", "STATE", "COUNT"}}
	for _, g := range plan.Gone {
		gone = append(gone, []string{g.Destination, g.EventType, g.State, g.count()})
	}

	returns := [][]string{{"DESTINATION", "TYPE", "STATE", "COUNT"}}
	for _, r := range plan.Returns {
		returns = append(returns, []string{r.Destination, r.EventType, r.State, r.count()})
	}

	for _, t := range []struct {
		title string
		rows  [][]string
	}{
		{"waiting events that would go elsewhere", moves},
		{"waiting events without a route", unrouted},
		{"deliveries for destinations that are not there", gone},
		{"deliveries for destinations that come back", returns},
	} {
		if len(t.rows) == 1 {
			continue
		}
		if _, err := fmt.Fprintln(p.Out, t.title); err != nil {
			return err
		}
		if err := p.Table(t.rows); err != nil {
			return err
		}
	}
	return p.conditions(plan.Conditions)
}

func (p planPrinter) section(title string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}

	var text strings.Builder
	text.WriteString(title + "\n")
	for _, line := range lines {
		words := strings.TrimLeft(line, " ")
		text.WriteString(line[:len(line)-len(words)] + command.Clean(words) + "\n")
	}

	_, err := fmt.Fprint(p.Out, text.String())
	return err
}

func (c planCount) count() string {
	if c.AtLeast {
		return fmt.Sprintf("%d or more", c.Count)
	}
	return fmt.Sprint(c.Count)
}

// joined is a list on one line; a dash for none.
func joined(all []string) string {
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, ", ")
}

func indent(all []string) []string {
	lines := make([]string, len(all))
	for i, s := range all {
		lines[i] = "  " + s
	}
	return lines
}

func destinationLines(all []config.DestinationChange) (lines []string) {
	for _, d := range all {
		mark := map[string]string{"added": "+", "removed": "-", "changed": "~"}[d.Kind]
		lines = append(lines, fmt.Sprintf("  %s %s (%s)", mark, d.Name, d.Type))
		for _, s := range d.Settings {
			lines = append(lines, "      "+changeText(s))
		}
	}
	return lines
}

func routeLines(all []config.RouteChange) (lines []string) {
	for _, r := range all {
		rule := r.Match
		if r.When != "" {
			rule += " when " + r.When
		}
		switch {
		case len(r.Old) == 0:
			lines = append(lines, fmt.Sprintf("  + %s: %s", rule, joined(r.New)))
		case len(r.New) == 0:
			lines = append(lines, fmt.Sprintf("  - %s: %s", rule, joined(r.Old)))
		default:
			lines = append(lines, fmt.Sprintf("  ~ %s: %s -> %s", rule, joined(r.Old), joined(r.New)))
		}
	}
	return lines
}

func settingLines(all []config.Change, restart []string) (lines []string) {
	for _, s := range all {
		line := "  ~ " + changeText(s)
		if slices.Contains(restart, s.Path) {
			line += " (needs a restart)"
		}
		lines = append(lines, line)
	}
	return lines
}

func changeText(c config.Change) string {
	if c.Hidden() {
		return c.Path + ": changed, not shown"
	}

	none := func(s string) string {
		if s == "" {
			return "(none)"
		}
		return s
	}

	return fmt.Sprintf("%s: %s -> %s", c.Path, none(c.Old), none(c.New))
}
