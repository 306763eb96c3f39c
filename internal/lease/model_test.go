package lease

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/backoff"
)

const (
	modelRelays = 3
	// modelDelivery is the usual duration of a delivery.
	modelDelivery = 100 * time.Millisecond
)

var modelDestinations = []string{"a", "b", "c", "d"}

// step is an action on relays.
type step struct {
	after time.Duration // the step before
	op    string
	relay int
	// at is the shard of a seek, and the destination that is configured.
	at     shardKey
	layout string
}

func (s step) String() string {
	return fmt.Sprintf("%v %s %d %v %q", s.after, s.op, s.relay, s.at, s.layout)
}

type plan struct {
	deaf  bool
	slow  time.Duration // what a delivery takes now and then
	takes time.Duration // taken by the write of an owner
	moves time.Duration // what an arrangement takes
	wants [modelRelays][]string
	// layouts are the layouts of the first starts.
	layouts [modelRelays]map[string]string
	steps   []step
}

// model runs a plan in virtual time. No delivery may start below a delivery that a later owner has started. None may be
// running when a shard is handed over, or when its destination gets another layout. A relay works only with shards that
// have its layout. In the end each destination has a layout of its relays, and all shards are shared fairly and stay so.
type model struct {
	plan   plan
	server *fakeServer
	relays [modelRelays]*fakeRelay
	// layouts are the layouts of the next starts.
	layouts [modelRelays]map[string]string
	owners  int64
	all     []*fakeRelay
	jumped  time.Time // when the clock of the server jumped ahead

	mu      sync.Mutex
	begun   map[shardKey]int64              // the highest epoch that has begun something
	running map[shardKey]map[*fakeRelay]int // what is under way
	floors  map[string]int64                // the highest epoch of any shard when its destination was arranged
	gained  int                             // and arranged
	count   int
	broken  []string
}

func newModel(p plan) *model {
	m := &model{
		plan: p, server: newFakeServer(),
		begun: make(map[shardKey]int64), running: make(map[shardKey]map[*fakeRelay]int), floors: make(map[string]int64),
	}
	m.server.deaf = p.deaf
	for i := range m.layouts {
		m.layouts[i] = make(map[string]string)
		maps.Copy(m.layouts[i], p.layouts[i])
	}
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
	layout, released := m.server.taken(l)
	at := l.key()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gained++
	for other, n := range m.running[at] {
		if n > 0 && (released || other == r) {
			m.breaksLocked("%v gained %v in epoch %d while %v was at work with it", r, at, l.Epoch, other)
		}
	}
	if !released {
		delete(m.running, at) // the remaining calls of an owner that was cut off cannot be awaited
	}
	if own := r.holder.options.Layouts[l.Destination]; layout != own && released {
		m.breaksLocked("%v with layout %q gained %v with layout %q", r, own, at, layout)
	}
}

// gainedSoFar returns how many shards were gained, or arranged.
func (m *model) gainedSoFar() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gained
}

// rearranged is called for each shard of a destination that gets another layout, before it does.
func (m *model) rearranged(at shardKey, r *fakeRow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gained++
	for other, n := range m.running[at] {
		if n > 0 && r.owner == 0 && !r.orphan {
			m.breaksLocked("%v was rearranged while %v was at work with it", at, other)
		}
	}
	delete(m.running, at)
	m.floors[at.destination] = max(m.floors[at.destination], r.epoch+1)
}

func (m *model) begins(u *fakeShard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := u.lease.key()
	if behind := max(m.begun[at], m.floors[at.destination]); u.lease.Epoch < behind {
		m.breaksLocked("%v began something of %v in epoch %d, behind epoch %d", u.relay, at, u.lease.Epoch, behind)
	}
	m.begun[at] = u.lease.Epoch
	if m.running[at] == nil {
		m.running[at] = make(map[*fakeRelay]int)
	}
	m.running[at][u.relay]++
}

