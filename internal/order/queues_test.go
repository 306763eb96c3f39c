package order

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// place is where the model's delivery is.
type place uint8

const (
	behind place = iota + 1
	queued
	taken
	ended
)

// task is a delivery of the model. Tasks of aggregate 0 have no order.
type task = Item[value]

type value struct {
	id, group int
	place     place
}

// model is an owner of queues: it has a queue, and workers that each have a chunk of it.
type model struct {
	q       *Queues[value]
	batches bool
	all     []*task
	queue   []*task
	chunks  [][]*task
}

func (m *model) key(group int) Key {
	if group == 0 {
		return Key{}
	}
	return NewKey(uint64(group), uint64(group))
}

// count returns how many tasks of a group have not ended.
func (m *model) count(group int) (n int) {
	for _, one := range m.all {
		if one.Value.group == group && one.Value.place != ended {
			n++
		}
	}
	return n
}

// end records that tasks have ended together with one of a group.
func (m *model) end(t *rapid.T, group int, gone []*task) {
	for i, one := range gone {
		if one.Value.group != group || one.Value.place == ended || i > 0 && one.Value.id < gone[i-1].Value.id {
			t.Fatalf("%+v ends with one of aggregate %d, among %d", one, group, len(gone))
		}
		if one.Value.place == taken && (m.batches || !one.Cut()) {
			t.Fatalf("%+v is taken and ends early", one)
		}
		one.Value.place = ended
	}
	m.queue = slices.DeleteFunc(m.queue, func(one *task) bool { return one.Value.place == ended })
	for i := range m.chunks {
		m.chunks[i] = slices.DeleteFunc(m.chunks[i], func(one *task) bool { return one.Value.place == ended })
	}
	m.chunks = slices.DeleteFunc(m.chunks, func(chunk []*task) bool { return len(chunk) == 0 })
}

// leave ends one task.
func (m *model) leave(t *rapid.T, one *task, how Result, rests bool) {
	returned := m.q.Returned()
	rows, next, gone := m.q.Leave(one, how, rests)
	one.Value.place = ended
	m.end(t, one.Value.group, gone)
	if rows != (one.Value.group > 0 && m.count(one.Value.group) == 0 && len(gone) == 0 && how == Done && m.q.IsBlocked(m.key(one.Value.group))) {
		t.Fatalf("rows wait behind %+v: %t", one, rows)
	}
	if how == Undone && (!m.q.Stopped() || m.q.Returned() == returned) {
		t.Fatal("a task is returned, and the queues go on")
	}
	if how == Failed && one.Value.group > 0 && !m.q.IsBlocked(m.key(one.Value.group)) {
		t.Fatalf("%+v has failed, and its aggregate is not blocked", one)
	}
	if how == Failed && one.Value.group > 0 && m.q.options.Total && !m.q.Stopped() {
		t.Fatal("a task of a total order has failed, and the queues go on")
	}
	if next != nil {
		if rests || m.q.Stopped() || next.Value.place != behind || next.Value.group != one.Value.group {
			t.Fatalf("%+v is next after %+v", next, one)
		}
		next.Value.place = queued
		m.queue = append(m.queue, next)
	}
}

// check verifies that the first task of each aggregate is queued or taken, that those that one worker has taken follow it,
// and that all others wait.
func (m *model) check(t *rapid.T) {
	waiting, alive := 0, map[int][]*task{}
	for _, one := range m.all {
		if one.Value.place == behind {
			waiting++
		}
		if one.Value.place != ended && one.Value.group > 0 {
			alive[one.Value.group] = append(alive[one.Value.group], one)
		}
	}
	if m.q.Waiting() != waiting || m.q.Len() != len(alive) {
		t.Fatalf("%d wait in %d queues, want %d in %d", m.q.Waiting(), m.q.Len(), waiting, len(alive))
	}
	for group, tasks := range alive {
		if !m.q.Busy(m.key(group)) || tasks[0].Value.place == behind || !tasks[0].First() {
			t.Fatalf("the first of aggregate %d is %+v", group, tasks[0])
		}
		for i, one := range tasks[1:] {
			if one.Value.place == queued || one.Value.place == taken && tasks[i].Value.place != taken || one.First() {
				t.Fatalf("%+v is behind %+v", one, tasks[i])
			}
		}
	}
	for _, chunk := range m.chunks {
		for i, one := range chunk {
			if i > 0 && one.Value.group > 0 && one.Value.id < chunk[i-1].Value.id && one.Value.group == chunk[i-1].Value.group {
				t.Fatalf("%+v goes after %+v", one, chunk[i-1])
			}
		}
	}
}

