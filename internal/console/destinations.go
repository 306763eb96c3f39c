package console

import (
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
	State, Class              string
	DeliveredRate, FailedRate float64
	Chart                     chart
	Waits                     observe.DestinationBacklog
	Positions                 []positionRow // of a stream
	Known                     bool          // the two above are
	Elsewhere                 bool          // of another relay
	ReadOnly                  bool
	DeadLink, Anchor          string
	Link, Live                string
	Single                    bool // it is a page of its own
}

func (c *Console) destinations(w http.ResponseWriter, r *http.Request, s session) error {
	p := c.newPage("Destinations", "destinations", s, c.cards(c.sampler.now(r.Context())))
	p.Live = "destinations"
	p.Done = pauseText(r.URL.Query())
	return c.render(w, http.StatusOK, "destinations", p)
}

// destination shows all figures of one destination.
func (c *Console) destination(w http.ResponseWriter, r *http.Request, s session) error {
	name := r.URL.Query().Get("name")
	card := c.card(c.sampler.now(r.Context()), name)
	if card == nil {
		return notFound("There is no destination of that name, neither of this relay nor with a backlog.")
	}
	p := c.newPage(name, "destinations", s, card)
	p.Live = "destination"
	p.Done = pauseText(r.URL.Query())
	return c.render(w, http.StatusOK, "destination", p)
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

// card is the card of that name, nil if there is none.
func (c *Console) card(s snapshot, name string) *laneCard {
	all := c.cards(s)
	for i := range all {
		if all[i].Name == name {
			all[i].Single = true
			return &all[i]
		}
	}
	return nil
}

// cards are the destinations of this relay, then those that only the database knows.
func (c *Console) cards(s snapshot) []laneCard {
	known := !s.reading.at.IsZero() && s.reading.err == nil
	mine := make(map[string]bool)
	var all []laneCard
	add := func(card laneCard) {
		card.ReadOnly, card.Known = c.cfg.ReadOnly, known
		card.Anchor = "d-" + card.Name
		if known {
			card.Positions = positionsOf(s.reading.backlog, func(p *observe.Position) bool { return p.Destination == card.Name })
		}
		card.DeadLink = Path + "dead?destination=" + url.QueryEscape(card.Name)
		card.Link, card.Live = destinationPath(card.Name), Path+"live/destination?name="+url.QueryEscape(card.Name)
		all = append(all, card)
	}
	for _, d := range s.stats.Destinations {
		mine[d.Name] = true
		card := laneCard{DestinationStats: d, Waits: s.reading.backlog.Destination(d.Name)}
		card.State, card.Class = stateOf(d)
		card.DeliveredRate, card.FailedRate = rates(s, d.Name)
		list := s.lanes[d.Name]
		card.Chart = newChart("Delivered, and failed", "good", perSecond, series{"delivered", column(list, func(p lanePoint) float64 { return p.delivered })},
			series{"failed", column(list, func(p lanePoint) float64 { return p.failed })})
		add(card)
	}
	elsewhere := func(name string) {
		if known && name != "" && !mine[name] {
			mine[name] = true
			add(laneCard{
				DestinationStats: observe.DestinationStats{Name: name}, State: observe.StateNotConfigured, Class: "paused",
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

func destinationPath(name string) string { return Path + "destination?name=" + url.QueryEscape(name) }

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

func (c *Console) pause(w http.ResponseWriter, r *http.Request, _ session) error {
	return c.setPause(w, r, c.cfg.Pauser.Pause, "paused")
}

func (c *Console) resume(w http.ResponseWriter, r *http.Request, _ session) error {
	return c.setPause(w, r, func(ctx context.Context, name string, a ops.Action) error {
		_, err := c.cfg.Pauser.Resume(ctx, name, a)
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

func (c *Console) setPause(w http.ResponseWriter, r *http.Request, do func(context.Context, string, ops.Action) error, done string) error {
	name := r.PostForm.Get("destination")
	if !slices.ContainsFunc(c.cfg.Relay.Stats().Destinations, func(d observe.DestinationStats) bool { return d.Name == name }) {
		return notFound("This relay has no destination of that name.")
	}
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	if err := do(ctx, name, ops.Action{Actor: "the console at " + remoteHost(r), Reason: r.PostForm.Get("reason")}); err != nil {
		return err
	}
	c.cfg.Log.InfoContext(r.Context(), "action at the console", "action", done, "destination", name, "remote", r.RemoteAddr)
	c.sampler.sampleNow()
	target := Path + "destinations?done=" + done
	if r.PostForm.Get("single") != "" {
		target = destinationPath(name) + "&done=" + done
	}
	http.Redirect(w, r, target, http.StatusSeeOther) //nolint:gosec // below Path, with an escaped name
	return nil
}
