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

// ReplayAt is a replay with its outcome.
type ReplayAt struct {
	observe.Replay
	Outcome ops.ReplayOutcome `json:"outcome"`
}

// underIDs says which ids the events of a replay have.
func underIDs(r *observe.Replay) string {
	if r.Number == 0 {
		return " under the ids that they had"
	}
	return fmt.Sprintf(" with the ids %dr%d and so on", r.From, r.Number)
}

// willReplay says what a replay will do.
func willReplay(r *observe.Replay, counts []ops.TypeCount, more bool) string {
	events := strconv.FormatInt(total(counts), 10)
	if more {
		events = "more than " + events
	}
	return fmt.Sprintf("%s will receive %s events again, ids %d to %d", command.Printable(r.Destination), events, r.From, r.To)
}

func printPlanned(out io.Writer, p *plannedReplay) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)

	if len(p.Events) > 0 {
		_, _ = fmt.Fprintln(w, "TYPE\tEVENTS") // Flush reports the error
	}
	for _, c := range p.Events {
		_, _ = fmt.Fprintf(w, "%s\t%d\n", command.Printable(c.Type), c.Count)
	}

	if err := w.Flush(); err != nil {
		return err
	}

	_, err := fmt.Fprintf(out, "%s would receive %d events again, ids %d to %d; nothing was done\n",
		command.Printable(p.Destination), p.Total, p.From, p.To)
	return err
}

func printReplays(out io.Writer, all []observe.Replay) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ID\tDESTINATION\tFROM\tTO\tSTATE\tHEAD\tREMAINING\tDELIVERED\tFAILED\tSKIPPED\tCREATED\tBY") // Flush reports the error

	for i := range all {
		r := &all[i]
		_, _ = fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n",
			r.ID, command.Printable(r.Destination), r.From, r.To, r.State, r.Head, r.Remaining,
			r.Delivered, r.Failed, r.Skipped, cli.Moment(r.CreatedAt), command.Printable(r.CreatedBy))
	}

	return w.Flush()
}

func printReplay(out io.Writer, at *ReplayAt) error {
	r := &at.Replay
	o := &at.Outcome
	w := bufio.NewWriter(out)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(w, "%-11s  "+format+"\n", append([]any{name}, args...)...) // Flush reports the error
	}

	line("replay", "%d, %s", r.ID, r.State)
	line("destination", "%s", command.Printable(r.Destination))
	line("events", "%d to %d%s", r.From, r.To, underIDs(r))
	line("types", "%s", command.Printable(cmp.Or(strings.Join(r.Types, ", "), "all")))
	if r.Rate > 0 {
		line("rate", "%g events/s", r.Rate)
	}

	line("requested", "%s by %s", cli.Moment(r.CreatedAt), command.Printable(r.CreatedBy))
	if r.Reason != "" {
		line("reason", "%s", command.Printable(r.Reason))
	}

	if r.FinishedAt != nil {
		line(r.State, "%s", cli.Moment(*r.FinishedAt))
	} else {
		line("head", "%d, %d ids left", r.Head, r.Remaining)
	}

	more := ""
	if o.More {
		more = ", and more"
	}
	gone := ""
	if o.Gone > 0 {
		gone = fmt.Sprintf(", discarded or removed %d", o.Gone)
	}

	line("outcome", "delivered %d, waiting %d, dead %d%s%s, passed over %d", o.Delivered, o.Waiting, o.Dead, more, gone, r.Skipped)

	return w.Flush()
}
