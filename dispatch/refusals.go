package dispatch

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// sayAgain is how often a refusal that lasts is logged: each part tries for as long as it takes.
const sayAgain = time.Minute

// refusals are the statements that the database refuses at present.
type refusals struct {
	log      *slog.Logger
	observer delivery.Observer

	open atomic.Int32 // how many parts are refused something

	mu     sync.Mutex
	parts  map[string]*observe.Refusal
	logged map[string]said // by part, so that what comes and goes is not logged each time
}

// said is the last line about a part.
type said struct {
	what string
	at   time.Time
	open bool // nothing has said that it is over
}

// report records a refusal, or the end of one: then r.Err is nil.
func (f *refusals) report(r observe.Refusal) {
	if r.Err == nil && f.open.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	known := f.parts[r.Part]
	switch {
	case r.Err == nil:
		f.endLocked(now, known)
		return
	case known == nil:
		if f.parts == nil {
			f.parts, f.logged = make(map[string]*observe.Refusal), make(map[string]said)
		}
		r.Since = now
		known = &r
		f.parts[r.Part] = known
		if f.open.Add(1) == 1 {
			f.observer.Observe(delivery.Incident{Kind: delivery.IncidentRefused, Time: now, Err: r.Err})
		}
	}
	known.Err, known.Code, known.Cure = r.Err, r.Code, r.Cure
	known.Count++
	if last := f.logged[r.Part]; last.what != r.Code || now.Sub(last.at) >= sayAgain {
		f.logged[r.Part] = said{r.Code, now, true}
		f.log.Error("the database refuses a statement of the relay, which tries again until it is accepted", "part", r.Part,
			"err", r.Err, "cure", r.Cure, "refusals", known.Count)
	}
}

func (f *refusals) endLocked(now time.Time, known *observe.Refusal) {
	if known == nil {
		return
	}
	delete(f.parts, known.Part)
	if last := f.logged[known.Part]; last.open { // otherwise its beginning was not logged either
		last.open = false
		f.logged[known.Part] = last
		f.log.Info("the database accepts the statements again", "part", known.Part, "after", now.Sub(known.Since).Round(time.Millisecond), "refusals", known.Count)
	}
	if f.open.Add(-1) == 0 {
		f.observer.Observe(delivery.Incident{Kind: delivery.IncidentAccepted, Time: now})
	}
}

// now returns the present refusals, by part; nil if there are none.
func (f *refusals) now() (all []observe.Refusal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.parts {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b observe.Refusal) int { return cmp.Compare(a.Part, b.Part) })
	return all
}
