package tail

import (
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// What the property test does, in counts.
const (
	propWriters = 8
	propSteps   = 40 // transactions of each writer, before the restart and after it
	propBulk    = 100_000
)

// TestReaderLosesNothing drives transactions of every kind against a server that crashes in
// between, with a reader that is killed again and again and continues from its stored position:
// each event is read once, in the order of the ids where its aggregate's events were committed so,
// and events that have not come in the end do not exist.
func TestReaderLosesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"plain", "partitioned"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if kind == "partitioned" {
				testenv.Long(t)
			}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			newPropRun(t, kind == "partitioned", seed).run()
		})
	}
}

// propRun is one run of the property test: a server, writers, and the events that the reader has
// returned.
type propRun struct {
	*follower
	server  *pgserver.Server
	rng     *rand.Rand
	writers []*propWriter
	bulk    int
	turns   chan struct{}

	got                []int64          // all ids, in the order in which they came
	once               map[int64]bool   // the same
	front              map[string]int64 // the last id of each aggregate whose events come in order
	agg                map[int64]string // aggregates of these
	stored             position
	second             *second
	kills, late, scans int
	calm               bool // nothing is killed any more
}

// position is the stored position of a shard.
type position struct {
	head int64
	open string
	got  int // how much of propRun.got is acknowledged with it
}

func newPropRun(t *testing.T, partitioned bool, seed uint64) *propRun {
	t.Helper()
	s := &propRun{
		server: testenv.OwnPostgres(t, map[string]string{"max_prepared_transactions": "100"}),
		rng:    rand.New(rand.NewPCG(seed, 0)), bulk: propBulk, turns: make(chan struct{}),
		once: make(map[int64]bool), front: make(map[string]int64), agg: make(map[int64]string), stored: position{open: "{}"},
	}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		s.bulk /= 20
	}
	l := newLogAt(t, s.server.URL(""))
	if partitioned {
		if err := outboxsql.Partition(t.Context(), l.Conn, "public", outboxsql.PartitionOptions{}); err != nil {
			t.Fatal(err)
		}
		for range 3 { // until the partitions of the days to come may be used
			l.Exec(`SELECT outbox_partitions_extend(now(), 3)`)
		}
	}
	s.follower = follow(l, 0, nil)
	s.second = &second{reader: NewReader(0, nil, s.w), covered: make(map[int64]bool)}
	for n := range propWriters {
		s.writers = append(s.writers, &propWriter{n: n, rng: rand.New(rand.NewPCG(seed, uint64(n+1))), bulk: s.bulk, partitioned: partitioned, turns: s.turns})
	}
	return s
}

func (s *propRun) run() {
	s.Helper()
	s.phase()
	// Open transactions are gone; prepared ones still exist.
	if err := s.server.Restart(s.Context(), pgserver.Immediate); err != nil {
		s.Fatal(err)
	}
	s.Conn, s.on = s.Dial(), session.Direct(s.Relay())
	s.kill()
	s.phase()
	for _, w := range s.writers {
		if err := w.finish(s.Context()); err != nil {
			s.Fatal(err)
		}
	}
	s.drain()
	testenv.Await(s, "the gaps end", func() bool { // once the server has noticed the end of each session
		s.scan()
		s.drain()
		s.step()
		return len(s.Gaps())+len(s.second.reader.Gaps()) == 0 && s.second.reader.Head() == s.Head()
	})
	s.Drop()
	s.verify()
}

// phase lets the writers write, and reads meanwhile. A read gives the turn to one or two of them,
// so that there are reads and scans between any two statements of a transaction.
func (s *propRun) phase() {
	s.Helper()
	group, ctx := errgroup.WithContext(s.Context())
	for _, w := range s.writers {
		w.main, w.aside, w.open = s.Dial(), s.Dial(), nil
		group.Go(func() error { return w.run(ctx) })
	}
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	for {
		s.poll()
		if s.rng.IntN(3) == 0 {
			s.step()
		}
		if s.rng.IntN(3) == 0 {
			s.scans++
			s.scan() // far more often than it is worth
		}
		for range 1 + s.rng.IntN(2) {
			select {
			case s.turns <- struct{}{}:
			case err := <-done:
				if err != nil {
					s.Fatal(err)
				}
				return
			default: // all of them are at it
			}
		}
	}
}

// second is a reader that sometimes follows the first one and sometimes reads alone. The first one has all events that
// the second has taken over.
type second struct {
	reader  *Reader
	from    int64          // where the first has begun
	covered map[int64]bool // ids that it has read, or taken over when the first had read them
	follows int
}

// scan scans for both readers.
func (s *propRun) scan() {
	s.Helper()
	l := s.scanOnly()
	s.Apply(l)
	s.second.reader.Apply(l)
}

