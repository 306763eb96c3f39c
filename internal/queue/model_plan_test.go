package queue

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"
)

// script is how one destination behaves towards one event.
type script struct {
	fails     int // attempts that fail
	permanent bool
	panics    bool
	slow      time.Duration
	wait      time.Duration // asked for by RetryAfter, if not zero
	throttled int           // calls that are throttled, before any other answer
	onDeath   deed          // the action of a person if it dies
}

type modelPlan struct {
	events  []modelEvent
	outages []outage
	faults  map[string]faultKind // by operation and its number: "settle 3"
	stops   []relayStop
	slow    int // see fakeDB
	late    int
	foreign time.Duration // when an unrelated long transaction begins, 0: never
	lasts   time.Duration // how long it lasts, 0: without end
	relays  int
	batch   int                      // of a claim
	urgency map[string]int           // priority of each destination
	filters map[string]time.Duration // how long the filter of each destination takes; nil without filters

	// What only hard plans have.
	batches     map[string]bool // which destinations take several events
	pauses      []lanePause
	personEvery time.Duration // how often a person handles dead letters, 0: never
	patience    time.Duration // how long no delivery may start while some are left, 0: forever
}

type modelEvent struct {
	typ     string
	key     string        // its aggregate
	at      time.Duration // time of the insert
	commit  time.Duration // delay of the commit after the insert
	delay   time.Duration // available_at
	large   bool          // evaluated after a claim
	scripts map[string]script
}

type outage struct {
	dest     string
	from, to time.Duration
	throttle bool          // it works, and refuses every second call
	wait     time.Duration // the wait that it requests
}

type relayStop struct {
	relay int
	at    time.Duration
	pause time.Duration
	cut   bool // off from the database before, as if it had died; hard plans only
}

var modelRoutes = map[string][]string{"one": {"a"}, "two": {"a", "b"}, "three": {"a", "b", "c"}, "b": {"b"}, "c": {"c"}}

// modelTypes are drawn from, in dense plans.
func modelTypes() []string { return []string{"one", "one", "two", "three", "b", "b", "c", "c"} }

const (
	modelAttempts = 3
	modelRelays   = 2
	// modelLimit allows for lanes that many events have slowed down.
	modelLimit = 20 * time.Minute
)

// dense plans have many events at once, and destinations that fall behind.
func drawDense(t *rapid.T) *modelPlan {
	ms := drawMillis(t)
	p := &modelPlan{faults: make(map[string]faultKind)}
	slow := make(map[string]time.Duration)
	for _, dest := range []string{"a", "b", "c"} {
		slow[dest] = rapid.SampledFrom([]time.Duration{0, 0, 3 * time.Millisecond, 40 * time.Millisecond}).Draw(t, "slow")
	}
	for burst := range rapid.IntRange(1, 6).Draw(t, "bursts") {
		at := ms(5000, "at")
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			e := modelEvent{typ: rapid.SampledFrom(modelTypes()).Draw(t, "type"), at: at + ms(100, "later"), scripts: make(map[string]script)}
			if rapid.IntRange(0, 2).Draw(t, "late commit") == 0 {
				e.commit = ms(rapid.SampledFrom([]int{20, 200, 2000}).Draw(t, "long"), "commit")
			}
			e.key = string(rune('a' + (burst+rapid.IntRange(0, 7).Draw(t, "key"))%10))
			for _, dest := range modelRoutes[e.typ] {
				s := script{slow: slow[dest]}
				switch rapid.IntRange(0, 19).Draw(t, "fails") {
				case 0:
					s.fails = 1
				case 1:
					s.throttled = rapid.IntRange(1, 4).Draw(t, "throttled")
				}
				e.scripts[dest] = s
			}
			p.events = append(p.events, e)
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "outages") {
		from := ms(5000, "from")
		p.outages = append(p.outages, outage{
			dest: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "dest"), from: from, to: from + ms(400, "length"),
			throttle: rapid.Bool().Draw(t, "throttles"),
		})
	}
	for range rapid.IntRange(0, 6).Draw(t, "lost") {
		p.faults[fmt.Sprint("settle ", rapid.IntRange(1, 40).Draw(t, "which"))] = rapid.SampledFrom([]faultKind{lostBefore, lostAfter, hung}).Draw(t, "kind")
	}
	drawRelays(t, p, 3, 500)
	slices.SortFunc(p.stops, func(a, b relayStop) int { return int(a.at - b.at) })
	return p
}

// drawMillis returns a function that draws a time of up to so many milliseconds.
func drawMillis(t *rapid.T) func(most int, label string) time.Duration {
	return func(most int, label string) time.Duration {
		return time.Duration(rapid.IntRange(0, most).Draw(t, label)) * time.Millisecond
	}
}

