package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/aggregates"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/flight"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/tail"
)

// modelRow is a row of the model's table.
type modelRow struct {
	state    deliveries.State
	attempts int
	replays  int
	key      string
	at       time.Time
}

// model drives the stored deliveries of one destination, with the lane of a relay and a table in memory. Events are read,
// fail, are dead-lettered, become rows and continue. A person replays and discards. The relay is killed, and its
// successor loads the table.
type model struct {
	t      *testing.T
	rng    *rand.Rand
	lane   dispatch.StreamLane
	u      *shard
	order  dispatch.LaneConfig
	total  bool // order is total
	blocks bool // a dead letter blocks
	aggs   int
	handed int64 // the highest id that was read
	events map[int64]*delivery.Event
	rows   map[int64]*modelRow
	place  modelPlace
	fails  map[int64]int // how often an event still fails; below 0: it is refused for good
	lazy   int           // of so many steps one writes
	life   int           // of the relay
	down   bool
	open   []int64 // ids that the relay before had in memory: they are read first

	mu    sync.Mutex      // held by the driver but while time passes, and by a call where it begins and ends
	done  map[int64]int   // the life in which an event was delivered
	ended map[int64]bool  // delivered, or a dead letter that does not block others
	died  map[int64]bool  // may be a dead letter, since the last replay
	late  map[int64]bool  // delayed, or replayed by a person: in no order with those read before
	turns map[int64]int   // of dead letters: which replay by a person made them due last, from 1
	turn  int             // the last replay by a person
	runs  map[string]bool // queues with a call that runs
}

type modelPlace struct {
	at time.Time
	id int64
}

var (
	errModelDown = errors.New("down")
	errModelNo   = errors.New("no")
)

func newModel(t *testing.T, seed uint64) *model {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	m := &model{
		t: t, rng: rng, aggs: 1 + rng.IntN(4), lazy: 1 + rng.IntN(20), events: make(map[int64]*delivery.Event), rows: make(map[int64]*modelRow),
		fails: make(map[int64]int), ended: make(map[int64]bool), done: make(map[int64]int), died: make(map[int64]bool), late: make(map[int64]bool), turns: make(map[int64]int),
		runs: make(map[string]bool),
	}
	if m.total = rng.IntN(2) == 0; m.total {
		m.order.Order = delivery.OrderTotal
	}
	if m.blocks = rng.IntN(2) == 0; m.blocks {
		m.order.OnDead.Then = delivery.OnDeadBlock
	}
	m.order.Concurrency, m.order.MaxAttempts = 1+rng.IntN(4), 1+rng.IntN(4)
	m.order.LongestPause = 10 * time.Millisecond
	m.order.Backoff = delivery.Backoff{Initial: time.Millisecond, Max: 8 * time.Millisecond, Multiplier: 2}
	return m
}

// begin begins a relay with the stored state.
func (m *model) begin() {
	m.life++
	d, err := dispatch.New(dispatch.Config{Window: 50 * time.Millisecond}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		m.t.Fatal(err)
	}
	life := m.life
	if err := d.Add("x", delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error { return m.deliver(ctx, life, e) }), m.order); err != nil {
		m.t.Fatal(err)
	}
	d.Begin(m.t.Context())
	m.lane = d.StreamLanes()[0]
	m.lane.Own(func() {})
	e := &Engine{writers: tail.NewWriterScanner(), limits: engine.Limits{Batch: 1000, Bytes: 8 << 20, EventBytes: 64 << 20, PollInterval: time.Second}, d: d, keys: dispatch.NewKeys()}
	e.limits.Batch = 1 + m.rng.IntN(10)
	m.u = newShard(e, m.lane, position.Position{Lease: lease.Lease{Destination: "x"}})
	m.u.inFlight.events = flight.New(func() bool { return true }, func() {}) // there is no lease
	m.place = modelPlace{}
	clear(m.runs)
	m.load()
}

