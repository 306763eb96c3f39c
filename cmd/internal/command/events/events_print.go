package events

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/textview"
	"github.com/notifyd/notifyd/ops"
)

// events prints a page of a list.
func (p printer) events(page *ops.EventPage, limit int, nothing string) error {
	if p.JSON {
		return p.Encode(struct {
			Events   []ops.Event `json:"events"`
			Searched int         `json:"searched"`
			Next     string      `json:"next,omitempty"`
		}{page.Events, page.Searched, after(page)})
	}

	if len(page.Events) > 0 {
		rows := [][]string{{"EVENT", "TYPE", "AGGREGATE", "WRITTEN", "STATE", "DESTINATIONS"}}
		for i := range page.Events {
			e := &page.Events[i]
			rows = append(rows, []string{
				fmt.Sprint(e.ID), e.Type, aggregateOf(e), cli.Moment(e.CreatedAt), string(e.State), listed(e),
			})
		}
		if err := p.Table(rows); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintln(p.Out, nothing); err != nil {
		return err
	}

	var err error
	switch {
	case page.Next == nil:
	case len(page.Events) == limit:
		_, err = fmt.Fprintf(p.Err, "there are more: --after %s\n", after(page))
	default:
		_, err = fmt.Fprintf(p.Err, "searched %s, down to %s: go on with --after %[2]s\n", cli.Count(page.Searched, "event"), after(page))
	}

	return err
}

// after returns the value of --after for the next page, "" at the end of the list.
func after(page *ops.EventPage) string {
	if page.Next == nil {
		return ""
	}
	return strconv.FormatInt(*page.Next+1, 10)
}

func aggregateOf(e *ops.Event) string { return strings.Trim(e.AggregateType+"/"+e.AggregateID, "/") }

// listed names the destinations that have not received the event at once, as far as that is known.
func listed(e *ops.Event) string {
	var all []string
	for i := range e.Destinations {
		switch d := &e.Destinations[i]; d.State {
		case ops.Delivered, ops.NotRouted, ops.Filtered:
		default:
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s", d.Name, d.State)))
		}
	}

	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, ", ")
}

// event prints an event and its deliveries.
func (p printer) event(e *ops.Event) error {
	var b bytes.Buffer
	kind := e.ContentType
	if e.PayloadBytes != nil {
		_, kind = e.Content()
	}

	if e.Gone {
		b.WriteString("the event itself is gone\n")
	} else {
		fmt.Fprintf(&b, "event %d, %s, %s, written %s\n", e.ID, command.Clean(e.Type), e.State, cli.Moment(e.CreatedAt))
	}

	for _, line := range [][2]string{
		{"aggregate", aggregateOf(e)},
		{"idempotency key", e.IdempotencyKey},
		{"headers", string(e.Headers)},
		{"content type", kind},
		{"payload", string(e.Payload) + textview.Payload(e.PayloadBytes)},
	} {
		if line[1] != "" {
			fmt.Fprintf(&b, "  %s %s\n", line[0], command.Indented(line[1]))
		}
	}

	for _, column := range slices.Sorted(maps.Keys(e.Unreadable)) {
		fmt.Fprintf(&b, "  %s cannot be read: %s\n", column, command.Clean(e.Unreadable[column]))
	}

	b.WriteString("\n")
	for i := range e.Destinations {
		oneDestination(&b, &e.Destinations[i])
	}

	if e.OthersSettled {
		b.WriteString(others(e))
	}
	if len(e.Routed) > 0 {
		fmt.Fprintf(&b, "by the present routes: %s; those of the time when it was routed are not stored\n",
			command.Clean(strings.Join(e.Routed, ", ")))
	}

	_, err := p.Out.Write(b.Bytes())
	return err
}

// others describes the destinations that are not named.
func others(e *ops.Event) string {
	which := "every destination"
	if len(e.Destinations) > 0 {
		which = "every other destination"
	}
	causes := "expires_after, when, seek"
	if e.ProcessedAt != nil { // a queue, which has no positions
		causes = "expires_after, when"
	}

	what := fmt.Sprintf("%s that it was routed to has received it, or passed it over (%s)", which, causes)
	if e.ProcessedAt != nil {
		what += ", by " + cli.Moment(*e.ProcessedAt)
	}

	return what + "\n"
}

func oneDestination(b *bytes.Buffer, d *ops.Destination) {
	name := command.Clean(d.Name)
	if name == "" {
		name = "destinations not decided"
	}

	fmt.Fprintf(b, "%s: %s", name, d.State)

	for i, part := range d.Words(time.Now()) {
		if i == 0 {
			b.WriteString(", ")
		}
		b.WriteString(command.Printable(part.Text))
		if !part.At.IsZero() {
			b.WriteString(cli.Moment(part.At))
		}
	}
	b.WriteString("\n")

	if d.Error != "" {
		group := ""
		if d.Fingerprint != "" {
			group = "fingerprint " + d.Fingerprint + ", "
		}

		if d.Class != "" {
			fmt.Fprintf(b, "  %sfault of %s\n", group, d.Class)
		}

		fmt.Fprintf(b, "  %s\n", strings.ReplaceAll(command.Lines(d.Error), "\n", "\n  "))
	}
}