// drawFilters gives filters to the destinations of one plan in five, and large payloads to some of its events. Such a plan takes
// long, because a claim delivers few events.
func drawFilters(t *rapid.T, events []modelEvent) map[string]time.Duration {
	if rapid.IntRange(0, 4).Draw(t, "has filters") > 0 {
		return nil
	}

	filters := make(map[string]time.Duration)
	for _, dest := range []string{"a", "b", "c"} {
		filters[dest] = rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 30 * time.Millisecond, 150 * time.Millisecond}).Draw(t, "filter")
	}
	for i := range events {
		events[i].large = rapid.IntRange(0, 4).Draw(t, "large") == 0
	}
	return filters
}

// drawRelays draws the parts that both kinds of plans share: the relays, when they are stopped and
// for how many milliseconds, and the behaviour of the database.
func drawRelays(t *rapid.T, p *modelPlan, stops, pause int) {
	ms := drawMillis(t)
	for range rapid.IntRange(0, stops).Draw(t, "stops") {
		p.stops = append(p.stops, relayStop{relay: rapid.IntRange(0, 1).Draw(t, "relay"), at: ms(6000, "stop at"), pause: ms(pause, "pause")})
	}
	p.slow, p.late = rapid.IntRange(0, 6).Draw(t, "slow"), rapid.IntRange(0, 6).Draw(t, "late")
	if rapid.IntRange(0, 3).Draw(t, "foreign") == 0 {
		p.foreign, p.lasts = time.Millisecond+ms(5000, "foreign at"), ms(4000, "foreign lasts")
	}
	p.filters = drawFilters(t, p.events)
	p.relays, p.urgency = rapid.IntRange(1, modelRelays).Draw(t, "relays"), drawUrgency(t)
	p.batch = rapid.SampledFrom([]int{2, 5, testConfig().Batch}).Draw(t, "batch")
}

// drawUrgency gives all destinations the same priority in half of the plans.
func drawUrgency(t *rapid.T) map[string]int {
	urgency := make(map[string]int)
	if rapid.Bool().Draw(t, "ranked") {
		for _, dest := range []string{"a", "b", "c"} {
			urgency[dest] = rapid.IntRange(0, 2).Draw(t, "priority")
		}
	}
	return urgency
}

func drawPlan(t *rapid.T) *modelPlan {
	ms := drawMillis(t)
	p := &modelPlan{faults: make(map[string]faultKind)}
	for range rapid.IntRange(1, 40).Draw(t, "events") {
		e := modelEvent{typ: rapid.SampledFrom([]string{"one", "two", "three", "c"}).Draw(t, "type"), at: ms(5000, "at"), scripts: make(map[string]script)}
		if rapid.IntRange(0, 4).Draw(t, "late commit") == 0 {
			e.commit = ms(3000, "commit")
		}
		if rapid.IntRange(0, 4).Draw(t, "delayed") == 0 {
			e.delay = ms(3000, "delay")
		}
		if rapid.IntRange(0, 3).Draw(t, "unkeyed") > 0 {
			e.key = rapid.SampledFrom([]string{"k", "l", "m"}).Draw(t, "key")
		}
		for _, dest := range modelRoutes[e.typ] {
			var s script
			switch rapid.IntRange(0, 9).Draw(t, "behaviour") {
			case 0, 1:
				s.fails = rapid.IntRange(1, modelAttempts).Draw(t, "fails")
				s.panics = rapid.Bool().Draw(t, "panics")
			case 2:
				s.fails, s.permanent = 1, true
			case 3:
				s.slow = ms(1500, "slow")
			case 4:
				s.fails, s.slow, s.wait = 1, ms(300, "slow"), time.Millisecond+ms(2000, "wait")
			case 5:
				s.throttled = rapid.IntRange(1, 8).Draw(t, "throttled")
			}
			e.scripts[dest] = s
		}
		p.events = append(p.events, e)
	}
	for range rapid.IntRange(0, 2).Draw(t, "outages") {
		from := ms(5000, "from")
		p.outages = append(p.outages, outage{
			dest: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "dest"), from: from, to: from + ms(4000, "length"),
			throttle: rapid.Bool().Draw(t, "throttles"), wait: ms(2000, "throttled for"),
		})
	}
	for range rapid.IntRange(0, 6).Draw(t, "faults") {
		op := rapid.SampledFrom([]string{"claim", "settle", "settle", "finish", "renew", "ring", "takeover"}).Draw(t, "op")
		kind := rapid.SampledFrom([]faultKind{lostBefore, lostAfter, refused}).Draw(t, "kind")
		p.faults[fmt.Sprint(op, " ", rapid.IntRange(1, 40).Draw(t, "which"))] = kind
	}
	drawRelays(t, p, 2, 3000)
	return p
}