func (m *model) join(t *rapid.T) {
	one := &task{Value: value{id: len(m.all) + 1, group: rapid.IntRange(0, 3).Draw(t, "aggregate")}}
	key := m.key(one.Value.group)
	e := Entry{Key: &key, Stored: rapid.Bool().Draw(t, "stored")}
	if rapid.IntRange(0, 3).Draw(t, "leads") == 0 {
		e.Leads, e.Since = true, m.q.Failures()
	}
	blocked, stopped, held := m.q.IsBlocked(key), m.q.Stopped(), m.q.Held(e)
	if held != (stopped || blocked && !e.Leads) {
		t.Fatalf("%+v is held: %t", e, held)
	}
	switch turn := m.q.Join(one, e); {
	case (turn == Begins || turn == Waits) == held && turn != Parked || held && turn == Parked && !e.Stored && m.q.options.Total:
		t.Fatalf("%+v: turn %d, and it is held: %t", e, turn, held)
	case !held && turn == Parked:
		t.Fatalf("%+v: turn %d, and there are %d before it", e, turn, m.count(one.Value.group))
	case turn == Parked && !m.q.IsBlocked(key):
		t.Fatalf("%+v is parked, and its aggregate is not blocked", e)
	case turn == Parked || turn == Returned:
		return
	case turn == Begins:
		one.Value.place = queued
		m.queue = append(m.queue, one)
	default:
		one.Value.place = behind
	}
	m.all = append(m.all, one)
}

// take gives a worker up to n tasks.
func (m *model) take(t *rapid.T) {
	var chunk []*task
	for n := rapid.IntRange(1, 4).Draw(t, "n"); len(chunk) < n && len(m.queue) > 0; {
		one := m.queue[0]
		m.queue = m.queue[1:]
		for one != nil && len(chunk) < n {
			m.q.Begin(one)
			one.Value.place = taken
			chunk = append(chunk, one)
			one = one.Next()
		}
	}
	if len(chunk) > 0 {
		m.chunks = append(m.chunks, chunk)
	}
}

// putBack returns the end of a worker's chunk, all but the first.
func (m *model) putBack(t *rapid.T) {
	if len(m.chunks) == 0 {
		t.Skip("no worker")
	}
	i := rapid.IntRange(0, len(m.chunks)-1).Draw(t, "worker")
	var back []*task
	for _, one := range m.chunks[i][1:] {
		one.Value.place = behind
		if m.q.PutBack(one) {
			one.Value.place = queued
			back = append(back, one)
		}
	}
	m.queue, m.chunks[i] = append(back, m.queue...), m.chunks[i][:1]
}

// finish ends a task of a worker that nothing of its aggregate precedes: the first, or one that is not begun in its turn. Of a batch it
// ends all.
func (m *model) finish(t *rapid.T) {
	if len(m.chunks) == 0 {
		t.Skip("no worker")
	}
	chunk := slices.Clone(m.chunks[rapid.IntRange(0, len(m.chunks)-1).Draw(t, "worker")])
	how := rapid.SampledFrom([]Result{Done, Done, Done, Failed, Undone}).Draw(t, "how")
	rests := rapid.IntRange(0, 4).Draw(t, "rests") == 0
	if !m.batches {
		first := slices.DeleteFunc(chunk, func(one *task) bool { return !one.First() })
		chunk = first[rapid.IntRange(0, len(first)-1).Draw(t, "task"):][:1]
	}
	for _, one := range chunk {
		m.leave(t, one, how, rests)
	}
}

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"": m.check, "join": m.join, "take": m.take, "put back": m.putBack, "finish": m.finish,
		"empty": func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "empty") > 0 {
				t.Skip("not yet")
			}
			for len(m.queue) > 0 {
				one := m.queue[0]
				m.end(t, one.Value.group, m.q.Release(one))
				if one.Value.place != ended {
					t.Fatalf("%+v has not ended", one)
				}
			}
		},
		"unblock": func(t *rapid.T) { m.q.Unblock(m.key(rapid.IntRange(1, 3).Draw(t, "aggregate"))) },
		"resume": func(t *rapid.T) {
			if m.q.Resume(m.q.Returned()+1) || !m.q.Resume(m.q.Returned()) || m.q.Stopped() {
				t.Fatal("the queues go on at the wrong time")
			}
		},
	}
}

