package status

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// View describes how to print a status.
type View struct {
	// Width is the longest line, in characters; 0 means no limit.
	Width int
	// Color marks problems, for a terminal.
	Color bool
	// Clean makes text from the tables safe for a terminal.
	Clean func(string) string
}

// Table returns the status as text for people.
func (s *Status) Table(v View) string {
	p := &output{}
	for _, b := range s.blocks(v) {
		p.block(b)
	}
	return p.print(v)
}

// Screen returns the status for a terminal of a height: at most as many lines. What has no room is counted. The last line
// has the time, and ends with the footer.
func (s *Status) Screen(v View, height int, footer string) string {
	p := &output{}
	blocks := s.blocks(v)
	total := len(blocks) - 1 // empty lines
	for i := range blocks {
		total += len(blocks[i].lines())
	}

	room := max(1, height) - 1 // without the footer
	footer = cli.Moment(s.At) + "  " + footer

	if total <= room {
		for _, b := range blocks {
			p.block(b)
		}
	} else {
		lines, left := squeeze(blocks, room)
		p.lines = lines
		if left > 0 {
			footer = fmt.Sprintf("%d more lines; use notifyd status  %s", left, footer)
		}
	}

	p.line(plain, footer)
	return p.print(v)
}

// blocks returns the parts of the status, the most important first.
func (s *Status) blocks(v View) (all []block) {
	add := func(b block) {
		if len(b.items) > 0 {
			all = append(all, b)
		}
	}

	add(s.actions())
	add(s.head())
	add(s.destinations().block(partDestinations, "destinations", v.Width))
	add(s.positions().block(partDestinations, "positions", v.Width))
	add(s.replays().block(partOthers, "replays", v.Width))

	failing, dead := s.errors()
	add(failing)
	add(dead)

	return all
}

// actions returns the problems with their cures.
func (s *Status) actions() block {
	b := block{part: partActions, title: ActionRequired + ":", noun: "problems"}
	for _, a := range s.Attention {
		tone := a.Severity.tone()
		b.items = append(b.items, item{tone, []toned{{tone, "  " + a.Text}, {plain, "    " + a.Cure}}})
	}
	return b
}

func (s *Status) head() (b block) {
	b.part = partOthers
	b.noun = "facts"
	fact := func(name, format string, args ...any) {
		b.add(plain, fmt.Sprintf("%-9s ", name)+fmt.Sprintf(format, args...))
	}

	fact("database", "%s, %s", s.Database, cli.Moment(s.At))

	of := ""
	if s.Schema.Version != s.Schema.Latest {
		of = fmt.Sprintf(" of %d", s.Schema.Latest)
	}
	fact("schema", "%s, version %d%s, %s%s",
		s.Schema.Name, s.Schema.Version, of, s.Mode, choose(s.Schema.Serialized, ", writers serialized", ""))

	if len(s.Relays) == 0 {
		fact("relays", "none")
	}
	for i, r := range s.Relays {
		name := ""
		if i == 0 {
			name = "relays"
		}
		fact(name, "%s", s.relay(&r))
	}

	notify := string(s.Notify.Mode)
	if h := s.Notify.SuppressedBy; h != nil {
		notify += fmt.Sprintf(", suppressed: a relay polls (session %d)", h.PID)
	}
	fact("notify", "%s", notify)

	oldest := "nothing waits"
	if o := s.Backlog.Oldest; o != nil {
		oldest = fmt.Sprintf("oldest %s (event %d)", ago(o.Age), o.EventID)
	}
	fact("events", "%v fresh, %v delayed, %s", s.Backlog.Fresh, s.Backlog.Delayed, oldest)

	if r := s.Relay; r != nil {
		fact("admin", "%s: database %s, %s",
			r.Address, choose(r.DatabaseUp, "up", "down"), choose(r.Listening, "listening", "polling"))
	}
	return b
}

// relay names the process of a relay, if it is known, and the session that proves its life.
func (s *Status) relay(r *store.RelaySession) string {
	session := fmt.Sprintf("session %d, %s, user %s%s%s",
		r.PID, r.Application, r.User, prefixed(", from ", r.Client), s.since(r.Since))
	if r.PID == 0 {
		session = "behind a pooler, without a session"
	}

	p := r.Program
	if p == nil {
		return session
	}
	return fmt.Sprintf("%s, process %d%s, up %s, configuration read %s ago (%s)",
		p.Host, p.Process, prefixed(", ", p.Version), ago(s.At.Sub(p.StartedAt).Seconds()),
		ago(s.At.Sub(p.LoadedAt).Seconds()), session)
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

func (s *Status) since(t *time.Time) string {
	if t == nil {
		return ""
	}
	return ", for " + ago(s.At.Sub(*t).Seconds())
}

func choose(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

// destinations returns a line for each destination that the configuration, the relay or the database knows.
func (s *Status) destinations() grid {
	g := grid{
		head: []string{
			"destination", "state", "type", "fresh", "retry", "running", "parked", "dead",
			"oldest", "next try", "per s", "failed/s",
		},
		left:   3,
		narrow: []string{"type", "parked", "running", "failed/s", "next try"},
	}

	for _, name := range s.names() {
		d := s.Backlog.Destination(name)
		oldest := "-"
		if d.Oldest != nil {
			oldest = ago(d.Oldest.Age)
		}
		rate, failed := s.rates(name)
		state := s.state(name)

		g.row(toneOf(state), name, state, cmp.Or(s.typeOf(name), "-"),
			d.Fresh.String(), d.Retry.String(), d.Running.String(), d.Parked.String(), d.Dead.String(),
			oldest, s.nextTry(&d), rate, failed)
	}
	return g
}

// names are the names of all destinations: those of the relay, of the configuration, and of the tables.
func (s *Status) names() (all []string) {
	seen := make(map[string]bool)
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			all = append(all, name)
		}
	}

	if s.Relay != nil {
		for _, d := range s.Relay.Destinations {
			add(d.Name)
		}
	}

	for _, name := range s.known {
		add(name)
	}

	reports, _ := store.Reports(s.Relays)
	for _, r := range reports {
		add(r.Name)
	}

	for _, d := range s.Backlog.Destinations {
		add(d.Name)
	}
	return all
}

