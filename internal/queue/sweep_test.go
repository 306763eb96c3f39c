package queue

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/wake"
)

// sweptBy passes s a claim of n events that ended at the id last.
func sweptBy(s *sweep, now time.Time, last int64, full bool, n int, c *Claimed) {
	s.poll = pollSeldom
	claimed := *c
	claimed.Work = make([]Work, n)
	if n > 0 {
		claimed.Work[n-1].Event.ID = last
	}
	q := Query{Limit: n + 1, OpenWriters: c.LastID != nil}
	if full {
		q.Limit = n
	}
	s.swept(now, q, &claimed)
}

func pollSeldom() time.Duration { return testConfig().PollInterval }

// sweptIn is one sweep of the tests: it starts, and a claim comes back empty.
func (s *sweep) sweptIn(now time.Time, took time.Duration, c Claimed) {
	s.start(now)
	sweptBy(s, now.Add(took), s.head, false, 0, &c)
}

// TestSweepTurns: whatever the state of the relay becomes, a sweep follows. While it polls, sweeps follow each other.
func TestSweepTurns(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{poll: pollSeldom}
	s.begin(sweepFull)
	if !s.due(now) {
		t.Fatal("a new relay does not sweep")
	}
	s.sweptIn(now, 0, Claimed{})
	if s.due(now) {
		t.Fatal("sweeps an empty table again at once")
	}
	s.setPolling(true)
	for range 3 {
		if !s.due(now) {
			t.Fatal("a relay that polls does not sweep")
		}
		s.sweptIn(now, 0, Claimed{})
		if s.due(now) {
			t.Fatal("a relay that polls sweeps an empty table without a pause")
		}
		now = now.Add(wake.PollingPause)
	}
	s.sweptIn(now, 0, Claimed{})
	s.setPolling(false)
	if !s.due(now) || s.wanted != sweepLow {
		t.Error("no sweep from the low watermark follows when the relay polls no more")
	}
	s.sweptIn(now, 0, Claimed{})
	if s.due(now.Add(wake.PollingPause)) {
		t.Error("sweeps go on")
	}
}

// TestSettles: silent writers have ended once a sweep has taken a snapshot that says so.
func TestSettles(t *testing.T) {
	t.Parallel()
	s, _, _ := newTestScheduler(t)
	ended := s.settle(12)
	for _, c := range []struct {
		xmin uint64
		want wake.Writers
	}{{11, wake.Open}, {11, wake.Open}, {12, wake.Ended}} {
		s.sweepNow()
		q := s.pick(t)
		for q.Source != SourceSweep {
			s.claimed(&q, &Claimed{NextDue: -1}, nil)
			q = s.pick(t)
		}
		s.claimed(&q, &Claimed{Snapshot: Snapshot{Xmin: c.xmin, Xmax: 13}}, nil)
		if got, err := ended(t.Context()); got != c.want || err != nil {
			t.Errorf("with all below %d ended: %v, %v; want %v", c.xmin, got, err, c.want)
		}
	}
}

func TestSweepLooksAgainAfterTheRunUnderWay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{poll: pollSeldom, head: 100}
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
	lesser := &sweep{poll: pollSeldom, active: true, kind: sweepNear, cursor: 70}
	lesser.begin(sweepFull)
	lesser.start(now)
	if lesser.kind != sweepFull || lesser.cursor != beforeAll {
		t.Errorf("a lesser run continues: kind %d from %d", lesser.kind, lesser.cursor)
	}
}

func TestSweepRationsWhatIsDear(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{poll: pollSeldom}
	s.begin(sweepFull)
	s.sweptIn(now, time.Second, Claimed{})
	if wait := s.next.Sub(now); wait < 15*time.Second {
		t.Errorf("a sweep of a second is repeated after %v", wait)
	}
	if wait := s.nextFull.Sub(now); wait < fullSweepEvery {
		t.Errorf("a full sweep of a second is repeated after %v", wait)
	}
}

