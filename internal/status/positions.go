package status

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// positions prints a line for each position of a stream.
func (s *Status) positions(b *strings.Builder) {
	if len(s.Backlog.Positions) == 0 {
		return
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = io.WriteString(w, "head\tlag\topen\tblocked\toldest\tpurge\tsession\t position\n") // to a strings.Builder
	for i := range s.Backlog.Positions {
		p := &s.Backlog.Positions[i]
		oldest, owner := "-", "none"
		if p.Oldest != nil {
			oldest = ago(p.Oldest.Age)
		}
		if p.Session != nil {
			owner = strconv.Itoa(int(p.Session.PID))
		}
		blocked := s.Backlog.Destination(p.Destination).Blocked
		line := fmt.Sprintf("%d\t%d\t%d\t%v\t%s\t%s\t%s\t %s\n", p.Head, p.Lag, p.Open, blocked, oldest, choose(p.HoldsBack, "held", "-"), owner, unitName(p))
		_, _ = io.WriteString(w, line) // to a strings.Builder, as the one above
	}
	_ = w.Flush()
}

// unitName is the destination of a position, with its part if it has several.
func unitName(p *observe.Position) string {
	switch {
	case p.Destination == "":
		return "(types without a route)"
	case p.Part > 0:
		return fmt.Sprintf("%s, part %d", p.Destination, p.Part)
	default:
		return p.Destination
	}
}

// positionsAttention lists the positions that no relay moves. names are the
// configured destinations, nil if they are not known.
func (s *Status) positionsAttention(names []string) (all []Attention) {
	for i := range s.Backlog.Positions {
		p := &s.Backlog.Positions[i]
		if p.Session != nil {
			continue
		}
		known := names == nil || p.Destination == "" || slices.Contains(names, p.Destination)
		switch {
		case !known:
			all = append(all, Attention{
				Destination: p.Destination, Cure: "put it back, or " + store.ForgetPosition(s.Schema.Name, p.Destination),
				Text: fmt.Sprintf("The configuration has no destination %s, and its position keeps the events above %d from being purged.", p.Destination, p.Lowest),
			})
		case len(s.Relays) > 0:
			all = append(all, Attention{
				Destination: p.Destination, Cure: "notifyd run, with a configuration that has it; notifyd doctor, if one runs",
				Text: fmt.Sprintf("No relay delivers %s: its unit has no owner.", unitName(p)),
			})
		}
	}
	return all
}
