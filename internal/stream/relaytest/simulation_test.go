package relaytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
)

// simulation is one table with writers, relays and destinations, all of them at random.
type simulation struct {
	t       *testing.T
	url     string
	pool    *pgxpool.Pool
	checker *checker
	relay   []*member
	types   []string // that are routed by now
	also    func()   // done along with each disturbance; nil for nothing
	exact   *cluster // of another destination, nil for none
	shards  int      // of destinations that have no total order, when a relay starts; 0 for the default
}

// destinations of a simulation, and their differences.
func simulatedDestinations() map[string]delivery.Lane {
	return map[string]delivery.Lane{
		"goes": {}, "blocks": {OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}, Concurrency: 3}, "none": {Order: delivery.OrderNone},
		"total": {Order: delivery.OrderTotal}, "total blocks": {Order: delivery.OrderTotal, OnDead: delivery.OnDead{Then: delivery.OnDeadBlock}, Concurrency: 3},
	}
}

// checker records the written events and the events that each destination received.
type checker struct {
	calls   atomic.Int64 // that have begun
	mu      sync.Mutex
	written map[string][]int64 // committed ids per aggregate, and of allEvents, in order
	global  bool               // writers are serialized: ids are in the order of commits
	got     map[string]map[int64]int
	last    map[string]map[string]int64 // per destination and aggregate: the event it got last
	died    map[string]map[int64]bool
	known   map[string]map[int64]int // events that a destination got before the check of the order began: they may be missing after it
	faults  []string
	again   int
	late    int                         // calls that another relay's later call has overtaken
	arrived map[string]map[string]int64 // per destination and aggregate: the number of its last call
	calm    bool                        // nothing fails any more
	blind   bool                        // the order is not looked at
	down    map[string]bool
	replays map[string]map[int]*replayed // per destination, and number
}

// allEvents is the key in checker.written for the events of all aggregates, in the order of ids.
const allEvents = "all"

func newChecker() *checker {
	j := &checker{
		written: make(map[string][]int64), got: make(map[string]map[int64]int), last: make(map[string]map[string]int64),
		died: make(map[string]map[int64]bool), known: make(map[string]map[int64]int), down: make(map[string]bool), arrived: make(map[string]map[string]int64), replays: make(map[string]map[int]*replayed),
	}
	for name := range simulatedDestinations() {
		j.got[name], j.last[name], j.died[name] = make(map[int64]int), make(map[string]int64), make(map[int64]bool)
		j.arrived[name] = make(map[string]int64)
	}
	return j
}

// deliver is what a destination does with an event.
func (j *checker) deliver(_ context.Context, e *delivery.Event) error {
	call := j.calls.Add(1)
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.calm {
		switch n := rand.IntN(300); {
		case j.down[e.Destination]:
			return delivery.Unavailable(errors.New("down"))
		case n < 6:
			return errors.New("fails")
		case n == 6 && e.Replay%replayStep == 0:
			if e.Replay > 0 {
				r, _ := j.replay(e)
				r.died[e.ID] = true
				return delivery.Permanent(errors.New("dies again"))
			}
			j.died[e.Destination][e.ID] = true
			return delivery.Permanent(errors.New("dies"))
		case n == 7:
			return delivery.Throttled(0, errors.New("slower"))
		}
	}
	if e.Replay >= replayStep {
		j.replayed(e)
	} else {
		j.got[e.Destination][e.ID]++
	}
	if e.AggregateID != "" && e.Destination != "none" && e.Replay == 0 && !j.blind {
		j.order(e, call)
	}
	return nil
}

// order: an event is the next one of its aggregate, except for dead letters, or it repeats: then
// all that follows repeats, too. A call that a later one has overtaken was in flight when its relay lost the
// shard, and may still arrive.
func (j *checker) order(e *delivery.Event, call int64) {
	last, shard := j.last[e.Destination], e.AggregateID
	total := strings.HasPrefix(e.Destination, "total")
	if total {
		shard = allEvents
	}
	arrived := j.arrived[e.Destination]
	if arrived[shard] > call {
		j.late++
		return
	}
	arrived[shard] = call
	if j.died[e.Destination][e.ID] { // its relay was killed before it stored the dead letter, and the position may have passed later events
		return
	}
	before := last[shard]
	last[shard] = e.ID
	if e.ID <= before {
		if total && j.got[e.Destination][e.ID] == 1 {
			j.faults = append(j.faults, fmt.Sprintf("%s got %d for the first time after %d", e.Destination, e.ID, before))
		}
		j.again++
		return
	}
	for _, id := range j.written[shard] {
		if id > before && id < e.ID && !j.died[e.Destination][id] && j.known[e.Destination][id] == 0 {
			j.faults = append(j.faults, fmt.Sprintf("%s got %d of %s after %d, and %d is between", e.Destination, e.ID, e.AggregateID, before, id))
			return
		}
	}
}

