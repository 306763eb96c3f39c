package status

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/observe"
)

// maxError is how much of an error is shown, in characters.
const maxError = 160

// Table returns the status as text for people. No line is longer than width
// characters; 0 is no limit. clean makes text from the tables safe for a
// terminal.
func (s *Status) Table(width int, clean func(string) string) string {
	var b strings.Builder
	s.head(&b)
	s.destinations(&b)
	s.positions(&b)
	s.errors(&b)
	if len(s.Attention) > 0 {
		b.WriteString("\nneeds a person:\n")
		for _, a := range s.Attention {
			fmt.Fprintf(&b, "  %s\n    %s\n", a.Text, a.Cure)
		}
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	for i, line := range lines {
		lines[i] = cut(strings.TrimRight(clean(line), " "), width)
	}
	return strings.Join(lines, "\n") + "\n"
}

// cut shortens a line; width 0 is no limit.
func cut(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(0, width-1)]) + ">"
}

func (s *Status) head(b *strings.Builder) {
	fmt.Fprintf(b, "%-9s %s, %s\n", "database", s.Database, s.At.UTC().Format(time.RFC3339))
	fmt.Fprintf(b, "%-9s %s, version %d", "schema", s.Schema.Name, s.Schema.Version)
	if s.Schema.Version != s.Schema.Latest {
		fmt.Fprintf(b, " of %d", s.Schema.Latest)
	}
	fmt.Fprintf(b, ", %s\n", s.Mode)
	if len(s.Relays) == 0 {
		fmt.Fprintf(b, "%-9s none\n", "relays")
	}
	for i, r := range s.Relays {
		name := ""
		if i == 0 {
			name = "relays"
		}
		fmt.Fprintf(b, "%-9s pid %d, %s, user %s%s%s\n", name, r.PID, r.Application, r.User, prefixed(", from ", r.Client), s.since(r.Since))
	}
	bell := string(s.Bell.Mode)
	if h := s.Bell.Silent; h != nil {
		bell += fmt.Sprintf(", silent: a relay is awake (pid %d)", h.PID)
	} else if s.Bell.Mode != "off" {
		bell += ", rings"
	}
	fmt.Fprintf(b, "%-9s %s\n", "bell", bell)
	oldest := "nothing waits"
	if o := s.Backlog.Oldest; o != nil {
		oldest = fmt.Sprintf("oldest %s (event %d)", ago(o.Age), o.EventID)
	}
	fmt.Fprintf(b, "%-9s %v fresh, %v delayed, %s\n", "events", s.Backlog.Fresh, s.Backlog.Delayed, oldest)
	if r := s.Relay; r != nil {
		fmt.Fprintf(b, "%-9s %s: database %s, %s\n", "admin", r.Address, choose(r.DatabaseUp, "up", "down"), choose(r.Listening, "listening", "polling"))
	}
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

func choose(is bool, yes, no string) string { //nolint:revive // one label or the other
	if is {
		return yes
	}
	return no
}

// destinations prints a line for each destination that the database or the relay knows.
func (s *Status) destinations(b *strings.Builder) {
	names := s.names()
	if len(names) == 0 {
		return
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = io.WriteString(w, "fresh\tretry\trunning\tparked\tdead\toldest\tnext try\tstate\tper s\t destination\n") // to a strings.Builder
	for _, name := range names {
		d := s.Backlog.Destination(name)
		oldest, next := "-", "-"
		if d.Oldest != nil {
			oldest = ago(d.Oldest.Age)
		}
		if d.NextDue != nil {
			next = ago(d.NextDue.Sub(s.At).Seconds())
		}
		state, rate := s.live(name)
		line := fmt.Sprintf("%v\t%v\t%v\t%v\t%v\t%s\t%s\t%s\t%s\t %s\n", d.Fresh, d.Retry, d.Running, d.Parked, d.Dead, oldest, next, state, rate, name)
		_, _ = io.WriteString(w, line) // to a strings.Builder, as the next ones
	}
	_ = w.Flush()
}

// names are the names of all destinations, those of the relay first.
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
	for _, d := range s.Backlog.Destinations {
		add(d.Name)
	}
	return all
}

// live is the relay's report about a destination.
func (s *Status) live(name string) (state, rate string) {
	if s.Relay == nil {
		return "?", "?"
	}
	for _, d := range s.Relay.Destinations {
		if d.Name != name {
			continue
		}
		rate = "-"
		if d.PerSecond != nil {
			rate = fmt.Sprintf("%.0f", *d.PerSecond)
		}
		if d.Paused { // whether it is down shows when it is resumed
			return "paused", rate
		}
		if d.State == observe.BreakerRamping.String() || d.State == observe.BreakerThrottled.String() {
			return d.State, rate
		}
		return choose(d.Unavailable, "down", "up"), rate
	}
	return "?", "?"
}

// errors prints why deliveries fail, and the dead letters.
func (s *Status) errors(b *strings.Builder) {
	failing, dead := "\nfailing:\n", "\ndead letters:\n"
	for _, d := range s.Backlog.Destinations {
		if e := d.LastError; e != nil {
			b.WriteString(failing)
			failing = ""
			fmt.Fprintf(b, "  %s: event %d (%s), attempt %d, %s ago: %s\n", d.Name, e.EventID, e.EventType, e.Attempts, ago(s.At.Sub(e.At).Seconds()), cut(e.Text, maxError))
		}
	}
	for _, d := range s.Backlog.Destinations {
		for _, g := range d.DeadLetters {
			b.WriteString(dead)
			dead = ""
			fmt.Fprintf(b, "  %s: %v x %s (newest: event %d, %s ago)\n", d.Name, g.Count, cut(g.Error, maxError), g.EventID, ago(s.At.Sub(g.At).Seconds()))
		}
	}
}
