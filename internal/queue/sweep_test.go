package queue

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sweptBy passes s a claim of n events that ended at the id last.
func sweptBy(s *sweep, now time.Time, last int64, full bool, n int, c *Claimed) bellOrder { //nolint:revive // a test may say what it means
	s.poll = testConfig().PollInterval
	claimed := *c
	claimed.Work = make([]Work, n)
	if n > 0 {
		claimed.Work[n-1].Event.ID = last
	}
	q := Query{Limit: n + 1}
	if full {
		q.Limit = n
	}
	return s.swept(now, q, &claimed)
}

// sweptIn is one sweep of the tests: it starts, and a claim comes back.
func (s *sweep) sweptIn(now time.Time, took time.Duration, found int, c Claimed) bellOrder {
	s.start(now)
	return sweptBy(s, now.Add(took), s.head, false, found, &c)
}

func TestSweepFallsAsleepInSteps(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{}
	s.begin(sweepFull)
	if !s.due(now) {
		t.Fatal("a new relay does not sweep")
	}
	s.sweptIn(now, 0, 0, Claimed{Snapshot: Snapshot{Xmin: 10, Xmax: 10}})
	if s.mode != asleep || s.due(now) {
		t.Fatalf("mode %d after sweeping an empty table, due %t", s.mode, s.due(now))
	}
	if !s.wake() || s.mode != awake || s.wake() {
		t.Fatal("waking is news once")
	}
	step := func(d time.Duration, want mode, order bellOrder, c Claimed) {
		t.Helper()
		now = now.Add(d)
		if got := s.sweptIn(now, 0, 0, c); got != order || s.mode != want {
			t.Fatalf("mode %d and order %d, want %d and %d", s.mode, got, want, order)
		}
	}
	step(0, awake, bellLeave, Claimed{Snapshot: Snapshot{Xmin: 11, Xmax: 11}})
	step(awakeFor/2, awake, bellLeave, Claimed{Snapshot: Snapshot{Xmin: 11, Xmax: 11}})
	step(awakeFor/2, ringing, bellRing, Claimed{Snapshot: Snapshot{Xmin: 11, Xmax: 11}})
	if s.due(now) {
		t.Error("sweeps while the bell is being released")
	}
	s.rang(now, 12)
	if s.mode != drowsy || !s.due(now) {
		t.Fatalf("mode %d after the bell rang", s.mode)
	}
	step(0, drowsy, bellLeave, Claimed{Snapshot: Snapshot{Xmin: 11, Xmax: 13}})
	if s.due(now) || !s.due(now.Add(drowsyFirst)) {
		t.Error("the first pause of a drowsy relay is wrong")
	}
	step(drowsyFirst, drowsy, bellLeave, Claimed{Snapshot: Snapshot{Xmin: 11, Xmax: 13}})
	if s.due(now.Add(drowsyFirst)) {
		t.Error("the pauses do not grow")
	}
	step(2*drowsyFirst, asleep, bellLeave, Claimed{Snapshot: Snapshot{Xmin: 12, Xmax: 13}})
	s.rang(now, 99)
	if s.mode != asleep {
		t.Error("a late ring changes the mode")
	}
}

func TestSweepStaysDrowsyWhileItFinds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{mode: drowsy, xid: 5, pause: drowsyFirst}
	s.sweptIn(now, 0, 1, Claimed{Snapshot: Snapshot{Xmin: 9, Xmax: 9}})
	if s.mode != drowsy {
		t.Errorf("mode %d after a find", s.mode)
	}
}

func TestSweepWakesOnAFullClaim(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{asleep, ringing, drowsy} {
		s := &sweep{mode: m}
		s.start(time.Now())
		if order := sweptBy(s, time.Now(), 7, true, 7, &Claimed{}); order != bellSilence || s.mode != awake {
			t.Errorf("from mode %d: order %d, mode %d", m, order, s.mode)
		}
	}
}

func TestSweepLooksAgainAfterTheRunUnderWay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{head: 100}
	s.begin(sweepFull)
	s.start(now)
	sweptBy(s, now, 50, true, 50, &Claimed{})
	s.begin(sweepFull) // a full sweep is requested while the run is at id 50
	s.start(now)
	if s.cursor != 50 {
		t.Fatalf("the current run was cut short: cursor %d", s.cursor)
	}
	sweptBy(s, now, 60, false, 10, &Claimed{})
	if !s.due(now) {
		t.Fatal("nothing follows")
	}
	s.start(now)
	if s.kind != sweepFull || s.cursor != beforeAll {
		t.Errorf("the next run is of kind %d from %d", s.kind, s.cursor)
	}
	lesser := &sweep{active: true, kind: sweepNear, cursor: 70}
	lesser.begin(sweepFull)
	lesser.start(now)
	if lesser.kind != sweepFull || lesser.cursor != beforeAll {
		t.Errorf("a lesser run continues: kind %d from %d", lesser.kind, lesser.cursor)
	}
}

func TestSweepRationsWhatIsDear(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{}
	s.begin(sweepFull)
	s.sweptIn(now, time.Second, 0, Claimed{})
	if wait := s.next.Sub(now); wait < 15*time.Second {
		t.Errorf("a sweep of a second is repeated after %v", wait)
	}
	if wait := s.nextFull.Sub(now); wait < fullSweepEvery {
		t.Errorf("a full sweep of a second is repeated after %v", wait)
	}
}