func (m *model) ends(u *fakeShard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.running[u.lease.key()]; n[u.relay] > 0 { // else it was killed
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
	r := &fakeRelay{model: m, owner: m.owners, shards: make(map[shardKey]*fakeShard), ended: make(chan struct{})}
	o := Options{Owner: r.owner, Gained: r.gained, Lost: r.lost, Destinations: m.plan.wants[i], Layouts: maps.Clone(m.layouts[i])}
	w := &fakeWriter{server: m.server, relay: r, slow: m.plan.takes, moves: m.plan.moves}
	r.holder = newHolder(o, slog.New(slog.DiscardHandler), w, func(context.Context) (table, func(), error) { return m.server.connect(r) })
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	m.relays[i] = r
	m.all = append(m.all, r)
	m.server.mu.Lock()
	m.server.listeners[r] = true
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
		if r != nil && !r.hasRead {
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
		m.server.seek(s.at)
		return
	case "configure":
		m.layouts[s.relay][s.at.destination] = s.layout
		return
	case "configure all":
		for _, layouts := range m.layouts {
			layouts[s.at.destination] = s.layout
		}
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
		<-time.After(Term + answerWithin + backoff.LongestReconnect + p.slow + 4*p.takes + 4*p.moves + 7*time.Second)
		m.settled()
		gained := m.gainedSoFar()
		time.Sleep(5 * time.Second) //nolint:forbidigo // virtual time
		m.settled()
		m.mu.Lock()
		if m.gained != gained {
			m.breaksLocked("%d shards changed hands, or were arranged, for nothing", m.gained-gained)
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
			m.breaks("%v was not handed over in the end", at)
		}
	}
}

// agreed replaces the layout of a relay that has the one in force.
const agreed = "agreed"

// settled checks that all shards are working, and shared fairly.
func (m *model) settled() {
	m.server.mu.Lock()
	pic := view{wants: make(map[int64][]int32), owners: make(map[int32]int64), group: make(map[int32]int32)}
	foreign := make(map[string][]string) // the layouts of destinations whose relays have others
	for i, r := range m.relays {
		pid := int64(i)
		for _, name := range append([]string{""}, m.plan.wants[i]...) {
			own, parts := r.holder.options.Layouts[name], m.server.partsLocked(name)
			first := m.server.rows[parts[0]]
			if first.layout != own {
				foreign[name] = append(foreign[name], own)
				continue
			}
			foreign[name] = append(foreign[name], agreed)
			if len(parts) != shardsOf(own) {
				m.breaks("%v with layout %q has %d shards", name, own, len(parts))
			}
			for _, at := range parts {
				id := m.server.rows[at].id
				pic.group[id] = first.id
				pic.wants[pid] = append(pic.wants[pid], id)
			}
		}
		slices.Sort(pic.wants[pid])
		r.mu.Lock()
		for at, u := range r.shards {
			u.mu.Lock()
			if late := time.Since(u.lastTime); late > time.Second+m.plan.slow {
				m.breaks("%v has begun nothing of %v for %v", r, at, late)
			}
			u.mu.Unlock()
			pic.owners[u.lease.PositionID] = pid
		}
		r.mu.Unlock()
	}
	for name, layouts := range foreign {
		if !slices.Contains(layouts, agreed) {
			m.breaks("%q has the layout %q, and its relays have %q", name, m.server.rows[shardKey{destination: name}].layout, layouts)
		}
	}
	m.server.mu.Unlock()
	for i := range m.relays {
		pic.self = int64(i)
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
		moves: time.Duration(rapid.SampledFrom([]int{0, 0, 100, 1000}).Draw(t, "moves ms")) * time.Millisecond,
	}
	layout := rapid.SampledFrom([]string{"", "", "2 x", "3 y"})
	common := make(map[string]string)
	for _, name := range modelDestinations {
		common[name] = layout.Draw(t, "layout")
	}
	same := rapid.Bool().Draw(t, "same wants")
	for i := range p.wants {
		p.layouts[i] = maps.Clone(common)
		for _, name := range modelDestinations {
			if rapid.IntRange(0, 5).Draw(t, "differs") == 5 {
				p.layouts[i][name] = layout.Draw(t, "layout")
			}
			if same || rapid.IntRange(0, 3).Draw(t, "wants") > 0 {
				p.wants[i] = append(p.wants[i], name)
			}
		}
	}
	for range rapid.IntRange(1, 12).Draw(t, "steps") {
		p.steps = append(p.steps, step{
			after: time.Duration(rapid.IntRange(0, 3000).Draw(t, "after")) * time.Millisecond,
			op: rapid.SampledFrom([]string{"start", "start", "stop", "kill", "freeze", "thaw", "cut", "cut off", "heal", "terminate", "restart", "crash", "ahead", "back", "seek", "configure", "configure all"}).
				Draw(t, "op"),
			relay:  rapid.IntRange(0, modelRelays-1).Draw(t, "relay"),
			at:     shardKey{rapid.SampledFrom(modelDestinations).Draw(t, "destination"), rapid.IntRange(0, 2).Draw(t, "part")},
			layout: layout.Draw(t, "layout"),
		})
	}
	return p
}

// TestModel is a model of shards and their owners: relays that come and go, are
// killed, frozen, cut off, and configured with other layouts, a server that restarts or crashes, and a clock that jumps.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		if broken := drawPlan(rt).run(t); len(broken) > 0 {
			rt.Fatalf("%d violations:\n%s", len(broken), strings.Join(broken[:min(len(broken), 40)], "\n"))
		}
	})
}
