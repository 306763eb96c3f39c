package dispatch

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
)

// laneModel drives the accounting of a lane, with the test as its workers.
type laneModel struct {
	l       *lane
	batches []*Batch
	granted int
	queued  []*job
	taken   [][]*job // by the workers at work
	next    int64
}

// fill returns a batch of n new deliveries.
func (m *laneModel) fill(n int) *Batch {
	p := NewBatch(func() bool { return true }, func(bool) {})
	all := make([]Delivery, n)
	for i := range all {
		m.next++
		all[i].Event = &delivery.Event{ID: m.next}
	}
	p.Fill(all)
	m.batches = append(m.batches, p)
	return p
}

func (m *laneModel) check(t *rapid.T) {
	load := m.granted + len(m.queued)
	for _, jobs := range m.taken {
		load += len(jobs)
	}
	if m.l.load != load || load < 0 {
		t.Fatalf("load %d, and there are %d", m.l.load, load)
	}
	if got := m.l.queue[m.l.head:]; !slices.Equal(got, m.queued) {
		t.Fatalf("%d jobs queued, want %d, or others", len(got), len(m.queued))
	}
	for _, j := range m.l.queue[:m.l.head] {
		if j != nil {
			t.Fatal("jobs that are gone are still held in memory")
		}
	}
	if room := m.l.Capacity(false); room > max(0, m.l.sizeLocked()-load) { // which may shrink below the load
		t.Fatalf("room for %d beside %d", room, load)
	}
}

func (m *laneModel) worker(t *rapid.T) int {
	if len(m.taken) == 0 {
		t.Skip("no worker is running")
	}
	return rapid.IntRange(0, len(m.taken)-1).Draw(t, "worker")
}

func (m *laneModel) leave(i int) {
	m.taken = slices.Delete(m.taken, i, i+1)
}

func (m *laneModel) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"": m.check,
		"grant": func(t *rapid.T) {
			n := rapid.IntRange(1, 200).Draw(t, "wanted")
			got := m.l.Reserve(Request{N: n})
			if got < 0 || got > n {
				t.Fatalf("granted %d of %d", got, n)
			}
			m.granted += got
		},
		"push": func(t *rapid.T) {
			n := rapid.IntRange(0, m.granted).Draw(t, "jobs")
			p := m.fill(n)
			m.l.Deliver(p, nil)
			for i := range p.jobs {
				m.queued = append(m.queued, &p.jobs[i])
			}
			m.granted -= n
		},
		"give back": func(t *rapid.T) {
			n := rapid.IntRange(0, m.granted).Draw(t, "granted")
			m.l.Return(n)
			m.granted -= n
		},
		"take": func(t *rapid.T) {
			if len(m.queued) == 0 {
				t.Skip("nothing is queued")
			}
			jobs := m.l.take(nil, nil)
			if len(jobs) == 0 || !slices.Equal(jobs, m.queued[:len(jobs)]) {
				t.Fatalf("took %d jobs, or not the first", len(jobs))
			}
			m.queued = slices.Clone(m.queued[len(jobs):])
			m.taken = append(m.taken, jobs)
		},
		"put back": func(t *rapid.T) {
			i := m.worker(t)
			jobs := m.taken[i]
			n := rapid.IntRange(1, len(jobs)).Draw(t, "called")
			rest := slices.Clone(jobs[n:])
			m.l.putBack(rest)
			m.queued = append(rest, m.queued...)
			m.l.finished(time.Now(), time.Duration(n)*time.Microsecond, jobs[:n], allDelivered(n))
			m.leave(i)
		},
		"finish": func(t *rapid.T) {
			i := m.worker(t)
			each := time.Duration(rapid.IntRange(1, 9000).Draw(t, "us each")) * time.Microsecond
			m.l.finished(time.Now(), each*time.Duration(len(m.taken[i])), m.taken[i], allDelivered(len(m.taken[i])))
			m.leave(i)
		},
		"take back": m.takeBack,
		"drop": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "stop") > 0 {
				t.Skip("not yet")
			}
			m.l.drop()
			m.queued = nil
			if m.l.Reserve(Request{N: 1}) != 0 {
				t.Fatal("a stopped lane takes more")
			}
		},
	}
}

// takeBack takes back the queued jobs of a batch.
func (m *laneModel) takeBack(t *rapid.T) {
	if len(m.batches) == 0 {
		t.Skip("no batch")
	}
	p := rapid.SampledFrom(m.batches).Draw(t, "batch")
	p.Take()
	var gone []int
	var kept []*job
	for _, j := range m.queued {
		if j.Value.batch == p {
			gone = append(gone, j.Value.index)
		} else {
			kept = append(kept, j)
		}
	}
	m.l.TakeBack(p)
	_, answers, _ := p.Take()
	got := make([]int, len(answers))
	for i := range answers {
		got[i] = answers[i].Place
	}
	if !slices.Equal(got, gone) {
		t.Fatalf("took back %v, want %v", got, gone)
	}
	m.queued = kept
}

func allDelivered(n int) []outcome {
	outs := make([]outcome, n)
	for i := range outs {
		outs[i].verdict = VerdictDelivered
	}
	return outs
}

func TestLaneLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := testLane()
		m := &laneModel{l: newTestLane(nil, cfg)}
		m.l.running = cfg.Concurrency // as many as there may be: push starts none
		m.l.throughput.pace = time.Duration(rapid.IntRange(1, 5000).Draw(t, "pace in us")) * time.Microsecond
		t.Repeat(m.actions())
	})
}
