package status

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// Attention is a problem that does not fix itself.
type Attention struct {
	// Severity is [Error] or [Warning].
	Severity Severity `json:"severity"`
	// Destination is empty for a problem that concerns none.
	Destination string `json:"destination,omitempty"`
	Text        string `json:"text"`
	// Cure is a command or an instruction.
	Cure string `json:"cure"`
	// Kind and EventType are for a program that offers an action next to the cure. EventType is the type without a route,
	// empty for other problems.
	Kind      Kind   `json:"-"`
	EventType string `json:"-"`
}

// Kind is what an [Attention] is about.
type Kind string

// The kinds of problems.
const (
	// KindTables is about the tables of the whole outbox, or that no relay uses them.
	KindTables Kind = "tables"
	// KindReload is a reload that a relay has refused.
	KindReload Kind = "reload"
	// KindRelay is a relay that hangs, or that the database refuses statements of.
	KindRelay Kind = "relay"
	// KindMissing are stored deliveries without their events.
	KindMissing Kind = "missing"
	// KindNotConfigured is a destination that is not configured and has deliveries.
	KindNotConfigured Kind = "not configured"
	// KindPaused is a paused destination.
	KindPaused Kind = "paused"
	// KindDown is a destination that is unavailable, and KindFailing one that answers with failures.
	KindDown    Kind = "down"
	KindFailing Kind = "failing"
	// KindWaiting is an event that has waited for long.
	KindWaiting Kind = "waiting"
	// KindDead are dead letters.
	KindDead Kind = "dead"
	// KindUnrouted is an event type without a route.
	KindUnrouted Kind = "unrouted"
	// KindPosition is a position of a stream.
	KindPosition Kind = "position"
)

// Problems returns the problems that do not fix themselves, the most severe first. They follow from the other fields, and from the
// names of the configured destinations: nil if these are not known.
func (s *Status) Problems(destinations []string) []Attention {
	s.known = destinations
	return append(s.attention(), s.positionsAttention()...).sorted()
}

// Severity orders problems: the more severe is greater.
type Severity uint8

const (
	// Warning is any other problem: dead letters, a pause, a type without a route.
	Warning Severity = iota
	// Error is a problem that stops deliveries, to one destination or to all.
	Error
)

// String returns error or warning.
func (s Severity) String() string {
	if s == Error {
		return "error"
	}
	return "warning"
}

// MarshalText returns the text of String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the text of String.
func (s *Severity) UnmarshalText(text []byte) error {
	switch string(text) {
	case "error":
		*s = Error
	case "warning":
		*s = Warning
	default:
		return fmt.Errorf("%q is not a severity: use error or warning", text)
	}
	return nil
}

// tone is the colour of the severity.
func (s Severity) tone() tone {
	if s == Error {
		return bad
	}
	return warn
}

const (
	// longWait is how long an event may wait before a person should look: most outages
	// are shorter.
	longWait = 15 * time.Minute
	// longFailing and manyFailing bound how long, and how often in a row, deliveries to a destination
	// may fail before a person should look.
	longFailing = time.Minute
	manyFailing = 10
	// topUnrouted is how many types without a route are named, those with the most events.
	topUnrouted = 10
)

// list collects the problems that last until an operator acts.
type list []Attention

func (l *list) add(severity Severity, kind Kind, destination, cure, format string, args ...any) {
	*l = append(*l, Attention{
		Severity:    severity,
		Destination: destination,
		Text:        fmt.Sprintf(format, args...),
		Cure:        cure,
		Kind:        kind,
	})
}

// sorted returns the problems, the most severe first.
func (l list) sorted() list {
	slices.SortStableFunc(l, func(a, b Attention) int { return cmp.Compare(b.Severity, a.Severity) })
	return l
}