// load does with the model's table what loader does with the real one.
func (m *model) load() {
	names := make(map[string]bool)
	for _, r := range m.rows {
		if r.key != "" && (r.state != deliveries.Dead || m.blocks) {
			names[m.u.order.queue(r.key)] = true
		}
	}
	for name := range names {
		key := m.key(name)
		m.lane.SetRows(key, dispatch.SomeRows)
		if id := m.first(name, 1)[0]; m.rows[id].state == deliveries.Parked {
			m.u.stored.aggregates.Move(key, name, aggregates.Parked)
			m.u.stored.readThrough = m.handed
		}
	}
	if !m.total && len(m.open) > 0 {
		m.u.stored.readThrough = m.handed
	}
}

func (m *model) key(name string) dispatch.Key {
	if m.total {
		return m.u.order.totalKey
	}
	return m.u.order.keys.Named(name)
}

// deliver is the handler: it checks the order.
func (m *model) deliver(_ context.Context, life int, e *delivery.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if life != m.life {
		return errModelDown // of a dead relay: its answer is ignored
	}
	if m.down {
		if e.Attempt >= m.order.MaxAttempts { // the lane may blame the event for the outage, and bury it
			m.die(e.ID)
		}
		return delivery.Unavailable(errModelDown)
	}
	if m.done[e.ID] == life {
		m.t.Errorf("event %d is delivered twice", e.ID)
	}
	queue := m.u.order.queue(m.u.order.name(e))
	if queue != "" {
		if m.runs[queue] {
			m.t.Errorf("event %d is called beside another one of %q", e.ID, queue)
		}
		for id := int64(1); id < e.ID; id++ {
			if m.precedes(id, e.ID) && m.u.order.queue(m.u.order.name(m.events[id])) == queue {
				m.t.Errorf("event %d of %q goes before event %d: %+v", e.ID, queue, id, m.rows[id])
			}
		}
		m.runs[queue] = true
	}
	if m.rng.IntN(3) == 0 {
		m.sleep(time.Duration(m.rng.IntN(5)) * time.Millisecond)
	}
	if life != m.life {
		return errModelDown
	}
	delete(m.runs, queue)
	n := m.fails[e.ID]
	switch {
	case n < 0:
		m.die(e.ID)
		return delivery.Permanent(errModelNo)
	case n > 0:
		m.fails[e.ID]--
		if e.Attempt >= m.order.MaxAttempts {
			m.die(e.ID)
		}
		return errModelNo
	}
	m.ended[e.ID], m.done[e.ID] = true, life
	return nil
}

// die records that an event may be a dead letter from now on.
func (m *model) die(id int64) {
	m.died[id] = true
	m.ended[id] = m.ended[id] || !m.blocks
}

// precedes reports whether an event must end before a later one of its queue begins: both were read in order, or it was
// replayed no later than the other.
func (m *model) precedes(id, later int64) bool {
	wereRead := !m.late[id] && !m.late[later]
	wereReplayed := m.turns[id] > 0 && m.turns[id] <= m.turns[later] && (m.total || !m.died[id])
	return !m.ended[id] && (wereRead || wereReplayed)
}

// first returns the first n rows of a queue. Of dead letters that block it returns the first.
func (m *model) first(name string, n int) (ids []int64) {
	sawDead := false
	for _, id := range m.queue(name) {
		isDead := m.rows[id].state == deliveries.Dead
		isLeftOut := isDead && (sawDead || !m.blocks)
		if len(ids) < n && !isLeftOut {
			ids = append(ids, id)
		}
		sawDead = sawDead || isDead
	}
	return ids
}

// firstLive returns the first row of a queue that is not a dead letter, 0 without one.
func (m *model) firstLive(name string) int64 {
	for _, id := range m.queue(name) {
		if m.rows[id].state != deliveries.Dead {
			return id
		}
	}
	return 0
}

// queue returns the rows of a queue in order.
func (m *model) queue(name string) (ids []int64) {
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		if r := m.rows[id]; r.key != "" && m.u.order.queue(r.key) == name {
			ids = append(ids, id)
		}
	}
	return ids
}

func (m *model) stored(id int64) deliveries.Row {
	r, now := m.rows[id], time.Now()
	s := deliveries.Row{Event: *m.events[id], State: r.state, Failures: r.attempts, Key: r.key, Due: !r.at.After(now)}
	s.Event.Replay, s.Event.Attempt = r.replays, r.attempts+1
	name := m.u.order.queue(r.key)
	s.First = r.key == "" || m.first(name, 1)[0] == id || m.passesDead(id) && m.firstLive(name) == id
	return s
}

