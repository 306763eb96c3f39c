package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/sleep"
)

// The fakes below are a server and relays in virtual time, for the model of the holder.

const fakeRoundTrip = time.Millisecond

var errFake = errors.New("the connection is gone")

// fakeRow is a position.
type fakeRow struct {
	id       int32
	epoch    int64
	owner    int64
	released bool // released by the previous owner, or never owned
	orphan   bool // the owner before an arrangement had not released it
	layout   string
}

// moving is the layout of a destination whose arrangement has begun: no relay has it.
const moving = "moving"

// shardsOf returns the number of shards of a layout.
func shardsOf(layout string) int {
	if layout == "" {
		return 1
	}
	return int(layout[0] - '0')
}

// String returns the destination, and the part of all but the first shard.
func (p shardKey) String() string {
	if p.shard == 0 {
		return p.destination
	}
	return fmt.Sprintf("%s/%d", p.destination, p.shard)
}

type fakeMember struct {
	wants    []string
	layouts  []string
	renewals int64
	until    time.Time // by the clock of the server
}

// fakeServer has the tables.
type fakeServer struct {
	mu        sync.Mutex
	deaf      bool // notifications do not arrive
	ahead     time.Duration
	lives     int
	named     time.Time // when the life was, by the clock of the server; zero: not yet
	rows      map[shardKey]*fakeRow
	lastID    int32
	members   map[int64]*fakeMember
	sessions  map[*fakeSession]bool
	listeners map[*fakeRelay]bool
}

func newFakeServer() *fakeServer {
	return &fakeServer{
		rows: make(map[shardKey]*fakeRow), members: make(map[int64]*fakeMember),
		sessions: make(map[*fakeSession]bool), listeners: make(map[*fakeRelay]bool),
	}
}

func (f *fakeServer) nowLocked() time.Time { return time.Now().Add(f.ahead) }

// notifyLocked makes all listening relays look.
func (f *fakeServer) notifyLocked() {
	for r := range f.listeners {
		if !f.deaf {
			r.holder.Rebalance()
		}
	}
}

// connectedLocked reports whether a relay has a session.
func (f *fakeServer) connectedLocked(owner int64) bool {
	for s := range f.sessions {
		if s.relay.owner == owner {
			return true
		}
	}
	return false
}

// terminate ends the connections of one relay, or of all.
func (f *fakeServer) terminate(r *fakeRelay) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.sessions {
		if r == nil || s.relay == r {
			delete(f.sessions, s)
		}
	}
}

// crash empties the unlogged tables as well.
func (f *fakeServer) crash() {
	f.terminate(nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lives++
	f.named = time.Time{}
	clear(f.members)
}

// seek moves a position by hand.
func (f *fakeServer) seek(at shardKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.rows[at]; r != nil {
		r.epoch++
		f.notifyLocked()
	}
}

// fakeSession implements table.
type fakeSession struct {
	server *fakeServer
	relay  *fakeRelay
	name   string
	old    bool
}

func (f *fakeServer) connect(r *fakeRelay) (table, func(), error) {
	r.awake()
	if r.is(func() bool { return r.cut }) {
		sleep.For(context.Background(), answerWithin)
		return nil, nil, errFake
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.named.IsZero() {
		f.named = f.nowLocked()
	}
	s := &fakeSession{server: f, relay: r, name: strconv.Itoa(f.lives), old: f.nowLocked().Sub(f.named) > Term}
	f.sessions[s] = true
	return s, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.sessions, s)
	}, nil
}

// call is one round trip.
func (s *fakeSession) call(do func()) error {
	s.relay.awake()
	if s.relay.is(func() bool { return s.relay.cut }) {
		sleep.For(context.Background(), answerWithin)
		return errFake
	}
	sleep.For(context.Background(), fakeRoundTrip/2)
	s.server.mu.Lock()
	lives := s.server.sessions[s]
	if lives {
		do()
	}
	s.server.mu.Unlock()
	sleep.For(context.Background(), fakeRoundTrip/2)
	s.relay.awake()
	if !lives || s.relay.is(func() bool { return s.relay.killed }) {
		return errFake
	}
	return nil
}

func (s *fakeSession) life() (name string, old bool) { return s.name, s.old }

func (s *fakeSession) join(_ context.Context, wants []string) (renewals int64, err error) {
	err = s.call(func() {
		m := s.server.members[s.relay.owner]
		if m == nil {
			m = &fakeMember{renewals: 1 + rand.Int64N(1<<62)}
			s.server.members[s.relay.owner] = m
		} else {
			m.renewals++
		}
		m.wants, m.layouts, m.until = slices.Clone(wants), s.relay.holder.options.layoutsOf(wants), s.server.nowLocked().Add(Term)
		renewals = m.renewals
		s.server.notifyLocked()
	})
	return renewals, err
}

func (s *fakeSession) announce(_ context.Context, wants []string, least int64) (renewals int64, err error) {
	err = s.call(func() {
		if m := s.server.members[s.relay.owner]; m != nil && m.renewals >= least {
			m.renewals++
			renewals, m.wants, m.layouts = m.renewals, slices.Clone(wants), s.relay.holder.options.layoutsOf(wants)
			s.server.notifyLocked()
		}
	})
	return renewals, err
}

