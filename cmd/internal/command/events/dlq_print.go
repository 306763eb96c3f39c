package events

import (
	"fmt"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/textview"
	"github.com/notifyd/notifyd/ops"
)

// printer prints dead letters and events.
type printer struct{ command.BasePrinter }

func (p printer) page(page ops.DeadLetterPage) error {
	next := ""
	if page.Next != nil {
		next = fmt.Sprintf("%s/%d", page.Next.Destination, page.Next.EventID)
	}

	if p.JSON {
		return p.Encode(struct {
			Letters []ops.DeadLetter `json:"letters"`
			Next    string           `json:"next,omitempty"`
		}{page.Letters, next})
	}

	if len(page.Letters) == 0 {
		_, err := fmt.Fprintln(p.Out, "no dead letters")
		return err
	}

	rows := [][]string{{"EVENT", "DESTINATION", "TYPE", "DIED", "ATTEMPTS", "REPLAYS", "FINGERPRINT", "ERROR"}}
	for _, l := range page.Letters {
		rows = append(rows, []string{
			fmt.Sprint(l.EventID), l.Destination, l.Type, cli.Moment(l.DiedAt),
			fmt.Sprint(l.Attempts), fmt.Sprint(l.Replays), l.Fingerprint, command.Short(l.Error),
		})
	}

	if err := p.Table(rows); err != nil || next == "" {
		return err
	}

	_, err := fmt.Fprintf(p.Err, "there are more: --after '%s'\n", command.Clean(next))
	return err
}

func (p printer) groups(groups []ops.DeadLetterGroup) error {
	if p.JSON {
		return p.Encode(struct {
			Groups []ops.DeadLetterGroup `json:"groups"`
		}{groups})
	}

	if len(groups) == 0 {
		_, err := fmt.Fprintln(p.Out, "no dead letters")
		return err
	}

	rows := [][]string{{"COUNT", "DESTINATION", "TYPE", "FINGERPRINT", "OLDEST", "NEWEST", "EXAMPLE", "ERROR"}}
	for _, g := range groups {
		rows = append(rows, []string{
			fmt.Sprint(g.Count), g.Destination, g.Type, g.Fingerprint, cli.Moment(g.Oldest), cli.Moment(g.Newest),
			fmt.Sprint(g.Example.EventID), command.Short(g.Example.Error),
		})
	}

	return p.Table(rows)
}

func (p printer) show(c ops.Case) error {
	if p.JSON {
		return p.Encode(c)
	}

	if err := p.event(&c.Event); err != nil {
		return err
	}

	for _, e := range c.Audit {
		to := ""
		if e.Destination != "" {
			to = " for " + command.Clean(e.Destination)
		}

		_, err := fmt.Fprintf(p.Out, "\n%s %s%s by %s (database user %s)\n  %s\n",
			cli.Moment(e.At), command.Clean(e.Action), to,
			command.Clean(e.Actor), command.Clean(e.DatabaseUser), command.Clean(string(e.Details)))
		if err == nil && e.OldPayload != nil {
			_, err = fmt.Fprintf(p.Out, "  the payload was %s\n", command.Lines(string(e.OldPayload)))
		}
		if err == nil && e.OldPayloadBytes != nil {
			_, err = fmt.Fprintf(p.Out, "  the payload was %s\n", command.Indented(textview.Payload(e.OldPayloadBytes)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// result prints the result of an action.
func (p printer) result(past string, r ops.BulkResult) error {
	if p.JSON {
		return p.Encode(r)
	}

	text := "no dead letters match"
	if r.Matched > 0 {
		text = fmt.Sprintf("%s %d of %s", past, r.Done, command.LetterCount(r.Matched))
	}
	if r.Orphans > 0 {
		text += fmt.Sprintf("; %d left alone, because the event is missing: discard them if it was deleted", r.Orphans)
	}

	_, err := fmt.Fprintln(p.Out, text)
	return err
}

// became prints the outcome of replayed letters.
func (p printer) became(r ops.BulkResult, b ops.WatchCounts) error {
	if p.JSON {
		return p.Encode(struct {
			ops.BulkResult
			ops.WatchCounts
		}{r, b})
	}

	if err := p.result("replayed", r); err != nil || r.Done == 0 {
		return err
	}

	text := fmt.Sprintf("delivered %d, dead again %d, still waiting %d", b.Delivered, b.Dead, b.Waiting)
	if b.Discarded > 0 {
		text += fmt.Sprintf(", discarded %d", b.Discarded)
	}
	if b.Gone > 0 {
		text += fmt.Sprintf(", removed without an acknowledgement %d", b.Gone)
	}

	if _, err := fmt.Fprintln(p.Out, text); err != nil || len(b.Groups) == 0 {
		return err
	}

	return p.groups(b.Groups[:min(len(b.Groups), maxGroups)])
}

func (p printer) edited(id int64) error {
	if p.JSON {
		return p.Encode(struct {
			EventID int64 `json:"event_id"`
		}{id})
	}
	_, err := fmt.Fprintf(p.Out, "edited event %d: deliver it with `notifyd dlq replay %d`\n", id, id)
	return err
}

func waitingCount(n int64) string {
	if n == 1 {
		return "1 waiting delivery"
	}
	return fmt.Sprintf("%d waiting deliveries", n)
}

func (p printer) waitingPreview(past string, r ops.BulkResult) error {
	if p.JSON {
		return p.Encode(waitingJSON{r.Matched, r.Done})
	}
	_, err := fmt.Fprintf(p.Out, "%s would be %s; nothing was done\n", waitingCount(r.Matched), past)
	return err
}

func (p printer) waitingResult(past string, r ops.BulkResult) error {
	if p.JSON {
		return p.Encode(waitingJSON{r.Matched, r.Done})
	}

	text := "no waiting deliveries match"
	if r.Matched > 0 {
		text = fmt.Sprintf("%s %d of %s", past, r.Done, waitingCount(r.Matched))
	}

	_, err := fmt.Fprintln(p.Out, text)
	return err
}

// waitingJSON is the result of an action on waiting deliveries.
type waitingJSON struct {
	Matched int64 `json:"matched"`
	Done    int64 `json:"done"`
}
