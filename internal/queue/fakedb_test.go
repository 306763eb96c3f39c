package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/internal/sleep"
)

// fakeDB is the database in memory, with the behavior that the package relies on: row locks that others skip, rows that
// become visible when their transaction commits, due times, leases with owner and token. Its clock is the clock of the
// synctest bubble.
type fakeDB struct {
	roundTrip time.Duration
	routes    map[string][]string // by event type: used to compute settled

	mu           sync.Mutex // guards what follows
	faults       func(op string) faultKind
	cutOff       int64 // the owner whose relay cannot reach the database
	down         bool
	mute         bool // notifications are lost
	events       map[int64]*fakeEvent
	order        []int64
	rows         map[deliveries.Ref]*fakeRow
	nextXid      uint64
	open         map[uint64]bool // writing transactions
	alive        map[int64]bool  // owners whose lock is held
	suppressedBy *fakeTrigger    // the relay that suppresses the trigger
	ears         []*Engine
	settled      map[deliveries.Ref]bool // deliveries known to be acknowledged
	newly        []deliveries.Ref        // those of the current transaction
	check        func([]deliveries.Ref)  // checks newly
	broken       []string                // violated invariants
	history      []string                // requests and answers
	claims       int
	commits      int
	ops          int
	slow         int // one in so many operations takes effect late, 0: none
	late         int // one in so many answers comes late, 0: none
	fenced       int
	arrivals     map[string]time.Time // the theoretical arrival times of rate limits, by destination and key
	inflight     func() int           // how many deliveries a fault may cause to repeat
	excused      int
	faulted      time.Time // end of the last fault
}

type fakeEvent struct {
	id      int64
	xid     uint64
	typ     string
	key     string // its aggregate
	payload []byte
	headers map[string]string
	stamp   int       // the number of its commit
	at      time.Time // available_at
	state   string    // fresh, deferred, done
	visible bool
	locked  *fakeSession
}

type fakeRow struct {
	deliveries.Entry
	due     time.Time
	owner   int64
	until   time.Time
	replays int
	locked  *fakeSession
}

// faultKind is what happens to an operation.
type faultKind uint8

const (
	noFault    faultKind = iota
	lostBefore           // the connection breaks before the operation takes effect
	lostAfter            // the operation takes effect, but its answer is lost
	refused              // the server answers with an error
	hung                 // the answer takes more than a second
)

const (
	lateAnswer = 9 * time.Millisecond    // how long a late answer takes
	hangs      = 1500 * time.Millisecond // and that of an operation that hangs
)

var errLost = errors.New("connection reset by peer")

// refusal is an error that the server answered with.
type refusal struct{}

func (refusal) Error() string    { return "permission denied" }
func (refusal) SQLState() string { return "42501" }

func newFakeDB() *fakeDB {
	return &fakeDB{
		roundTrip: 200 * time.Microsecond, events: make(map[int64]*fakeEvent), rows: make(map[deliveries.Ref]*fakeRow),
		nextXid: 100, open: make(map[uint64]bool), alive: make(map[int64]bool),
		settled: make(map[deliveries.Ref]bool), routes: make(map[string][]string), arrivals: make(map[string]time.Time),
	}
}

// fault decides the fate of an operation, and counts the repeats that it may cause.
func (db *fakeDB) fault(owner int64, op string) faultKind {
	db.mu.Lock()
	defer db.mu.Unlock()
	kind := noFault
	if db.down || owner != 0 && owner == db.cutOff {
		kind = lostBefore
	} else if db.faults != nil {
		kind = db.faults(op)
	}
	if kind != noFault && db.inflight != nil {
		db.excused += db.inflight()
		db.faulted = time.Now()
		if kind == hung {
			db.faulted = db.faulted.Add(hangs)
		}
	}
	return kind
}

func (db *fakeDB) set(f func()) {
	db.mu.Lock()
	defer db.mu.Unlock()
	f()
}

// writer is an application's transaction.
type writer struct {
	db  *fakeDB
	xid uint64
	ids []int64 // to be announced
}

func (db *fakeDB) begin() *writer {
	db.mu.Lock()
	defer db.mu.Unlock()
	w := &writer{db: db, xid: db.nextXid}
	db.nextXid++
	db.open[w.xid] = true
	return w
}

func (w *writer) insert(typ string, delay time.Duration) int64 { return w.insertKeyed(typ, "", delay) }

func (w *writer) insertKeyed(typ, key string, delay time.Duration) int64 {
	db := w.db
	db.mu.Lock()
	defer db.mu.Unlock()
	e := &fakeEvent{id: int64(len(db.order)) + 1, xid: w.xid, typ: typ, key: key, state: "fresh"}
	if delay > 0 {
		e.at = time.Now().Add(delay)
	}
	db.events[e.id] = e
	db.order = append(db.order, e.id)
	if db.suppressedBy == nil {
		w.ids = append(w.ids, e.id)
	}
	return e.id
}

func (w *writer) commit() {
	db := w.db
	db.mu.Lock()
	delete(db.open, w.xid)
	db.commits++
	for _, id := range db.order {
		if e := db.events[id]; e.xid == w.xid {
			e.visible, e.stamp = true, db.commits
			db.note("commit of %d, type %s, key %q", e.id, e.typ, e.key)
		}
	}
	ears := append([]*Engine(nil), db.ears...)
	mute := db.mute || db.down
	db.mu.Unlock()
	for _, d := range ears {
		for _, id := range w.ids {
			if !mute {
				d.Wake(id)
			}
		}
	}
}

