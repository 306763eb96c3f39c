package console

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/notifyd/notifyd/ops"
)

const (
	// replaysKept bounds the replays that are remembered, and replaysRunning those under way.
	replaysKept    = 50
	replaysRunning = 8
	// replayWatched bounds how long a replay is watched after its last letter.
	replayWatched = 15 * time.Minute
	// replayFirst is how long the browser that has begun a replay waits for its end. Most replays
	// have ended by then, and letters that die again do so within milliseconds.
	replayFirst = 2 * time.Second
	// replayLook is the first pause between two looks at the letters of a replay, and replayLookLast the longest.
	replayLook     = 50 * time.Millisecond
	replayLookLast = 2 * time.Second
)

// replays are those begun at this console since the daemon started.
type replays struct {
	mu      sync.Mutex
	all     []*replay // oldest first
	running sync.WaitGroup
	ended   bool
}

// replay is one replay, and the outcome of its letters.
type replay struct {
	ID          string
	Destination string  // "" for several
	Events      []int64 // those that were chosen; nil for others
	Rate        float64 // per second; 0 means no limit
	Begun       time.Time

	watch   *ops.Watch
	stop    context.CancelCauseFunc // ends the replaying of letters
	forget  context.CancelCauseFunc // and ends the watch over them
	over    chan struct{}           // closed when no further letter is replayed
	settled chan struct{}           // closed when the last dead letter is settled

	mu     sync.Mutex
	result ops.BulkResult
	err    error
}

// replayBody is the data of its page.
type replayBody struct {
	*replay

	Base     string
	Result   ops.BulkResult
	Became   ops.WatchCounts
	Groups   []groupRow
	Over     bool // no further letter is replayed
	Watched  bool // its letters are still watched
	Stopped  string
	Back     string
	ReadOnly bool
}

var (
	errReplayStopped = errors.New("a person has stopped it")
	errReplayEnded   = errors.New("the daemon has stopped")
)

// start begins a replay in the background.
func (o *outbox) start(ctx context.Context, f ops.DeadLetterFilter, a ops.BulkAction) (*replay, error) {
	l := &o.replays
	l.mu.Lock()
	defer l.mu.Unlock()

	under := 0
	for _, r := range l.all {
		if !closed(r.over) {
			under++
		}
	}

	if l.ended || under >= replaysRunning {
		return nil, failure{http.StatusServiceUnavailable, "Too many replays are under way. Stop one, or wait."}
	}

	if len(l.all) == replaysKept {
		if !closed(l.all[0].over) {
			return nil, failure{http.StatusServiceUnavailable, "The oldest replay is still under way. Stop it, or wait."}
		}
		l.all[0].forget(errReplayStopped)
		l.all = l.all[1:]
	}

	client := o.tables.Load().client
	r := &replay{
		ID:          rand.Text(),
		Destination: oneDestination(f),
		Events:      f.Events,
		Rate:        a.Rate,
		Begun:       time.Now(),
		watch:       client.Watch(),
		over:        make(chan struct{}),
		settled:     make(chan struct{}),
	}

	// A browser that leaves does not stop the replay.
	looking, forget := context.WithCancelCause(context.WithoutCancel(ctx))
	replaying, stop := context.WithCancelCause(looking)
	r.forget = forget
	r.stop = stop
	l.all = append(l.all, r)

	l.running.Go(func() {
		defer forget(nil)
		defer close(r.settled)
		r.look(looking)
	})

	l.running.Go(func() {
		defer stop(nil)
		defer close(r.over)

		a.Acted = r.watch.Add
		a.Progress = func(now ops.BulkResult) { r.set(now, nil) }
		result, err := client.ReplayDeadLetters(replaying, f, a)
		r.set(result, err)
		o.cfg.Log.InfoContext(looking, "console action", "action", "replayed", "destination", f.Destination,
			"fingerprint", f.Fingerprint, "letters", result.Done, "actor", a.Actor, "err", err)
	})

	return r, nil
}

