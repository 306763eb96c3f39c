package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/ops"
)

const (
	// groupsShown and lettersShown bound a page, and groupsAsked the page that asks for a confirmation.
	groupsShown  = 200
	lettersShown = 50
	groupsAsked  = 20
	// lettersChosen bounds a form.
	lettersChosen = 1000
	// actionTimeout bounds a discard. Letters that were discarded by then stay so, and
	// the page shows how many are left.
	actionTimeout = 20 * time.Second
	// answerTimeout bounds such a request altogether.
	answerTimeout = actionTimeout + 10*time.Second
)

// deadBody is the page of dead letters: those that the filter chooses.
type deadBody struct {
	ops.DeadLetterFilter

	Destinations []string // to choose from
	Groups       []groupRow
	More         bool // there are more groups
	Letters      []letterRow
	// Count is the number of letters that the filter chooses; -1 where they could not be counted.
	Count int64
	Next  string
	First string // the first page; "" on it
}

type groupRow struct {
	ops.DeadLetterGroup
	Link string
}

type letterRow struct {
	ops.DeadLetter
	Value string // in forms
}

// dead shows the dead letters that match a filter: as groups of the same error, and each.
func (o *outbox) dead(w http.ResponseWriter, r *http.Request, v viewer) error {
	q := r.URL.Query()
	client := o.tables.Load().client

	f, err := filterOf(q)
	if err != nil {
		return err
	}

	f.Events = nil
	var after ops.DeliveryRef
	if q.Has("after") {
		after, err = letterOf(q.Get("after"))
		if err != nil {
			return err
		}
	}

	b := deadBody{DeadLetterFilter: f, Count: -1, Destinations: o.deadDestinations(r.Context(), f.Destination)}
	if q.Has("after") {
		b.First = o.base + "dead?" + queryOf(f).Encode()
	} else if f.Fingerprint == "" {
		groups, err := client.DeadLetterGroups(r.Context(), f, groupsShown+1)
		if err != nil {
			return err
		}
		b.More = len(groups) > groupsShown
		b.Groups = o.groupRows(groups[:min(len(groups), groupsShown)])
	}

	list, err := client.DeadLetters(r.Context(), f, after, lettersShown)
	if err != nil {
		return err
	}
	for _, l := range list.Letters {
		b.Letters = append(b.Letters, letterRow{l, letterValue(l.DeliveryRef)})
	}

	if counted, err := client.ReplayDeadLetters(r.Context(), allOf(f), ops.BulkAction{DryRun: true}); err == nil {
		b.Count = counted.Matched // the page works without it, as with millions of letters
	}

	if list.Next != nil {
		next := queryOf(f)
		next.Set("after", letterValue(*list.Next))
		b.Next = o.base + "dead?" + next.Encode()
	}

	p := o.newPage("Dead letters", "dead", v, b)
	p.Done = doneText(q)
	return o.render(w, http.StatusOK, "dead", p)
}

// deadDestinations returns the names to choose from: of this relay, and those with dead letters.
func (o *outbox) deadDestinations(ctx context.Context, chosen string) (names []string) {
	s := o.sampler.now(ctx)
	names = s.configured()

	for _, d := range s.reading.backlog.Destinations {
		if d.Dead.N > 0 {
			names = append(names, d.Name)
		}
	}
	if chosen != "" {
		names = append(names, chosen)
	}

	slices.Sort(names)
	return slices.Compact(names)
}

func (o *outbox) groupRows(groups []ops.DeadLetterGroup) (rows []groupRow) {
	for _, g := range groups {
		query := queryOf(ops.DeadLetterFilter{Destination: g.Destination, Type: g.Type, Fingerprint: g.Fingerprint})
		rows = append(rows, groupRow{g, o.base + "dead?" + query.Encode()})
	}
	return rows
}

// confirmBody is the page that states what an action on several dead letters will do.
type confirmBody struct {
	ops.DeadLetterFilter

	Discard bool
	Count   int64
	Values  []string // of the chosen letters; nil for all that the filter chooses
	Groups  []groupRow
	More    bool // there are more groups
	Back    string
}

