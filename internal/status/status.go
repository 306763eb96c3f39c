// Package status gathers what an operator needs first: the backlog per
// destination, the reasons for it, and the relays that deliver.
package status

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Options select the tables and the relay to report on.
type Options struct {
	// Schema holds the tables.
	Schema string
	// Route returns the destinations of an event type; nil if they are not known.
	Route func(eventType string) []string
	// Destinations are the names of the configured destinations; nil if they are not known.
	Destinations []string
	// Admin is the access to the admin server of a relay; without an address no
	// relay is queried.
	Admin admin.Access
}

// Status is the result, at one moment.
type Status struct {
	At       time.Time `json:"at"`
	Database string    `json:"database"`
	Schema   Schema    `json:"schema"`
	// Mode is queue or stream.
	Mode outboxsql.Mode `json:"mode"`
	// Relays are the live relays: for a queue those of all schemas of the database,
	// for a stream its own.
	Relays []store.RelaySession `json:"relays"`
	Bell   store.BellState      `json:"bell"`
	// Backlog is the backlog of the tables.
	Backlog observe.Backlog `json:"backlog"`
	// Relay is the report of the relay whose admin address is configured; nil if
	// there is none, or it does not answer.
	Relay *Relay `json:"relay,omitempty"`
	// Attention lists what needs a person.
	Attention []Attention `json:"attention"`
}

// Schema is the version of the tables: the one installed, and the one this notifyd needs.
type Schema struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	Latest  int    `json:"latest"`
}

// Attention is a problem that does not fix itself.
type Attention struct {
	// Destination is empty for a problem that concerns none.
	Destination string `json:"destination,omitempty"`
	Text        string `json:"text"`
	// Cure is a command or an instruction.
	Cure string `json:"cure"`
}

// Read queries the database, and the relay if there is an address. A relay that
// does not answer is no error; missing tables are reported in Attention.
func Read(ctx context.Context, conn *pgx.Conn, o Options) (Status, error) {
	s := Status{Schema: Schema{Name: o.Schema}}
	cfg := conn.Config()
	s.Database = fmt.Sprintf("%s at %s:%d", cfg.Database, cfg.Host, cfg.Port)
	state, err := outboxsql.ReadState(ctx, conn, o.Schema)
	if err != nil {
		return s, err
	}
	s.Schema.Version, s.Schema.Latest, s.Mode = state.Current, state.Latest, state.Mode
	if s.Mode == outboxsql.ModeStream {
		s.Relays, err = store.ReadMembers(ctx, conn, o.Schema)
	} else {
		s.Relays, err = store.ReadRelays(ctx, conn)
	}
	if err != nil {
		return s, err
	}
	if s.Bell, err = store.ReadBell(ctx, conn, o.Schema); err != nil {
		return s, err
	}
	if state.Current > 0 {
		if s.Backlog, err = store.ReadBacklog(ctx, conn, store.BacklogOptions{Schema: o.Schema, Route: o.Route}); err != nil {
			return s, err
		}
		s.At = s.Backlog.At
	} else if err := conn.QueryRow(ctx, `SELECT now()`).Scan(&s.At); err != nil {
		return s, err
	}
	if o.Admin.Address != "" {
		s.Relay = scrape(ctx, o.Admin)
	}
	s.Attention = append(s.attention(), s.positionsAttention(o.Destinations)...)
	return s, nil
}

// longWait is how long an event may wait before a person should look: most outages
// are shorter.
const longWait = 15 * time.Minute

// attention lists the problems that do not fix themselves, most urgent first.
func (s *Status) attention() (all []Attention) {
	add := func(destination, cure, format string, args ...any) {
		all = append(all, Attention{Destination: destination, Text: fmt.Sprintf(format, args...), Cure: cure})
	}
	switch {
	case s.Schema.Version < s.Schema.Latest:
		add("", "notifyd migrate up", "The schema %s is at version %d, this notifyd needs %d.", s.Schema.Name, s.Schema.Version, s.Schema.Latest)
	case s.Schema.Version > s.Schema.Latest:
		add("", "upgrade notifyd", "The schema %s is at version %d, this notifyd knows %d.", s.Schema.Name, s.Schema.Version, s.Schema.Latest)
	}
	if len(s.Relays) == 0 && s.Backlog.Oldest != nil {
		add("", "notifyd run", "No relay uses this database, and events wait.")
	}
	if s.Relay != nil {
		for _, code := range s.Relay.Refused {
			add("", store.Cure(code), "The database refuses what the relay at %s asks for, with SQLSTATE %s: it delivers nothing that it cannot record. The relay's log has the whole answer.", s.Relay.Address, code)
		}
		for _, reason := range s.Relay.Hangs {
			add("", "see NotifydHangs in docs/runbook.md", "The relay at %s hangs: %s.", s.Relay.Address, reason)
		}
		for _, d := range s.Relay.Destinations {
			if d.Paused {
				add(d.Name, "resume it at the console of that relay; its events wait and lose no attempt", "The destination %s is paused at the relay at %s.", d.Name, s.Relay.Address)
			}
			if d.Unavailable {
				add(d.Name, "notifyd doctor says what is wrong with it; its events wait and lose no attempt", "The destination %s is unavailable.", d.Name)
			}
		}
	}
	for _, d := range s.Backlog.Destinations {
		if d.Oldest != nil && d.Oldest.Age > longWait.Seconds() {
			add(d.Name, "notifyd doctor, and the last error of "+d.Name, "An event has waited %s for %s.", ago(d.Oldest.Age), d.Name)
		}
		if d.Dead.N > 0 {
			add(d.Name, "fix the cause, then notifyd dlq replay --destination "+d.Name, "%s has %s.", d.Name, counted(d.Dead, "dead letter"))
		}
	}
	for _, t := range s.Backlog.Unrouted {
		add("", "add a route for it to the configuration, and reload", "No route matches %s of type %s.", counted(t.Count, "event"), t.EventType)
	}
	return all
}

// counted returns "1 event" or "10000+ events".
func counted(c observe.Count, noun string) string {
	if c.N == 1 && !c.More {
		return "1 " + noun
	}
	return c.String() + " " + noun + "s"
}

// ago is a time in seconds, short.
func ago(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
