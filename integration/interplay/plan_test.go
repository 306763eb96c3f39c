package interplay

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/routing"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// plan is a configuration and a script. A seed always makes the same plan.
type plan struct {
	seed         uint64
	mode         outboxsql.Mode
	partitioned  bool
	pollOnly     bool // no relay listens
	hurry        bool // a relay that stops waits for no call
	relays       int
	claims       int           // of each relay
	batch        int           // largest number of events in a read
	budget       time.Duration // lock budget of a queue
	destinations []destination
	routes       routes // at the beginning
	steps        []step
	references   bool // a table of the writers has foreign keys to events
	deletes      bool // relays delete events that are done
}

// clockPlans is the number of plans among which one, on average, sets the clock of the server.
const clockPlans = 12

// order is how a destination of a stream orders its events. A queue orders none.
type order int

const (
	byAggregate order = iota
	none
	total
)

// destination has the settings of one destination.
type destination struct {
	name        string
	order       order
	block       bool // on_dead: block
	exactly     bool // keeps its position
	batch       int  // of a batch handler, 0 for a single one
	keepsOrder  bool // the batch handler does
	concurrency int
	attempts    int
	late        bool // begins with the first reload that names it
	beginning   bool // and then in a stream with the first event
	filter      bool // drops events, and fails on some
	expiry      bool // old events expire
	rate        int  // events per second, 0 for no limit
	keyed       bool // the rate is per aggregate
	shards      int  // in a stream, unless the order is total
}

// routes are the destinations of each pattern.
type routes map[string][]string

// to returns the destinations of an event type.
func (r routes) to(eventType string) []string {
	patterns := slices.Sorted(maps.Keys(r))
	if at := routing.Best(patterns, eventType); at >= 0 {
		return r[patterns[at]]
	}
	return nil
}

// eventTypes are the types that scripts write.
func eventTypes() []string { return []string{"a.x", "a.y", "b.x", "c"} }

// event is an event of a script. Its number in the plan decides its fate at each destination.
type event struct {
	n         int
	eventType string
	aggregate int           // 0 for none
	delay     time.Duration // from its insertion
	old       bool          // written long ago, by its created_at
	large     bool          // its payload has largePayload bytes
}

// ending is how a transaction ends.
type ending int

const (
	commits ending = iota
	rollsBack
	commitsLate // with a later step
)

// transaction writes events.
type transaction struct {
	events    []event
	savepoint bool // an insert is rolled back before
	ending    ending
}

// action is a kind of step.
type action int

const (
	write action = iota
	wait
	rest
	outage
	endOutage
	pause
	resume
	restart
	kill
	cut
	isolate
	reload
	replay
	stopReplay
	seek
	discard
	redeliver
	convert
	ignore
	setClock
)

// String returns the name of an action.
func (a action) String() string {
	return []string{
		"write", "wait", "rest", "outage", "end outage", "pause", "resume", "restart", "kill", "cut", "isolate", "reload", "replay",
		"stop replay", "seek", "discard", "redeliver", "convert", "ignore", "set clock",
	}[a]
}

// step is a step of a script. Each action uses some of the fields.
type step struct {
	action      action
	txs         []transaction // write
	pause       time.Duration // wait, ignore
	table       string        // ignore: a trigger of the user ignores the writes of relays to it
	destination string
	relay       int
	gone        bool          // kill: it starts again with the next rest
	routes      routes        // reload
	noted       bool          // reload: waits until the relays have noted the routes
	rolling     bool          // reload: one relay after the other, the settings stay
	settings    []destination // reload
	at          int           // seek: percent of the ids, replay: where the range begins
	heal        bool          // redeliver: the events succeed after this step
	offset      time.Duration // setClock: the clock of the server, compared with the beginning
}

