package console

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/internal/store"
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

// pauseBody is the page that asks why a destination is to be paused.
type pauseBody struct {
	Name, Back string
	Single     bool // the page of the destination led here
}

// askPause asks for the reason of a pause. It changes nothing.
func (o *outbox) askPause(w http.ResponseWriter, r *http.Request, v viewer) error {
	q := r.URL.Query()
	name := q.Get("destination")
	if !o.sampler.now(r.Context()).has(name) {
		return notFound("This relay has no destination of that name.")
	}

	b := pauseBody{Name: name, Back: o.base + "destinations", Single: q.Get("back") == "destination"}
	if b.Single {
		b.Back = o.destinationPath(name)
	}

	return o.render(w, http.StatusOK, "pause", o.newPage("Pause "+name, "destinations", v, b))
}

func pauseText(q url.Values) string {
	switch q.Get("done") {
	case "paused":
		return "The pause is stored. Each relay takes note within about a second; " +
			"deliveries that are under way end as usual, and the rest waits in the table."
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
		DestinationStats: observe.DestinationStats{Name: name},
		State:            status.StateNotConfigured,
		Class:            "paused",
		Elsewhere:        true,
		Waits:            s.reading.backlog.Destination(name),
		Known:            s.known(),
		Base:             o.base,
		ReadOnly:         readOnly,
		Unrelayed:        o.unrelayed,
		Anchor:           "d-" + name,
	}
	if o.unrelayed { // no live relay has it, which need not mean that none is to have it
		card.State = status.StateUnknown
	}

	mine := slices.IndexFunc(s.stats.Destinations, func(d observe.DestinationStats) bool { return d.Name == name })
	if mine >= 0 {
		card.DestinationStats = s.stats.Destinations[mine]
		card.Elsewhere = false
		card.State, card.Class = stateOf(card.DestinationStats, !card.Known || remain(&card.Waits))
		card.DeliveredRate, card.FailedRate = o.rates(s, name)

		points := s.lanes[name]
		card.Chart = newChart("Delivered, and failed", "good", perSecond,
			series{"delivered", column(points, func(p lanePoint) float64 { return p.delivered })},
			series{"failed", column(points, func(p lanePoint) float64 { return p.failed })})
	}
	if card.Known {
		card.Positions = positionsOf(s, s.reading.backlog.Positions, name)
	}

	card.DeadLink = o.deadPath(name)
	card.WaitingLink = o.waitingPath(name)
	card.ReceiverLink = o.destinationPath(card.DeadLettersTo)
	card.Link = o.destinationPath(name)
	card.Live = o.base + "live/destination?name=" + url.QueryEscape(name)
	return card
}

func (o *outbox) destinationPath(name string) string {
	return o.base + "destination?name=" + url.QueryEscape(name)
}

// positionRow is a position of a stream.
type positionRow struct {
	observe.Position

	Title string
	By    string // the relay that delivers; "" for none
}

// positionsOf returns the positions of a destination of a stream, none of a queue.
func positionsOf(s snapshot, all []observe.Position, destination string) (rows []positionRow) {
	for _, p := range all {
		if p.Destination == destination {
			rows = append(rows, positionRow{p, p.Name(), relayOfPosition(&p, s.reading.relays)})
		}
	}
	return rows
}

// relayOfPosition names the relay that delivers a position; "" for none.
func relayOfPosition(p *observe.Position, relays []store.RelaySession) string {
	if p.Session == nil {
		return ""
	}

	for _, r := range relays {
		if r.Program != nil && p.Owner != nil && r.Owner == *p.Owner {
			return relayRow{Program: *r.Program}.Name()
		}
	}

	return "a relay that does not describe itself"
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

func (o *outbox) setPause(
	w http.ResponseWriter, r *http.Request, v viewer, do func(context.Context, string, ops.Action) error, done string,
) error {
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

	o.cfg.Log.InfoContext(r.Context(), "console action", "action", done,
		"destination", name, "actor", v.by(), "remote", r.RemoteAddr)
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
