package interplay

import (
	"fmt"
	"math"
	"slices"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// model knows what happened to the tables, and which outcomes that allows for each event and destination. It asks
// neither the database nor a relay.
type model struct {
	plan    *plan
	entries []*entry // committed, in the order of commits
	eras    []era
	periods []period
	seeks   []*sought
	replays []*replayed
	skipped map[string]int64 // the highest id that a seek has moved a destination to
	again   map[key]bool     // dead letters that were delivered again after they had been healed
	healed  map[key]bool
	trouble int  // when the first relay was killed, or cut off
	setBack bool // the clock of the server was: a replay skips delayed events that are not available by it
	restEra int  // the era of the last rest
	sureEra int  // the era that the relays are known to have noted
	written int  // transactions
}

// entry is a committed event.
type entry struct {
	event
	id     int64
	seq    int // of its transaction
	clock  int // before its commit
	era    int
	sure   int // the era that the relays had noted: they may read it by the routes since then
	period int
	status status
	seen   int // the era in which the search for routes had seen it, -1 if unknown
	rest   int // clock of the first rest after its commit, -1 before
	late   int // the era in which an event without a route got one, -1 for others
	must   map[string]bool
	may    map[string]bool
	again  map[string]bool // a replay of a range may send it
	skip   map[string]bool // a seek may have skipped it
}

// status says whether the destinations of an event are known.
type status int

const (
	pending  status = iota // no rest since its commit
	unrouted               // no destination, and a row that says so
	vague                  // routes changed meanwhile: unrouted, or with some destination
	routed                 // each destination of must has it, or one of may
)

// era is a time in which the routes and settings stay the same.
type era struct {
	routes   routes
	settings []destination
	clock    int
}

// period is a time in which the mode stays the same.
type period struct {
	mode  outboxsql.Mode
	clock int
}

// sought is a seek of a position.
type sought struct {
	destination  string
	from, to     int64
	clock, after int // before and after the call
	era          int
	rest         int  // clock of the next rest, -1 before
	begins       bool // the destination is new, and begins at the beginning
}

// replayed is a range that a destination gets again.
type replayed struct {
	destination string
	from, to    int64
	number      int
	clock       int
	era         int
	rest        int
	disturbed   bool // routes, positions or the mode changed while it ran
}

func newModel(p *plan, settings []destination) *model {
	return &model{
		plan: p, eras: []era{{routes: p.routes, settings: settings}}, periods: []period{{mode: p.mode}}, skipped: make(map[string]int64), again: make(map[key]bool),
		healed: make(map[key]bool), trouble: math.MaxInt,
	}
}

// faulty records that deliveries may repeat after this call.
func (m *model) faulty(clock int) { m.trouble = min(m.trouble, clock) }

// wrote notes events that are about to be committed.
func (m *model) wrote(clock int, entries []*entry) {
	m.written++
	for _, e := range entries {
		e.seq, e.clock, e.sure, e.era, e.period, e.seen, e.rest, e.late = m.written, clock, m.sureEra, len(m.eras)-1, len(m.periods)-1, -1, -1, -1
		e.must, e.may, e.again, e.skip = make(map[string]bool), make(map[string]bool), make(map[string]bool), make(map[string]bool)
		for name, upTo := range m.skipped {
			e.skip[name] = e.id <= upTo
		}
		m.entries = append(m.entries, e)
	}
}

// rerouted notes other routes and settings, and the events that the search for routes has seen before.
func (m *model) rerouted(clock int, to routes, settings []destination, seen map[int64]bool, mode outboxsql.Mode) {
	for _, e := range m.entries {
		if e.status == pending && e.seen < 0 && seen[e.id] {
			e.seen = len(m.eras) - 1
		}
	}
	old := m.eras[len(m.eras)-1].settings
	m.eras = append(m.eras, era{to, settings, clock})
	for _, d := range settings[len(old):] {
		if d.beginning && mode == outboxsql.ModeStream { // it gets the past as if its position had been moved back
			m.seeks = append(m.seeks, &sought{destination: d.name, clock: clock, after: clock, rest: -1, era: len(m.eras) - 1, begins: true})
		}
	}
	m.disturb("")
}

// converted notes another mode. An event that no destination had received stays fresh, also if the stream had read it. The
// queue delivers it by its routes at that time, which a later reload may have changed.
func (m *model) converted(clock int, to outboxsql.Mode) {
	for _, e := range m.entries {
		if to == outboxsql.ModeQueue && e.status == pending {
			e.seen = -1
		}
	}
	m.periods = append(m.periods, period{to, clock})
	m.disturb("")
}

// disturb notes what may keep running replays from sending all, of one destination or of all.
func (m *model) disturb(destination string) {
	for _, r := range m.replays {
		r.disturbed = r.disturbed || r.rest < 0 && (destination == "" || r.destination == destination)
	}
}

// skip notes that a seek may have skipped events up to an id that the destination has not received.
func (m *model) skip(destination string, upTo int64) {
	m.skipped[destination] = max(m.skipped[destination], upTo)
	m.seeks[len(m.seeks)-1].era = len(m.eras) - 1
	for _, e := range m.entries {
		if e.rest < 0 && e.id <= upTo {
			e.skip[destination] = true
		}
	}
	m.disturb(destination)
}

// redelivered notes dead letters that are delivered again.
func (m *model) redelivered(destination string, ids []int64, heal bool) {
	for _, id := range ids {
		k := key{destination, id}
		m.healed[k] = m.healed[k] || heal
		m.again[k] = m.again[k] || m.healed[k]
	}
}

// rested notes that nothing was left to do, so that the destinations of all events are known.
func (m *model) rested(clock int) {
	now := len(m.eras) - 1
	for _, e := range m.entries {
		m.decide(e, now)
		if e.rest < 0 {
			e.rest = clock
		}
	}
	for _, s := range m.seeks {
		if s.rest < 0 {
			s.rest = clock
			for _, e := range m.entries {
				e.may[s.destination] = e.may[s.destination] || e.id > s.to && m.routedSince(e, s.destination, s.era)
			}
		}
	}
	for _, r := range m.replays {
		if r.rest < 0 {
			r.rest = clock
			for _, e := range m.entries {
				e.again[r.destination] = e.again[r.destination] || m.routedSince(e, r.destination, r.era)
			}
		}
	}
	m.restEra, m.sureEra = now, now
}

// noted notes that the relays read by the current routes.
func (m *model) noted() { m.sureEra = len(m.eras) - 1 }

// decide finds the destinations of an event by the routes since the last rest.
func (m *model) decide(e *entry, now int) {
	if e.status == routed {
		return
	}
	first, all := max(e.sure, m.restEra), make(map[string]int)
	if e.status == unrouted {
		first++ // there was none before
	}
	for _, era := range m.eras[first : now+1] {
		for _, name := range era.routes.to(e.eventType) {
			all[name]++
		}
	}
	for name, n := range all {
		e.may[name] = true
		e.must[name] = e.status != vague && n == now+1-first
	}
	if e.seen >= 0 && e.status == pending {
		for _, name := range m.eras[e.seen].routes.to(e.eventType) {
			// A destination that may have passed the event by earlier routes gets it only if these led there, too.
			e.must[name] = e.must[name] || !slices.ContainsFunc(m.eras[first:max(first, e.seen)], func(x era) bool { return !slices.Contains(x.routes.to(e.eventType), name) })
		}
	}
	if e.status == unrouted && len(all) > 0 {
		e.late = first
	}
	switch {
	case len(m.eras[now].routes.to(e.eventType)) > 0:
		e.status = routed
	case len(all) == 0 && e.status != vague:
		e.status = unrouted
	default:
		e.status = vague
	}
}

// routedSince reports whether an event has had a route to a destination in an era, or later.
func (m *model) routedSince(e *entry, destination string, first int) bool {
	return slices.ContainsFunc(m.eras[first:], func(x era) bool { return slices.Contains(x.routes.to(e.eventType), destination) })
}

// expires reports whether an event is too old for a destination.
func (e *entry) expires(d *destination) bool { return d.expiry && e.old && e.delay == 0 }

// seenAt is what a destination saw of one event.
type seenAt struct {
	began, accepted, died, discarded []int // clocks
}

// history is the record by event.
type history struct {
	own    map[key]*seenAt         // by its own delivery, and replays of its dead letter
	first  map[key]*seenAt         // the same without those
	ranges map[key]map[int]*seenAt // by the numbers of ranges that were replayed
}

// replayStep separates the numbers of replays.
const replayStep = 1000

func newHistory(calls []call) *history {
	h := &history{own: make(map[key]*seenAt), first: make(map[key]*seenAt), ranges: make(map[key]map[int]*seenAt)}
	for clock, c := range calls {
		k := key{c.destination, c.id}
		number := c.replay / replayStep * replayStep
		if number > 0 {
			if h.ranges[k] == nil {
				h.ranges[k] = make(map[int]*seenAt)
			}
			if h.ranges[k][number] == nil {
				h.ranges[k][number] = &seenAt{}
			}
			h.ranges[k][number].add(c.note, clock)
			continue
		}
		h.at(k).add(c.note, clock)
		if c.replay == 0 {
			h.firstAt(k).add(c.note, clock)
		}
	}
	return h
}

func (s *seenAt) add(n note, clock int) {
	switch n {
	case began:
		s.began = append(s.began, clock)
	case accepted:
		s.accepted = append(s.accepted, clock)
	case died:
		s.died = append(s.died, clock)
	case discarded:
		s.discarded = append(s.discarded, clock)
	case failed:
	}
}

func (h *history) at(k key) *seenAt {
	if h.own[k] == nil {
		h.own[k] = &seenAt{}
	}
	return h.own[k]
}

func (h *history) firstAt(k key) *seenAt {
	if h.first[k] == nil {
		h.first[k] = &seenAt{}
	}
	return h.first[k]
}

// judge collects faults.
type judge struct {
	*model
	*history
	calls  []call
	byID   map[int64]*entry
	rows   map[key]row
	lost   bool // a relay could not renew a lease: deliveries may repeat
	faults []string
}

func (j *judge) fault(format string, args ...any) {
	j.faults = append(j.faults, fmt.Sprintf(format, args...))
}

// verdict returns the faults of the record and of the remaining rows.
func (m *model) verdict(s *sink, rows []row, lost bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := &judge{model: m, history: newHistory(s.calls), calls: s.calls, byID: make(map[int64]*entry), rows: make(map[key]row), lost: lost}
	for _, e := range m.entries {
		j.byID[e.id] = e
	}
	for _, r := range rows {
		j.rows[r.key] = r
	}
	j.wrong()
	for _, e := range m.entries {
		j.outcome(e)
	}
	j.leftRows(rows)
	for i := range m.plan.destinations {
		d := &m.plan.destinations[i]
		j.repeats(d)
		j.rewound(d)
		for _, o := range []order{byAggregate, total} {
			j.inOrder(d, o)
			j.suffixes(d, o)
		}
	}
	for _, r := range m.replays {
		j.replay(r)
	}
	return j.faults
}

// wrong finds calls that should not have been.
func (j *judge) wrong() {
	for _, c := range j.calls {
		if c.note != began {
			continue
		}
		e, d := j.byID[c.id], j.plan.destination(c.destination)
		switch {
		case e == nil:
			j.fault("%s got %d, which was not committed", c.destination, c.id)
		case !e.may[c.destination] && (c.replay < replayStep || !e.again[c.destination]):
			j.fault("%s got %v, which has no route there", c.destination, e)
		case d.drops(e.n):
			j.fault("%s got %v, which its filter drops", c.destination, e)
		case d.refuses(e.n) && !j.healed[key{c.destination, c.id}]:
			j.fault("%s got %v, on which its filter fails", c.destination, e)
		case e.expires(d) && c.replay == 0:
			j.fault("%s got %v, which had expired", c.destination, e)
		}
	}
}

// String names an event in a message.
func (e *entry) String() string {
	return fmt.Sprintf("event %d (%d:%s/%d)", e.id, e.n, e.eventType, e.aggregate)
}

// outcome checks the final state of an event.
func (j *judge) outcome(e *entry) {
	somewhere := e.status != routed || len(e.must) > 0
	for name := range e.may {
		d, k := j.plan.destination(name), key{name, e.id}
		seen, dead := j.at(k), j.rows[k].state == "dead"
		ended := len(seen.accepted) > 0 || len(seen.discarded) > 0 || dead || d.drops(e.n) || e.expires(d)
		somewhere = somewhere || ended || e.skip[name]
		switch {
		case !e.must[name] || e.skip[name] || d.drops(e.n) || e.expires(d):
		case !ended:
			j.fault("%s lost %v", name, e)
		case j.plan.dies(d, e.n) && !j.healed[k] && !dead && len(seen.discarded) == 0:
			j.fault("%s has no dead letter of %v", name, e)
		case !j.plan.dies(d, e.n) && len(seen.accepted) == 0:
			j.fault("%s did not accept %v", name, e)
		case j.again[k] && len(seen.accepted) == 0 && len(seen.discarded) == 0:
			j.fault("%s did not accept %v again", name, e)
		}
	}
	if !somewhere {
		j.fault("no destination has %v", e)
	}
	if at := j.rows[key{"", e.id}].state; e.status == unrouted && at != "unrouted" && !j.passed(e) {
		j.fault("%v has no route, and is %q", e, at)
	}
}

// passed reports whether a seek may have moved a destination past an event that had a route to it. The event can commit
// later, when it has no route.
func (j *judge) passed(e *entry) bool {
	for name, is := range e.skip {
		if is && j.routedSince(e, name, 0) {
			return true
		}
	}
	return false
}

// leftRows checks the stored deliveries.
func (j *judge) leftRows(rows []row) {
	for _, r := range rows {
		e := j.byID[r.id]
		switch {
		case e == nil:
			j.fault("a row of %s of %d, which was not committed", r.destination, r.id)
		case r.state == "unrouted" && r.destination == "":
			if e.status == routed || e.status == pending {
				j.fault("%v has a route, and a row as if it had none", e)
			}
		case r.state != "dead":
			j.fault("%v of %s is %s", e, r.destination, r.state)
		case !e.may[r.destination] && (r.replays < replayStep || !e.again[r.destination]):
			j.fault("%v has no route to %s, and is a dead letter there", e, r.destination)
		default:
			d, seen := j.plan.destination(r.destination), j.at(r.key)
			if !j.plan.dies(d, e.n) || j.again[r.key] && len(seen.discarded) == 0 {
				j.fault("%v is a dead letter of %s, which accepts it", e, r.destination)
			}
		}
	}
}

// soughtBack returns how often a position was moved back below an event before a time.
func (j *judge) soughtBack(d *destination, id int64, clock int) (times int) {
	for _, s := range j.seeks {
		if s.destination == d.name && id > s.to && s.clock <= clock {
			times++
		}
	}
	return times
}

// repeats finds deliveries of the same number that nothing excuses.
func (j *judge) repeats(d *destination) {
	for _, e := range j.entries {
		times := j.firstAt(key{d.name, e.id}).accepted
		if len(times) < 2 {
			continue
		}
		again := times[1]
		switch n := j.soughtBack(d, e.id, times[len(times)-1]); {
		case d.exactly && len(j.periods) == 1 && j.plan.mode == outboxsql.ModeStream:
			if len(times) > 1+n {
				j.fault("%s got %v %d times, after %d seeks", d.name, e, len(times), n)
			}
		case n > 0, again >= j.trouble, j.lost:
		case d.exactly && j.periodAt(times[0]) < j.periodAt(again): // the conversion asks the tables, not the destination
		default:
			j.fault("%s got %v twice", d.name, e)
		}
	}
}

// rewound finds events that did not come again though the position was moved back.
func (j *judge) rewound(d *destination) {
	for at, s := range j.seeks {
		if s.destination != d.name || slices.ContainsFunc(j.seeks[at+1:], func(o *sought) bool { return o.destination == d.name && o.clock <= s.rest }) ||
			slices.ContainsFunc(j.periods, func(p period) bool { return p.clock > s.clock && p.clock <= s.rest }) ||
			slices.ContainsFunc(j.eras[s.era+1:], func(x era) bool { return x.clock <= s.rest }) { // two may begin without a call between them
			continue
		}
		for _, e := range j.entries {
			seen := j.firstAt(key{d.name, e.id}).accepted
			before, _ := slices.BinarySearch(seen, s.clock)
			if e.id <= s.to || !slices.Contains(j.eras[s.era].routes.to(e.eventType), d.name) || before == 0 && !s.begins || e.rest < 0 || e.rest > s.clock {
				continue
			}
			if before == len(seen) && !d.drops(e.n) && !e.expires(d) && !j.plan.dies(d, e.n) && j.rows[key{d.name, e.id}].state == "" {
				j.fault("%s did not get %v again after its position was moved to %d", d.name, e, s.to)
			}
		}
	}
}

// periodAt returns the number of the period of a time.
func (j *judge) periodAt(clock int) int {
	at := 0
	for i, p := range j.periods {
		if p.clock <= clock {
			at = i
		}
	}
	return at
}

// kept returns the events of each line that an order makes at a destination of a stream, by id: those whose delivery is
// certain.
func (j *judge) kept(d *destination, o order) map[string][]*entry {
	lines := make(map[string][]*entry)
	for _, e := range j.entries {
		line := line(o, e.aggregate)
		if line != "" && j.periods[e.period].mode == outboxsql.ModeStream && e.must[d.name] && !e.skip[d.name] && e.delay == 0 && !d.drops(e.n) && !e.expires(d) {
			lines[line] = append(lines[line], e)
		}
	}
	for _, line := range lines {
		slices.SortFunc(line, func(a, b *entry) int { return int(a.id - b.id) })
	}
	return lines
}

// before reports whether the order promises that a comes before b.
func before(a, b *entry) bool {
	return a.id < b.id && a.seq <= b.seq && a.period == b.period && (a.late < 0 || b.era >= a.late || b.late == a.late)
}

// ordered reports whether a destination has had an order since an era, without a change.
func (j *judge) ordered(d *destination, o order, since, clock int) (block, is bool) {
	for i, era := range j.eras[since : max(since, j.eraAt(clock))+1] { // two eras may begin without a call between them
		at := slices.IndexFunc(era.settings, func(s destination) bool { return s.name == d.name })
		if at < 0 || era.settings[at].order != o || i > 0 && era.settings[at].block != block {
			return false, false
		}
		block = era.settings[at].block
	}
	return block, true
}

// inOrder finds events that began before an earlier one of their line had ended.
func (j *judge) inOrder(d *destination, o order) {
	for name, line := range j.kept(d, o) {
		for at, e := range line {
			began := j.firstAt(key{d.name, e.id}).began
			if d.exactly {
				began = j.firstAt(key{d.name, e.id}).accepted // what the transaction commits counts
			}
			if len(began) == 0 || j.periodAt(began[0]) != e.period {
				continue
			}
			for _, earlier := range line[:at] {
				block, is := j.ordered(d, o, earlier.era, began[0])
				if !is || !before(earlier, e) || d.refuses(earlier.n) && !block {
					continue
				}
				if !j.endedBefore(key{d.name, earlier.id}, block, began[0]) {
					j.fault("%s began with %v of line %s before %v had ended", d.name, e, name, earlier)
				}
			}
		}
	}
}

// endedBefore reports whether later events may go.
func (j *judge) endedBefore(k key, block bool, clock int) bool {
	seen := j.at(k)
	ended := func(times []int) bool { return len(times) > 0 && times[0] < clock }
	return ended(seen.accepted) || ended(seen.discarded) || !block && ended(seen.died)
}

// suffixes finds repeated events that those behind them did not follow.
func (j *judge) suffixes(d *destination, o order) {
	of := make(map[int64]string)
	lines := j.kept(d, o)
	for name, line := range lines {
		for _, e := range line {
			of[e.id] = name
		}
	}
	done, owed, changes := make(map[int64]bool), make(map[string]map[int64]bool), 0
	for clock, c := range j.calls {
		name := of[c.id]
		if c.destination != d.name || c.note != accepted || c.replay > 0 || name == "" {
			continue
		}
		if now := j.changes(d, clock); now != changes {
			clear(done)
			clear(owed)
			changes = now
		}
		if _, is := j.ordered(d, o, j.eraAt(clock), clock); !is || j.periodAt(clock) != j.byID[c.id].period {
			continue
		}
		if owed[name] == nil {
			owed[name] = make(map[int64]bool)
		}
		e := j.byID[c.id]
		for _, other := range lines[name] {
			switch {
			case owed[name][other.id] && before(other, e):
				j.fault("%s got %v of line %s again, and %v did not follow", d.name, e, name, other)
				delete(owed[name], other.id)
			case done[c.id] && done[other.id] && before(e, other):
				owed[name][other.id] = true
			}
		}
		delete(owed[name], c.id)
		done[c.id] = true
	}
}

// changes counts what makes the order of a destination begin anew before a time.
func (j *judge) changes(d *destination, clock int) (n int) {
	for _, s := range j.seeks {
		if s.destination == d.name {
			n += count(s.clock <= clock) + count(s.after <= clock) // calls under way may end after the first
		}
	}
	return n + j.eraAt(clock) + j.periodAt(clock)
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// replay checks that a range came again, in order. A relay stops the replay of a total order.
func (j *judge) replay(r *replayed) {
	d := find(j.eras[r.era].settings, r.destination)
	if d.order == total {
		return
	}
	lines := make(map[string][]*entry)
	for _, e := range j.entries {
		k := key{d.name, e.id}
		got, _ := slices.BinarySearch(j.at(k).accepted, r.clock)
		if r.disturbed || e.delay > 0 && j.setBack || e.id < r.from || e.id > r.to || e.rest < 0 || e.rest > r.clock || got == 0 || d.drops(e.n) || j.soughtBack(d, e.id, r.clock) > 0 ||
			!slices.Contains(j.eras[j.eraAt(r.clock)].routes.to(e.eventType), d.name) || j.periods[j.periodAt(r.clock)].mode != outboxsql.ModeStream {
			continue
		}
		seen := j.ranges[k][r.number]
		if seen == nil || len(seen.accepted)+len(seen.died) == 0 {
			j.fault("%s did not get %v again by replay %d of %d to %d", d.name, e, r.number, r.from, r.to)
			continue
		}
		if line := line(d.order, e.aggregate); line != "" && e.delay == 0 {
			lines[line] = append(lines[line], e)
		}
	}
	for _, line := range lines {
		slices.SortFunc(line, func(a, b *entry) int { return int(a.id - b.id) })
		for at, e := range line[1:] {
			earlier := line[at]
			if seen, was := j.ranges[key{d.name, e.id}][r.number], j.ranges[key{d.name, earlier.id}][r.number]; len(seen.began) > 0 && !d.exactly &&
				slices.Min(slices.Concat(was.accepted, was.died)) > seen.began[0] {
				j.fault("%s began with %v of replay %d before %v had ended", d.name, e, r.number, earlier)
			}
		}
	}
}

// eraAt returns the number of the era of a time.
func (j *judge) eraAt(clock int) int {
	at := 0
	for i, e := range j.eras {
		if e.clock <= clock {
			at = i
		}
	}
	return at
}