// attention lists the problems that do not fix themselves.
func (s *Status) attention() (all list) {
	all = s.tablesAttention()
	for _, r := range s.Relays {
		if p := r.Program; p != nil && p.Refused != "" {
			all.add(Warning, KindReload, "", "fix the file, then notifyd reload on that host",
				"The relay on %s (process %d) has refused the last reload and continues with the previous configuration: %s.",
				p.Host, p.Process, p.Refused)
		}
	}
	all = append(all, s.Relay.attention()...)

	if n := s.Backlog.Missing; n.N > 0 {
		all.add(Warning, KindMissing, "", engine.MissingCure,
			"The events of %s are missing from outbox_events.", counted(n, "stored delivery"))
	}
	for _, name := range s.names() {
		all = append(all, s.ofDestination(name)...)
	}
	return append(all, s.unrouted()...)
}

// tablesAttention lists the problems that concern the whole outbox.
func (s *Status) tablesAttention() (all list) {
	switch {
	case len(s.Schema.Elsewhere) > 0:
		all.add(Error, KindTables, "", "set database.schema (or --schema), or run notifyd migrate for another outbox",
			"The schema %s has no tables of notifyd, and schema %s has.", s.Schema.Name, strings.Join(s.Schema.Elsewhere, ", "))
	case s.Schema.Version < s.Schema.Latest:
		all.add(Error, KindTables, "", "notifyd migrate",
			"The schema %s is at version %d, this notifyd needs %d.", s.Schema.Name, s.Schema.Version, s.Schema.Latest)
	case s.Schema.Version > s.Schema.Latest:
		all.add(Error, KindTables, "", "upgrade notifyd",
			"The schema %s is at version %d, this notifyd knows %d.", s.Schema.Name, s.Schema.Version, s.Schema.Latest)
	}

	if h := s.Schema.Home; h != nil {
		all.add(Error, KindTables, "", "notifyd adopt",
			"The outbox is a copy: its home is %v, and this is %v. No relay delivers from here.", h.Is, h.Here)
	}

	isUnused := len(s.Relays) == 0 && !s.Relay.isCutOff()
	if isUnused && s.Schema.Home == nil && s.Backlog.Oldest != nil {
		all.add(Error, KindTables, "", "notifyd run", "No relay uses this database, and events wait.")
	}
	return all
}

// attention lists the relay's hangs, and the refusals of the database. The relay may be nil.
func (r *Relay) attention() (all list) {
	if r == nil {
		return nil
	}

	if r.Outage != "" {
		all.add(Error, KindRelay, "", "see that the relay's host reaches the database; the relay continues when it is back",
			"The relay at %s delivers nothing: %s.", r.Address, r.Outage)
	}

	for _, text := range r.Withheld {
		all.add(Error, KindRelay, "", store.Cure(stateIn(text)),
			"Outcomes of single events cannot be recorded by the relay at %s, which does not deliver these events again: %s.",
			r.Address, text)
	}
	for _, code := range r.Refused {
		all.add(Error, KindRelay, "", store.Cure(code),
			"The database refuses statements of the relay at %s with SQLSTATE %s: "+
				"the relay delivers nothing that it cannot record. The relay's log has the whole answer.",
			r.Address, code)
	}
	for _, reason := range r.Hangs {
		all.add(Error, KindRelay, "", "see NotifydHangs in docs/runbook.md", "The relay at %s hangs: %s.", r.Address, reason)
	}
	return all
}

// isCutOff reports whether the database is down for the relay. Shards without an owner then follow from that. The relay may
// be nil.
func (r *Relay) isCutOff() bool { return r != nil && !r.DatabaseUp }