// oneDestination returns the destination of all letters that a filter chooses; "" for several.
func oneDestination(f ops.DeadLetterFilter) string {
	name := f.Destination
	for i, l := range f.Letters {
		if i > 0 && l.Destination != name {
			return ""
		}
		name = l.Destination
	}
	return name
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (r *replay) set(result ops.BulkResult, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.result = result
	r.err = err
}

// look looks at the letters until none of them waits.
func (r *replay) look(ctx context.Context) {
	var until time.Time
	for pause := replayLook; ctx.Err() == nil; pause = min(2*pause, replayLookLast) {
		over := closed(r.over) // before the look, which then sees all letters
		b, err := r.watch.Update(ctx)

		if over && until.IsZero() {
			until = time.Now().Add(replayWatched)
		}
		isSettled := err == nil && b.Waiting == 0
		if over && (isSettled || time.Now().After(until)) {
			return
		}

		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// end stops all replays, and waits for them.
func (l *replays) end() {
	l.mu.Lock()
	l.ended = true
	for _, r := range l.all {
		r.forget(errReplayEnded)
	}
	l.mu.Unlock()

	l.running.Wait()
}

func (l *replays) find(id string) *replay {
	l.mu.Lock()
	defer l.mu.Unlock()

	for _, r := range l.all {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// body is the current state of a replay.
func (o *outbox) replayBody(r *replay, readOnly bool) replayBody {
	b := replayBody{replay: r, Base: o.base, Became: r.watch.Counts(), ReadOnly: readOnly, Back: o.base + "dead"}

	r.mu.Lock()
	b.Result = r.result
	err := r.err
	r.mu.Unlock()

	b.Over = closed(r.over)
	b.Watched = !closed(r.settled)

	switch {
	case errors.Is(err, errReplayStopped), errors.Is(err, errReplayEnded):
		b.Stopped = "Stopped: the remaining letters are unchanged."
	case err != nil:
		b.Stopped = explain(err).text
	}

	b.Groups = o.groupRows(b.Became.Groups[:min(len(b.Became.Groups), groupsShown)])
	if len(r.Events) == 1 {
		b.Back = o.eventPath(r.Events[0])
	}

	return b
}

// showReplay shows the outcome of the letters of a replay.
func (o *outbox) showReplay(w http.ResponseWriter, r *http.Request, v viewer) error {
	id := r.URL.Query().Get("id")
	found := o.replays.find(id)
	if found == nil {
		return notFound("This relay does not know that replay: it remembers its last ones, until it stops. " +
			"The dead letters and the events show the outcome.")
	}

	b := o.replayBody(found, o.readOnly(v))
	if list := r.URL.Query().Get("list"); list != "" {
		b.Back = o.localPath(list)
	}

	p := o.newPage("Replay", "dead", v, b)
	p.Live = "replay"
	return o.render(w, http.StatusOK, "replay", p)
}

// replay begins to replay the letters that the form selects.
func (o *outbox) replay(w http.ResponseWriter, r *http.Request, v viewer) error {
	f, reason, err := o.chosenNow(r)
	if err != nil {
		return err
	}

	rate := 0.0
	if text := r.PostForm.Get("rate"); text != "" {
		var isRate bool
		rate, isRate = parseRate(text)
		if !isRate {
			return badRequest("The rate is a number of letters per second, such as 50.")
		}
	}

	begun, err := o.start(r.Context(), f, ops.BulkAction{Actor: v.by(), Reason: reason, Rate: rate})
	if err != nil {
		return err
	}

	timer := time.NewTimer(replayFirst)
	defer timer.Stop()
	select {
	case <-begun.settled:
	case <-timer.C:
	case <-o.ended:
	}

	q := url.Values{"id": {begun.ID}}
	if list := r.PostForm.Get("list"); list != "" {
		q.Set("list", list)
	}

	http.Redirect(w, r, o.base+"dead/replays?"+q.Encode(), http.StatusSeeOther)
	return nil
}

// stopReplay ends a replay between two of its transactions.
func (o *outbox) stopReplay(w http.ResponseWriter, r *http.Request, _ viewer) error {
	found := o.replays.find(r.PostForm.Get("id"))
	if found == nil {
		return notFound("This relay does not know that replay.")
	}

	found.stop(errReplayStopped)
	select {
	case <-found.over:
	case <-o.ended:
	}

	http.Redirect(w, r, o.base+"dead/replays?"+url.Values{"id": {found.ID}}.Encode(), http.StatusSeeOther)
	return nil
}
