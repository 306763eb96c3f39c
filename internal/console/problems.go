package console

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// severity orders problems. The first is the worst.
type severity int

const (
	// nothingDelivered: no event of the outbox is delivered, or that is not known.
	nothingDelivered severity = iota
	// destinationDown: a destination gets nothing.
	destinationDown
	// eventsStuck: events stay where they are until an operator acts.
	eventsStuck
	// warning: events are delivered, or wait because an operator has decided so.
	warning
)

// problem is an entry under the heading "Action required".
type problem struct {
	Text, Cure string
	// Link is a page of the console, and Label the text of the link; both are empty for none.
	Link, Label string
	// Resume is the destination that a button resumes; "" for none.
	Resume string

	severity severity
	ofRelays bool // the page of relays shows it, too
}

// Class is the color of the problem.
func (p problem) Class() string {
	if p.severity == warning {
		return "warn"
	}
	return "bad"
}

// problems lists the problems that do not fix themselves, the worst first. Those that "notifyd status" lists have the same words.
func (o *outbox) problems(s snapshot) (all []problem) {
	if err := o.down(); err != nil && !s.stats.DatabaseDown && len(s.stats.Hangs) == 0 { // those have an entry of their own
		all = append(all, problem{
			Text:     "This outbox is not relayed: " + oneLine(err) + ".",
			Cure:     "fix what the error names; notifyd tries again within 30 s",
			ofRelays: true,
		})
	}
	if s.stats.DatabaseDown {
		all = append(all, databaseProblem(&s.stats))
	}
	if err := s.reading.err; err != nil && !s.stats.DatabaseDown {
		all = append(all, problem{
			Text: "The backlog is not known: " + explain(err).text,
			Cure: "see that the database answers; the log of notifyd has the whole error",
		})
	}
	if deaf(s.stats.Listener) && !s.stats.DatabaseDown {
		all = append(all, problem{
			Text: "The relay hears no notifications: events are found by polling, and later.",
			Cure: "see the log of notifyd for the cause; behind a pooler in transaction mode, set database.listen_url",
			Link: o.base + "relays", Label: "Show the relays",
			severity: warning,
			ofRelays: true,
		})
	}

	configured := s.configured()
	if o.unrelayed { // the reports of the live relays name their destinations
		configured = nil
	}

	for _, a := range s.status().Problems(configured) {
		all = append(all, o.problemOf(a, s))
	}

	slices.SortStableFunc(all, func(a, b problem) int { return cmp.Compare(a.severity, b.severity) })
	return all
}

// databaseProblem explains why no event is delivered, and since when. An outage has this one entry: the entries of what
// follows from it are left out.
func databaseProblem(s *observe.Stats) problem {
	when := ""
	if !s.DatabaseDownSince.IsZero() {
		when = " since " + s.DatabaseDownSince.UTC().Format("2006-01-02 15:04:05Z")
	}

	if s.DatabaseCure == "" {
		return problem{
			Text:     "The database does not answer the relay" + when + ": nothing is delivered.",
			Cure:     "see that the database runs and can be reached; the relay continues when it is back",
			ofRelays: true,
		}
	}

	return problem{Text: "The database refuses the relay" + when + ": nothing is delivered.", Cure: s.DatabaseCure, ofRelays: true}
}

