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

// cards returns the card of each destination.
func (o *outbox) cards(s snapshot, readOnly bool) (all []laneCard) {
	for _, name := range s.names() {
		all = append(all, o.newCard(s, name, readOnly))
	}
	return all
}

// card returns the card of that name for its separate page, or nil.
func (o *outbox) card(s snapshot, name string, readOnly bool) *laneCard {
	if !slices.Contains(s.names(), name) {
		return nil
	}
	card := o.newCard(s, name, readOnly)
	card.Single = true
	return &card
}

// newCard returns the card of a destination. It is one of another relay if this one does not have it.
func (o *outbox) newCard(s snapshot, name string, readOnly bool) laneCard {
	card := laneCard{
		DestinationStats: observe.DestinationStats{Name: name}, State: observe.StateNotConfigured, Class: "paused", Elsewhere: true,
		Waits: s.reading.backlog.Destination(name), Known: s.known(), Base: o.base, ReadOnly: readOnly, Anchor: "d-" + name,
	}
	mine := slices.IndexFunc(s.stats.Destinations, func(d observe.DestinationStats) bool { return d.Name == name })
	if mine >= 0 {
		card.DestinationStats, card.Elsewhere = s.stats.Destinations[mine], false
		card.State, card.Class = stateOf(card.DestinationStats, !card.Known || remain(&card.Waits))
		card.DeliveredRate, card.FailedRate = rates(s, name)
		points := s.lanes[name]
		card.Chart = newChart("Delivered, and failed", "good", perSecond,
			series{"delivered", column(points, func(p lanePoint) float64 { return p.delivered })},
			series{"failed", column(points, func(p lanePoint) float64 { return p.failed })})
	}
	if card.Known {
		card.Positions = positionsOf(s.reading.backlog, func(p *observe.Position) bool { return p.Destination == name })
	}

	card.DeadLink, card.WaitingLink = o.deadPath(name), o.waitingPath(name)
	card.ReceiverLink = o.destinationPath(card.DeadLettersTo)
	card.Link, card.Live = o.destinationPath(name), o.base+"live/destination?name="+url.QueryEscape(name)
	return card
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
		return notFound("This relay has no destination of that name.")
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