// String describes a step.
func (s step) String() string {
	var b strings.Builder
	fmt.Fprint(&b, s.action)
	switch s.action {
	case write:
		for _, tx := range s.txs {
			fmt.Fprintf(&b, " %s", tx)
		}
	case wait:
		fmt.Fprintf(&b, " %v", s.pause)
	case outage, endOutage, pause, resume, discard, stopReplay:
		fmt.Fprintf(&b, " %s", s.destination)
	case restart, cut, isolate:
		fmt.Fprintf(&b, " relay %d", s.relay)
	case kill:
		fmt.Fprintf(&b, " relay %d gone=%t", s.relay, s.gone)
	case reload:
		fmt.Fprintf(&b, " %v noted=%t rolling=%t", map[string][]string(s.routes), s.noted, s.rolling)
		for _, d := range s.settings {
			fmt.Fprintf(&b, " %s:order=%d,block=%t", d.name, d.order, d.block)
		}
	case replay, seek:
		fmt.Fprintf(&b, " %s from %d%%", s.destination, s.at)
	case redeliver:
		fmt.Fprintf(&b, " %s heal=%t", s.destination, s.heal)
	case ignore:
		fmt.Fprintf(&b, " %s for %v", s.table, s.pause)
	case setClock:
		fmt.Fprintf(&b, " %v", s.offset)
	case rest, convert:
	}
	return b.String()
}

// String describes a transaction: its events as number:type/aggregate.
func (t transaction) String() string {
	var b strings.Builder
	b.WriteByte('(')
	for i, e := range t.events {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d:%s/%d", e.n, e.eventType, e.aggregate)
		if e.delay > 0 {
			fmt.Fprintf(&b, "+%v", e.delay)
		}
		if e.old {
			b.WriteString(" old")
		}
		if e.large {
			b.WriteString(" large")
		}
	}
	if t.savepoint {
		b.WriteString(" after a savepoint")
	}
	b.WriteString([]string{")", ") rolled back", ") late"}[t.ending])
	return b.String()
}

// String describes a plan so that a person can repeat it by hand.
func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, partitioned=%t pollOnly=%t hurry=%t references=%t deletes=%t, %d relays, %d claims of %d events, lock budget %v\n",
		p.mode, p.partitioned, p.pollOnly, p.hurry, p.references, p.deletes, p.relays, p.claims, p.batch, p.budget)
	for _, d := range p.destinations {
		fmt.Fprintf(&b, "  %+v\n", d)
	}
	fmt.Fprintf(&b, "  routes %v\n", map[string][]string(p.routes))
	for i, s := range p.steps {
		fmt.Fprintf(&b, "%4d %v\n", i, s)
	}
	return b.String()
}

// fate is what a destination does with an event.
type fate int

const (
	accepts   fate = iota
	failsOnce      // then accepts
	throttles      // the first attempt, which does not count
	shaky          // is unavailable for the first two attempts, which do not count
	panics         // at the first attempt, then accepts
	slow           // takes longer than a lock budget
	poison         // is refused for good
	doomed         // fails each time, until the attempts are used up
)

