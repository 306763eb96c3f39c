package alert

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
)

const (
	// maxGroups bounds the memory between two messages. A destination has two groups at most, and there are a few more.
	maxGroups = 200
	// maxSamples is how many events a group names.
	maxSamples = 5
	// maxError bounds the text of an error.
	maxError = 300
)

// group holds the incidents of one kind at one destination.
type group struct {
	kind        delivery.IncidentKind
	destination string
	count       int
	first, last time.Time
	err         string // of the last one
	events      []sample
}

// sample is an event of an incident.
type sample struct {
	ID   int64  `json:"id"`
	Type string `json:"type"`
}

// add counts an incident in its group.
func add(groups []*group, i delivery.Incident) []*group {
	var g *group
	for _, known := range groups {
		if known.kind == i.Kind && known.destination == i.Destination {
			g = known
		}
	}

	if g == nil {
		if len(groups) >= maxGroups {
			return groups
		}
		g = &group{kind: i.Kind, destination: i.Destination, first: i.Time}
		groups = append(groups, g)
	}

	g.count++
	g.last = i.Time
	if i.Err != nil {
		g.err = shortened(i.Err.Error())
	}
	if i.EventID != 0 && len(g.events) < maxSamples {
		g.events = append(g.events, sample{i.EventID, i.EventType})
	}
	return groups
}

// shortened returns one line of at most maxError bytes.
func shortened(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
	if len(s) <= maxError {
		return s
	}

	s = s[:maxError]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "..."
}

// payload is .Payload in templates.
type payload struct {
	Source    string     `json:"source"`
	Title     string     `json:"title"`
	Text      string     `json:"text"`
	Incidents []incident `json:"incidents"`
}

type incident struct {
	Kind        string    `json:"kind"`
	Text        string    `json:"text"`
	Destination string    `json:"destination"`
	Count       int       `json:"count"`
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
	Error       string    `json:"error"`
	Events      []sample  `json:"events"`
}

// message converts the groups into an event. Its id is the time, so that a
// receiver distinguishes messages as it does events.
func message(groups []*group, source string, now time.Time) *delivery.Event {
	p := payload{Source: source, Incidents: make([]incident, 0, len(groups))}
	var titles, lines []string

	for _, g := range groups {
		i := incident{
			Kind:        g.kind.String(),
			Text:        g.text(),
			Destination: g.destination,
			Count:       g.count,
			First:       g.first.UTC(),
			Last:        g.last.UTC(),
			Error:       g.err,
			Events:      g.events,
		}
		p.Incidents = append(p.Incidents, i)
		titles = append(titles, i.Text)
		lines = append(lines, g.line())
	}

	const shown = 3
	if more := len(titles) - shown; more > 0 {
		titles = append(titles[:shown], fmt.Sprintf("%d more", more))
	}
	p.Title = strings.TrimSpace("notifyd "+source) + ": " + strings.Join(titles, "; ")
	p.Text = strings.Join(lines, "\n")

	body, err := json.Marshal(p)
	if err != nil { // texts, numbers and times cannot fail
		body = []byte(`{}`)
	}

	return &delivery.Event{
		ID:            now.UnixMicro(),
		Type:          EventType,
		AggregateType: "notifyd",
		AggregateID:   source,
		Payload:       body,
		CreatedAt:     now,
	}
}

// text describes the incidents without their error.
func (g *group) text() string {
	switch g.kind {
	case delivery.IncidentDead:
		if g.count == 1 {
			return "a dead letter for " + g.destination
		}
		return fmt.Sprintf("%d dead letters for %s", g.count, g.destination)
	case delivery.IncidentDown:
		return g.destination + " is down" + g.times()
	case delivery.IncidentUp:
		return g.destination + " is up" + g.times()

	case delivery.IncidentDatabaseLost:
		return "no connection to the database" + g.times()
	case delivery.IncidentDatabaseBack:
		return "connected to the database again" + g.times()
	case delivery.IncidentRefused:
		return "the database refuses to record deliveries" + g.times()
	case delivery.IncidentAccepted:
		return "the database records deliveries again" + g.times()

	case delivery.IncidentListenerLost:
		return "not listening, events are found by polling" + g.times()
	case delivery.IncidentListenerBack:
		return "listening again" + g.times()

	case delivery.IncidentHang:
		return "relay hangs" + g.times()
	case delivery.IncidentHangOver:
		return "the relay goes on" + g.times()

	case delivery.IncidentHeldBack:
		return g.destination + " is gone, and holds back the purge" + g.times()
	case delivery.IncidentStale:
		return "events wait too long"
	case delivery.IncidentCaughtUp:
		return "events no longer wait too long"
	case delivery.IncidentRepeats:
		return g.destination + " gets events again: the database has lost what it knew of them" + g.times()
	default:
		return g.kind.String() + g.times()
	}
}

func (g *group) times() string {
	if g.count < 2 {
		return ""
	}
	return fmt.Sprintf(" (%d times)", g.count)
}

// line is the text with the time, the error and the events.
func (g *group) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", g.last.UTC().Format(time.RFC3339), g.text())
	if g.err != "" {
		b.WriteString(": " + g.err)
	}

	for n, e := range g.events {
		if n == 0 {
			b.WriteString(" [event")
		}
		fmt.Fprintf(&b, " %d %s", e.ID, e.Type)
	}

	if len(g.events) > 0 {
		if g.count > len(g.events) {
			b.WriteString(" ...")
		}
		b.WriteString("]")
	}

	return b.String()
}
