package console

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// laneCard is the card of a destination.
type laneCard struct {
	observe.DestinationStats
	Base                      string
	State, Class              string
	DeliveredRate, FailedRate float64
	Chart                     chart
	Waits                     observe.DestinationBacklog
	Positions                 []positionRow // of a stream
	Known                     bool          // the two above are
	Elsewhere                 bool          // of another relay
	Unrelayed                 bool          // there are no counters
	ReadOnly                  bool
	WaitingLink               string
	DeadLink, ReceiverLink    string // ReceiverLink leads to the destination that gets the dead letters
	Anchor                    string
	Link, Live                string
	Single                    bool // the card has a separate page
}

func (o *outbox) destinations(w http.ResponseWriter, r *http.Request, v viewer) error {
	p := o.newPage("Destinations", "destinations", v, o.cards(o.sampler.now(r.Context()), o.readOnly(v)))
	p.Live = "destinations"
	p.Done = pauseText(r.URL.Query())
	return o.render(w, http.StatusOK, "destinations", p)
}

// destination shows all figures of one destination.
func (o *outbox) destination(w http.ResponseWriter, r *http.Request, v viewer) error {
	name := r.URL.Query().Get("name")
	card := o.card(o.sampler.now(r.Context()), name, o.readOnly(v))
	if card == nil {
		return notFound("There is no destination of that name, neither of this relay nor with a backlog.")
	}
	p := o.newPage(name, "destinations", v, card)
	p.Live = "destination"
	p.Done = pauseText(r.URL.Query())
	return o.render(w, http.StatusOK, "destination", p)
}

func pauseText(q url.Values) string {
	switch q.Get("done") {
	case "paused":
		return "The pause is stored. Each relay takes note within about a second; deliveries that are under way end as usual, and the rest waits in the table."
	case "resumed":
		return "Resumed."
	default:
		return ""
	}
}

// deadPath leads to the dead letters of a destination.
func (o *outbox) deadPath(name string) string {
	return o.base + "dead?destination=" + url.QueryEscape(name)
}

// waitingPath leads to the events that wait for a destination.
func (o *outbox) waitingPath(name string) string {
	return o.base + "events?" + searchQuery(ops.EventFilter{Destination: name, State: ops.Waiting}, "").Encode()
}

// card returns the card of that name, or nil.
func (o *outbox) card(s snapshot, name string, readOnly bool) *laneCard {
	all := o.cards(s, readOnly)
	for i := range all {
		if all[i].Name == name {
			all[i].Single = true
			return &all[i]
		}
	}
	return nil
}

// cards are the destinations of this relay, then those that only the database knows.
func (o *outbox) cards(s snapshot, readOnly bool) []laneCard {
	known := s.known()
	mine := make(map[string]bool)
	var all []laneCard
	add := func(card laneCard) {
		card.Base, card.ReadOnly, card.Known, card.Unrelayed = o.base, readOnly, known, o.unrelayed
		card.Anchor = "d-" + card.Name
		if known {
			card.Positions = positionsOf(s.reading.backlog, func(p *observe.Position) bool { return p.Destination == card.Name })
		}
		card.DeadLink, card.WaitingLink = o.deadPath(card.Name), o.waitingPath(card.Name)
		card.ReceiverLink = o.destinationPath(card.DeadLettersTo)
		card.Link, card.Live = o.destinationPath(card.Name), o.base+"live/destination?name="+url.QueryEscape(card.Name)
		all = append(all, card)
	}
	for _, d := range s.stats.Destinations {
		mine[d.Name] = true
		card := laneCard{DestinationStats: d, Waits: s.reading.backlog.Destination(d.Name)}
		card.State, card.Class = stateOf(d, !known || remain(&card.Waits))
		card.DeliveredRate, card.FailedRate = o.rates(s, d.Name)
		list := s.lanes[d.Name]
		card.Chart = newChart("Delivered, and failed", "good", perSecond, series{"delivered", column(list, func(p lanePoint) float64 { return p.delivered })},
			series{"failed", column(list, func(p lanePoint) float64 { return p.failed })})
		add(card)
	}
	state := observe.StateNotConfigured
	if o.unrelayed { // no live relay has it, which need not mean that none is to have it
		state = observe.StateUnknown
	}
	elsewhere := func(name string) {
		if known && name != "" && !mine[name] {
			mine[name] = true
			add(laneCard{
				DestinationStats: observe.DestinationStats{Name: name}, State: state, Class: "paused",
				Waits: s.reading.backlog.Destination(name), Elsewhere: true,
			})
		}
	}
	for _, d := range s.reading.backlog.Destinations {
		elsewhere(d.Name)
	}
	for _, p := range s.reading.backlog.Positions { // also of destinations without a backlog
		elsewhere(p.Destination)
	}
	return all
}

func (o *outbox) destinationPath(name string) string {
	return o.base + "destination?name=" + url.QueryEscape(name)
}

// positionRow is a position of a stream.
type positionRow struct {
	observe.Position

	Title   string
	Blocked observe.Count
}

// positionsOf returns some positions of a stream, none of a queue.
func positionsOf(b observe.Backlog, wanted func(*observe.Position) bool) (rows []positionRow) {
	for _, p := range b.Positions {
		if wanted(&p) {
			rows = append(rows, positionRow{Position: p, Title: p.Name(), Blocked: b.Destination(p.Destination).Blocked})
		}
	}
	return rows
}

func (o *outbox) pause(w http.ResponseWriter, r *http.Request, v viewer) error {
	return o.setPause(w, r, v, o.pauser.Pause, "paused")
}

func (o *outbox) resume(w http.ResponseWriter, r *http.Request, v viewer) error {
	return o.setPause(w, r, v, func(ctx context.Context, name string, a ops.Action) error {
		_, err := o.pauser.Resume(ctx, name, a)
		return err
	}, "resumed")
}

// remoteHost is the viewer's host.
func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

func (o *outbox) setPause(w http.ResponseWriter, r *http.Request, v viewer, do func(context.Context, string, ops.Action) error, done string) error {
	name := r.PostForm.Get("destination")
	if !slices.ContainsFunc(o.relay.Stats().Destinations, func(d observe.DestinationStats) bool { return d.Name == name }) {
		return notFound("No relay of this page has a destination of that name.")
	}
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	by := cmp.Or(v.actor, "the console at "+remoteHost(r))
	if err := do(ctx, name, ops.Action{Actor: by, Reason: r.PostForm.Get("reason")}); err != nil {
		return err
	}
	o.cfg.Log.InfoContext(r.Context(), "console action", "action", done, "destination", name, "actor", v.by(), "remote", r.RemoteAddr)
	o.sampler.sampleNow()
	target := o.base + "destinations?done=" + done
	switch r.PostForm.Get("back") {
	case "overview":
		target = o.base + "?done=" + done
	case "destination":
		target = o.destinationPath(name) + "&done=" + done
	}
	http.Redirect(w, r, target, http.StatusSeeOther) //nolint:gosec // below Path, with an escaped name
	return nil
}