// state is the state of a destination, by its pause and by the relay's report.
func (s *Status) state(name string) string {
	r := s.destination(name)
	b := s.Backlog.Destination(name)
	paused := b.Pause != nil

	switch {
	case !s.configured(name):
		return StateNotConfigured
	case paused && r != nil && !r.Paused:
		return StatePausing
	case paused: // a paused destination is not probed
		return StatePaused
	case r != nil && r.Paused:
		return StateResuming
	case r == nil && s.Relay != nil:
		return StateNotLoaded // the relay has not read the new configuration yet
	case r == nil:
		return StateUnknown
	case r.stuck():
		return StateStuck
	case r.Down:
		return StateDown + " " + ago(r.DownFor)
	case r.State == observe.BreakerRamping.String() || r.State == observe.BreakerThrottled.String():
		return r.State
	case r.Blocked:
		return StateBlocked
	case r.FailingEvents > 0 && b.Waiting().Plus(b.Dead).N > 0:
		return StateFailing + " " + ago(r.Failing)
	case r.RateLimited:
		return StateLimited
	default:
		return StateUp
	}
}

// toneOf is the colour of a state.
func toneOf(state string) tone {
	if state == StateNotConfigured || state == StateNotLoaded {
		return bad
	}

	switch word, _, _ := strings.Cut(state, " "); word { // "down 5m"
	case StateUp, StateUnknown:
		return plain
	case StateDown, StateFailing, StateStuck:
		return bad
	default:
		return warn
	}
}

// nextTry returns when a delivery is tried again. A delivery that is due waits for its turn: a
// destination that is down gets one probe at a time.
func (s *Status) nextTry(d *observe.DestinationBacklog) string {
	r := s.destination(d.Name)

	switch {
	case d.Waiting().N == 0, !s.configured(d.Name):
		return "-"
	case d.Pause != nil:
		return "resume"
	case r != nil && r.Down && r.NextProbe > 0:
		return "probe " + ago(math.Ceil(r.NextProbe))
	case r != nil && r.Down:
		return "probe now"
	case r != nil && r.ThrottledFor > 0:
		return ago(math.Ceil(r.ThrottledFor))
	case d.NextDue == nil:
		return "-"
	case !d.NextDue.After(s.At):
		return "due"
	default:
		return ago(d.NextDue.Sub(s.At).Seconds())
	}
}

// rates are the relay's rates for a destination, as far as they are known.
func (s *Status) rates(name string) (delivered, failed string) {
	r := s.Relay.destination(name)
	if r == nil || r.PerSecond == nil || r.FailedPerSecond == nil {
		return "-", "-"
	}
	return rate(*r.PerSecond), rate(*r.FailedPerSecond)
}

// rate never shows a small rate as 0.
func rate(perSecond float64) string {
	if perSecond > 0 && perSecond < 1 {
		return "<1"
	}
	return fmt.Sprintf("%.0f", perSecond)
}

// errors returns the errors of deliveries, and the dead letters.
func (s *Status) errors() (failing, dead block) {
	failing = block{part: partOthers, title: "failing:", noun: "destinations"}
	dead = block{part: partOthers, title: "dead letters:", noun: "groups"}

	for _, d := range s.Backlog.Destinations {
		if e := d.LastError; e != nil {
			attempt := fmt.Sprintf("attempt %d", e.Attempts)
			if e.Attempts == 0 {
				attempt = "no attempt counted"
			}
			of := fmt.Sprintf("event %d (%s), %s, ", e.EventID, e.EventType, attempt)
			if e.EventID == 0 {
				of = ""
			}
			failing.add(plain, fmt.Sprintf("  %s: %s%s ago: %s", d.Name, of, ago(s.At.Sub(e.At).Seconds()), e.Text))
		}
	}

	for _, d := range s.Backlog.Destinations {
		if until, event := s.destination(d.Name).throttled(s.At); !until.IsZero() {
			failing.add(plain, fmt.Sprintf("  %s: throttled until %s by the answer to event %d", d.Name, cli.Moment(until), event))
		}
	}

	for _, d := range s.Backlog.Destinations {
		for _, g := range d.DeadLetters {
			dead.add(plain, fmt.Sprintf("  %s: %v x %s (newest: event %d, %s ago)",
				d.Name, g.Count, g.Error, g.EventID, ago(s.At.Sub(g.At).Seconds())))
		}
	}

	return failing, dead
}
