package console

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// countedEvents bounds how many events are counted before a replay begins.
const countedEvents = 100_000

// replaysShown bounds the replays on the page of a position.
const replaysShown = 10

// positionBody is the page of a position.
type positionBody struct {
	ops.PositionDetails

	Name    string
	Back    string
	Rows    []positionRow
	Running *rangeRow
	Replays []observe.Replay // of the destination, the newest first, without the running one
}

// rangeRow is a running replay.
type rangeRow struct {
	observe.Replay

	Outcome ops.ReplayOutcome
}

// planBody is the page that describes the planned change and asks for confirmation.
type planBody struct {
	Name, Back string
	Seek       *ops.Moved // nil for a replay
	Next       int64      // of a seek: the first id that comes
	Replay     *observe.Replay
	Types      []ops.TypeCount
	Total      int64
	More       bool // not all were counted
	KeepIDs    bool
	Reason     string
}

func (o *outbox) positionPath(name string) string {
	return o.base + "position?name=" + url.QueryEscape(name)
}

// position shows the position of a destination of a stream, and its replays.
func (o *outbox) position(w http.ResponseWriter, r *http.Request, v viewer) error {
	name := r.URL.Query().Get("name")
	b, err := o.positionOf(r.Context(), name)
	if err != nil {
		return err
	}

	p := o.newPage("Position of "+name, "destinations", v, b)
	switch r.URL.Query().Get("done") {
	case "moved":
		p.Done = "Moved. The relay that has the destination goes on from there within about a second."
	case "replayed":
		p.Done = "Requested. The relay that has the destination begins within about a second."
	case "stopped":
		p.Done = "Stopped. What has failed goes on as a retry or a dead letter."
	}

	return o.render(w, http.StatusOK, "position", p)
}

func (o *outbox) positionOf(ctx context.Context, name string) (b positionBody, err error) {
	client := o.tables.Load().client
	b = positionBody{Name: name, Back: o.destinationPath(name)}
	b.PositionDetails, err = client.Position(ctx, name)
	if err != nil {
		return b, err
	}

	b.Rows = positionsOf(o.sampler.now(ctx), b.Parts, name)
	all, err := client.Replays(ctx)
	if err != nil {
		return b, err
	}

	for i := range all {
		switch {
		case all[i].Destination != name:
		case all[i].State == observe.ReplayRunning:
			b.Running = &rangeRow{}
			b.Running.Replay, b.Running.Outcome, err = client.Replay(ctx, all[i].ID)
			if err != nil {
				return b, err
			}
		case len(b.Replays) < replaysShown:
			b.Replays = append(b.Replays, all[i])
		}
	}
	return b, nil
}

// plan describes the effect of a seek or a replay, with a form that starts exactly that.
func (o *outbox) plan(w http.ResponseWriter, r *http.Request, v viewer) error {
	q := r.URL.Query()
	client := o.tables.Load().client
	b := planBody{Name: q.Get("name"), Back: o.positionPath(q.Get("name")), Reason: q.Get("reason")}
	dry := ops.Action{Actor: v.by(), DryRun: true}

	if q.Get("do") == "seek" {
		m, err := client.Seek(r.Context(), b.Name, q.Get("to"), dry)
		if err != nil {
			return err
		}
		b.Seek = &m
		b.Next = m.To + 1
		return o.render(w, http.StatusOK, "plan", o.newPage("Move "+b.Name, "destinations", v, b))
	}

	what, err := rangeOf(q)
	if err != nil {
		return err
	}

	planned, err := client.StartReplay(r.Context(), what, dry)
	if err != nil {
		return err
	}

	b.Replay = &planned
	b.KeepIDs = what.KeepIDs
	b.Types, b.More, err = client.CountReplay(r.Context(), planned, countedEvents)
	if err != nil {
		return err
	}

	for _, t := range b.Types {
		b.Total += t.Count
	}

	return o.render(w, http.StatusOK, "plan", o.newPage("Replay to "+b.Name, "destinations", v, b))
}

