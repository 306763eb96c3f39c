package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/ops"
)

const (
	// eventsShown bounds a page, in events.
	eventsShown = 50
	// maxText bounds a search text, in bytes.
	maxText = 1024
	// maxEdited bounds a payload that may be edited here, in bytes, and maxEditForm the form with
	// it: a browser encodes it.
	maxEdited   = 512 << 10
	maxEditForm = 3 * maxEdited
)

type eventsBody struct {
	ops.EventFilter

	States []ops.State
	// Names are the destinations. SinceText is the chosen one of Ages.
	Names     []string
	SinceText string
	Ages      []age
	Rows      []eventRow
	Next      string
	// Looked reports the progress of a search that has not filled its page.
	Looked string
	First  bool
}

// age is a choice of the search: events that are not older.
type age struct{ Value, Text string }

// ages are the choices of the search.
func ages() []age {
	return []age{
		{"", "at any time"},
		{"1h", "in the last hour"},
		{"24h", "in the last 24 hours"},
		{"168h", "in the last 7 days"},
		{"720h", "in the last 30 days"},
	}
}

// eventRow is the row of an event.
type eventRow struct {
	ops.Event

	// Notable are the destinations that have not received it at once.
	Notable []ops.Destination
}

// events searches, or leads to the one event whose id is given.
func (o *outbox) events(w http.ResponseWriter, r *http.Request, v viewer) error {
	q := r.URL.Query()
	if id := strings.TrimSpace(q.Get("id")); id != "" {
		n, err := parseID(id)
		if err != nil {
			return err
		}
		http.Redirect(w, r, o.eventPath(n), http.StatusSeeOther) //nolint:gosec // below Path, with a number
		return nil
	}

	f, err := searchOf(q)
	if err != nil {
		return err
	}

	since := strings.TrimSpace(q.Get("since"))
	if o.router != nil {
		f.Routes = o.router.DestinationsOf
	}

	found, err := o.tables.Load().client.Events(r.Context(), f, eventsShown)
	if err != nil {
		return err
	}

	b := eventsBody{
		EventFilter: f,
		First:       f.Upto == nil,
		States:      []ops.State{ops.Waiting, ops.Dead, ops.Done},
		SinceText:   since,
		Ages:        ages(),
	}
	for _, d := range o.relay.Stats().Destinations {
		b.Names = append(b.Names, d.Name)
	}
	for i := range found.Events {
		b.Rows = append(b.Rows, eventRow{found.Events[i], notable(&found.Events[i])})
	}

	if found.Next != nil {
		next := f
		next.Upto = found.Next
		b.Next = o.base + "events?" + searchQuery(next, since).Encode()
		if len(b.Rows) < eventsShown {
			b.Looked = fmt.Sprintf("Searched %s events, down to %d.", showCount(float64(found.Searched)), *found.Next+1)
		}
	}

	return o.render(w, http.StatusOK, "events", o.newPage("Events", "events", v, b))
}

func notable(e *ops.Event) []ops.Destination {
	return slices.DeleteFunc(slices.Clone(e.Destinations), func(d ops.Destination) bool {
		return d.State == ops.Delivered || d.State == ops.NotRouted
	})
}

func searchOf(q url.Values) (f ops.EventFilter, err error) {
	f = ops.EventFilter{
		Type:          strings.TrimSpace(q.Get("type")),
		AggregateType: strings.TrimSpace(q.Get("aggregate_type")),
		AggregateID:   strings.TrimSpace(q.Get("aggregate_id")),
		State:         ops.State(q.Get("state")),
		Destination:   strings.TrimSpace(q.Get("destination")),
	}

	if since := strings.TrimSpace(q.Get("since")); since != "" {
		f.NewerThan, err = time.ParseDuration(since)
		if err != nil {
			return f, badRequest("The age is a duration, such as 24h.")
		}
	}

	for _, text := range []string{f.Type, f.AggregateType, f.AggregateID, f.Destination} {
		if err := checkText(text); err != nil {
			return f, err
		}
	}

	if q.Has("upto") {
		upto, err := parseID(q.Get("upto"))
		if err != nil {
			return f, err
		}
		f.Upto = &upto
	}

	return f, f.Validate()
}

// searchQuery returns the query of a page; since is the bound in time as it was typed.
func searchQuery(f ops.EventFilter, since string) url.Values {
	fields := map[string]string{
		"type":           f.Type,
		"aggregate_type": f.AggregateType,
		"aggregate_id":   f.AggregateID,
		"state":          string(f.State),
		"destination":    f.Destination,
		"since":          since,
	}

	q := url.Values{}
	for name, value := range fields {
		if value != "" {
			q.Set(name, value)
		}
	}
	if f.Upto != nil {
		q.Set("upto", strconv.FormatInt(*f.Upto, 10))
	}
	return q
}

type eventBody struct {
	ops.Case

	Hidden bool
	// Edit is the payload to edit; "" where that is not possible, as with one that is not JSON.
	Edit string
	// Refused reports that the role of the relay may not edit payloads.
	Refused bool
	// Routes are the destinations of this relay for an event that was not tried yet.
	Routes []string
}

// People are the actions of people.
func (b *eventBody) People() []ops.AuditEntry {
	return slices.DeleteFunc(slices.Clone(b.Audit), ops.AuditEntry.ByRelay)
}

// Acknowledged are the deliveries of replays, which relays have recorded.
func (b *eventBody) Acknowledged() []ops.AuditEntry {
	return slices.DeleteFunc(slices.Clone(b.Audit), func(e ops.AuditEntry) bool { return !e.ByRelay() })
}