// confirm asks for a confirmation of an action on several dead letters. It changes nothing.
func (o *outbox) confirm(w http.ResponseWriter, r *http.Request, v viewer) error {
	form := r.PostForm
	back, err := filterOf(form)
	if err != nil {
		return err
	}

	b := confirmBody{
		DeadLetterFilter: back,
		Discard:          form.Get("do") == "discard",
		Back:             o.base + "dead?" + queryOf(back).Encode(),
	}

	form.Del("all")
	switch form.Get("which") {
	case "page":
		form["letter"] = form["shown"]
	case "all":
		form.Del("letter")
		form.Set("all", "yes")
	}

	b.Values = form["letter"]
	f, err := chosen(form)
	if err != nil {
		return err
	}

	client := o.tables.Load().client
	counted, err := client.ReplayDeadLetters(r.Context(), f, ops.BulkAction{DryRun: true})
	if err != nil {
		return err
	}

	b.Count = counted.Matched
	if b.Count == 0 {
		return failure{http.StatusConflict, "These dead letters are gone: another person has replayed or discarded them."}
	}

	f.All = false // an empty filter lists all
	groups, err := client.DeadLetterGroups(r.Context(), f, groupsAsked+1)
	if err != nil {
		return err
	}

	b.More = len(groups) > groupsAsked
	b.Groups = o.groupRows(groups[:min(len(groups), groupsAsked)])

	title := "Replay dead letters"
	if b.Discard {
		title = "Discard dead letters"
	}

	return o.render(w, http.StatusOK, "confirm", o.newPage(title, "dead", v, b))
}

// confirmed refuses an action on more letters than the page has stated: some have died since.
func (o *outbox) confirmed(ctx context.Context, form url.Values, f ops.DeadLetterFilter) error {
	if !form.Has("n") {
		return nil
	}

	stated, err := strconv.ParseInt(form.Get("n"), 10, 64)
	if err != nil {
		return badRequest("The number of dead letters is malformed.")
	}

	counted, err := o.tables.Load().client.ReplayDeadLetters(ctx, f, ops.BulkAction{DryRun: true})
	if err != nil {
		return err
	}

	if counted.Matched > stated {
		return failure{http.StatusConflict, fmt.Sprintf("Nothing was done: you have confirmed %s dead letters, and there are %s by now. "+
			"Go back to the list, and choose again.",
			showCount(float64(stated)), showCount(float64(counted.Matched)))}
	}
	return nil
}

func (o *outbox) discard(w http.ResponseWriter, r *http.Request, v viewer) error {
	if r.PostForm.Get("sure") != "yes" {
		return badRequest("Discarding cannot be undone: go back, and tick that you are sure.")
	}

	f, reason, err := o.chosenNow(r)
	if err != nil {
		return err
	}

	// The server's limit is for pages.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout)) // without it, the limit stays

	// A browser that leaves does not stop the action half-way.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actionTimeout)
	defer cancel()

	finished := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { // a daemon that stops does not wait for the action
		select {
		case <-o.ended:
			cancel()
		case <-finished:
		}
	})

	result, err := o.tables.Load().client.DiscardDeadLetters(ctx, f, ops.BulkAction{Actor: v.by(), Reason: reason})
	close(finished)
	watch.Wait()

	if err != nil && (result.Done == 0 || !errors.Is(err, context.DeadlineExceeded)) {
		return err
	}

	o.cfg.Log.InfoContext(ctx, "console action", "action", "discarded", "destination", f.Destination,
		"fingerprint", f.Fingerprint, "letters", result.Done, "actor", v.by(), "remote", r.RemoteAddr)

	q := queryOf(f)
	q.Set("done", "discarded")
	q.Set("n", strconv.FormatInt(result.Done, 10))
	if left := result.Matched - result.Done; left > 0 {
		q.Set("left", strconv.FormatInt(left, 10))
	}

	target := o.base + "dead?"
	switch list := r.PostForm.Get("list"); {
	case len(f.Events) == 1:
		target = o.eventPath(f.Events[0]) + "?"
	case list != "": // with its filter
		target = o.localPath(list) + "&"
		q.Del("destination")
		q.Del("type")
		q.Del("fingerprint")
	}

	http.Redirect(w, r, target+q.Encode(), http.StatusSeeOther) //nolint:gosec // localPath made it
	return nil
}