// write inserts and commits events of one type, and returns their ids.
func (db *fakeDB) write(typ string, n int) []int64 {
	w := db.begin()
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = w.insert(typ, 0)
	}
	w.commit()
	return ids
}

// snapshot returns the bounds of a snapshot taken now.
func (db *fakeDB) snapshotLocked() Snapshot {
	s := Snapshot{Xmin: db.nextXid, Xmax: db.nextXid}
	for xid := range db.open {
		s.Xmin = min(s.Xmin, xid)
	}
	return s
}

// note adds to the history.
func (db *fakeDB) note(format string, args ...any) {
	db.history = append(db.history, time.Now().Format("04:05.000000 ")+fmt.Sprintf(format, args...))
}

// travel is how long an operation takes to get there and back.
func (db *fakeDB) travel() (there, back time.Duration) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.ops++
	there, back = db.roundTrip, 0
	if db.slow > 0 && db.ops%db.slow == 0 {
		there += 7 * time.Millisecond
	}
	if db.late > 0 && db.ops%db.late == 0 {
		back = lateAnswer
	}
	return there, back
}

func (db *fakeDB) breakLocked(format string, args ...any) {
	db.broken = append(db.broken, fmt.Sprintf(format, args...))
}

// destinations returns the destinations of an event type.
func (db *fakeDB) destinations(typ string) []string { return db.routes[typ] }

// settledAllBut records that all destinations of an event but the given ones are done.
func (db *fakeDB) settledAllBut(id int64, left map[string]bool) {
	for _, name := range db.destinations(db.events[id].typ) {
		if !left[name] {
			db.settleLocked(deliveries.Ref{EventID: id, Destination: name})
		}
	}
}

func (db *fakeDB) settleLocked(ref deliveries.Ref) {
	db.settled[ref] = true
	db.newly = append(db.newly, ref)
}

// finishLocked closes events that have no deliveries left.
func (db *fakeDB) finishLocked(id int64) {
	e := db.events[id]
	if e == nil || e.state != "deferred" {
		return
	}
	for ref, row := range db.rows {
		if ref.EventID == id && row.State != deliveries.Dead {
			return
		}
	}
	e.state = "done"
}

// checkLocked looks for events that are done while deliveries are left, and for events that no
// relay would ever find.
func (db *fakeDB) checkLocked() {
	left := make(map[int64]bool)
	for ref, row := range db.rows {
		if row.State != deliveries.Dead {
			left[ref.EventID] = true
		}
	}
	for id, e := range db.events {
		if e.state == "done" && left[id] {
			db.breakLocked("event %d is done while deliveries are left", id)
		}
		if e.state == "deferred" && !left[id] {
			db.breakLocked("event %d is deferred and has no deliveries left", id)
		}
	}
	if db.check != nil {
		db.check(db.newly)
	}
	db.newly = nil
}

// unfinished returns how many events are not done.
func (db *fakeDB) unfinished() int {
	db.mu.Lock()
	defer db.mu.Unlock()
	n := 0
	for _, e := range db.events {
		if e.visible && e.state != "done" {
			n++
		}
	}
	return n
}

// row returns a copy of a row, or false without one.
func (db *fakeDB) row(id int64, dest string) (fakeRow, bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if r := db.rows[deliveries.Ref{EventID: id, Destination: dest}]; r != nil {
		return *r, true
	}
	return fakeRow{}, false
}

func (db *fakeDB) isSettled(ref deliveries.Ref) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.settled[ref]
}

func (db *fakeDB) claimed() int {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.claims
}

func (db *fakeDB) event(id int64) fakeEvent {
	db.mu.Lock()
	defer db.mu.Unlock()
	return *db.events[id]
}

// reserve takes from rate limits.
func (db *fakeDB) reserve(_ context.Context, destination string, terms limit.Terms, asks []limit.Request) (all []limit.Reservation, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	now := time.Now()
	for _, ask := range asks {
		place := destination + " " + ask.Key
		lead := max(0, db.arrivals[place].Sub(now))
		n := min(ask.N, int((time.Duration(terms.Burst)*terms.Gap-lead)/terms.Gap))
		lead += time.Duration(n) * terms.Gap
		db.arrivals[place] = now.Add(lead)
		all = append(all, limit.Reservation{Key: ask.Key, N: n, Lead: lead})
	}
	return all, nil
}

// fakeTrigger is one relay's access to the notify lock.
type fakeTrigger struct{ db *fakeDB }

func (b *fakeTrigger) Suppress() {
	b.db.mu.Lock()
	defer b.db.mu.Unlock()
	if b.db.suppressedBy == nil {
		b.db.suppressedBy = b
	}
}

func (b *fakeTrigger) Release(ctx context.Context) (uint64, error) {
	sleep.For(ctx, b.db.roundTrip)
	if b.db.fault(0, "ring") != noFault {
		b.close() // the lock dies with the connection
		return 0, errLost
	}
	b.close()
	b.db.mu.Lock()
	defer b.db.mu.Unlock()
	b.db.nextXid++
	return b.db.nextXid - 1, nil
}

func (*fakeTrigger) Queued(context.Context) (int, error) { return 0, nil }

func (b *fakeTrigger) close() {
	b.db.mu.Lock()
	defer b.db.mu.Unlock()
	if b.db.suppressedBy == b {
		b.db.suppressedBy = nil
	}
}