// problemOf adds the severity, and a link or a button.
func (o *outbox) problemOf(a status.Attention, s snapshot) problem {
	p := problem{Text: a.Text, Cure: a.Cure, severity: eventsStuck}
	show := func(of severity, label, link string) {
		p.severity = of
		p.Label = label
		p.Link = link
		p.ofRelays = link == o.base+"relays"
	}

	relays := o.base + "relays"
	destination := o.destinationPath(a.Destination)
	switch a.Kind {
	case status.KindTables:
		p.severity = nothingDelivered
		p.ofRelays = true
	case status.KindRelay:
		show(nothingDelivered, "Show the relays", relays)
	case status.KindReload:
		show(warning, "Show the relays", relays)
	case status.KindDown, status.KindFailing:
		show(destinationDown, "Show "+a.Destination, destination)
		if a.Severity == status.Warning {
			p.severity = warning
		}
	case status.KindNotConfigured:
		show(eventsStuck, "Show "+a.Destination, destination)
	case status.KindDead:
		show(eventsStuck, "Show the dead letters", o.base+"dead?destination="+url.QueryEscape(a.Destination))
	case status.KindUnrouted:
		if a.EventType != "" {
			show(eventsStuck, "Show the events", o.base+"events?state=waiting&type="+url.QueryEscape(a.EventType))
		}
	case status.KindWaiting:
		show(warning, "Show "+a.Destination, destination)
	case status.KindPaused:
		show(warning, "Show "+a.Destination, destination)
		if s.has(a.Destination) {
			p.Resume = a.Destination
		}
	case status.KindMissing: // its cure is a command
	default: // of a position
		show(destinationDown, "Show the relays", relays)
		if a.Destination != "" && !s.has(a.Destination) {
			show(warning, "Show the position", o.positionPath(a.Destination))
		}
	}

	return p
}

// has reports whether the relay has a destination.
func (s snapshot) has(name string) bool {
	return slices.ContainsFunc(s.stats.Destinations, func(d observe.DestinationStats) bool { return d.Name == name })
}

// configured returns the names of the relay's destinations, nil where no relay runs.
func (s snapshot) configured() (names []string) {
	for _, d := range s.stats.Destinations {
		names = append(names, d.Name)
	}
	return names
}

// status returns the figures of the snapshot, as "notifyd status" has them.
func (s snapshot) status() *status.Status {
	st := &status.Status{At: s.at, Relay: relayOf(s.stats, s.at), DeadLettersTo: make(map[string]string)}
	for _, d := range s.stats.Destinations {
		st.DeadLettersTo[d.Name] = d.DeadLettersTo
	}

	if s.known() {
		st.At = s.reading.backlog.At
		st.Backlog = s.reading.backlog
		st.Relays = s.reading.relays
		st.Mode = outboxsql.Mode(s.reading.backlog.Mode)
		st.Schema = status.Schema{
			Version: s.reading.schema.Current,
			Latest:  s.reading.schema.Latest,
			Home:    status.HomeOf(s.reading.schema.Home),
		}
	}

	return st
}

// names returns the destinations of this relay, then those that only the database knows.
func (s snapshot) names() (names []string) {
	for i := range s.stats.Destinations {
		names = append(names, s.stats.Destinations[i].Name)
	}
	if !s.known() {
		return names
	}

	elsewhere := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, d := range s.reading.backlog.Destinations {
		elsewhere(d.Name)
	}
	for _, p := range s.reading.backlog.Positions { // also of destinations without a backlog
		elsewhere(p.Destination)
	}
	return names
}

// known reports whether the database has answered.
func (s snapshot) known() bool { return !s.reading.at.IsZero() && s.reading.err == nil }

// relayOf returns the figures of a relay, as "notifyd status" reads them from its metrics; nil where no relay runs.
func relayOf(stats observe.Stats, at time.Time) *status.Relay {
	if len(stats.Destinations) == 0 {
		return nil
	}

	r := &status.Relay{
		Address:    store.ThisHost(),
		DatabaseUp: !stats.DatabaseDown,
		Listening:  stats.Listener != nil && stats.Listener.Listening,
	}
	for _, refusal := range stats.Refusals {
		if text := refusal.Withheld(at); text != "" {
			r.Withheld = append(r.Withheld, text)
			continue
		}

		if refusal.Err != nil && !slices.Contains(r.Refused, refusal.Code) {
			r.Refused = append(r.Refused, refusal.Code)
		}
	}

	for _, h := range stats.Hangs {
		r.Hangs = append(r.Hangs, h.Reason)
	}

	for _, d := range stats.Destinations {
		r.Destinations = append(r.Destinations, status.DestinationOf(&d, at))
	}
	return r
}

// oneLine returns the text of an error in one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
