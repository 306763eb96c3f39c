// Package status gathers the facts that an operator needs first: the backlog per
// destination, the reasons for it, and the relays that deliver.
package status

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/pgschema"
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
	// Types has the types of the configured destinations, by name.
	Types map[string]string
	// DeadLettersTo has the receivers of dead letters, by the destinations where these die; nil if they are not known.
	DeadLettersTo map[string]string
	// Admin is the access to the admin server of a relay; without an address no
	// relay is queried.
	Admin admin.Access
	// Outbox is the name of the outbox at that relay, where it has many; empty for the only one.
	Outbox string
	// All lists all types without a route, however many.
	All bool
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
	Notify store.NotifyState    `json:"notify"`
	// Backlog is the backlog of the tables.
	Backlog observe.Backlog `json:"backlog"`
	// DeadLettersTo has the receivers of dead letters, by the destinations where these die.
	DeadLettersTo map[string]string `json:"dead_letters_to,omitempty"`
	// Relay is the report of the relay at the configured admin address; nil without an address or an answer.
	Relay *Relay `json:"relay,omitempty"`
	// Attention lists the problems that last until an operator acts, the most severe first.
	Attention []Attention `json:"attention"`

	known []string          // the configured destinations; nil if they are not known
	types map[string]string // their types
	all   bool
}

// allTypes bounds the types without a route that are listed where all are wanted.
const allTypes = 100_000

// configured reports whether the destination may exist: the configuration has it, a live relay has it, or neither can be known.
func (s *Status) configured(name string) bool {
	reports, complete := store.Reports(s.Relays)
	isReported := slices.ContainsFunc(reports, func(r store.DestinationReport) bool { return r.Name == name })

	switch {
	case isReported:
		return true
	case s.known != nil:
		return slices.Contains(s.known, name)
	default:
		return !complete
	}
}

// lacks begins a sentence about a destination that is not configured.
func (s *Status) lacks(name string) string {
	if s.known == nil {
		return "No relay has a destination " + name
	}
	return "The configuration has no destination " + name
}

// destination returns the report about a destination: of the relay at the configured address, or else of the live relays in
// the tables; nil without a report.
func (s *Status) destination(name string) *RelayDestination {
	if d := s.Relay.destination(name); d != nil {
		return d
	}

	reports, _ := store.Reports(s.Relays)
	for i := range reports {
		if reports[i].Name == name {
			stats := reports[i].Stats()
			d := DestinationOf(&stats, s.At)
			d.more = reports[i].Failures == store.MostFailures

			return &d
		}
	}
	return nil
}

// typeOf returns the type of a destination: that of the configuration, or else of the relay that has it; empty if both are
// unknown.
func (s *Status) typeOf(name string) string {
	if configured := s.types[name]; configured != "" {
		return configured
	}

	reports, _ := store.Reports(s.Relays)
	for _, r := range reports {
		if r.Name == name {
			return r.Type
		}
	}
	return ""
}

// Schema is the version of the tables: the one installed, and the one this notifyd needs.
type Schema struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	Latest  int    `json:"latest"`
	// Serialized reports whether writers are serialized, so that ids are in the order of commits.
	Serialized bool `json:"writers_serialized"`
	// Home is where the outbox belongs and where it is, if these differ: no relay delivers from a copy. Nil at home.
	Home *Home `json:"home,omitempty"`
	// Elsewhere names other schemas with tables of notifyd, if this schema has no tables.
	Elsewhere []string `json:"elsewhere,omitempty"`
}

// Home are two places, as the function outbox_place names them.
type Home struct {
	Is   outboxsql.Place `json:"is"`
	Here outboxsql.Place `json:"here"`
}

// HomeOf returns the places of a copy, and nil for an outbox at home.
func HomeOf(h outboxsql.Home) *Home {
	if h.Is == h.Here {
		return nil
	}
	return &Home{h.Is, h.Here}
}

// Read queries the database, and the relay if there is an address. A relay that
// does not answer is not an error; missing tables are reported in Attention.
func Read(ctx context.Context, conn *pgx.Conn, o Options) (Status, error) {
	s := Status{
		Schema:        Schema{Name: o.Schema},
		DeadLettersTo: o.DeadLettersTo,
		known:         o.Destinations,
		types:         o.Types,
		all:           o.All,
	}
	cfg := conn.Config()
	s.Database = fmt.Sprintf("%s at %s:%d", cfg.Database, cfg.Host, cfg.Port)

	state, err := outboxsql.ReadState(ctx, conn, o.Schema)
	if err != nil {
		return s, err
	}

	s.Mode = state.Mode
	s.Schema.Version = state.Current
	s.Schema.Latest = state.Latest
	s.Schema.Serialized = state.Serialized
	s.Schema.Home = HomeOf(state.Home)
	if state.Current == 0 {
		s.Schema.Elsewhere, err = pgschema.Elsewhere(ctx, conn, o.Schema)
		if err != nil {
			return s, err
		}
	}

	s.Relays, err = store.ReadLive(ctx, conn, o.Schema, s.Mode)
	if err != nil {
		return s, err
	}
	s.Notify, err = store.ReadNotifyState(ctx, conn, o.Schema)
	if err != nil {
		return s, err
	}

	if state.Current > 0 {
		b := store.BacklogOptions{Schema: o.Schema, Route: o.Route}
		if o.All {
			b.Types = allTypes
		}

		s.Backlog, err = store.ReadBacklog(ctx, conn, b)
		if err != nil {
			return s, err
		}
		s.At = s.Backlog.At
	} else if err := conn.QueryRow(ctx, `SELECT now()`).Scan(&s.At); err != nil {
		return s, err
	}

	s.Relay = Scrape(ctx, o.Admin, o.Outbox)
	if s.DeadLettersTo == nil {
		s.DeadLettersTo = reportedDeadLettersTo(s.Relays)
	}

	s.Attention = append(s.attention(), s.positionsAttention()...).sorted()
	return s, nil
}

// reportedDeadLettersTo returns the receivers of dead letters by the reports of the live relays; nil for none.
func reportedDeadLettersTo(relays []store.RelaySession) (to map[string]string) {
	reports, _ := store.Reports(relays)
	for _, r := range reports {
		if r.DeadLettersTo == "" {
			continue
		}
		if to == nil {
			to = make(map[string]string)
		}
		to[r.Name] = r.DeadLettersTo
	}
	return to
}

// ago is a time in seconds, short.
func ago(seconds float64) string { return cli.Age(time.Duration(seconds * float64(time.Second))) }