// rangeOf reads a range from a form.
func rangeOf(q url.Values) (ops.ReplayRange, error) {
	what := ops.ReplayRange{Destination: q.Get("name"), From: q.Get("from"), To: q.Get("to"), KeepIDs: q.Get("keep") != ""}
	for _, text := range q["type"] {
		what.Types = append(what.Types, strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })...)
	}

	if text := q.Get("rate"); text != "" {
		rate, isRate := parseRate(text)
		if !isRate {
			return what, badRequest("The rate is a number of events per second, such as 50.")
		}
		what.Rate = rate
	}

	return what, nil
}

// parseRate reads a number of events per second. It reports false for any other text.
func parseRate(text string) (float64, bool) {
	rate, err := strconv.ParseFloat(text, 64)
	isNumber := err == nil && !math.IsNaN(rate) && !math.IsInf(rate, 0)
	return rate, isNumber && rate >= 0
}

// seek moves a position.
func (o *outbox) seek(w http.ResponseWriter, r *http.Request, v viewer) error {
	name := r.PostForm.Get("name")
	action := ops.Action{Actor: v.by(), Reason: r.PostForm.Get("reason")}
	m, err := o.tables.Load().client.Seek(r.Context(), name, r.PostForm.Get("to"), action)
	if err != nil {
		return err
	}

	o.cfg.Log.InfoContext(r.Context(), "console action", "action", "moved", "destination", name,
		"from", m.From, "to", m.To, "actor", v.by(), "remote", r.RemoteAddr)
	return o.backTo(w, r, name, "moved")
}

// replayRange requests a replay of a range.
func (o *outbox) replayRange(w http.ResponseWriter, r *http.Request, v viewer) error {
	what, err := rangeOf(r.PostForm)
	if err != nil {
		return err
	}

	action := ops.Action{Actor: v.by(), Reason: r.PostForm.Get("reason")}
	begun, err := o.tables.Load().client.StartReplay(r.Context(), what, action)
	if err != nil {
		return err
	}

	o.cfg.Log.InfoContext(r.Context(), "console action", "action", "replayed a range", "destination", what.Destination,
		"replay", begun.ID, "from", begun.From, "to", begun.To, "actor", v.by(), "remote", r.RemoteAddr)
	return o.backTo(w, r, what.Destination, "replayed")
}

// stopRange stops a replay of a range.
func (o *outbox) stopRange(w http.ResponseWriter, r *http.Request, v viewer) error {
	id, err := strconv.ParseInt(r.PostForm.Get("id"), 10, 64)
	if err != nil {
		return badRequest("A replay has a number.")
	}

	action := ops.Action{Actor: v.by(), Reason: r.PostForm.Get("reason")}
	ended, err := o.tables.Load().client.StopReplay(r.Context(), id, action)
	if err != nil {
		return err
	}

	o.cfg.Log.InfoContext(r.Context(), "console action", "action", "stopped a replay", "destination", ended.Destination,
		"replay", id, "actor", v.by(), "remote", r.RemoteAddr)
	return o.backTo(w, r, ended.Destination, "stopped")
}

func (o *outbox) backTo(w http.ResponseWriter, r *http.Request, name, done string) error {
	o.sampler.sampleNow()
	http.Redirect(w, r, o.positionPath(name)+"&done="+done, http.StatusSeeOther) //nolint:gosec // below Path, with an escaped name
	return nil
}

// Holding names what prevents a purge of events above an id; "" if this destination does not prevent it.
func (b positionBody) Holding() string {
	i := slices.IndexFunc(b.Parts, func(p observe.Position) bool { return p.HoldsBack })
	switch {
	case i >= 0:
		return "The position keeps the events above " + strconv.FormatInt(b.Parts[i].Lowest, 10) + " from being purged."
	case len(b.Parts) > 0 && b.Parts[0].Replay != nil && b.Parts[0].Replay.HoldsBack:
		return "The replay keeps the events above " + strconv.FormatInt(b.Parts[0].Replay.Lowest, 10) + " from being purged."
	}
	return ""
}