// stateIn returns the SQLSTATE in the text of an error; empty without one.
func stateIn(text string) string {
	if m := codeIn.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// ofDestination lists the problems of one destination.
func (s *Status) ofDestination(name string) (all list) {
	d := s.Backlog.Destination(name)
	waits := d.Waiting()
	left := remaining(&s.Backlog, name)
	r := s.destination(name)
	downCure := "fix what the error names, there or in destinations." + name + " of the configuration; " +
		"its events wait and lose no attempt"

	switch {
	case !s.configured(name):
		if waits.N > 0 && !s.hasPosition(name) { // the list of positions reports those
			all.add(Warning, KindNotConfigured, name, s.restore(name), "%s, and %s for it.", s.lacks(name), wait(waits))
		}
	case d.Pause != nil:
		all.add(Warning, KindPaused, name, "notifyd resume "+name+"; its events wait and lose no attempt",
			"The destination %s was paused %s ago by %s%s.",
			name, ago(s.At.Sub(d.Pause.Since).Seconds()), d.Pause.By, prefixed(": ", d.Pause.Reason))
	case r.isDown(left):
		all.add(Error, KindDown, name, downCure,
			"The destination %s %s%s%s.", name, r.down(), prefixed(", ", r.probe()), lastError(&d))
	case r.isFailing(left, s.At):
		all.add(r.severity(left, s.At), KindFailing, name,
			"fix what the error names: an event that has failed max_attempts times becomes a dead letter",
			"Nothing was delivered to %s for %s: %s in a row%s.",
			name, ago(r.Failing), counted(r.failuresInARow(), "failure"), lastError(&d))
	case r == nil && d.LastError != nil && d.LastError.Class == delivery.ClassDestination.String():
		all.add(Error, KindDown, name, downCure,
			"The destination %s was down %s ago%s.", name, ago(s.At.Sub(d.LastError.At).Seconds()), lastError(&d))
	case d.Oldest != nil && d.Oldest.Age > longWait.Seconds():
		all.add(Warning, KindWaiting, name, "notifyd doctor, and the last error of "+name,
			"An event has waited %s for %s.", ago(d.Oldest.Age), name)
	}

	if d.Dead.N > 0 {
		all.add(Warning, KindDead, name, "fix the cause, then notifyd dlq replay --destination "+name,
			"%s has %s%s.", name, counted(d.Dead, "dead letter"), prefixed("; dead letters go to ", s.DeadLettersTo[name]))
	}
	return all
}

// remaining returns the backlog of a destination; nil if the database has not answered.
func remaining(b *observe.Backlog, name string) *observe.DestinationBacklog {
	if b.At.IsZero() {
		return nil
	}

	return new(b.Destination(name))
}

// isDown reports whether deliveries wait for a destination that is down. The breaker of an idle destination stays open
// until an event probes it, which is normal. The report may be nil, and so may an unknown backlog.
func (d *RelayDestination) isDown(b *observe.DestinationBacklog) bool {
	if d == nil || !d.Down {
		return false
	}
	return d.stuck() || b == nil || b.Waiting().N > 0
}

// isFailing reports whether failures in a row are more than the trouble of one event: deliveries wait, or several events
// became dead letters. Discarded letters do not count. Report and backlog may be nil, as for isDown.
func (d *RelayDestination) isFailing(b *observe.DestinationBacklog, at time.Time) bool {
	if d == nil || d.FailingEvents == 0 {
		return false
	}

	lasts := d.FailingEvents >= manyFailing || d.Failing > longFailing.Seconds()
	waits := b != nil && b.Waiting().N > 0

	return lasts && (waits || d.concerned(b, at) > 1)
}

// severity returns the severity of failures in a row: the failures of a single event are its own.
func (d *RelayDestination) severity(b *observe.DestinationBacklog, at time.Time) Severity {
	if d.concerned(b, at) > 1 {
		return Error
	}

	return Warning
}

// concerned returns how many events the failures in a row may be about: those that wait, and those that became dead
// letters since the first failure and are still there. It counts too many where letters of one error are older.
func (d *RelayDestination) concerned(b *observe.DestinationBacklog, at time.Time) int {
	if b == nil {
		return int(d.FailingEvents)
	}

	first := at.Add(-time.Duration(d.Failing * float64(time.Second)))
	events := b.Waiting()
	for _, g := range b.DeadLetters {
		if !g.At.Before(first) {
			events = events.Plus(g.Count)
		}
	}

	return min(events.N, int(d.FailingEvents))
}

// Restore is the cure for deliveries of a destination that is not configured.
func Restore(name string) string {
	return "put it back into the configuration and reload; " +
		"to be rid of them, as a destination of the type log, which takes them all (unless another relay has " + name + ")"
}

// restore is the cure for deliveries of a destination that no configuration or no relay has.
func (s *Status) restore(name string) string {
	if s.known == nil {
		return "run a relay that has it; " +
			"to be rid of them, with a handler that takes them all, such as a destination of the type log"
	}
	return Restore(name)
}

// lastError is the newest failure among the deliveries that wait, or else the error of most dead
// letters, for the end of a sentence.
func lastError(d *observe.DestinationBacklog) string {
	switch {
	case d.LastError != nil && d.LastError.EventID == 0:
		return "; the last error: " + d.LastError.Text
	case d.LastError != nil:
		return fmt.Sprintf("; the last error (event %d): %s", d.LastError.EventID, d.LastError.Text)
	case len(d.DeadLetters) > 0:
		return fmt.Sprintf("; the error of most dead letters: %s", d.DeadLetters[0].Error)
	default:
		return ""
	}
}

// down returns for how long, or why, the destination is unavailable.
func (d *RelayDestination) down() string {
	if d.stuck() {
		return fmt.Sprintf("gets nothing, because %d calls of its handler have not returned", d.Stuck)
	}
	return "has been down for " + ago(d.DownFor)
}

// stuck reports that the breaker is closed, and that no worker is left.
func (d *RelayDestination) stuck() bool { return d.Down && d.Stuck > 0 && d.DownFor == 0 }

// probe returns when the next delivery finds out whether the destination is up again.
func (d *RelayDestination) probe() string {
	switch {
	case d.State == observe.BreakerOpen.String() && d.NextProbe > 0:
		return "next probe in " + ago(math.Ceil(d.NextProbe))
	case d.State == observe.BreakerOpen.String(), d.State == observe.BreakerProbing.String():
		return "the next event probes it"
	default:
		return ""
	}
}

// unrouted lists the types without a route: all of them, or the ten with the most events and the
// number of the others.
func (s *Status) unrouted() (all list) {
	const cure = "add a route for it to the configuration, and reload"
	types := slices.Clone(s.Backlog.Unrouted)
	slices.SortStableFunc(types, func(a, b observe.TypeBacklog) int { return cmp.Compare(b.N, a.N) })

	var rest, events observe.Count
	if len(types) > topUnrouted && !s.all {
		rest = observe.Count{N: len(types) - topUnrouted, More: s.Backlog.UnroutedMore}
		for _, t := range types[topUnrouted:] {
			events = events.Plus(t.Count)
		}
		types = types[:topUnrouted]
	}

	for _, t := range types {
		all.add(Warning, KindUnrouted, "", cure, "No route matches %s of type %s.", counted(t.Count, "event"), t.EventType)
		all[len(all)-1].EventType = t.EventType
	}

	if rest.N > 0 {
		events.More = events.More || rest.More
		all.add(Warning, KindUnrouted, "", "notifyd status --full names them",
			"No route matches %s of %s.", counted(events, "event"), counted(rest, "more type"))
	}
	return all
}

// counted returns "1 event" or "10000+ events".
func counted(c observe.Count, noun string) string {
	if c.N == 1 && !c.More {
		return "1 " + noun
	}
	if stem, is := strings.CutSuffix(noun, "y"); is {
		noun = stem + "ie"
	}
	return c.String() + " " + noun + "s"
}

// wait returns "1 delivery waits" or "5 deliveries wait".
func wait(c observe.Count) string {
	if c.N == 1 && !c.More {
		return "1 delivery waits"
	}
	return c.String() + " deliveries wait"
}
