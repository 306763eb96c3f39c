package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// The fakes below are a server and relays in virtual time, for the model of keeper.

const (
	fakeRoundTrip = time.Millisecond
	fakeIdle      = 5 * time.Second // idle_session_timeout of the role
)

var errFake = errors.New("the session is gone")

type fakeRow struct {
	unit  int32
	epoch int64
	owner int64
}

// fakeServer has the positions and the locks.
type fakeServer struct {
	mu       sync.Mutex
	deaf     bool // notifications do not arrive
	rows     map[place]*fakeRow
	owners   map[int32]int32
	sessions map[int32]*fakeSession
	lastPID  int32
	looks    map[*fakeRelay]bool
}

func newFakeServer() *fakeServer {
	return &fakeServer{
		rows: make(map[place]*fakeRow), owners: make(map[int32]int32),
		sessions: make(map[int32]*fakeSession), looks: make(map[*fakeRelay]bool),
	}
}

// notifyLocked makes all listening relays look.
func (f *fakeServer) notifyLocked() {
	for r := range f.looks {
		if !f.deaf {
			r.keeper.Look()
		}
	}
}

// endLocked ends a session.
func (f *fakeServer) endLocked(s *fakeSession) {
	s.idle.Stop()
	delete(f.sessions, s.pid)
	for unit, pid := range f.owners {
		if pid == s.pid {
			delete(f.owners, unit)
		}
	}
}

// terminate ends the sessions of one relay, or of all.
func (f *fakeServer) terminate(r *fakeRelay) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		if r == nil || s.relay == r {
			f.endLocked(s)
		}
	}
}

// seek moves a position by hand.
func (f *fakeServer) seek(at place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.rows[at]; r != nil {
		r.epoch++
		f.notifyLocked()
	}
}

// fakeSession implements session.
type fakeSession struct {
	server *fakeServer
	relay  *fakeRelay
	pid    int32
	wants  []int32
	idle   *time.Timer
}

func (f *fakeServer) connect(r *fakeRelay) (session, func(), error) {
	r.awake()
	if r.is(func() bool { return r.cut || r.killed }) {
		return nil, nil, errFake
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastPID++
	s := &fakeSession{server: f, relay: r, pid: f.lastPID}
	s.idle = time.AfterFunc(fakeIdle, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.endLocked(s)
	})
	f.sessions[s.pid] = s
	return s, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !r.is(func() bool { return r.cut }) { // else the server does not hear of it
			f.endLocked(s)
		}
	}, nil
}

// call is one round trip.
func (s *fakeSession) call(do func()) error {
	s.relay.awake()
	if s.relay.is(func() bool { return s.relay.cut }) {
		sleep(context.Background(), answerWithin)
		return errFake
	}
	sleep(context.Background(), fakeRoundTrip/2)
	s.server.mu.Lock()
	gone := s.server.sessions[s.pid] == nil
	if !gone {
		s.idle.Reset(fakeIdle)
		do()
	}
	s.server.mu.Unlock()
	sleep(context.Background(), fakeRoundTrip/2)
	s.relay.awake()
	if gone || s.relay.is(func() bool { return s.relay.killed }) {
		return errFake
	}
	return nil
}

func (s *fakeSession) prove(context.Context) error { return s.call(func() {}) }

func (s *fakeSession) look(_ context.Context, would []place) (shown seen, err error) {
	err = s.call(func() {
		f := s.server
		shown = seen{picture: picture{me: s.pid, wants: make(map[int32][]int32), owners: make(map[int32]int32)}, rows: make(map[place]row)}
		var units []int32
		for _, at := range would {
			if f.rows[at] == nil {
				f.rows[at] = &fakeRow{unit: int32(len(f.rows) + 1)}
			}
			units = append(units, f.rows[at].unit)
		}
		slices.Sort(units)
		if !slices.Equal(units, s.wants) {
			s.wants = units
			f.notifyLocked()
		}
		for at, r := range f.rows {
			shown.rows[at] = row{r.unit, r.epoch}
		}
		for pid, other := range f.sessions {
			if len(other.wants) > 0 {
				shown.wants[pid] = other.wants
			}
		}
		maps.Copy(shown.owners, f.owners)
	})
	return shown, err
}

