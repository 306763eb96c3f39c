package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
)

// drawAlike draws a destination that takes no event until the given time has passed, with any answers, and then takes
// all.
func drawAlike(t *rapid.T) *poisoned {
	p := drawPoisoned(t)
	for i := range p.kinds {
		p.kinds[i] = good
	}
	p.interval = 0 // an event that is alone may end after its attempts
	p.cfg.MaxAttempts = rapid.IntRange(1, 4).Draw(t, "attempts")
	p.outage = time.Duration(rapid.IntRange(0, 100_000).Draw(t, "outage in ms")) * time.Millisecond
	return p
}

// TestUnclearOfEveryEvent: what every event gets is not the fault of each. Whatever a destination answers, and in
// whichever sequence, nothing becomes a dead letter if the destination takes all events in the end. Events of an
// aggregate stay in order.
func TestUnclearOfEveryEvent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := drawAlike(rt)
		answers := rapid.SliceOfN(rapid.SampledFrom([]error{
			delivery.Unclear(delivery.Permanent(errors.New("404"))),
			delivery.Unclear(errors.New("500")),
			delivery.Unclear(delivery.RetryAfter(time.Second, errors.New("500"))),
			delivery.Unavailable(errors.New("503")),
			delivery.Throttled(time.Second, errors.New("429")),
		}), 1, 20).Draw(rt, "answers")

		wrong := ""
		synctest.Test(t, func(t *testing.T) {
			wrong = p.runAlike(t, answers)
		})
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// runAlike delivers all events. It returns the first fault.
func (p *poisoned) runAlike(t *testing.T, answers []error) string {
	t.Helper()
	heals := time.Now().Add(p.outage)
	latest := make(map[string]int64)
	overtaken := ""
	n := 0
	var mu sync.Mutex
	p.answer = func(e *delivery.Event) error {
		mu.Lock()
		defer mu.Unlock()
		n++
		if time.Now().Before(heals) {
			return answers[n%len(answers)]
		}

		isLate := e.AggregateID != "" && e.ID < latest[e.AggregateID]
		if isLate && p.cfg.Order != delivery.OrderNone {
			overtaken = fmt.Sprintf("event %d came after %d", e.ID, latest[e.AggregateID])
		}
		latest[e.AggregateID] = max(latest[e.AggregateID], e.ID)
		return nil
	}

	wrong := p.run(t)
	if wrong == "" {
		wrong = overtaken
	}
	return wrong
}

// TestUnclearOfOneEvent: an event that alone is refused is a dead letter: after its attempts if nothing else comes, and
// earlier if the destination takes others.
func TestUnclearOfOneEvent(t *testing.T) {
	t.Parallel()
	const attempts = 20
	for name, c := range map[string]struct {
		interval time.Duration // between events
		early    bool
	}{
		"alone":          {24 * time.Hour, false},
		"next to others": {10 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := &poisoned{when: make(map[int64]time.Time), came: make(map[int64]time.Time), cfg: testLane(), form: "one", interval: c.interval}
				p.kinds = []kind{refuses}
				if c.early {
					p.kinds = append(p.kinds, slices.Repeat([]kind{good}, 1000)...)
				}
				p.cfg.MaxAttempts = attempts
				p.cfg.Backoff = delivery.Backoff{Initial: time.Second, Max: time.Second, Multiplier: 1}
				refused := 0
				p.answer = func(e *delivery.Event) error {
					if e.ID == 1 {
						refused++
					}
					return nil
				}

				if wrong := p.run(t); wrong != "" {
					t.Error(wrong)
				}
				if isEarly := refused < attempts; isEarly != c.early || refused > attempts {
					t.Errorf("refused %d times before it was a dead letter", refused)
				}
			})
		})
	}
}

type incidents []delivery.Incident

func (k *incidents) Observe(i delivery.Incident) { *k = append(*k, i) }

// TestUnclearOutage: a destination that refuses several different events, and takes none, is down. It is up again when
// it takes one. No attempt counts in the meantime. It is also down if only two events wait, and their last attempts
// are due: such events do not wait without a reason that people can see.
func TestUnclearOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events, attempts int
		text             string
	}{
		"many events": {40, 20, "events in a row were refused alike; the destination counts as down until it takes one: 404"},
		"two events":  {2, 2, "2 events in a row were refused alike; the destination counts as down until it takes one: 404"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var seen incidents
				p := &poisoned{when: make(map[int64]time.Time), came: make(map[int64]time.Time), cfg: testLane(), form: "one"}
				p.cfg.MaxAttempts = c.attempts
				p.kinds = slices.Repeat([]kind{good}, c.events)
				p.outage = 10 * time.Minute
				p.observer = &seen
				refusal := delivery.Unclear(delivery.Permanent(errors.New("404")))
				if wrong := p.runAlike(t, []error{refusal}); wrong != "" {
					t.Error(wrong)
				}

				seen = slices.DeleteFunc(seen, func(i delivery.Incident) bool { return i.Kind == delivery.IncidentUp })
				if len(seen) != 1 || seen[0].Kind != delivery.IncidentDown {
					t.Fatalf("incidents: %v", seen)
				}
				mostInFirstSecond := uint64(3 * c.events)
				if n := p.stats.Failed; n > mostInFirstSecond {
					t.Errorf("%d attempts were counted for %d events", n, c.events)
				}
				if got := seen[0].Err.Error(); !strings.HasSuffix(got, c.text) {
					t.Errorf("the destination is down because of %q, want %q", got, c.text)
				}
			})
		})
	}
}
