package lease

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

const (
	modelRelays = 3
	// modelDelivery is the usual duration of a delivery.
	modelDelivery = 100 * time.Millisecond
)

// step is an action on relays.
type step struct {
	after time.Duration // the step before
	op    string
	relay int
}

func (s step) String() string { return fmt.Sprintf("%v %s %d", s.after, s.op, s.relay) }

type plan struct {
	deaf  bool
	slow  time.Duration // what a delivery takes now and then
	takes time.Duration // what the write of an owner takes
	wants [modelRelays][]string
	steps []step
}

// model runs a plan in virtual time. No delivery may start below one that a later owner has
// started, none may be running when a shard is handed over, and in the end all shards are shared
// fairly and stay so.
type model struct {
	plan   plan
	server *fakeServer
	relays [modelRelays]*fakeRelay
	owners int64
	all    []*fakeRelay
	jumped time.Time // when the clock of the server jumped ahead

	mu      sync.Mutex
	begun   map[string]int64              // the highest epoch that has begun something
	running map[string]map[*fakeRelay]int // what is under way
	gained  int
	count   int
	broken  []string
}

func newModel(p plan) *model {
	m := &model{plan: p, server: newFakeServer(), begun: make(map[string]int64), running: make(map[string]map[*fakeRelay]int)}
	m.server.deaf = p.deaf
	return m
}

func (m *model) breaks(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.breaksLocked(format, args...)
}

func (m *model) breaksLocked(format string, args ...any) {
	m.broken = append(m.broken, fmt.Sprintf(format, args...))
}

func (m *model) gains(r *fakeRelay, l *Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gained++
	released := m.server.released(l)
	for other, n := range m.running[l.Destination] {
		if n > 0 && (released || other == r) {
			m.breaksLocked("%v gained %q in epoch %d while %v was at work with it", r, l.Destination, l.Epoch, other)
		}
	}
	if !released {
		delete(m.running, l.Destination) // what an owner still does that was cut off, nobody can wait for
	}
}

func (m *model) begins(u *fakeShard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := u.lease.Destination
	if u.lease.Epoch < m.begun[d] {
		m.breaksLocked("%v began something of %q in epoch %d, behind epoch %d", u.relay, d, u.lease.Epoch, m.begun[d])
	}
	m.begun[d] = u.lease.Epoch
	if m.running[d] == nil {
		m.running[d] = make(map[*fakeRelay]int)
	}
	m.running[d][u.relay]++
}

func (m *model) ends(u *fakeShard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.running[u.lease.Destination]; n[u.relay] > 0 { // else it was killed
		n[u.relay]--
	}
}

func (m *model) forget(r *fakeRelay) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.running {
		delete(n, r)
	}
}

// duration is how long the next delivery takes.
func (m *model) duration() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.count++; m.count%50 == 0 {
		return m.plan.slow
	}
	return modelDelivery
}

func (m *model) start(i int) {
	if m.relays[i] != nil {
		return
	}
	// A relay that starts just after the clock has jumped ahead may believe it: see the package comment.
	time.Sleep(time.Until(m.jumped.Add(Term))) //nolint:forbidigo // virtual time
	m.owners++
	r := &fakeRelay{model: m, owner: m.owners, shards: make(map[string]*fakeShard), ended: make(chan struct{})}
	o := Options{Owner: r.owner, Gained: r.gained, Lost: r.lost, Destinations: m.plan.wants[i]}
	w := &fakeWriter{server: m.server, relay: r, slow: m.plan.takes}
	r.holder = newHolder(o, slog.New(slog.DiscardHandler), w, func(context.Context) (table, func(), error) { return m.server.connect(r) })
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	m.relays[i] = r
	m.all = append(m.all, r)
	m.server.mu.Lock()
	m.server.looks[r] = true
	m.server.mu.Unlock()
	go func() {
		defer close(r.ended)
		if err := r.holder.Run(ctx); err != nil {
			m.breaks("%v: %v", r, err)
		}
	}()
}

// jump sets the clock of the server ahead by an hour, or back.
func (m *model) jump(ahead bool) {
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	if !ahead {
		m.server.ahead -= time.Hour
		return
	}
	for _, r := range m.relays {
		if r != nil && !r.looked {
			return // see start
		}
	}
	m.server.ahead += time.Hour
	m.jumped = time.Now()
}