func TestWatermarksAreNotAheadOfTheirSnapshot(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sweep{poll: pollSeldom}
	s.begin(sweepFull)
	s.start(now)
	// After the snapshot, which ends at 100, transaction 100 draws id 1, and
	// 101 draws id 2 and commits: the same claim, or one by id, finds it.
	s.head = 2
	sweptBy(s, now, 2, false, 1, &Claimed{Snapshot: Snapshot{Xmin: 100, Xmax: 100}})
	s.begin(sweepFull)
	s.sweptIn(now, 0, Claimed{Snapshot: Snapshot{Xmin: 100, Xmax: 102}})
	if s.near.id > 0 {
		t.Errorf("the watermark is at %d while transaction 100 may still commit id 1", s.near.id)
	}
}

// TestWatermarksPassNoOpenTransaction drives the watermarks against writers that draw
// ids, and commit in any order. A watermark must never be at or above the id of an
// event that may still appear.
func TestWatermarksPassNoOpenTransaction(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &watermarkModel{xid: 100, open: make(map[uint64][]int64), fresh: make(map[int64]uint64)}
		m.now = time.Unix(1000, 0)
		m.s.poll = pollSeldom
		m.s.begin(sweepFull)
		actions := map[string]func(*rapid.T){
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
				id := rapid.Int64Range(0, m.id).Draw(t, "id") // named by a notification
				if m.fresh[id] > 0 {
					delete(m.fresh, id)
					m.s.head = max(m.s.head, id)
					m.s.writers.belowNear = m.s.writers.belowNear || id <= m.s.near.id
				}
			},
			"time": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
			},
			"polls":    func(*rapid.T) { m.s.setPolling(true) },
			"is quiet": func(*rapid.T) { m.s.setPolling(false) },
			"look":     func(*rapid.T) { m.s.begin(sweepFull) },
		}
		for range 10 { // watermarks skip a transaction only after many steps
			t.Repeat(actions)
		}
	})
}

type watermarkModel struct {
	now   time.Time
	s     sweep
	xid   uint64             // the next one
	id    int64              // the last one
	open  map[uint64][]int64 // inserted, by transactions under way
	fresh map[int64]uint64   // committed, not claimed, with the transaction

	phase int // 0 nothing in flight, 1 snapshot taken, 2 rows read
	got   Claimed
	ids   []int64
}

func (m *watermarkModel) writers() []uint64 {
	var xids []uint64
	for xid := uint64(100); xid < m.xid; xid++ {
		if _, ok := m.open[xid]; ok {
			xids = append(xids, xid)
		}
	}
	return xids
}

func (m *watermarkModel) commit(xid uint64) {
	for _, id := range m.open[xid] {
		m.fresh[id] = xid
	}
	delete(m.open, xid)
}

func (m *watermarkModel) begin() {
	if m.phase != 0 || !m.s.due(m.now) {
		return
	}
	m.s.start(m.now)
	m.got = Claimed{Snapshot: Snapshot{Xmin: m.xid, Xmax: m.xid}}
	for xid := range m.open {
		m.got.Xmin = min(m.got.Xmin, xid)
	}
	if m.s.writers.any() {
		last := m.id
		m.got.Open, m.got.LastID = m.writers(), &last
	}
	m.phase = 1
}

// read reads the rows with a separate snapshot.
func (m *watermarkModel) read() {
	if m.phase != 1 {
		return
	}
	m.ids = nil
	for id := max(m.s.cursor, 0) + 1; id <= m.id && len(m.ids) < 3; id++ {
		if m.fresh[id] > 0 {
			m.ids = append(m.ids, id)
			delete(m.fresh, id)
		}
	}
	m.phase = 2
}

func (m *watermarkModel) end(t *rapid.T) {
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
	if r := m.s.restarted(&Query{OpenWriters: m.got.LastID != nil}, &m.got); r != nil {
		t.Fatalf("the sequence, at %d, has not begun again: head %d", r.last, r.head)
	}
}