func (s *fakeSession) take(_ context.Context, unit int32) (got *taken, err error) {
	locked := false
	err = s.call(func() {
		if _, owned := s.server.owners[unit]; !owned {
			s.server.owners[unit], locked = s.pid, true
		}
	})
	if err != nil || !locked {
		return nil, err
	}
	err = s.call(func() {
		for at, r := range s.server.rows {
			if r.unit == unit {
				before := r.owner
				r.epoch++
				r.owner = s.relay.owner
				got = &taken{Position: Position{Destination: at.destination, Unit: unit, Epoch: r.epoch}, mine: before == r.owner}
				got.Clean = before == 0 || got.mine
			}
		}
	})
	return got, err
}

func (s *fakeSession) release(_ context.Context, p Position, how departure) error {
	if how == cleanly {
		if err := s.call(func() {
			if r := s.server.rows[p.place()]; r.epoch == p.Epoch {
				r.owner = 0
			}
		}); err != nil {
			return err
		}
	}
	return s.call(func() {
		delete(s.server.owners, p.Unit)
		s.server.notifyLocked()
	})
}

// fakeRelay is a relay that delivers all the time.
type fakeRelay struct {
	model  *keeperModel
	owner  int64
	keeper *Keeper
	stop   context.CancelFunc
	ended  chan struct{} // closed when Run has returned

	mu     sync.Mutex
	frozen chan struct{} // closed when it goes on, nil while it does
	cut    bool
	killed bool
	units  map[string]*fakeUnit
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

// fakeUnit delivers one thing after another.
type fakeUnit struct {
	relay *fakeRelay
	p     Position
	done  chan struct{}

	mu       sync.Mutex
	stopped  bool
	lastTime time.Time
}

func (r *fakeRelay) gained(p Position) {
	r.awake()
	u := &fakeUnit{relay: r, p: p, done: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killed {
		return
	}
	if r.units[p.Destination] != nil {
		r.model.breaks("%d gained %q twice", r.owner, p.Destination)
	}
	r.units[p.Destination] = u
	r.model.gains(r, p)
	go u.run()
}

func (r *fakeRelay) lost(destination string, _ int) {
	r.awake()
	r.mu.Lock()
	u := r.units[destination]
	delete(r.units, destination)
	killed := r.killed
	r.mu.Unlock()
	if u == nil {
		if !killed {
			r.model.breaks("%d lost %q, which it did not have", r.owner, destination)
		}
		return
	}
	u.halt()
	<-u.done
	r.awake()
}

func (u *fakeUnit) halt() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopped = true
}

func (u *fakeUnit) run() {
	defer close(u.done)
	for {
		u.relay.awake()
		u.mu.Lock()
		stopped := u.stopped
		begins := !stopped && u.p.Sure()
		if begins {
			u.lastTime = time.Now()
			u.relay.model.begins(u)
		}
		u.mu.Unlock()
		if stopped {
			return
		}
		if !begins {
			sleep(context.Background(), 10*time.Millisecond)
			continue
		}
		sleep(context.Background(), u.relay.model.duration())
		u.relay.awake()
		u.relay.model.ends(u)
	}
}

// kill ends the relay as kill -9 does.
func (r *fakeRelay) kill() {
	r.mu.Lock()
	r.killed = true
	units := r.units
	r.units = make(map[string]*fakeUnit)
	r.mu.Unlock()
	r.model.server.terminate(r)
	for _, u := range units {
		u.halt()
	}
	r.freeze(false)
	r.stop()
	r.model.forget(r)
}

func (r *fakeRelay) String() string { return fmt.Sprint("relay ", r.owner) }
