package console

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/notifyd/notifyd/observe"
)

// note is a problem under the heading "Action required".
type note struct {
	Text string
	Link string // a page of the console; "" for none
	Bad  bool
}

type overviewBody struct {
	Charts    []chart
	Notes     []note
	Lanes     []laneRow
	WakeState string
	Oldest    *observe.Waiting
}

// laneRow is the row of a destination.
type laneRow struct {
	Name, Link             string
	State, Class           string
	DeliveredRate, FailedR float64
	Waiting, Dead          observe.Count
	Known                  bool // the two above are
}

func (c *Console) overview(w http.ResponseWriter, r *http.Request, s session) error {
	p := c.newPage("Overview", "overview", s, overviewOf(c.sampler.now(r.Context())))
	p.Live = "overview"
	return c.render(w, http.StatusOK, "overview", p)
}

func overviewOf(s snapshot) overviewBody {
	b := overviewBody{WakeState: s.stats.WakeState, Notes: notesOf(s)}
	get := func(of func(point) float64) []float64 { return column(s.points, of) }
	b.Charts = []chart{
		newChart("Delivered", "good", perSecond, series{"", get(func(p point) float64 { return p.delivered })}),
		newChart("Failed calls", "bad", perSecond, series{"", get(func(p point) float64 { return p.failed })}),
		newChart("Latency", "slow", duration, series{"p99", get(func(p point) float64 { return p.p99 })}, series{"p50", get(func(p point) float64 { return p.median })}),
		newChart("Waiting", "wait", eventCount, series{"", get(func(p point) float64 { return p.waiting })}),
	}
	known := !s.reading.at.IsZero() && s.reading.err == nil
	for _, d := range s.stats.Destinations {
		row := laneRow{Name: d.Name, Link: destinationPath(d.Name), Known: known}
		row.State, row.Class = stateOf(d)
		row.DeliveredRate, row.FailedR = rates(s, d.Name)
		waits := s.reading.backlog.Destination(d.Name)
		row.Waiting, row.Dead = waits.Waiting(), waits.Dead
		b.Lanes = append(b.Lanes, row)
	}
	if known {
		b.Oldest = s.reading.backlog.Oldest
	}
	return b
}

// has reports whether the relay has a destination.
func (s snapshot) has(name string) bool {
	return slices.ContainsFunc(s.stats.Destinations, func(d observe.DestinationStats) bool { return d.Name == name })
}

// delivered reports whether a relay has a shard of a destination, in a stream. In a queue that is not known.
func (s snapshot) delivered(name string) bool {
	return slices.ContainsFunc(s.reading.backlog.Positions, func(p observe.Position) bool { return p.Destination == name && p.Session != nil })
}

// downFor returns how long a destination has been down, or "" if that is unknown.
func downFor(now, since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return ", for " + showSeconds(max(0, now.Sub(since).Truncate(time.Second).Seconds()))
}

// rates are the rates of the last ten seconds.
func rates(s snapshot, name string) (delivered, failed float64) {
	const window = 10
	list := s.lanes[name]
	list = list[max(0, len(list)-window):]
	for _, p := range list {
		delivered, failed = delivered+p.delivered, failed+p.failed
	}
	n := math.Max(1, float64(len(list)))
	return delivered / n, failed / n
}

func stateOf(d observe.DestinationStats) (text, class string) {
	switch {
	case d.Paused:
		return observe.StatePaused, "paused"
	case d.Unavailable:
		return observe.StateDown, "bad"
	case d.State == observe.BreakerRamping, d.State == observe.BreakerThrottled:
		return d.State.String(), "warn"
	case d.Report != nil && d.Report.Blocked:
		return observe.StateBlocked, "warn"
	case d.Trouble.Failures > 0:
		return observe.StateFailing, "bad"
	case d.RateLimited:
		return observe.StateLimited, "warn"
	default:
		return observe.StateUp, "good"
	}
}

// pausedBy returns by whom and why a destination is paused, as far as known.
func pausedBy(p *observe.Pause) string {
	if p == nil {
		return ""
	}
	if p.Reason == "" {
		return " by " + p.By
	}
	return fmt.Sprintf(" by %s (%s)", p.By, p.Reason)
}

// databaseText explains why no event is delivered. cure is the cure of a refusal, empty during an outage.
func databaseText(cure string) string {
	if cure == "" {
		return "The database does not answer the relay. Nothing is delivered until it does."
	}
	return "The database refuses the relay. Nothing is delivered until it does not. To do: " + cure + "."
}

// notesOf lists the problems that do not fix themselves, most urgent first.
func notesOf(s snapshot) (notes []note) {
	if s.stats.DatabaseDown {
		notes = append(notes, note{Text: databaseText(s.stats.DatabaseCure), Bad: true})
	}
	for _, r := range s.stats.Refusals {
		notes = append(notes, note{Text: fmt.Sprintf("The database refuses statements of the relay (%s): %v. Nothing is delivered that cannot be recorded. To do: %s.", r.Part, r.Err, r.Cure), Bad: true})
	}
	if l := s.stats.Listener; l != nil && (!l.Listening || l.Trouble != nil) {
		notes = append(notes, note{Text: "Notifications are not heard: events are found by polling."})
	}
	if s.reading.err != nil {
		notes = append(notes, note{Text: "The backlog is not known: " + explain(s.reading.err).text})
	}
	for _, d := range s.stats.Destinations {
		link := destinationPath(d.Name)
		switch {
		case d.Paused:
			notes = append(notes, note{fmt.Sprintf("%s is paused%s: its events wait until it is resumed.", d.Name, pausedBy(s.reading.backlog.Destination(d.Name).Pause)), link, false})
		case d.Unavailable:
			notes = append(notes, note{fmt.Sprintf("%s is down%s: its events wait and lose no attempt. %s", d.Name, downFor(s.at, d.Trouble.DownSince), d.Trouble.LastError), link, true})
		}
	}
	if s.reading.err != nil {
		return notes
	}
	for _, p := range s.reading.backlog.Positions {
		if p.OtherRelays > 0 && p.Shard == 0 {
			notes = append(notes, note{fmt.Sprintf("Relays wait for %s: %d. They are configured with another number of shards, or with other routes, than those that deliver to it.", p.Destination, p.OtherRelays), Path + "relays", true})
		}
		if p.Session == nil && (p.Destination == "" || s.has(p.Destination)) {
			notes = append(notes, note{fmt.Sprintf("No relay delivers %s: its shard has no owner.", p.Name()), Path + "relays", true})
		}
	}
	for _, d := range s.reading.backlog.Destinations {
		if waits := d.Waiting(); waits.N > 0 && !s.has(d.Name) && !s.delivered(d.Name) {
			text, _ := number(waits) // no error: it is a count
			notes = append(notes, note{fmt.Sprintf("This relay has no destination %s. Deliveries that wait for it: %s.", d.Name, text), destinationPath(d.Name), false})
		}
		if d.Dead.N > 0 {
			text, _ := number(d.Dead) // no error: it is a count
			link := Path + "dead?destination=" + url.QueryEscape(d.Name)
			notes = append(notes, note{fmt.Sprintf("Dead letters of %s: %s.", d.Name, text), link, true})
		}
	}
	for _, t := range s.reading.backlog.Unrouted {
		text, _ := number(t.Count) // no error: it is a count
		notes = append(notes, note{fmt.Sprintf("No route matches the event type %s. Events that wait: %s.", t.EventType, text), Path + "events?type=" + url.QueryEscape(t.EventType), true})
	}
	return notes
}