// step makes a step of the second reader.
func (s *propRun) step() {
	s.Helper()
	r := s.second
	if _, ahead := s.Begun(); ahead {
		s.Wait() // the connection
	}
	head, gaps := r.reader.Head(), r.reader.Gaps()
	if s.rng.IntN(3) > 0 {
		if r.reader.Follow(Seen{From: r.from, Head: s.Head(), Gaps: s.Gaps()}) {
			r.follows++
			left := r.reader.Gaps()
			for id := range s.once {
				if id > head || gaps.Contains(id) && !left.Contains(id) {
					r.covered[id] = true
				}
			}
		}
		return
	}
	b, err := r.reader.Read(s.Context(), s.on, Query{Limit: 1 + s.rng.IntN(2000)})
	if err != nil {
		s.Fatal(err)
	}
	for i := range b.Events {
		if id := b.Events[i].ID; r.covered[id] {
			s.Fatalf("the second reader got %d twice", id)
		} else {
			r.covered[id] = true
		}
	}
}

// poll reads once, or takes the batch that was read ahead. It stores the position, or sometimes loses it.
func (s *propRun) poll() (full bool) {
	s.Helper()
	q := Query{Limit: 1 + s.rng.IntN(2000), Bytes: s.rng.IntN(2) * (1 + s.rng.IntN(100_000))}
	if !s.calm && s.rng.IntN(8) == 0 {
		q.Reach = ReachFirstGap
	}
	before := s.Head()
	var b Batch
	var err error
	if _, ahead := s.Begun(); ahead && s.rng.IntN(4) > 0 {
		b, err = s.Take()
	} else {
		b, err = s.Read(s.Context(), s.on, q)
	}
	if err != nil {
		s.Fatal(err)
	}
	for i := range b.Events {
		e := &b.Events[i]
		if s.once[e.ID] {
			s.Fatalf("%d came twice", e.ID)
		}
		s.once[e.ID] = true
		s.got = append(s.got, e.ID)
		if e.ID <= before {
			s.late++
		}
		if e.AggregateType == "ordered" {
			if s.front[e.AggregateID] > e.ID {
				s.Fatalf("%d of %s came after %d", e.ID, e.AggregateID, s.front[e.AggregateID])
			}
			s.front[e.AggregateID], s.agg[e.ID] = e.ID, e.AggregateID
		}
	}
	switch s.rng.IntN(20) {
	case 0:
		if s.calm {
			break
		}
		if s.kill(); s.rng.IntN(4) == 0 {
			s.on = session.Direct(s.Relay())
		}
	case 1, 2, 3, 4, 5:
		s.stored = position{s.Head(), s.Gaps().String(), len(s.got)}
	}
	if head, gaps := s.Head(), s.Gaps().String(); s.rng.IntN(2) == 0 {
		s.Begin(s.Context(), s.on, q)
		if s.Head() != head || s.Gaps().String() != gaps {
			s.Fatalf("a read that is not taken has moved the reader from %d %s to %d %v", head, gaps, s.Head(), s.Gaps())
		}
	}
	return b.Full
}

// kill drops all state that is not stored, and starts over from there.
func (s *propRun) kill() {
	s.Helper()
	s.Drop()
	open, err := idset.Parse(s.stored.open)
	if err != nil {
		s.Fatal(err)
	}
	s.kills++
	for _, id := range s.got[s.stored.got:] {
		delete(s.once, id)
		delete(s.agg, id)
	}
	s.got = s.got[:s.stored.got]
	clear(s.front)
	for id, aggregate := range s.agg {
		s.front[aggregate] = max(s.front[aggregate], id)
	}
	s.Reader = NewReader(s.stored.head, open, s.w)
	s.second.from = s.stored.head
}

func (s *propRun) drain() {
	s.Helper()
	s.calm = true // a reader that begins anew would need another look
	for s.poll() || s.stored.got < len(s.got) {
		s.stored = position{s.Head(), s.Gaps().String(), len(s.got)}
	}
}

// verify compares the events that came with those that exist.
func (s *propRun) verify() {
	s.Helper()
	want := testdb.List[int64](s.DB, s.Conn, `SELECT id FROM outbox_events ORDER BY id`)
	got := slices.Clone(s.got)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		lost := 0
		for _, id := range want {
			if !s.once[id] {
				lost++
			}
		}
		s.Errorf("%d of %d events are lost", lost, len(want))
	}
	for _, id := range want {
		if !s.second.covered[id] {
			s.Errorf("the second reader has missed %d", id)
			break
		}
	}
	if s.second.follows == 0 {
		s.Error("the second reader has never followed the first")
	}
	if len(s.Gaps()) > 0 {
		s.Errorf("gaps are left where nobody writes: %v", s.Gaps())
	}
	var drawn int64
	if len(want) > 0 {
		drawn = want[len(want)-1] - want[0] + 1 - int64(len(want))
	}
	s.Logf("%d events, %d of them behind the head, %d dead ids; reader killed %d times, %d looks", len(want), s.late, drawn, s.kills, s.scans)
	if s.late == 0 || drawn == 0 || s.kills == 0 {
		s.Error("too little has happened")
	}
}