// fate returns what a destination does with an event, always the same.
func (p *plan) fate(destination string, n int) fate {
	h := p.seed ^ uint64(n)*0x9e3779b97f4a7c15
	for _, c := range destination {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	r := rand.New(rand.NewPCG(h, p.seed))
	switch x := r.IntN(100); {
	case x < 6:
		return failsOnce
	case x < 8:
		return throttles
	case x < 10:
		return slow
	case x < 12:
		if p.destination(destination).attempts < 3 {
			return accepts // one that alone finds the destination away is blamed for that, and an attempt counts
		}
		return shaky
	case x < 13 && p.destination(destination).attempts > 1 && p.destination(destination).batch == 0:
		return panics // with a batch the events before it would come twice
	case x < 16:
		return poison
	case x < 19:
		return doomed
	}
	return accepts
}

// dies reports whether an event becomes a dead letter there, unless it is healed.
func (p *plan) dies(d *destination, n int) bool {
	f := p.fate(d.name, n)
	return f == poison || f == doomed || d.refuses(n) || f == failsOnce && d.attempts == 1
}

// drops reports whether the filter of a destination drops an event.
func (d *destination) drops(n int) bool { return d.filter && n%4 == 3 }

// refuses reports whether the filter of a destination fails on an event, which makes a dead letter.
func (d *destination) refuses(n int) bool { return d.filter && !d.drops(n) && n%11 == 5 }

// destination returns a destination by its name, with the settings of the beginning.
func (p *plan) destination(name string) *destination { return find(p.destinations, name) }

// find returns a destination by its name.
func find(all []destination, name string) *destination {
	at := slices.IndexFunc(all, func(d destination) bool { return d.name == name })
	return &all[at]
}

// line returns the line in which an order puts an event of an aggregate, "" for none.
func line(o order, aggregate int) string {
	switch {
	case o == total:
		return "*"
	case o == byAggregate && aggregate > 0:
		return fmt.Sprint(aggregate)
	}
	return ""
}

// generator draws plans.
type generator struct {
	r *rand.Rand
	p *plan
	n int // events so far
}

// newPlan draws the plan of a seed. Another dimension is a field of plan, destination or step, and a line here.
func newPlan(seed uint64) *plan {
	g := &generator{r: rand.New(rand.NewPCG(seed, 1)), p: &plan{seed: seed}}
	p := g.p
	p.mode = pick(g, outboxsql.ModeStream, outboxsql.ModeStream, outboxsql.ModeStream, outboxsql.ModeQueue)
	p.partitioned, p.pollOnly, p.hurry = g.chance(8), g.chance(8), g.chance(4)
	p.relays, p.claims, p.batch = pick(g, 1, 1, 2), pick(g, 1, 2), pick(g, 2, 7, 1000)
	p.budget = pick(g, time.Millisecond, 10*time.Millisecond, 100*time.Millisecond)
	for i := range 1 + g.r.IntN(3) {
		p.destinations = append(p.destinations, g.destination(fmt.Sprintf("d%d", i)))
	}
	if len(p.destinations) > 1 && g.chance(4) {
		d := &p.destinations[len(p.destinations)-1]
		d.late, d.beginning = true, g.chance(2)
	}
	p.routes = g.routes(slices.DeleteFunc(slices.Clone(p.destinations), func(d destination) bool { return d.late }))
	for range 6 + g.r.IntN(14) {
		p.steps = append(p.steps, g.step())
	}
	p.shard(rand.New(rand.NewPCG(seed, 2)))
	p.surround(rand.New(rand.NewPCG(seed, 3)))
	p.setClocks(rand.New(rand.NewPCG(seed, 4)))
	p.refer(rand.New(rand.NewPCG(seed, 5)))
	return p
}

// refer has transactions insert foreign keys to events. Relays delete the others, unless a step needs events that are done.
func (p *plan) refer(r *rand.Rand) {
	p.references = r.IntN(3) == 0
	needsPast := slices.ContainsFunc(p.steps, func(s step) bool { return s.action == replay || s.action == seek || s.action == convert }) ||
		slices.ContainsFunc(p.destinations, func(d destination) bool { return d.beginning })
	p.deletes = p.references && !needsPast
}

// setClocks sets the clock of the server back and forward at some times. Each such plan needs its own server, so few do it.
// The clock is never ahead of its beginning, and returns there at each rest: then all delayed events are due.
func (p *plan) setClocks(r *rand.Rand) {
	if r.IntN(clockPlans) > 0 {
		return
	}
	for range 1 + r.IntN(4) {
		s := step{action: setClock, offset: -time.Duration(r.IntN(3)) * time.Hour}
		p.steps = slices.Insert(p.steps, r.IntN(len(p.steps)+1), s)
	}
}

// surround makes some events large, and has triggers of the user ignore writes at some times.
func (p *plan) surround(r *rand.Rand) {
	for i := range p.steps {
		for _, tx := range p.steps[i].txs {
			for j := range tx.events {
				tx.events[j].large = r.IntN(40) == 0
			}
		}
	}
	for range max(0, r.IntN(8)-5) {
		tables := []string{"outbox_events", "outbox_deliveries", "outbox_positions"}
		s := step{action: ignore, table: tables[r.IntN(len(tables))], pause: time.Duration(r.IntN(40)) * time.Millisecond}
		p.steps = slices.Insert(p.steps, r.IntN(len(p.steps)+1), s)
	}
}

// shard gives some destinations several shards, and others with some reloads.
func (p *plan) shard(r *rand.Rand) {
	lists := [][]destination{p.destinations}
	for i := range p.steps {
		lists = append(lists, p.steps[i].settings)
	}
	for _, all := range lists {
		for i := range all {
			all[i].shards = max(1, r.IntN(8)-3)
		}
	}
}

// pick returns one of several values.
func pick[T any](g *generator, values ...T) T { return values[g.r.IntN(len(values))] }

// chance is true once in n times.
func (g *generator) chance(n int) bool { return g.r.IntN(n) == 0 }

// destination draws a destination.
func (g *generator) destination(name string) destination {
	d := destination{
		name: name, order: pick(g, byAggregate, byAggregate, none, total), block: g.chance(3), batch: pick(g, 0, 0, 1, 3, 20), keepsOrder: g.chance(2),
		concurrency: pick(g, 1, 2, 5), attempts: pick(g, 1, 2, 3), filter: g.chance(4), expiry: g.chance(4),
	}
	if g.chance(6) {
		d.rate, d.keyed = pick(g, 100, 500), d.order != total && g.chance(2)
	}
	if g.chance(5) {
		d.exactly, d.keyed, d.concurrency, d.batch, d.keepsOrder = true, false, 1, 20, true
		if d.order == none {
			d.order = byAggregate
		}
	}
	return d
}

// routes draws routes in which each of some destinations has one at least.
func (g *generator) routes(to []destination) routes {
	all := make(routes)
	patterns := []string{"a.x", "a.*", "b.*", "c", "*"}
	for _, pattern := range patterns[:4] {
		if g.chance(4) {
			continue
		}
		for _, d := range to {
			if g.chance(2) {
				all[pattern] = append(all[pattern], d.name)
			}
		}
	}
	for _, d := range to {
		if !slices.ContainsFunc(slices.Collect(maps.Values(all)), func(to []string) bool { return slices.Contains(to, d.name) }) {
			pattern := pick(g, patterns...)
			all[pattern] = append(all[pattern], d.name)
		}
	}
	return all
}

// settings draws the settings of a reload: some destinations change their order.
func (g *generator) settings() []destination {
	all := slices.Clone(g.p.destinations)
	for i := range all {
		d := &all[i]
		if d.exactly || d.keyed || !g.chance(3) {
			continue
		}
		d.order, d.block = pick(g, byAggregate, none, total), g.chance(3)
	}
	return all
}

// step draws a step.
func (g *generator) step() step {
	s := step{destination: pick(g, g.p.destinations...).name, relay: g.r.IntN(g.p.relays), at: pick(g, 0, 0, 30, 70, 100)}
	switch x := g.r.IntN(100); {
	case x < 40:
		s.action = write
		for range 1 + g.r.IntN(4) {
			s.txs = append(s.txs, g.transaction())
		}
	case x < 55:
		s.action, s.pause = wait, time.Duration(g.r.IntN(40))*time.Millisecond
	case x < 60:
		s.action = rest
	case x < 64:
		s.action = outage
	case x < 67:
		s.action = endOutage
	case x < 69:
		s.action = pause
	case x < 71:
		s.action = resume
	case x < 74:
		s.action = restart
	case x < 77:
		s.action, s.gone = kill, g.chance(3)
	case x < 78:
		s.action = cut
	case x < 79:
		s.action = isolate
	case x < 84:
		s.action, s.routes, s.noted, s.rolling, s.settings = reload, g.routes(g.p.destinations), g.chance(2), g.chance(3), g.settings()
	case x < 87:
		s.action = replay
	case x < 88:
		s.action = stopReplay
	case x < 91:
		s.action = seek
	case x < 94:
		s.action = discard
	case x < 98:
		s.action, s.heal = redeliver, g.chance(2)
	default:
		s.action = convert
	}
	return s
}

// transaction draws a transaction.
func (g *generator) transaction() transaction {
	tx := transaction{savepoint: g.chance(8), ending: pick(g, commits, commits, commits, commits, commits, rollsBack, commitsLate)}
	for range pick(g, 1, 1, 2, 4, 10) {
		e := event{n: g.n, eventType: pick(g, eventTypes()...), aggregate: g.r.IntN(4), old: g.chance(15)}
		if g.chance(12) {
			e.delay = time.Duration(1+g.r.IntN(200)) * time.Millisecond
		}
		g.n++
		tx.events = append(tx.events, e)
	}
	return tx
}