func (m *watermarkModel) check(t *rapid.T) {
	check := func(id int64, xid uint64) {
		near, low := m.s.near.id, m.s.low.id
		if back, apart := m.s.writers.skipped[xid]; apart {
			near, low = back, back // the watermarks go back when it is known to have ended
		}
		if near >= id {
			t.Fatalf("the near watermark is at %d, event %d of transaction %d is yet to come", near, id, xid)
		}
		if low >= id {
			t.Fatalf("the low watermark is at %d, event %d of transaction %d is yet to come", low, id, xid)
		}
	}
	for xid, ids := range m.open {
		for _, id := range ids {
			check(id, xid)
		}
	}
	for id, xid := range m.fresh {
		check(id, xid)
	}
}

// TestWatermarksSkipALongTransaction: watermarks pass a transaction that stays open for minutes, and return to
// their values from its beginning when it has ended.
func TestWatermarksSkipALongTransaction(t *testing.T) {
	t.Parallel()
	now, last := time.Now(), int64(1_000_000)
	s := &sweep{poll: pollSeldom}
	xid := uint64(100)
	sweep := func(open ...uint64) {
		now = now.Add(100 * time.Millisecond)
		s.head, xid = s.head+100, xid+100
		c := Claimed{Snapshot: Snapshot{Xmin: xid, Xmax: xid}}
		for _, o := range open {
			c.Xmin = min(c.Xmin, o)
		}
		if s.writers.any() {
			c.Open, c.LastID = open, &last
		}
		s.begin(sweepLow)
		s.sweptIn(now, 0, c)
	}
	for range 100 {
		sweep()
	}
	long, began := xid, s.head
	for range 100 {
		sweep(long)
	}
	if behind := s.head - s.near.id; behind > 3000 {
		t.Errorf("the near watermark is %d ids behind after 10 s beside a transaction that stays open", behind)
	}
	if behind := s.head - s.low.id; behind > 6000 {
		t.Errorf("the low watermark is %d ids behind after 10 s beside a transaction that stays open", behind)
	}
	sweep()
	if s.near.id > began || s.low.id > began || !s.due(now) {
		t.Fatalf("the transaction, which began at the id %d, has ended: near watermark %d, low watermark %d, due %t", began, s.near.id, s.low.id, s.due(now))
	}
	s.start(now)
	if s.cursor > began {
		t.Errorf("the sweep after the end of the transaction begins behind the id %d, want %d at most", s.cursor, began)
	}
}

// TestWatermarksResetWhenIDsBeginAgain: if the sequence is behind the highest id, all watermarks are reset to the
// watermarks of a new relay. Otherwise an event below the near watermark is a late one.
func TestWatermarksResetWhenIDsBeginAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		last *int64
		anew bool
	}{
		"begins again": {new(int64(7)), true},
		"late":         {new(int64(9e18) + 5), false},
		"unknown":      {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, slow := newTestScheduler(t)
			s.sweep.head, s.sweep.near.id, s.sweep.low.id = 9e18, 9e18, 9e18
			if s.sweep.writers.any() {
				t.Fatal("open writers are queried before anything was found")
			}
			s.claimed(&Query{Source: SourceIDs, IDs: []int64{7}}, sweptIDs(7, 7), nil)
			s.sweepAll()
			var q Query
			for q = s.pick(t); q.Source != SourceSweep || q.lane != nil; q = s.pick(t) {
				s.claimed(&q, &Claimed{NextDue: -1, Snapshot: Snapshot{Xmin: 1, Xmax: 1}}, nil)
			}
			if !q.OpenWriters {
				t.Fatal("open writers are not queried although an event was found below the near watermark")
			}
			s.lag(slow, 5e18)
			got := s.claimed(&q, &Claimed{Snapshot: Snapshot{Xmin: 1, Xmax: 1}, LastID: c.last}, nil)
			if (got != nil) != c.anew || got != nil && (got.head != 9e18 || got.last != 7) {
				t.Fatalf("got %+v", got)
			}
			if !c.anew {
				return
			}
			if s.sweep.head != 7 || s.sweep.near.id != 0 || s.sweep.low.id != 0 || s.lagged[slow].after != beforeAll {
				t.Errorf("head %d, near watermark %d, low watermark %d, the lane that lags %d", s.sweep.head, s.sweep.near.id, s.sweep.low.id, s.lagged[slow].after)
			}
			if s.sweep.writers.any() {
				t.Error("open writers are still queried")
			}
		})
	}
}