// passesDead reports whether a row that was replayed is delivered although a dead letter that blocks is in front of it.
func (m *model) passesDead(id int64) bool {
	r := m.rows[id]
	return !m.total && r != nil && r.replays > 0 && r.state != deliveries.Dead
}

// write writes the pending changes, and checks which events may continue.
func (m *model) write() {
	s := &m.u.stored
	now := time.Now()
	for _, r := range s.pending.rows {
		row := m.rows[r.EventID]
		if row == nil {
			row = &modelRow{}
			m.rows[r.EventID] = row
		} else if r.fresh {
			continue
		}
		row.state, row.attempts, row.key, row.at = r.State, r.Failures, r.Key, now.Add(r.Delay)
	}
	for _, id := range s.pending.removed {
		delete(m.rows, id)
	}
	s.pendingWritten()
	m.u.progress.dirty = false
	none := func(string) bool { return false }
	s.aggregates.Wrote(none)
	if s.readThrough > 0 {
		return
	}
	for _, g := range s.aggregates.ToCheck(func(k dispatch.Key) bool { return m.lane.Order(k).Busy }, none) {
		front := m.first(g.Name, 1)
		if live := m.firstLive(g.Name); m.passesDead(live) {
			front = []int64{live}
		}
		s.aggregates.Checked(g, len(front) == 0 || m.rows[front[0]].state == deliveries.Parked)
	}
}

// deliverAll hands over deliveries within a grant.
func (m *model) deliverAll(all []dispatch.Delivery, unblock []dispatch.Key, reserved int) {
	m.u.inFlight.deliver(m.u.inFlight.batch(), all, unblock, reserved)
}

// step does what shard.feed would, and reports whether there was anything to do.
func (m *model) step() bool {
	sh, s := m.u, &m.u.stored
	sh.collect()
	if s.aggregates.AnyNext() || sh.progress.dirty && m.rng.IntN(m.lazy) == 0 {
		m.write()
	}
	if o := m.lane.Order(dispatch.Key{}); o.Stopped {
		sh.collect()
		if !m.lane.GoOn(o.Returned) {
			return true
		}
	}
	held := s.totalHeld()
	if f := &sh.inFlight.events; len(f.Returned) > 0 {
		i, n := 0, len(f.Returned)
		if held {
			i, n = slices.IndexFunc(f.Returned, func(d dispatch.Delivery) bool { return d.Leads }), 1
		}
		if i >= 0 && (s.readThrough == 0 || !held) {
			if n = sh.inFlight.reserve(n); n == 0 {
				return false
			}
			some := slices.Clone(f.Returned[i : i+n])
			f.Returned = slices.Delete(f.Returned, i, i+n)
			m.deliverAll(some, nil, n)
			return true
		}
	}
	switch {
	case s.readThrough > 0:
		return m.read()
	case s.aggregates.AnyReady():
		return m.feedStored()
	case m.rng.IntN(2) == 0:
		return m.feedDue()
	case held:
		return false
	}
	return m.read()
}

func (m *model) feedStored() bool {
	sh, s := m.u, &m.u.stored
	s.failures = m.lane.Order(dispatch.Key{}).Failures
	m.pass()
	sh.collect()
	switch {
	case !s.aggregates.AnyReady():
		return true
	case s.aggregates.UnwrittenReady():
		m.write()
		return true
	}
	reserved := sh.inFlight.reserve(sh.e.limits.Batch)
	if reserved == 0 {
		return false
	}
	read := firstRows{of: s.aggregates.Take(min(1+m.rng.IntN(3), reserved))}
	read.per = reserved / len(read.of)
	for _, g := range read.of {
		for _, id := range m.first(g.Name, read.per) {
			read.rows = append(read.rows, m.stored(id))
		}
	}
	m.pass()
	sh.collect()
	all, unblock := s.takeFirst(&read)
	m.deliverAll(all, unblock, reserved)
	return true
}