func (s *fakeSession) renew(_ context.Context, least int64) (renewals int64, err error) {
	err = s.call(func() {
		if m := s.server.members[s.relay.owner]; m != nil && m.renewals >= least {
			m.renewals++
			renewals = m.renewals
			m.until = s.server.nowLocked().Add(Term)
		}
	})
	return renewals, err
}

func (s *fakeSession) read(context.Context) (shown snapshot, err error) {
	shown = snapshot{rows: make(map[shardKey]*row), members: make(map[int64]member)}
	err = s.call(func() {
		s.relay.hasRead = s.relay.hasRead || s.server.members[s.relay.owner] != nil
		for at, r := range s.server.rows {
			shown.rows[at] = &row{r.id, r.epoch, r.owner, r.layout}
		}
		for owner, m := range s.server.members {
			shown.members[owner] = member{slices.Clone(m.wants), slices.Clone(m.layouts), m.renewals, m.until.Before(s.server.nowLocked()) && !s.server.connectedLocked(owner)}
		}
	})
	return shown, err
}

func (s *fakeSession) remove(_ context.Context, owner, renewals int64) (removed bool, err error) {
	err = s.call(func() {
		if m := s.server.members[owner]; m != nil && m.renewals == renewals {
			delete(s.server.members, owner)
			removed = true
		}
	})
	return removed, err
}

func (s *fakeSession) leave(context.Context) error {
	return s.call(func() {
		delete(s.server.members, s.relay.owner)
		s.server.notifyLocked()
	})
}

// fakeWriter implements writer.
type fakeWriter struct {
	server *fakeServer
	relay  *fakeRelay
	slow   time.Duration // what a take lasts
	moves  time.Duration // what an arrangement lasts
}

// call is one round trip on a separate connection.
func (w *fakeWriter) call(life string, do func()) (err error) {
	w.relay.awake()
	if w.relay.is(func() bool { return w.relay.cut }) {
		sleep.For(context.Background(), answerWithin)
		return errFake
	}
	sleep.For(context.Background(), fakeRoundTrip/2)
	w.server.mu.Lock()
	switch {
	case w.relay.is(func() bool { return w.relay.killed }):
		err = errFake
	case strconv.Itoa(w.server.lives) != life:
		err = ErrMoved
	default:
		do()
	}
	w.server.mu.Unlock()
	sleep.For(context.Background(), fakeRoundTrip/2)
	w.relay.awake()
	return err
}

func (w *fakeWriter) create(_ context.Context, life string, missing []string) error {
	return w.call(life, func() {
		for _, name := range missing {
			if at := (shardKey{destination: name}); w.server.rows[at] == nil {
				w.server.addLocked(at, &fakeRow{})
			}
		}
	})
}

func (w *fakeWriter) take(_ context.Context, life string, seen row) (epoch int64, err error) {
	sleep.For(context.Background(), w.slow)
	err = w.call(life, func() {
		for _, r := range w.server.rows {
			if r.id == seen.id && r.epoch == seen.epoch {
				r.released, r.orphan = r.owner == 0 && !r.orphan, false
				r.epoch++
				r.owner = w.relay.owner
				epoch = r.epoch
			}
		}
	})
	return epoch, err
}

func (w *fakeWriter) release(_ context.Context, life string, id int32, epoch int64) (done bool, err error) {
	err = w.call(life, func() {
		for _, r := range w.server.rows {
			if r.id == id && r.epoch == epoch {
				r.owner = 0
			}
		}
		w.server.notifyLocked()
	})
	return err == nil, err
}

// fakeRelay is a relay that delivers all the time.
type fakeRelay struct {
	model   *model
	owner   int64
	holder  *Holder
	stop    context.CancelFunc
	ended   chan struct{} // closed when Run has returned
	hasRead bool          // guarded by the mutex of the server

	mu     sync.Mutex
	frozen chan struct{} // closed when it resumes; nil while it runs
	cut    bool
	killed bool
	denied bool // the database refuses arrangements
	shards map[shardKey]*fakeShard
}

func (r *fakeRelay) is(what func() bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return what()
}

// awake returns when the relay is not frozen.
func (r *fakeRelay) awake() {
	for {
		r.mu.Lock()
		frozen := r.frozen
		r.mu.Unlock()
		if frozen == nil {
			return
		}
		<-frozen
	}
}

// freeze stops the relay, or lets it continue.
func (r *fakeRelay) freeze(is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case is && r.frozen == nil:
		r.frozen = make(chan struct{})
	case !is && r.frozen != nil:
		close(r.frozen)
		r.frozen = nil
	}
}

func (r *fakeRelay) partition(is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = is
}

// fakeShard delivers one thing after another.
type fakeShard struct {
	relay *fakeRelay
	lease Lease
	done  chan struct{}

	mu       sync.Mutex
	stopped  bool
	lastTime time.Time
}

