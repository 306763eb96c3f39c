package configuration

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/stream"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// planBegin is where a destination begins that is new to the stream, or comes back to it.
type planBegin struct {
	Destination string `json:"destination"`
	// StartFrom is the start that counts: "now" for a later destination with auto. It is empty for a destination that
	// comes back, which continues at its position.
	StartFrom string `json:"start_from,omitempty"`
	// First is the first kept event that it gets; 0 without one.
	First int64 `json:"first,omitempty"`
	// Patterns are the patterns of its routes that match these events.
	Patterns []string `json:"patterns"`
	Count    int      `json:"count"`
	// Waiting are the deliveries that wait for a destination that comes back.
	Waiting int `json:"waiting,omitempty"`
	// AtLeast says that counting ended at the limit, and AtMost that conditions, or ids without an event for it, may
	// lower the number.
	AtLeast bool `json:"at_least,omitempty"`
	AtMost  bool `json:"at_most,omitempty"`
}

// String returns a sentence such as "c begins at event 1: 20 kept events of order.*".
func (b *planBegin) String() string {
	switch {
	case b.StartFrom == "":
		return b.Destination + " continues at its position" + b.continues()
	case b.Count == 0:
		return b.Destination + " begins with the next event"
	default:
		return fmt.Sprintf("%s begins at event %d: %s of %s",
			b.Destination, b.First, b.events("kept event"), strings.Join(b.Patterns, ", "))
	}
}

// continues returns what a destination gets that comes back, such as ", event 21: 3 kept events of order.*; waiting deliveries: 2".
func (b *planBegin) continues() string {
	text := ": no kept events"
	if b.Count > 0 {
		text = fmt.Sprintf(", event %d: %s of %s", b.First, b.events("kept event"), strings.Join(b.Patterns, ", "))
	}
	if b.Waiting > 0 {
		text += fmt.Sprintf("; waiting deliveries: %d", b.Waiting)
	}

	return text
}

// events returns "20 kept events", with "or more" or "at most" where the number is a bound.
func (b *planBegin) events(noun string) string {
	number := fmt.Sprint(b.Count)
	if b.AtLeast {
		number += " or more"
	}
	if b.Count != 1 || b.AtLeast {
		noun += "s"
	}

	text := number + " " + noun
	if b.AtMost {
		text = "at most " + text
	}

	return text
}

// readBegins returns where the destinations of c begin that are new to the stream, and where those continue that come
// back; nil for a queue. old is the configuration in force, nil for that of the relays that run.
func readBegins(ctx context.Context, conn *session.Conn, old, c *config.Config, limit int) (all []planBegin, err error) {
	wanted := make([]stream.Wanted, len(c.Destinations))
	for i := range c.Destinations {
		d := &c.Destinations[i]
		start, err := engine.ParseStart(d.StartFrom)
		if err != nil {
			return nil, fmt.Errorf("destinations.%s.start_from: %w", d.Name, err)
		}
		wanted[i] = stream.Wanted{Wanted: routes.Wanted{Destination: d.Name}, Start: start}
	}

	var was func(destination string) bool
	if old != nil {
		was = func(destination string) bool { return hasDestination(old, destination) }
	}

	var found []stream.Beginning
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var mode outboxsql.Mode
		err := tx.QueryRow(ctx, `SELECT mode FROM outbox_mode WHERE one`).Scan(&mode)
		if err != nil || mode != outboxsql.ModeStream {
			return err
		}

		found, err = stream.Beginnings(ctx, tx, wanted, was, limit)

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find where new destinations begin: %w", err)
	}

	for i := range found {
		all = append(all, beginOf(c, &found[i]))
	}

	return all, nil
}

// beginOf counts the events that the routes of c lead to the destination.
func beginOf(c *config.Config, from *stream.Beginning) planBegin {
	b := planBegin{Destination: from.Destination, Patterns: []string{}, Waiting: from.Stored, AtMost: from.AtMost}
	if !from.Returns {
		b.StartFrom = from.From.String()
	}

	for _, k := range from.Kept {
		matched := false
		for _, r := range c.RoutesOf(k.Type) {
			if !slices.Contains(r.To, b.Destination) {
				continue
			}
			matched = true
			b.AtMost = b.AtMost || r.Filter() != nil
			if !slices.Contains(b.Patterns, r.Match) {
				b.Patterns = append(b.Patterns, r.Match)
			}
		}

		if !matched {
			continue
		}
		if b.Count == 0 {
			b.First = k.First
		}
		b.Count += k.Count
		b.AtLeast = from.AtLeast
	}

	return b
}

// beginLines returns the lines of a plan.
func beginLines(all []planBegin) []string {
	lines := make([]string, len(all))
	for i := range all {
		lines[i] = "  " + command.Printable(all[i].String())
	}

	return lines
}