func (m *model) do(s step) {
	r := m.relays[s.relay]
	switch s.op {
	case "start":
		m.start(s.relay)
		return
	case "restart":
		m.server.terminate(nil)
		return
	case "crash":
		m.server.crash()
		return
	case "ahead", "back":
		m.jump(s.op == "ahead")
		return
	case "seek":
		m.server.seek(place{destination: string(rune('a' + s.relay))})
		return
	}
	if r == nil {
		return
	}
	switch s.op {
	case "stop":
		r.stop()
		m.relays[s.relay] = nil
	case "kill":
		r.kill()
		m.relays[s.relay] = nil
	case "freeze":
		r.freeze(true)
	case "thaw":
		r.freeze(false)
	case "cut":
		r.partition(true)
	case "cut off": // and the server knows at once
		r.partition(true)
		m.server.terminate(r)
	case "heal":
		r.partition(false)
	case "terminate":
		m.server.terminate(r)
	}
}

// run returns the violations.
func (p plan) run(t *testing.T) (broken []string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		m := newModel(p)
		for _, s := range p.steps {
			time.Sleep(s.after) //nolint:forbidigo // virtual time
			m.do(s)
		}
		for i := range modelRelays {
			m.start(i)
		}
		for _, r := range m.all {
			r.freeze(false)
			r.partition(false)
		}
		// Leases of relays that were cut off expire, and long deliveries finish.
		time.Sleep(Term + answerWithin + longestReconnect + p.slow + 4*p.takes + 5*time.Second) //nolint:forbidigo // virtual time
		m.settled()
		m.mu.Lock()
		gained := m.gained
		m.mu.Unlock()
		time.Sleep(5 * time.Second) //nolint:forbidigo // virtual time
		m.settled()
		m.mu.Lock()
		if m.gained != gained {
			m.breaksLocked("%d shards changed hands for nothing", m.gained-gained)
		}
		m.mu.Unlock()
		m.stopAll()
		broken = m.broken
	})
	return broken
}

// stopAll stops all relays.
func (m *model) stopAll() {
	for _, r := range m.all {
		r.stop()
		<-r.ended
	}
	for at, r := range m.server.rows {
		if r.owner != 0 {
			m.breaks("%q was not handed over in the end", at.destination)
		}
	}
}

// settled checks that all shards are working, and shared fairly.
func (m *model) settled() {
	m.server.mu.Lock()
	pic := picture{wants: make(map[int64][]int32), owners: make(map[int32]int64)}
	for i, r := range m.relays {
		pid := int64(i)
		for _, name := range append([]string{""}, m.plan.wants[i]...) {
			pic.wants[pid] = append(pic.wants[pid], m.server.rows[place{destination: name}].unit)
		}
		slices.Sort(pic.wants[pid])
		r.mu.Lock()
		for name, u := range r.shards {
			u.mu.Lock()
			if late := time.Since(u.lastTime); late > time.Second+m.plan.slow {
				m.breaks("%v has begun nothing of %q for %v", r, name, late)
			}
			u.mu.Unlock()
			pic.owners[u.lease.Unit] = pid
		}
		r.mu.Unlock()
	}
	m.server.mu.Unlock()
	for i := range m.relays {
		pic.me = int64(i)
		if take, give := pic.shares(); len(take) > 0 || len(give) > 0 {
			m.breaks("relay %d should take %v and give %v: %v", i, take, give, pic)
		}
	}
}

func drawPlan(t *rapid.T) plan {
	p := plan{
		deaf:  rapid.Bool().Draw(t, "deaf"),
		slow:  time.Duration(rapid.SampledFrom([]int{100, 100, 300, 3000}).Draw(t, "slow ms")) * time.Millisecond,
		takes: time.Duration(rapid.SampledFrom([]int{0, 0, 100, 2500}).Draw(t, "takes ms")) * time.Millisecond,
	}
	same := rapid.Bool().Draw(t, "same wants")
	for i := range p.wants {
		for _, name := range []string{"a", "b", "c", "d"} {
			if same || rapid.IntRange(0, 3).Draw(t, "wants") > 0 {
				p.wants[i] = append(p.wants[i], name)
			}
		}
	}
	for range rapid.IntRange(1, 12).Draw(t, "steps") {
		p.steps = append(p.steps, step{
			after: time.Duration(rapid.IntRange(0, 3000).Draw(t, "after")) * time.Millisecond,
			op: rapid.SampledFrom([]string{"start", "start", "stop", "kill", "freeze", "thaw", "cut", "cut off", "heal", "terminate", "restart", "crash", "ahead", "back", "seek"}).
				Draw(t, "op"),
			relay: rapid.IntRange(0, modelRelays-1).Draw(t, "relay"),
		})
	}
	return p
}

// TestModel is a model of shards and their owners: relays that come and go, are
// killed, frozen, and cut off, a server that restarts or crashes, and a clock that jumps.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		if broken := drawPlan(rt).run(t); len(broken) > 0 {
			rt.Fatalf("%d violations:\n%s", len(broken), strings.Join(broken[:min(len(broken), 40)], "\n"))
		}
	})
}