func (r *fakeRelay) gained(l Lease) {
	r.awake()
	u := &fakeShard{relay: r, lease: l, done: make(chan struct{})}
	r.mu.Lock()
	killed, twice := r.killed, r.shards[l.key()] != nil
	if !killed {
		r.shards[l.key()] = u
	}
	r.mu.Unlock()
	if killed {
		return
	}
	if twice {
		r.model.breaks("%d gained %v twice", r.owner, l.key())
	}
	r.model.gains(r, &l)
	go u.run()
}

func (r *fakeRelay) lost(destination string, part int) {
	r.awake()
	at := shardKey{destination, part}
	r.mu.Lock()
	u := r.shards[at]
	delete(r.shards, at)
	killed := r.killed
	r.mu.Unlock()
	if u == nil {
		if !killed {
			r.model.breaks("%d lost %v, which it did not have", r.owner, at)
		}
		return
	}
	u.halt()
	<-u.done
	r.awake()
}

func (u *fakeShard) halt() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopped = true
}

func (u *fakeShard) run() {
	defer close(u.done)
	for {
		u.relay.awake()
		u.mu.Lock()
		stopped := u.stopped
		begins := !stopped && u.lease.Valid()
		if begins {
			u.lastTime = time.Now()
			u.relay.model.begins(u)
		}
		u.mu.Unlock()
		if stopped {
			return
		}
		if !begins {
			sleep.For(context.Background(), 10*time.Millisecond)
			continue
		}
		sleep.For(context.Background(), u.relay.model.duration())
		u.relay.awake()
		u.relay.model.ends(u)
	}
}

// kill ends the relay as kill -9 does.
func (r *fakeRelay) kill() {
	r.mu.Lock()
	r.killed = true
	shards := r.shards
	r.shards = make(map[shardKey]*fakeShard)
	r.mu.Unlock()
	r.model.server.terminate(r)
	for _, u := range shards {
		u.halt()
	}
	r.freeze(false)
	r.stop()
	r.model.forget(r)
}

func (r *fakeRelay) String() string { return fmt.Sprint("relay ", r.owner) }

// taken returns the layout of a shard that was taken, and whether the owner before that of l had released it.
func (f *fakeServer) taken(l *Lease) (layout string, released bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rows[l.key()]
	if r == nil || r.epoch != l.Epoch {
		return "", false // moved already
	}
	return r.layout, r.released
}

func (f *fakeServer) addLocked(at shardKey, r *fakeRow) {
	f.lastID++
	r.id = f.lastID
	f.rows[at] = r
}

// partsLocked returns the shards of a destination.
func (f *fakeServer) partsLocked(destination string) (parts []shardKey) {
	for at := (shardKey{destination: destination}); f.rows[at] != nil; at.shard++ {
		parts = append(parts, at)
	}
	return parts
}

// arrange does in two transactions what that of the stream does, which takes as long as there are rows to move.
func (w *fakeWriter) arrange(ctx context.Context, life, destination string) error {
	layout := w.relay.holder.options.Layouts[destination]
	var marked int64
	if w.relay.is(func() bool { return w.relay.denied }) {
		return &pgconn.PgError{Code: "42501"}
	}
	if err := w.call(life, func() { marked = w.markLocked(destination, layout) }); err != nil || marked == 0 {
		return err
	}
	if sleep.For(ctx, w.moves); ctx.Err() != nil {
		return ctx.Err()
	}
	return w.call(life, func() { w.beginLocked(destination, layout, marked) })
}

// markLocked keeps all relays from the destination, and returns the epoch of its first shard, or 0 if a relay has the destination.
func (w *fakeWriter) markLocked(destination, layout string) (epoch int64) {
	parts := w.server.partsLocked(destination)
	if len(parts) == 0 || w.server.rows[parts[0]].layout == layout {
		return 0
	}
	force := w.server.rows[parts[0]].layout
	for _, m := range w.server.members {
		if i := slices.Index(m.wants, destination); i >= 0 && m.layouts[i] == force {
			return 0
		}
	}
	for _, at := range parts {
		if w.server.members[w.server.rows[at].owner] != nil {
			return 0
		}
	}
	for _, at := range parts {
		r := w.server.rows[at]
		w.relay.model.rearranged(at, r)
		r.orphan = r.orphan || r.owner != 0
		r.epoch++
		r.owner, r.layout = 0, moving
	}
	return w.server.rows[parts[0]].epoch
}

// beginLocked writes the new shards, unless another relay has begun, too.
func (w *fakeWriter) beginLocked(destination, layout string, marked int64) {
	parts := w.server.partsLocked(destination)
	if first := w.server.rows[parts[0]]; first.layout != moving || first.epoch != marked {
		return
	}
	var epoch int64
	for _, at := range parts {
		epoch = max(epoch, w.server.rows[at].epoch+1)
	}
	for part := range max(len(parts), shardsOf(layout)) {
		at := shardKey{destination, part}
		switch {
		case part >= shardsOf(layout):
			delete(w.server.rows, at)
		case part >= len(parts):
			w.server.addLocked(at, &fakeRow{epoch: epoch, layout: layout})
		default:
			w.server.rows[at].epoch, w.server.rows[at].layout = epoch, layout
		}
	}
	w.server.notifyLocked()
}
