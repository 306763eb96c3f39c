package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// envPressure names the environment variable with the number of backlogs that
	// are delivered under pressure.
	envPressure = "NOTIFYD_TEST_PRESSURE"
	// envPressureSeed names the one with a seed, which repeats a backlog as far as
	// chance allows.
	envPressureSeed = "NOTIFYD_TEST_PRESSURE_SEED"
)

// pressure is the behavior of a destination, and the backlog for it. A number of
// calls of 0 means never.
type pressure struct {
	backlog, both, keys int
	unkeyed             int           // one in so many events has no aggregate
	pauses              int           // one in so many calls takes its time
	pause               time.Duration // up to this much
	fails, dies, downs  int           // one in so many calls does
	throttles           int
	batched, again      bool // again: the same backlog is written while the relay is at work
	concurrency         int
	priority            int // of the other destination
}

// drawPressure draws a pressure, and limits of a relay that are too short for it:
// claims keep running out of time, and take back, lease and search again.
func drawPressure(seed uint64) (p pressure, cfg notifyd.Config) {
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	ms := func(list ...int) time.Duration { return time.Duration(pick(list...)) * time.Millisecond }
	p = pressure{
		backlog: pick(1000, 3000), both: pick(0, 40, 400), keys: pick(20, 100, 500), unkeyed: pick(0, 3, 30),
		pauses: pick(50, 200, 1000), pause: ms(1, 3, 15, 50),
		fails: pick(0, 0, 50, 500), dies: pick(0, 0, 100), downs: pick(0, 0, 1000), throttles: pick(0, 0, 0, 300),
		batched: pick(0, 0, 1) == 1, again: pick(0, 1) == 1, concurrency: pick(1, 3, 8), priority: pick(0, 0, 10),
	}
	return p, notifyd.Config{Connections: pick(2, 4, 8), Batch: pick(20, 100, 500), LockBudget: ms(1, 2, 5, 10, 30), PollInterval: ms(5, 20, 50, 300, 1000)}
}

// insert writes a backlog in two transactions: events for one destination, then for
// both and for the other one, in turns, some of them of the same aggregates.
func (p *pressure) insert(e *env) {
	e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'import', 'product', CASE WHEN $3::int > 0 AND i % greatest($3::int, 1) = 0 THEN NULL ELSE i % $2::int END, '{}'
		FROM generate_series(1, $1::int) AS i`, p.backlog, p.keys, p.unkeyed)
	e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT CASE i % 2 WHEN 0 THEN 'both' ELSE 'mail' END, 'product', i % 7, '{}' FROM generate_series(1, $1::int) AS i`, p.both)
}

// pressed receives the deliveries under pressure.
type pressed struct {
	pressure

	mu     sync.Mutex
	last   map[string]int64 // by destination and aggregate
	seen   map[string]map[int64]bool
	copies int
	early  []string
	away   time.Time // until then
	falls  int
}

// ended records that an event is delivered or dead.
func (p *pressed) ended(dest string, e *delivery.Event) {
	if p.seen[dest] == nil {
		p.seen[dest] = make(map[int64]bool)
	}
	if p.seen[dest][e.ID] {
		p.copies++
		return
	}
	p.seen[dest][e.ID] = true
	key := dest + " " + e.AggregateID
	if e.AggregateID != "" && e.ID < p.last[key] {
		p.early = append(p.early, fmt.Sprintf("%s got %d of %s after %d", dest, e.ID, e.AggregateID, p.last[key]))
	}
	p.last[key] = e.ID
}

// one is a call of the well-behaved destination.
func (p *pressed) one(_ context.Context, e *delivery.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended("mail", e)
	return nil
}

// bulk is a call of the other one.
func (p *pressed) bulk(_ context.Context, e *delivery.Event) error {
	once := func(in int) bool { return in > 0 && rand.IntN(in) == 0 }
	if once(p.pauses) {
		time.Sleep(rand.N(p.pause)) //nolint:forbidigo // the work of the handler
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	const falls, away = 10, 50 * time.Millisecond
	switch now := time.Now(); {
	case now.Before(p.away):
		return delivery.Unavailable(errors.New("still away"))
	case p.falls < falls && once(p.downs):
		p.falls++
		p.away = now.Add(rand.N(away))
		return delivery.Unavailable(errors.New("away"))
	case once(p.fails):
		return errors.New("failed")
	case once(p.dies):
		p.ended("bulk", e)
		return delivery.Permanent(errors.New("never"))
	case once(p.throttles):
		return delivery.Throttled(rand.N(away), errors.New("too many"))
	}
	p.ended("bulk", e)
	return nil
}

// TestPressure: even if a relay keeps taking back, leasing and searching again
// because its handlers outlast its claims, each destination gets each of its
// events once, and in a stream those of an aggregate in order.
func TestPressure(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	rounds := 2
	if text := os.Getenv(envPressure); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", envPressure, err)
		}
	}
	for range rounds {
		seed := rand.Uint64()
		if text := os.Getenv(envPressureSeed); text != "" {
			var err error
			if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
				t.Fatalf("%s: %v", envPressureSeed, err)
			}
		}
		for _, mode := range bothModes() {
			t.Run(fmt.Sprint(seed, " ", mode), func(t *testing.T) {
				t.Parallel()
				underPressure(t, mode, seed)
			})
		}
	}
}

func underPressure(t *testing.T, mode outboxsql.Mode, seed uint64) {
	t.Helper()
	drawn, cfg := drawPressure(seed)
	p := &pressed{pressure: drawn, last: make(map[string]int64), seen: make(map[string]map[int64]bool)}
	e := newEnvIn(t, mode)
	p.insert(e)
	written := 1
	r := e.relay(func(r *notifyd.Relay) { p.register(t, r) }, cfg)
	if p.again {
		p.insert(e)
		written++
	}
	e.untilDone()
	p.mu.Lock()
	defer p.mu.Unlock()
	for dest, want := range map[string]int{"mail": p.both, "bulk": p.backlog + p.both/2} {
		if n := len(p.seen[dest]); n != want*written {
			t.Errorf("%s got %d events, want %d", dest, n, want*written)
		}
	}
	if p.copies > 0 && !r.lostClaim() {
		t.Errorf("%d deliveries came twice", p.copies)
	}
	if len(p.early) > 0 && mode == outboxsql.ModeStream {
		t.Errorf("%d events came before an earlier one of their aggregate:\n%s\nin the end: %+v", len(p.early), strings.Join(p.early, "\n"), r.Stats())
	}
	if t.Failed() {
		t.Logf("%s=%d: %+v", envPressureSeed, seed, drawn)
	}
}

// register adds both destinations.
func (p *pressed) register(t *testing.T, r *notifyd.Relay) {
	t.Helper()
	var bulk delivery.Handler = delivery.HandlerFunc(p.bulk)
	if p.batched {
		bulk = streamHandler{p.bulk}
	}
	err := errors.Join(
		r.Add(notifyd.Destination{Name: "bulk", Handler: bulk, Lane: delivery.Lane{Backoff: quick(), Concurrency: p.concurrency, MaxAttempts: 1000, LongestPause: 100 * time.Millisecond}}),
		r.Add(notifyd.Destination{Name: "mail", Handler: delivery.HandlerFunc(p.one), Lane: delivery.Lane{Priority: p.priority, Concurrency: p.concurrency}}),
		r.Route("import", "bulk"), r.Route("mail", "mail"), r.Route("both", "mail", "bulk"),
	)
	if err != nil {
		t.Fatal(err)
	}
}