// TestQueues: no delivery is lost or overtaken, whatever happens to the deliveries before it.
func TestQueues(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		batches := rapid.Bool().Draw(t, "batches")
		m := &model{q: New[value](Options{Total: rapid.Bool().Draw(t, "total"), Batches: batches}), batches: batches}
		t.Repeat(m.actions())
		for len(m.queue) > 0 {
			m.end(t, m.queue[0].Value.group, m.q.Release(m.queue[0]))
		}
		for _, one := range m.q.Withdraw() {
			if one.Value.place != behind {
				t.Fatalf("%+v is withdrawn", one)
			}
			one.Value.place = ended
		}
		for _, one := range m.all {
			if one.Value.place != ended && one.Value.place != taken {
				t.Fatalf("%+v is left", one)
			}
		}
		for len(m.chunks) > 0 {
			m.leave(t, m.chunks[0][0], Done, true)
		}
		if !m.q.Withdrawn() || m.q.Len() != 0 || m.q.Waiting() != 0 {
			t.Fatalf("%d queues and %d that wait are left", m.q.Len(), m.q.Waiting())
		}
	})
}

// TestFailureRevokesLeads: a delivery that leads goes first only if none of its aggregate has failed since the rows were read.
func TestFailureRevokesLeads(t *testing.T) {
	t.Parallel()
	q, key := New[value](Options{}), NewKey(1, 2)
	q.Block(key)
	e := Entry{Key: &key, Leads: true, Since: q.Failures(), Stored: true}
	if q.Held(e) || !q.Held(Entry{Key: &key, Stored: true}) {
		t.Error("a blocked aggregate holds the delivery that leads, or no other one")
	}
	q.Fail(key)
	if !q.Held(e) {
		t.Error("the aggregate has failed since")
	}
	if e.Since = q.Failures(); q.Held(e) || q.Blocked() != 1 {
		t.Error("the rows were read after the failure")
	}
	if q.Unblock(key); q.IsBlocked(key) || q.Held(Entry{Key: &key}) {
		t.Error("it is not blocked any more")
	}
}

// TestParks: in a total order, a delivery without a row is returned.
func TestParks(t *testing.T) {
	t.Parallel()
	var a, b task
	q, key := New[value](Options{Total: true}), NewKey(1, 2)
	q.Fail(key)
	if turn := q.Join(&a, Entry{Key: &key, Stored: true}); turn != Parked || q.Stopped() {
		t.Errorf("the turn of a row is %d", turn)
	}
	if turn := q.Join(&b, Entry{Key: &key}); turn != Returned || !q.Stopped() {
		t.Errorf("the turn of a new delivery is %d", turn)
	}
	if !New[value](Options{}).Parks(false) {
		t.Error("without a total order it is not parked")
	}
}

// fill joins up to n deliveries to each of several aggregates in turn, within the room. It returns how many of them wait
// in memory.
func fill(q *Queues[int], aggregates, n int, now time.Time) (waiting int) {
	for range n {
		for i := range aggregates {
			if q.Waiting() >= q.options.Room {
				return waiting
			}
			key := Key{1, uint64(i)}
			if turn := q.Join(&Item[int]{}, Entry{Key: &key, Now: now}); turn == Waits {
				waiting++
			}
		}
	}
	return waiting
}

// TestSlowAggregates: aggregates whose deliveries do not end leave room for others, however many they are.
func TestSlowAggregates(t *testing.T) {
	t.Parallel()
	const room = 8192
	for _, aggregates := range []int{1, 4, 16, 64, 200} {
		q := New[int](Options{Room: room})
		now := time.Now()
		for range 100 {
			fill(q, aggregates, 1000/aggregates, now)
			now = now.Add(10 * time.Millisecond)
		}

		if free := room - q.Waiting(); free < room/200 {
			t.Errorf("%d aggregates leave %d of %d", aggregates, free, room)
		}
	}
}

// TestFastAggregate: an aggregate whose deliveries end quickly may have all the memory, also in a total order.
func TestFastAggregate(t *testing.T) {
	t.Parallel()
	q := New[int](Options{Room: 8192})
	now := time.Now()
	var items []*Item[int]
	key := Key{1, 1}
	for i := range 50_000 {
		now = now.Add(4 * time.Microsecond)
		one := &Item[int]{}
		if turn := q.Join(one, Entry{Key: &key, Now: now}); turn == Parked {
			t.Fatalf("delivery %d is parked", i)
		}
		items = append(items, one)
		if len(items) > 2000 {
			q.Begin(items[0])
			q.Leave(items[0], Done, false)
			items = items[1:]
		}
	}

	total := New[int](Options{Room: 8192, Total: true})
	if waiting := fill(total, 1, 5000, now); waiting != 4999 {
		t.Errorf("%d wait in a total order", waiting)
	}
}