func (m *model) feedDue() bool {
	sh, s := m.u, &m.u.stored
	reserved := sh.inFlight.reserve(sh.e.limits.Batch)
	if reserved == 0 {
		return false
	}
	s.failures = m.lane.Order(dispatch.Key{}).Failures
	sh.collect()
	var ids []int64
	for id, r := range m.rows {
		if r.state == deliveries.Retry && !r.at.After(time.Now()) && (r.at.After(m.place.at) || r.at.Equal(m.place.at) && id > m.place.id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int64) int {
		if c := m.rows[a].at.Compare(m.rows[b].at); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	more := len(ids) > reserved
	ids = ids[:min(reserved, len(ids))]
	rows := make([]deliveries.Row, len(ids))
	for i, id := range ids {
		rows[i] = m.stored(id)
	}
	m.pass()
	if s.unwritten(rows) {
		m.lane.Return(reserved)
		m.write()
		return true
	}
	if m.place = (modelPlace{}); more {
		m.place = modelPlace{m.rows[ids[len(ids)-1]].at, ids[len(ids)-1]}
	} else {
		s.foundNone()
	}
	var all []dispatch.Delivery
	for i := range rows {
		all = s.takeDue(all, &rows[i])
	}
	slices.SortFunc(all, func(a, b dispatch.Delivery) int { return cmp.Compare(a.Event.ID, b.Event.ID) })
	m.deliverAll(all, nil, reserved)
	return len(all) > 0 || more
}

// pass lets calls end while a statement runs.
func (m *model) pass() {
	if m.rng.IntN(2) == 0 {
		m.rests(time.Duration(m.rng.IntN(3)) * time.Millisecond)
	}
}

// sleep lets others run for so long.
func (m *model) sleep(d time.Duration) {
	m.mu.Unlock()
	<-time.After(d)
	m.mu.Lock()
}

// rests lets calls run for so long, until each of them waits.
func (m *model) rests(d time.Duration) {
	m.mu.Unlock()
	<-time.After(d)
	synctest.Wait()
	m.mu.Lock()
}

// read reads events that the relay before had in memory, then new ones.
func (m *model) read() bool {
	s := &m.u.stored
	reserved := m.u.inFlight.reserve(m.u.e.limits.Batch)
	if reserved == 0 {
		return false
	}
	var ids []int64
	for len(ids) < reserved && len(m.open) > 0 {
		ids, m.open = append(ids, m.open[0]), m.open[1:]
	}
	done := len(m.open) == 0
	for len(ids) < reserved && m.handed < int64(len(m.events)) && s.readThrough == 0 {
		m.handed++
		ids = append(ids, m.handed)
	}
	var all []dispatch.Delivery
	for _, id := range ids {
		e := m.events[id]
		switch {
		case m.late[id] && m.rows[id] == nil && m.rng.IntN(2) == 0: // delayed
			s.pending.put(entry{Entry: deliveries.Entry{Ref: deliveries.Ref{EventID: id}, State: deliveries.Retry, Delay: 5 * time.Millisecond}, fresh: true})
			m.u.progress.dirty = true
		case s.storesUntried(id):
			s.addPending(entry{Entry: deliveries.Entry{Ref: deliveries.Ref{EventID: id}, State: deliveries.Parked, Key: m.u.order.name(e)}, fresh: true}, m.u.order.totalKey)
			s.aggregates.Move(m.u.order.totalKey, totalName, aggregates.Parked)
			m.u.progress.dirty = true
		default:
			all = append(all, dispatch.Delivery{Event: e, Key: m.u.order.of(e)})
		}
	}
	m.deliverAll(all, nil, reserved)
	if done && s.readThrough > 0 {
		s.readThrough, m.u.progress.dirty = 0, true
	}
	return len(ids) > 0
}

// write adds new events.
func (m *model) insert(n int) {
	for range n {
		e := &delivery.Event{ID: int64(len(m.events) + 1), Type: "a", Destination: "x", Attempt: 1}
		if a := m.rng.IntN(m.aggs + 1); a > 0 {
			e.AggregateType, e.AggregateID = "a", fmt.Sprint(a)
		}
		m.events[e.ID] = e
		switch m.rng.IntN(12) {
		case 0, 1, 4, 5:
			m.fails[e.ID] = 1 + m.rng.IntN(5)
		case 2:
			m.fails[e.ID] = -1
		case 3:
			m.late[e.ID] = true
		}
	}
}

// person replays some dead letters together, or discards one. A replay takes long, so the due times are in any order.
func (m *model) person() {
	var dead []int64
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		if m.rows[id].state == deliveries.Dead {
			dead = append(dead, id)
		}
	}
	if len(dead) == 0 {
		return
	}

	m.rng.Shuffle(len(dead), func(i, k int) { dead[i], dead[k] = dead[k], dead[i] })
	if m.rng.IntN(2) == 0 {
		m.replay(dead[:1+m.rng.IntN(len(dead))])
	} else {
		m.discard(dead[0])
	}

	m.u.stored.due.Now()
	m.place = modelPlace{}
}

func (m *model) replay(dead []int64) {
	m.turn++
	for i, id := range dead {
		m.turns[id] = m.turn
		m.fails[id] = m.rng.IntN(3)
		m.ended[id] = false
		m.died[id] = false
		m.late[id] = true // what came behind it may have gone on

		r := m.rows[id]
		r.state = deliveries.Retry
		r.attempts = 0
		r.replays++
		r.at = time.Now().Add(-time.Duration(i))
	}
}

func (m *model) discard(id int64) {
	key := m.rows[id].key
	m.ended[id] = true
	delete(m.rows, id)

	if next := m.behind(key); next != nil { // as ops.Client does
		next.state = deliveries.Retry
		next.at = time.Now()
	}
}

// behind returns the first row of an aggregate if it is parked.
func (m *model) behind(key string) *modelRow {
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		if r := m.rows[id]; key != "" && r.key == key {
			if r.state == deliveries.Parked {
				return r
			}
			return nil
		}
	}
	return nil
}