// event shows all details of an event.
func (o *outbox) event(w http.ResponseWriter, r *http.Request, v viewer) error {
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		return err
	}

	found, err := o.tables.Load().client.Case(r.Context(), id)
	if err != nil {
		return err
	}

	b := eventBody{Case: found, Hidden: o.cfg.HidePayloads}
	dead := false
	for _, d := range found.Event.Destinations {
		dead = dead || d.State == ops.Dead
		if d.State == ops.Fresh && o.router != nil {
			b.Routes = o.router.DestinationsOf(found.Event.Type)
		}
	}

	for _, d := range o.relay.Stats().Destinations {
		if t := d.Trouble; !t.ThrottledUntil.IsZero() {
			pause := ops.Throttled{Destination: d.Name, Until: t.ThrottledUntil, ByEvent: t.ThrottledBy}
			b.Event.Throttle(pause, slices.Contains(b.Routes, d.Name))
		}
	}

	if b.Hidden {
		b.Event.Payload = nil
		b.Event.PayloadBytes = nil
		for i := range b.Audit {
			b.Audit[i].OldPayload = nil
			b.Audit[i].OldPayloadBytes = nil
		}
	}

	if dead && !o.readOnly(v) && len(b.Event.Payload) <= maxEdited {
		may, err := o.tables.Load().client.MayEdit(r.Context())
		if err != nil {
			return err
		}
		b.Refused = !may
		if may {
			b.Edit = string(b.Event.Payload)
		}
	}

	p := o.newPage("Event "+strconv.FormatInt(id, 10), "events", v, &b)
	p.Done = doneText(r.URL.Query())
	return o.render(w, http.StatusOK, "event", p)
}

// edit replaces the payload of an event that is dead.
func (o *outbox) edit(w http.ResponseWriter, r *http.Request, v viewer) error {
	id, err := parseID(r.PostForm.Get("event"))
	if err != nil {
		return err
	}

	if o.cfg.HidePayloads {
		return forbidden("Payloads are hidden (admin.payloads).")
	}

	reason := r.PostForm.Get("reason")
	if err := checkText(reason); err != nil {
		return err
	}

	// A browser sends each end of a line as two characters.
	payload := strings.ReplaceAll(r.PostForm.Get("payload"), "\r\n", "\n")
	err = o.tables.Load().client.EditEvent(r.Context(), id, []byte(payload), ops.Action{Actor: v.by(), Reason: reason})
	if err != nil {
		return err
	}

	o.cfg.Log.InfoContext(r.Context(), "console action", "action", "edited",
		"event_id", id, "actor", v.by(), "remote", r.RemoteAddr)
	http.Redirect(w, r, o.eventPath(id)+"?done=edited", http.StatusSeeOther) //nolint:gosec // below Path, with a number
	return nil
}

// retry makes a waiting delivery due now.
func (o *outbox) retry(w http.ResponseWriter, r *http.Request, v viewer) error {
	id, err := parseID(r.PostForm.Get("event"))
	if err != nil {
		return err
	}

	name := r.PostForm.Get("destination")
	if err := checkText(name); err != nil {
		return err
	}

	err = o.tables.Load().client.RetryNow(r.Context(), ops.DeliveryRef{EventID: id, Destination: name}, ops.Action{Actor: v.by()})
	if err != nil {
		return err
	}

	o.cfg.Log.InfoContext(r.Context(), "console action", "action", "retried",
		"event_id", id, "destination", name, "actor", v.by(), "remote", r.RemoteAddr)
	http.Redirect(w, r, o.eventPath(id)+"?done=retried", http.StatusSeeOther) //nolint:gosec // below Path, with a number
	return nil
}

// bury makes a waiting delivery a dead letter.
func (o *outbox) bury(w http.ResponseWriter, r *http.Request, v viewer) error {
	id, err := parseID(r.PostForm.Get("event"))
	if err != nil {
		return err
	}

	name := r.PostForm.Get("destination")
	reason := r.PostForm.Get("reason")
	if err := errors.Join(checkText(name), checkText(reason)); err != nil {
		return err
	}

	chosen := ops.WaitingFilter{Deliveries: []ops.DeliveryRef{{EventID: id, Destination: name}}}
	result, err := o.tables.Load().client.BuryWaiting(r.Context(), chosen, ops.BulkAction{Actor: v.by(), Reason: reason})
	if err != nil {
		return err
	}

	if result.Done == 0 {
		return fmt.Errorf("bury event %d for %q: it is being delivered at this moment, or has ended: %w", id, name, ops.ErrNotWaiting)
	}

	o.cfg.Log.InfoContext(r.Context(), "console action", "action", "buried",
		"event_id", id, "destination", name, "actor", v.by(), "remote", r.RemoteAddr)
	http.Redirect(w, r, o.eventPath(id)+"?done=buried", http.StatusSeeOther) //nolint:gosec // below Path, with a number
	return nil
}

func (o *outbox) eventPath(id int64) string { return o.base + "events/" + strconv.FormatInt(id, 10) }

func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, badRequest("The id of an event is a number.")
	}
	return id, nil
}

// checkText refuses text that PostgreSQL cannot hold.
func checkText(text string) error {
	switch {
	case len(text) > maxText:
		return badRequest(fmt.Sprintf("That is longer than %d bytes.", maxText))
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return badRequest("That is not valid text.")
	default:
		return nil
	}
}

// stateClass is the color of the state of an event, or of a delivery.
func stateClass(s ops.State) string {
	switch s {
	case ops.Dead:
		return "bad"
	case ops.Done, ops.Delivered:
		return "good"
	case ops.Waiting, ops.Parked, ops.Unrouted, ops.Unknown:
		return "warn"
	default:
		return "calm"
	}
}

// words describes a delivery beyond its state.
func words(d ops.Destination) []ops.Phrase { return d.Words(time.Now()) }