// chosenNow reads which letters a form selects for an action, and why, and checks the number that was confirmed.
func (o *outbox) chosenNow(r *http.Request) (f ops.DeadLetterFilter, reason string, err error) {
	f, err = chosen(r.PostForm)
	if err != nil {
		return f, "", err
	}

	reason = r.PostForm.Get("reason")
	if err := checkText(reason); err != nil {
		return f, "", err
	}

	return f, reason, o.confirmed(r.Context(), r.PostForm, f)
}

// chosen reads which letters a form selects: some of them, those of events at a destination, or with "all" those of a filter.
func chosen(form url.Values) (f ops.DeadLetterFilter, err error) {
	f, err = filterOf(form)
	if err != nil {
		return f, err
	}

	switch {
	case form.Has("letter"):
		if len(form["letter"]) > lettersChosen {
			return f, badRequest(fmt.Sprintf("A form chooses %d dead letters at most.", lettersChosen))
		}

		f = ops.DeadLetterFilter{Letters: []ops.DeliveryRef{}}
		for _, text := range form["letter"] {
			ref, err := letterOf(text)
			if err != nil {
				return f, err
			}
			f.Letters = append(f.Letters, ref)
		}
		return f, nil
	case f.Events != nil && f.Destination != "":
		return f, nil
	case f.Events == nil && form.Get("all") == "yes":
		return allOf(f), nil
	default:
		return f, badRequest("Choose some dead letters, or all that match the filter.")
	}
}

// allOf returns a filter of the page of dead letters for an action: an empty one chooses every letter.
func allOf(f ops.DeadLetterFilter) ops.DeadLetterFilter {
	f.All = f.Destination == "" && f.Type == "" && f.Fingerprint == ""
	return f
}

// letterValue is a dead letter in forms and addresses.
func letterValue(l ops.DeliveryRef) string {
	return strconv.FormatInt(l.EventID, 10) + " " + l.Destination
}

// letterOf reads a letterValue.
func letterOf(text string) (ops.DeliveryRef, error) {
	number, destination, ok := strings.Cut(text, " ")
	if !ok {
		return ops.DeliveryRef{}, badRequest("A dead letter has the id of an event and a destination.")
	}

	id, err := parseID(number)
	if err != nil {
		return ops.DeliveryRef{}, err
	}

	return ops.DeliveryRef{EventID: id, Destination: destination}, checkText(destination)
}

// doneText reports the last action. It trusts only numbers of the address, which
// anyone may have written.
func doneText(q url.Values) string {
	switch q.Get("done") {
	case "edited":
		return "Edited. Nothing is delivered yet: replay it."
	case "retried":
		return "Due now."
	case "buried":
		return "It is a dead letter now: replay or discard it."
	case "discarded":
	default:
		return ""
	}

	n, err := strconv.ParseUint(q.Get("n"), 10, 63)
	if err != nil {
		return ""
	}

	text := "Discarded: " + showCount(float64(n)) + "."
	if left, err := strconv.ParseUint(q.Get("left"), 10, 63); err == nil {
		text += " Not done: " + showCount(float64(left)) + ", because time ran out, another person was quicker, " +
			"or their events are gone. Repeat the action for the rest."
	}

	return text
}

// filterOf reads the filter for dead letters.
func filterOf(v url.Values) (f ops.DeadLetterFilter, err error) {
	for _, name := range []string{"destination", "type", "fingerprint"} {
		if err := checkText(v.Get(name)); err != nil {
			return f, err
		}
	}

	f = ops.DeadLetterFilter{Destination: v.Get("destination"), Type: v.Get("type"), Fingerprint: v.Get("fingerprint")}
	for _, text := range v["event"] {
		id, err := parseID(text)
		if err != nil {
			return f, err
		}
		f.Events = append(f.Events, id)
	}

	return f, f.Validate()
}

func queryOf(f ops.DeadLetterFilter) url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"destination": f.Destination, "type": f.Type, "fingerprint": f.Fingerprint} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}