// kill ends the relay in its present state: its successor reads the table, and the open ids of the position.
func (m *model) kill() {
	ids := append(m.u.inFlight.events.OpenIDs(), m.u.stored.pending.fresh(false)...)
	ids = append(ids, m.open...)
	slices.Sort(ids)
	m.open = slices.Compact(ids)
	for _, id := range m.open {
		m.ended[id] = false // it is called again
	}
	for id := range m.rows { // so are rows whose result is not written
		m.ended[id] = m.ended[id] && m.rows[id].state == deliveries.Dead
	}
	m.begin()
}

// TestAggregatesModel: whatever fails, dies, is replayed, discarded or killed, the events of a queue are called one after the
// other and in order, and none is left behind.
func TestAggregatesModel(t *testing.T) {
	t.Parallel()
	seeds := uint64(400)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newModel(t, seed)
				m.mu.Lock()
				defer m.mu.Unlock()
				m.begin()
				for range 200 + m.rng.IntN(400) {
					switch m.rng.IntN(40) {
					case 0, 1:
						m.insert(1 + m.rng.IntN(30))
					case 2:
						m.person()
					case 3:
						m.down = !m.down && m.rng.IntN(2) == 0
					case 4:
						if m.rng.IntN(4) == 0 {
							m.kill()
						}
					}
					if !m.step() {
						m.sleep(time.Millisecond)
					}
					if m.rng.IntN(2) == 0 {
						m.rests(0)
					}
					if t.Failed() {
						t.Fatalf("total %t, block %t", m.total, m.blocks)
					}
				}
				m.rest()
			})
		})
	}
}

// rest heals everything, and checks that everything ends.
func (m *model) rest() {
	m.down = false
	clear(m.fails)
	idle := 0
	for range 100_000 {
		if m.step() {
			idle = 0
			continue
		}
		if idle++; idle > 200 && len(m.u.inFlight.events.Batches) == 0 && !m.u.progress.dirty {
			break
		}
		if m.u.progress.dirty {
			m.write()
		}
		m.person()
		m.rests(time.Millisecond)
	}
	for id := range m.events {
		if !m.ended[id] {
			m.t.Errorf("event %d is left behind: %+v", id, m.rows[id])
		}
	}
	if len(m.rows) > 0 || len(m.u.stored.running) > 0 || m.u.stored.aggregates.Len() > 0 || m.lane.Order(dispatch.Key{}).Aggregates > 0 {
		m.t.Errorf("total %t, block %t: rows %v, running %v, aggregates %v, %d blocked", m.total, m.blocks, m.rows, m.u.stored.running,
			m.u.stored.aggregates.Len(), m.lane.Order(dispatch.Key{}).Aggregates)
	}
}
