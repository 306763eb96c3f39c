package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/notifyd/notifyd/ops"
)

const (
	// actor is the name of console users in the audit.
	actor = "console"
	// groupsShown and lettersShown bound a page.
	groupsShown, lettersShown = 200, 50
	// actionTimeout bounds a discard. Letters that were discarded by then stay so, and
	// the page shows how many are left.
	actionTimeout = 20 * time.Second
	// answerTimeout bounds such a request altogether.
	answerTimeout = actionTimeout + 10*time.Second
)

type deadBody struct {
	Destination, Type string
	Groups            []groupRow
	More              bool
}

type groupRow struct {
	ops.DeadLetterGroup
	Link string
}

func (c *Console) dead(w http.ResponseWriter, r *http.Request, s session) error {
	f, err := filterOf(r.URL.Query())
	if err != nil {
		return err
	}
	groups, err := c.tables.Load().client.DeadLetterGroups(r.Context(), f, groupsShown+1)
	if err != nil {
		return err
	}
	b := deadBody{Destination: f.Destination, Type: f.Type, More: len(groups) > groupsShown}
	b.Groups = groupRows(groups[:min(len(groups), groupsShown)])
	p := c.newPage("Dead letters", "dead", s, b)
	p.Done = doneText(r.URL.Query())
	return c.render(w, http.StatusOK, "dead", p)
}

func groupRows(groups []ops.DeadLetterGroup) (rows []groupRow) {
	for _, g := range groups {
		rows = append(rows, groupRow{g, Path + "dead/group?" + queryOf(ops.DeadLetterFilter{
			Destination: g.Destination, Type: g.Type, Fingerprint: g.Fingerprint,
		}).Encode()})
	}
	return rows
}

type groupBody struct {
	ops.DeadLetterFilter
	Letters []ops.DeadLetter
	// Count is the number of letters in the group; -1 where it could not be counted.
	Count int64
	Next  string
	First bool
}

// group shows the letters of a group, and the actions for all of them.
func (c *Console) group(w http.ResponseWriter, r *http.Request, s session) error {
	q := r.URL.Query()
	f, err := filterOf(q)
	if err != nil {
		return err
	}
	if f.Destination == "" || f.Fingerprint == "" {
		return badRequest("A group has a destination and a fingerprint.")
	}
	var after ops.DeliveryRef
	if q.Has("after") {
		if after.EventID, err = parseID(q.Get("after")); err != nil {
			return err
		}
		after.Destination = f.Destination
	}
	list, err := c.tables.Load().client.DeadLetters(r.Context(), f, after, lettersShown)
	if err != nil {
		return err
	}
	b := groupBody{DeadLetterFilter: f, Letters: list.Letters, First: !q.Has("after"), Count: -1}
	if b.First {
		if counted, err := c.tables.Load().client.ReplayDeadLetters(r.Context(), f, ops.BulkAction{DryRun: true}); err == nil {
			b.Count = counted.Matched // the page works without it, as with millions of letters
		}
	}
	if list.Next != nil {
		next := queryOf(f)
		next.Set("after", strconv.FormatInt(list.Next.EventID, 10))
		b.Next = Path + "dead/group?" + next.Encode()
	}
	p := c.newPage("Dead letters of "+f.Destination, "dead", s, b)
	p.Done = doneText(q)
	return c.render(w, http.StatusOK, "group", p)
}

func (c *Console) discard(w http.ResponseWriter, r *http.Request, _ session) error {
	if r.PostForm.Get("sure") != "yes" {
		return badRequest("Discarding cannot be undone: go back, and tick that you are sure.")
	}
	f, reason, err := chosen(r.PostForm)
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
		case <-c.ended:
			cancel()
		case <-finished:
		}
	})
	result, err := c.tables.Load().client.DiscardDeadLetters(ctx, f, ops.BulkAction{Actor: actor, Reason: reason})
	close(finished)
	watch.Wait()
	if err != nil && (result.Done == 0 || !errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	c.cfg.Log.InfoContext(ctx, "action at the console", "action", "discarded", "destination", f.Destination,
		"fingerprint", f.Fingerprint, "letters", result.Done, "remote", r.RemoteAddr)
	q := url.Values{"done": {"discarded"}, "n": {strconv.FormatInt(result.Done, 10)}}
	if left := result.Matched - result.Done; left > 0 {
		q.Set("left", strconv.FormatInt(left, 10))
	}
	target := Path + "dead?"
	if len(f.Events) == 1 {
		target = eventPath(f.Events[0]) + "?"
	}
	http.Redirect(w, r, target+q.Encode(), http.StatusSeeOther)
	return nil
}

// chosen reads which letters a form selects for an action, and why.
func chosen(form url.Values) (f ops.DeadLetterFilter, reason string, err error) {
	if f, err = filterOf(form); err != nil {
		return f, "", err
	}
	if f.Destination == "" || f.Fingerprint == "" && f.Events == nil || form.Has("chosen") && f.Events == nil {
		return f, "", badRequest("Choose a group of dead letters, or some of them.")
	}
	reason = form.Get("reason")
	return f, reason, checkText(reason)
}

// doneText reports the last action. It trusts only numbers of the address, which
// anyone may have written.
func doneText(q url.Values) string {
	switch q.Get("done") {
	case "edited":
		return "Edited. Nothing is delivered yet: replay it."
	case "retried":
		return "Due now."
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
		text += " Not done: " + showCount(float64(left)) + ", because time ran out, another person was quicker, or their events are gone. Repeat the action for the rest."
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
	return url.Values{"destination": {f.Destination}, "type": {f.Type}, "fingerprint": {f.Fingerprint}}
}