func TestMarksAreNotAheadOfTheirSnapshot(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{}
	s.begin(sweepFull)
	s.start(now)
	// After the snapshot, which ends at 100, transaction 100 draws id 1, and
	// 101 draws id 2 and commits: the same claim, or one by id, finds it.
	s.head = 2
	sweptBy(s, now, 2, false, 1, &Claimed{Snapshot: Snapshot{Xmin: 100, Xmax: 100}})
	s.begin(sweepFull)
	s.sweptIn(now, 0, 0, Claimed{Snapshot: Snapshot{Xmin: 100, Xmax: 102}})
	if s.near.low > 0 {
		t.Errorf("the mark is at %d while transaction 100 may still commit id 1", s.near.low)
	}
}

// TestMarksPassNoOpenTransaction drives the marks against writers that draw
// ids, and commit in any order. A mark must never be at or above the id of an
// event that may still appear.
func TestMarksPassNoOpenTransaction(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &markModel{xid: 100, open: make(map[uint64][]int64), fresh: make(map[int64]bool)}
		m.now = time.Unix(1000, 0)
		m.s.low.settle = settleTime
		m.s.begin(sweepFull)
		t.Repeat(map[string]func(*rapid.T){
			"": m.check,
			"begin": func(*rapid.T) {
				m.open[m.xid] = nil
				m.xid++
			},
			"insert": func(t *rapid.T) {
				if len(m.open) > 0 {
					xid := rapid.SampledFrom(m.writers()).Draw(t, "xid")
					m.id++
					m.open[xid] = append(m.open[xid], m.id)
				}
			},
			"commit": func(t *rapid.T) {
				if len(m.open) > 0 {
					m.commit(rapid.SampledFrom(m.writers()).Draw(t, "xid"))
				}
			},
			"sweep begins": func(*rapid.T) { m.begin() },
			"sweep reads":  func(*rapid.T) { m.read() },
			"sweep ends":   func(t *rapid.T) { m.end(t) },
			"claim an id": func(t *rapid.T) {
				id := rapid.Int64Range(0, m.id).Draw(t, "id") // named by the bell
				if m.fresh[id] {
					delete(m.fresh, id)
					m.s.head = max(m.s.head, id)
				}
			},
			"time": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
			},
			"wake":  func(*rapid.T) { m.s.wake() },
			"look":  func(*rapid.T) { m.s.begin(sweepFull) },
			"rings": func(*rapid.T) { m.s.rang(m.now, m.xid) },
		})
	})
}

type markModel struct {
	now   time.Time
	s     sweep
	xid   uint64             // the next one
	id    int64              // the last one
	open  map[uint64][]int64 // inserted, by transactions under way
	fresh map[int64]bool     // committed, not claimed

	phase int // 0 nothing in flight, 1 snapshot taken, 2 rows read
	got   Claimed
	ids   []int64
}

func (m *markModel) writers() []uint64 {
	var xids []uint64
	for xid := uint64(100); xid < m.xid; xid++ {
		if _, ok := m.open[xid]; ok {
			xids = append(xids, xid)
		}
	}
	return xids
}

func (m *markModel) commit(xid uint64) {
	for _, id := range m.open[xid] {
		m.fresh[id] = true
	}
	delete(m.open, xid)
}

func (m *markModel) begin() {
	if m.phase != 0 || !m.s.due(m.now) {
		return
	}
	m.s.start(m.now)
	m.got = Claimed{Snapshot: Snapshot{Xmin: m.xid, Xmax: m.xid}}
	for xid := range m.open {
		m.got.Xmin = min(m.got.Xmin, xid)
	}
	m.phase = 1
}

// read takes the rows, with a snapshot of its own.
func (m *markModel) read() {
	if m.phase != 1 {
		return
	}
	m.ids = nil
	for id := max(m.s.cursor, 0) + 1; id <= m.id && len(m.ids) < 3; id++ {
		if m.fresh[id] {
			m.ids = append(m.ids, id)
			delete(m.fresh, id)
		}
	}
	m.phase = 2
}

func (m *markModel) end(t *rapid.T) {
	if m.phase != 2 {
		return
	}
	m.phase = 0
	last := m.s.cursor
	if n := len(m.ids); n > 0 {
		last = m.ids[n-1]
		m.s.head = max(m.s.head, last)
	}
	took := time.Duration(rapid.IntRange(0, 2000).Draw(t, "took in us")) * time.Microsecond
	m.now = m.now.Add(took)
	sweptBy(&m.s, m.now, last, len(m.ids) == 3, len(m.ids), &m.got)
}

func (m *markModel) check(t *rapid.T) {
	lowest := m.id + 1
	for _, ids := range m.open {
		for _, id := range ids {
			lowest = min(lowest, id)
		}
	}
	for id := range m.fresh {
		lowest = min(lowest, id)
	}
	if m.s.near.low >= lowest {
		t.Fatalf("the near mark is at %d, event %d is yet to come", m.s.near.low, lowest)
	}
	if m.s.low.low >= lowest {
		t.Fatalf("the low mark is at %d, event %d is yet to come", m.s.low.low, lowest)
	}
}

// TestSweepStaysDrowsyForLong: a transaction that stays open for hours keeps
// the relay drowsy, and must not make it sweep without a break.
func TestSweepStaysDrowsyForLong(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{poll: testConfig().PollInterval}
	s.mode = ringing
	s.rang(now, 12)
	for i := range 100 {
		s.sweptIn(now, 0, 0, Claimed{Snapshot: Snapshot{Xmin: 11, Xmax: 13}})
		if s.mode != drowsy || s.due(now) {
			t.Fatalf("mode %d and due %t at once after %d sweeps, want drowsy and a pause", s.mode, s.due(now), i+1)
		}
		now = s.next
	}
}
