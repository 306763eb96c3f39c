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

// repeatAfter is how often a lasting refusal is logged. Each part retries without limit.
const repeatAfter = time.Minute

// refusals tracks the statements that the database refuses.
type refusals struct {
	log      *slog.Logger
	observer delivery.Observer

	open atomic.Int32 // number of parts with a refusal

	mu     sync.Mutex
	parts  map[string]*observe.Refusal
	logged map[string]loggedRefusal // by part; a refusal that comes and goes is not logged each time
}

// loggedRefusal is the last log line about a part.
type loggedRefusal struct {
	code string
	at   time.Time
	open bool // the end is not logged yet
}

// report records a refusal, or its end if r.Err is nil.
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
			f.parts = make(map[string]*observe.Refusal)
			f.logged = make(map[string]loggedRefusal)
		}

		r.Since = now
		known = &r
		f.parts[r.Part] = known
		if f.open.Add(1) == 1 {
			f.observer.Observe(delivery.Incident{Kind: delivery.IncidentRefused, Time: now, Err: r.Err})
		}
	}

	known.Err = r.Err
	known.Code = r.Code
	known.Cure = r.Cure
	known.Outcomes = r.Outcomes
	known.Count++

	if last := f.logged[r.Part]; last.code != r.Code || now.Sub(last.at) >= repeatAfter {
		f.logged[r.Part] = loggedRefusal{r.Code, now, true}
		f.log.Error("database refuses a statement", "part", r.Part,
			"err", r.Err, "cure", r.Cure, "refusals", known.Count)
	}
}

func (f *refusals) endLocked(now time.Time, known *observe.Refusal) {
	if known == nil {
		return
	}

	delete(f.parts, known.Part)

	if last := f.logged[known.Part]; last.open { // otherwise its start was not logged either
		last.open = false
		f.logged[known.Part] = last
		f.log.Info("database accepts statements again", "part", known.Part,
			"after", now.Sub(known.Since).Round(time.Millisecond), "refusals", known.Count)
	}

	if f.open.Add(-1) == 0 {
		f.observer.Observe(delivery.Incident{Kind: delivery.IncidentAccepted, Time: now})
	}
}

// now returns the present refusals, by part; nil without any.
func (f *refusals) now() (all []observe.Refusal) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, r := range f.parts {
		all = append(all, *r)
	}

	slices.SortFunc(all, func(a, b observe.Refusal) int { return cmp.Compare(a.Part, b.Part) })
	return all
}
