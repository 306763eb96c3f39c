package relaytest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// replayStep is the distance between the numbers of two replays of ranges.
const replayStep = 1000

// replayed is what a destination has received of a replay.
type replayed struct {
	got  map[int64]bool
	died map[int64]bool     // no event waits for these; if a relay dies before it stores the dead letter, they come again
	in   map[string][]int64 // per aggregate, in the order of arrival, without dead letters that were replayed
}

// replay returns the replay that an event belongs to, and its number.
func (j *checker) replay(e *delivery.Event) (r *replayed, number int) {
	if j.replays[e.Destination] == nil {
		j.replays[e.Destination] = make(map[int]*replayed)
	}
	number = e.Replay / replayStep * replayStep
	if r = j.replays[e.Destination][number]; r == nil {
		r = &replayed{make(map[int64]bool), make(map[int64]bool), make(map[string][]int64)}
		j.replays[e.Destination][number] = r
	}
	return r, number
}

// replayed records an event of a replay.
func (j *checker) replayed(e *delivery.Event) {
	r, number := j.replay(e)
	r.got[e.ID] = true
	if e.Replay == number {
		r.in[e.AggregateID] = append(r.in[e.AggregateID], e.ID)
	}
}

// disorder returns where an event came without those that came before it: of the events of an aggregate each is
// the next one, or it repeats, and then all that follows repeats, too.
func (r *replayed) disorder() (faults []string) {
	for aggregate, ids := range r.in {
		ids = slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return r.died[id] })
		all := slices.Compact(slices.Sorted(slices.Values(ids)))
		for i, id := range ids {
			at, _ := slices.BinarySearch(all, id)
			if next := at; i == 0 && next > 0 || i > 0 && id > ids[i-1] && all[next-1] != ids[i-1] {
				faults = append(faults, fmt.Sprintf("%d of %s after %v, in %v", id, aggregate, ids[max(0, i-3):i], ids))
				break
			}
		}
	}
	return faults
}

// TestStreamReplaySimulation is a simulation with concurrent replays: every event of a range arrives again with the
// number of the replay, or is skipped and counted, in the order of its aggregate. Live events behave as in
// [TestStreamSimulationExactly], in relays without a destination that keeps its position.
func TestStreamReplaySimulation(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for seed := range 4 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := newSimulation(t, 1+seed%3)
			if seed == 3 {
				p.shards = 3
			}
			s, err := ops.New(p.pool, ops.Config{Schema: "public"})
			if err != nil {
				t.Fatal(err)
			}
			var all []observe.Replay
			p.also = func() {
				what := ops.ReplayRange{Destination: []string{"goes", "blocks", "none"}[rand.IntN(3)]}
				if rand.IntN(2) == 0 {
					what.From = strconv.Itoa(1 + rand.IntN(400))
				}
				if rand.IntN(3) == 0 {
					what.Types = []string{"two.*"}
				}
				if rand.IntN(3) == 0 {
					what.Rate = 2000
				}
				// Another one may be running, or nothing has been delivered.
				if r, err := s.StartReplay(t.Context(), what, ops.Action{}); err == nil {
					all = append(all, r)
				}
				if len(all) > 0 && rand.IntN(10) == 0 {
					_, _ = s.StopReplay(t.Context(), all[len(all)-1].ID, ops.Action{})
				}
			}
			p.run(3000)
			if len(all) == 0 {
				t.Error("nothing was replayed")
			}
			for i := range all {
				p.checkReplay(s, all[i].ID)
			}
		})
	}
}

