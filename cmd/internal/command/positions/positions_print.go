package positions

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

func printPositions(out io.Writer, all []observe.Position) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "DESTINATION\tHEAD\tLAG\tOPEN\tDELIVERED\tMOVED\tPURGE\tSESSION") // Flush reports the error

	for i := range all {
		p := &all[i]
		purge := "-"
		switch {
		case p.HoldsBack:
			purge = "held"
		case p.Replay != nil && p.Replay.HoldsBack:
			purge = "replay " + strconv.FormatInt(p.Replay.ID, 10)
		}
		session := "none"
		if p.Session != nil {
			session = p.Session.String()
		}

		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n",
			command.Printable(p.Name()), p.Head, p.Lag, p.Open, p.Delivered, cli.Moment(p.UpdatedAt), purge, session)
	}

	if err := w.Flush(); err != nil {
		return err
	}

	for i := range all {
		p := &all[i]
		if !p.Copied {
			continue
		}
		_, err := fmt.Fprintf(out, "%s keeps a copy of its position (exactly_once); "+
			"after a crash the one here is behind until a relay has taken over\n", command.Printable(p.Destination))
		if err != nil {
			return err
		}
	}

	return nil
}

func printPosition(out io.Writer, d *ops.PositionDetails) error {
	if err := printPositions(out, d.Parts); err != nil {
		return err
	}

	w := bufio.NewWriter(out)
	_, _ = fmt.Fprintf(w, "\nfirst seen  %s\nevents      %s to %d\n", cli.Moment(d.CreatedAt), kept(d.First), d.Last) // Flush reports the error

	for _, r := range d.Routes {
		until := "on"
		if r.Until != nil {
			until = "to " + strconv.FormatInt(*r.Until, 10)
		}

		if r.Skipped {
			_, _ = fmt.Fprintf(w, "skipped     from %d %s\n", r.From+1, until)
			continue
		}

		patterns := cmp.Or(strings.Join(r.Patterns, ", "), "none")
		_, _ = fmt.Fprintf(w, "routes      from %d %s: %s\n", r.From+1, until, command.Printable(patterns))
	}

	return w.Flush()
}

// kept is the first event that is kept.
func kept(first int64) string {
	if first == 0 {
		return "none are kept"
	}
	return strconv.FormatInt(first, 10)
}

// moved says what a move means.
func moved(name string, m *ops.Moved, verb string) string {
	text := fmt.Sprintf("%s %s above id %d", command.Printable(name), verb, m.To)

	switch {
	case m.To < m.From:
		text += fmt.Sprintf(": what it has received since, up to id %d, comes again", m.From)
	case m.To > m.From:
		text += fmt.Sprintf(": ids %d to %d are skipped", m.From+1, m.To)
	}

	if m.First == 0 {
		return text + "; no event is kept"
	}
	if m.To < m.First-1 {
		text += fmt.Sprintf("; events below %d are deleted", m.First)
	}
	return text
}