// wrote notes ids of aggregates that are about to be committed.
func (j *checker) wrote(ids map[string][]int64) {
	all := j.written[allEvents]
	highest := int64(0)
	if len(all) > 0 {
		highest = all[len(all)-1]
	}
	for aggregate, some := range ids {
		j.written[aggregate] = append(j.written[aggregate], some...)
		for _, id := range some {
			if j.global && id < highest {
				j.faults = append(j.faults, fmt.Sprintf("%d is committed after %d", id, highest))
			}
			at, _ := slices.BinarySearch(all, id)
			all = slices.Insert(all, at, id)
		}
	}
	j.written[allEvents] = all
}

// member is a relay that comes and goes.
type member struct {
	proxy *testenv.Proxy
	stop  context.CancelFunc
	done  chan error
	r     *notifyd.Relay
}

func (p *simulation) start(i int) {
	p.t.Helper()
	proxy, url := testenv.NewProxy(p.t, p.url)
	pool, err := pgxpool.New(p.t.Context(), url)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(p.t.Output(), &slog.HandlerOptions{Level: slog.LevelError + 1})), PollInterval: 50 * time.Millisecond, Batch: 40, Connections: 1 + i%3, ShutdownTimeout: time.Second})
	if err != nil {
		p.t.Fatal(err)
	}
	for name, lane := range simulatedDestinations() {
		lane.Backoff, lane.LongestPause = delivery.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond, Multiplier: 2}, 20*time.Millisecond
		if p.shards > 0 && !strings.HasPrefix(name, "total") {
			lane.Shards = p.shards
		}
		if err := r.Add(notifyd.Destination{Name: name, Handler: delivery.HandlerFunc(p.checker.deliver), Lane: lane}); err != nil {
			p.t.Fatal(err)
		}
	}
	names := slices.Collect(maps.Keys(simulatedDestinations()))
	if p.exact != nil {
		names = append(names, exactly)
		if err := p.exact.addTo(r, delivery.Lane{Shards: max(1, p.shards)}); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, eventType := range p.types {
		if err := r.Route(eventType, names...); err != nil {
			p.t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(p.t.Context())
	pl := &member{proxy: proxy, stop: stop, done: make(chan error, 1), r: r}
	p.relay[i] = pl
	go func() {
		err := r.Run(ctx)
		pool.Close()
		pl.done <- err
	}()
}

// end ends a relay: in order, or with its connection to the database cut.
func (p *simulation) end(i int, kindly bool) {
	pl := p.relay[i]
	if !kindly {
		pl.proxy.Cut()
	}
	pl.stop()
	if err := <-pl.done; err != nil && kindly {
		p.t.Errorf("relay %d: %v", i, err)
	}
}

// write makes one writer write about n events in transactions of all kinds. Only this writer has
// its aggregates, so its commits are in the order of ids.
func (p *simulation) write(ctx context.Context, w, n int, types []string) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for n > 0 {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		ids := make(map[string][]int64)
		for range 1 + rand.IntN(8) {
			aggregate := fmt.Sprintf("%d-%d", w, rand.IntN(6))
			var id int64
			err = tx.QueryRow(ctx, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ($1, 'a', $2, '{}') RETURNING id`,
				types[rand.IntN(len(types))], aggregate).Scan(&id)
			if err != nil {
				break
			}
			ids[aggregate] = append(ids[aggregate], id)
			n--
		}
		if rand.IntN(20) == 0 {
			_, err = tx.Exec(ctx, `SELECT pg_sleep(0.02)`) // others overtake it
		}
		if rand.IntN(5) == 0 || err != nil {
			if rerr := tx.Rollback(ctx); err != nil || rerr != nil {
				return errors.Join(err, rerr)
			}
			continue
		}
		p.checker.mu.Lock()
		p.checker.wrote(ids)
		p.checker.mu.Unlock()
		if err := tx.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// missing returns the events that are not delivered.
func (j *checker) missing() (all []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, got := range j.got {
		for aggregate, ids := range j.written {
			for _, id := range ids {
				if got[id] == 0 && len(all) < 20 {
					all = append(all, fmt.Sprintf("%s: %d of %s", name, id, aggregate))
				}
			}
		}
	}
	return all
}

// settle waits until everything is delivered, and every dead letter is replayed and delivered.
func (p *simulation) settle() {
	p.t.Helper()
	p.calm()
	letters, err := ops.New(p.pool, ops.Config{Schema: "public"})
	if err != nil {
		p.t.Fatal(err)
	}
	var missing []string
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(settleWithin); time.Now().Before(end); <-tick.C {
		if _, err := letters.ReplayDeadLetters(p.t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil {
			p.t.Fatal(err)
		}
		if missing = p.checker.missing(); len(missing) == 0 && p.clean() == "" {
			return
		}
	}
	p.t.Errorf("not delivered: %v\n%s\n%s", missing, p.clean(), p.rows())
}

// settleWithin allows for a busy machine.
const settleWithin = 4 * time.Minute

// clean returns the rows that are left in the tables.
func (p *simulation) clean() (left string) {
	p.t.Helper()
	err := p.pool.QueryRow(p.t.Context(), `SELECT format('%s rows, positions %s', (SELECT count(*) FROM outbox_deliveries),
		(SELECT string_agg(format('%s %s %s of %s', destination, head, open, outbox_last_id()), ', ') FROM outbox_positions))
		WHERE EXISTS (SELECT FROM outbox_deliveries) OR EXISTS (SELECT FROM outbox_positions, (SELECT coalesce(max(id), 0) AS top FROM outbox_events) AS e
			WHERE open <> '{}' OR head < top) OR EXISTS (SELECT FROM outbox_replays WHERE state = 'running')`).Scan(&left)
	if err != nil {
		return ""
	}
	return left
}

func (p *simulation) rows() (text string) {
	_ = p.pool.QueryRow(p.t.Context(), `SELECT string_agg(format('%s %s %s %s %s', event_id, destination, state, ordering_key, available_at - now()), E'\n')
		FROM (SELECT * FROM outbox_deliveries ORDER BY destination, ordering_key, event_id LIMIT 30) AS d`).Scan(&text)
	for _, pl := range p.relay {
		text += fmt.Sprintf("\n%+v", pl.r.Stats().Positions)
	}
	return text
}

func newSimulation(t *testing.T, relays int) *simulation {
	t.Helper()
	pool := streamPool(t)
	c := pool.Config().ConnConfig
	url := fmt.Sprintf("postgres://%s:%s@%s:%d/%s?sslmode=disable", c.User, c.Password, c.Host, c.Port, c.Database)
	return &simulation{t: t, url: url, pool: pool, checker: newChecker(), relay: make([]*member, relays), types: []string{"one", "two.*"}}
}

func (p *simulation) run(events int) {
	for i := range p.relay {
		p.start(i)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	var writers sync.WaitGroup
	write, n := p.write, 4
	if p.checker.global {
		write, n = p.writeSerialized, 16
	}
	for w := range n {
		writers.Go(func() {
			if err := write(ctx, w, events/n, []string{"one", "two.a", "two.b"}); err != nil {
				p.t.Error(err)
			}
		})
	}
	written := make(chan struct{})
	go func() { writers.Wait(); close(written) }()
	for goes := true; goes; {
		select {
		case <-written:
			goes = p.exact.wantsMore()
			if goes && rand.IntN(40) > 0 { // a while without a fault: a take-over takes one
				<-time.After(50 * time.Millisecond)
				continue
			}
		default:
		}
		<-time.After(50 * time.Millisecond)
		p.disturb()
		if p.also != nil {
			p.also()
		}
	}
	if p.also != nil { // once at least when it can succeed: a destination that is paused, or down, reads nothing
		p.calm()
		p.eventually("each destination has read events", fmt.Sprintf(`SELECT min(head) > 0 AND min(head) FILTER (WHERE destination IN ('goes', 'blocks', 'none')) > %d
			FROM outbox_positions`, min(events/2, 500)))
		p.also()
	}
	p.settle()
	for i := range p.relay {
		p.end(i, true)
	}
	p.verdict()
}

// disturb causes a random fault.
func (p *simulation) disturb() {
	i := rand.IntN(len(p.relay))
	names := slices.Collect(maps.Keys(simulatedDestinations()))
	name := names[rand.IntN(len(names))]
	switch rand.IntN(8) {
	case 0:
		p.end(i, true)
		p.start(i)
	case 1:
		p.end(i, false)
		p.start(i)
	case 2:
		p.relay[i].proxy.Cut() // it lives, and comes back
		p.relay[i].proxy.Restore()
	case 3, 4:
		p.checker.mu.Lock()
		p.checker.down[name] = !p.checker.down[name]
		p.checker.mu.Unlock()
	case 5:
		_ = p.relay[i].r.Ops().Pause(p.t.Context(), name, ops.Action{Actor: "test"}) // its connection may be cut off
	case 6:
		letters := p.relay[i].r.Ops()
		_, _ = letters.ReplayDeadLetters(p.t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{})
	}
	for _, pl := range p.relay {
		if rand.IntN(2) == 0 {
			_, _ = pl.r.Ops().Resume(p.t.Context(), name, ops.Action{Actor: "test"})
		}
	}
}

// calm ends all faults and pauses.
func (p *simulation) calm() {
	p.t.Helper()
	p.checker.mu.Lock()
	p.checker.calm = true
	p.checker.mu.Unlock()
	if p.exact != nil {
		p.exact.mu.Lock()
		p.exact.calm = true
		p.exact.mu.Unlock()
	}
	if _, err := p.pool.Exec(p.t.Context(), `DELETE FROM outbox_pauses`); err != nil { // relays look for that
		p.t.Fatal(err)
	}
}

func (p *simulation) verdict() {
	p.t.Helper()
	p.checker.mu.Lock()
	defer p.checker.mu.Unlock()
	for i, f := range p.checker.faults {
		if i < 10 {
			p.t.Error(f)
		}
	}
	copies := 0
	for _, got := range p.checker.got {
		for _, n := range got {
			copies += n - 1
		}
	}
	p.t.Logf("%d faults, %d copies, %d late", len(p.checker.faults), copies, p.checker.late)
}