// checkReplay compares the expected events of a replay with the received ones.
func (p *simulation) checkReplay(s *ops.Client, id int64) {
	p.t.Helper()
	r, o, err := s.Replay(p.t.Context(), id)
	if err != nil || r.State == observe.ReplayRunning || o.Waiting+o.Dead != 0 {
		p.t.Fatalf("%+v, %+v, %v", r, o, err)
	}
	rows, err := p.pool.Query(p.t.Context(), `SELECT e.id FROM outbox_events AS e JOIN outbox_replays AS r ON e.id >= r.from_id AND e.id <= r.to_id AND NOT r.left_out @> e.id
		WHERE r.id = $1 AND (r.patterns = '{}' OR e.event_type LIKE 'two.%') ORDER BY e.id`, id)
	if err != nil {
		p.t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		p.t.Fatal(err)
	}
	p.checker.mu.Lock()
	defer p.checker.mu.Unlock()
	got := p.checker.replays[r.Destination][r.Number]
	if got == nil {
		got = &replayed{}
	}
	var missing []int64
	for _, id := range want {
		if !got.got[id] {
			missing = append(missing, id)
		}
	}
	p.t.Logf("%s of %s, %d to %d: %d of %d came, %d passed over", r.State, r.Destination, r.From, r.To, len(got.got), len(want), r.Skipped)
	if r.State == observe.ReplayDone && (int64(len(missing)) != r.Skipped || r.Delivered+r.Failed+r.Skipped != int64(len(want)) || o.Delivered != int64(len(got.got))) {
		p.t.Errorf("replay %d to %s: %d of %d did not come, %v: %+v, %+v", id, r.Destination, len(missing), len(want), missing, r, o)
	}
	if extra := len(got.got) - (len(want) - len(missing)); extra != 0 {
		p.t.Errorf("replay %d to %s: %d events came that are not of it", id, r.Destination, extra)
	}
	if r.Destination != "none" {
		for _, f := range got.disorder() {
			p.t.Errorf("replay %d to %s: %s", id, r.Destination, f)
		}
	}
}

// TestReplayAfterAStoppedOne: a replay was stopped before a new owner had sent the previous owner's in-flight events
// again. It does not block the next replay.
func TestReplayAfterAStoppedOne(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	again := make(chan int64, 1000)
	run := func() (stop func()) {
		r, err := notifyd.New(l.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		if err != nil {
			t.Fatal(err)
		}
		err = r.Handle("*", notifyd.Destination{Name: "goes", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			if e.Replay > 0 {
				again <- e.ID
			}
			return nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	l.write(400)
	p := &simulation{t: t, pool: l.pool}
	stop := run()
	p.eventually("all are delivered", `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'goes' AND head = 400 AND open = '{}')`)
	stop()
	s, err := ops.New(l.pool, ops.Config{Schema: "public"})
	if err != nil {
		t.Fatal(err)
	}
	slow, err := s.StartReplay(t.Context(), ops.ReplayRange{Destination: "goes", Rate: 1}, ops.Action{})
	if err != nil {
		t.Fatal(err)
	}
	l.exec(`UPDATE outbox_replays SET head = 400, open = '{[1,401)}'`)
	stop = run()
	defer func() { stop() }()
	<-again
	if _, err := s.StopReplay(t.Context(), slow.ID, ops.Action{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartReplay(t.Context(), ops.ReplayRange{Destination: "goes"}, ops.Action{}); err != nil {
		t.Fatal(err)
	}
	p.eventually("the next one comes", `SELECT EXISTS (SELECT FROM outbox_replays WHERE id = 2 AND state = 'done' AND delivered = 400)`)
}

// TestReplayKeepsConcurrency: a destination with a concurrency of 1 gets one call at once, also while a replay and live events
// wait for it.
func TestReplayKeepsConcurrency(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	p := &simulation{t: t, pool: l.pool}
	var calls atomic.Int32
	release, begun := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() {
		close(begun)
		<-release
	})
	r, err := notifyd.New(l.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	err = r.Handle("*", notifyd.Destination{Name: "goes", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		if n := calls.Add(1); n > 1 {
			t.Errorf("%d calls at once", n)
		}
		defer calls.Add(-1)
		if e.Replay > 0 {
			first()
		}
		return nil
	}), Lane: delivery.Lane{Concurrency: 1, Batch: 1}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	l.write(100)
	p.eventually("all are delivered", `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'goes' AND head = 100 AND open = '{}')`)
	s, err := ops.New(l.pool, ops.Config{Schema: "public"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartReplay(t.Context(), ops.ReplayRange{Destination: "goes"}, ops.Action{}); err != nil {
		t.Fatal(err)
	}
	<-begun // a call of the replay is under way
	l.write(100)
	p.eventually("live events were handed over", `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'goes' AND head > 100)`)
	close(release)
	p.eventually("both end", `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'goes' AND head = 200 AND open = '{}')
		AND EXISTS (SELECT FROM outbox_replays WHERE state = 'done' AND delivered = 100)`)
}
