package queue

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/laneconf"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/observe"
)

// relay is an engine on a fakeDB, as the root package would wire it.
type relay struct {
	*dispatch.Dispatcher
	*Engine // nil before start

	options Options
	db      *fakeDB
	owner   int64
	trigger *fakeTrigger
	log     *logBuffer
	cancel  context.CancelFunc
	ended   chan error
}

// logBuffer collects the log, from any goroutine.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.buf.String(), text)
}

// relayConfig configures a relay of the tests.
type relayConfig struct {
	engine.Limits
	ShutdownTimeout time.Duration
}

func testConfig() relayConfig {
	cfg := relayConfig{engine.Limits{
		Claims: 4, Batch: 1000, Bytes: 8 << 20, EventBytes: 64 << 20, LockBudget: 100 * time.Millisecond, PollInterval: time.Second,
	}, 20 * time.Second}
	cfg.Lease = 5 * time.Second
	return cfg
}

// dispatcher returns the dispatcher's part.
func (c relayConfig) dispatcher() dispatch.Config {
	return dispatch.Config{Window: c.LockBudget / 2, ShutdownTimeout: c.ShutdownTimeout}
}

func testLane() dispatch.LaneConfig {
	cfg := dispatch.LaneConfig{Lane: laneconf.WithDefaults(delivery.Lane{})}
	cfg.Timeout = 10 * time.Second
	cfg.MaxAttempts = 3
	return cfg
}

func newRelay(tb testing.TB, db *fakeDB, owner int64, cfg relayConfig) *relay {
	tb.Helper()
	r := &relay{db: db, owner: owner, trigger: &fakeTrigger{db}, log: &logBuffer{}, ended: make(chan error, 1)}
	maintenance := &fakeLeases{db, owner, cfg.Lease}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	dispatcher := cfg.dispatcher()
	dispatcher.Reserve = db.reserve
	d, err := dispatch.New(dispatcher, nil, log)
	if err != nil {
		tb.Fatal(err)
	}
	r.Dispatcher = d
	r.options = Options{Limits: cfg.Limits, Dispatcher: d, Leases: maintenance, House: maintenance, Companions: maintenance, Trigger: r.trigger, Log: log}
	for range cfg.Claims {
		r.options.Claimers = append(r.options.Claimers, &fakeSession{db: db, owner: owner, lease: cfg.Lease})
	}
	return r
}

// to adds a destination and routes the given event types to it alone.
func (r *relay) to(tb testing.TB, name string, h delivery.Handler, cfg dispatch.LaneConfig, types ...string) {
	tb.Helper()
	if err := r.Add(name, h, cfg); err != nil {
		tb.Fatal(err)
	}
	for _, typ := range types {
		r.fanOut(tb, typ, name)
	}
}

func (r *relay) fanOut(tb testing.TB, typ string, names ...string) {
	tb.Helper()
	if err := r.Route(typ, names...); err != nil {
		tb.Fatal(err)
	}
	r.db.set(func() { r.db.routes[typ] = names })
}

func (r *relay) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.Engine = cancel, New(r.options)
	r.db.set(func() {
		r.db.alive[r.owner] = true
		r.db.ears = append(r.db.ears, r.Engine)
	})
	go func() { r.ended <- r.Run(ctx) }()
}

// stop ends Run and returns its error; then the relay's connections are closed.
func (r *relay) stop() error {
	r.cancel()
	err := <-r.ended
	r.trigger.close()
	r.db.set(func() {
		delete(r.db.alive, r.owner)
		for i, d := range r.db.ears {
			if d == r.Engine {
				r.db.ears = append(r.db.ears[:i], r.db.ears[i+1:]...)
				break
			}
		}
	})
	return err
}

// bubble is a test in virtual time, with a relay that has not been started yet.
type bubble struct {
	*testing.T

	db *fakeDB
	r  *relay
}

// inBubble runs f with a relay in a bubble of virtual time, and stops it after f.
func inBubble(t *testing.T, f func(t *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := newFakeDB()
		r := newRelay(t, db, 1, testConfig())
		defer func() {
			if r.cancel != nil {
				if err := r.stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
			}
		}()
		f(&bubble{t, db, r})
		for _, text := range db.broken {
			t.Error(text)
		}
	})
}

// after lets virtual time pass, until all goroutines are idle.
func after(d time.Duration) {
	sleep.For(context.Background(), d)
	synctest.Wait()
}

// eventually lets virtual time pass until ok returns true, a minute at most.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for step, begin := time.Millisecond, time.Now(); time.Since(begin) < time.Minute; {
		if ok() {
			return
		}
		if time.Since(begin) > 100*time.Millisecond {
			step = 20 * time.Millisecond
		}
		sleep.For(context.Background(), step)
	}
	tb.Fatalf("not within a minute: %s", what)
}

func (db *fakeDB) empty() bool { return db.unfinished() == 0 }

// calls records the calls of a handler and their events.
type calls struct {
	mu      sync.Mutex
	list    []call
	running int
	most    int
}

type call struct {
	id      int64
	attempt int
	at      time.Time
	ok      bool
}

// handler records each call of f; f may be nil.
func (c *calls) handler(f func(ctx context.Context, e *delivery.Event) error) delivery.Handler {
	return delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		c.mu.Lock()
		i := len(c.list)
		c.list = append(c.list, call{id: e.ID, attempt: e.Attempt, at: time.Now()})
		c.running++
		c.most = max(c.most, c.running)
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.running--
		}()
		var err error
		if f != nil {
			err = f(ctx, e)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.list[i].ok = err == nil
		return err
	})
}

func (c *calls) all() []call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]call(nil), c.list...)
}

func (c *calls) n() int { return len(c.all()) }

func (c *calls) atOnce() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// delivered counts the acknowledged calls of each event.
func (c *calls) delivered() map[int64]int {
	acks := make(map[int64]int)
	for _, one := range c.all() {
		if one.ok {
			acks[one.id]++
		}
	}
	return acks
}

// once fails the test unless each event was acknowledged exactly once.
func (c *calls) once(tb testing.TB, ids []int64) {
	tb.Helper()
	acks := c.delivered()
	for _, id := range ids {
		if acks[id] != 1 {
			tb.Errorf("event %d was delivered %d times", id, acks[id])
		}
	}
}

// Stats returns the figures of lanes and engine.
func (r *relay) Stats() observe.Stats {
	s := r.Dispatcher.Stats()
	r.Engine.Stats(&s)
	return s
}
