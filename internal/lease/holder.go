package lease

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/backoff"

	"github.com/notifyd/notifyd/internal/modelock"
	"github.com/notifyd/notifyd/internal/pgschema"
	sessions "github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

const (
	// rebalanceEvery is how often a relay compares the shards with its fair share, plus or minus a fifth, so that
	// relays do not read in step.
	rebalanceEvery = 300 * time.Millisecond
	// rebalanceShare limits the reads to 1/rebalanceShare of the time. An old snapshot makes each read return to every
	// later version of the rows.
	rebalanceShare = 20
	// rebalanceAtMost bounds the time between two reads.
	rebalanceAtMost = 5 * time.Second
)

// Lease is a shard that this relay has taken.
type Lease struct {
	// Destination is empty for the search for events without a route. Shard is the number of its shard, from 0.
	Destination string
	Shard       int
	// PositionID is the number of the position's row.
	PositionID int32
	// Epoch numbers the owners: the next owner's is higher. Every write of the position has it in its condition.
	Epoch int64
	// Server identifies the server life in which the shard was taken: see [Requires].
	Server string

	term *term
}

// Valid reports whether the lease is known to last. While it is false no delivery may start. It may become true again,
// unless another relay has removed this one.
func (l *Lease) Valid() bool { return l.term.valid() }

func (l *Lease) key() shardKey { return shardKey{l.Destination, l.Shard} }

// shardKey is a shard of a destination.
type shardKey struct {
	destination string
	shard       int
}

// Options configure a [Holder].
type Options struct {
	// Owner is the number of the relay, see store.NewOwner.
	Owner int64
	// Program describes the relay's process for people; the zero value for none.
	Program store.Program
	// Destinations are the names of the relay's destinations, without duplicates. The search for events without a route
	// is always a shard, too.
	Destinations []string
	// Layouts are the layouts of the relay's configuration, by destination: empty for one shard. Only members with the
	// layout of a destination's positions take its shards.
	Layouts map[string]string
	// Arrange gives the positions of a destination this relay's layout. It is called while no relay that wants the
	// destination has the layout in force, and no relay has a shard of it. It checks both again, raises the epochs of
	// all shards, and clears their owners. It runs on connections to the server in this life, until ctx ends.
	Arrange func(ctx context.Context, server, destination string) error
	// Create creates the positions of destinations without one; "" is the search for events without a route.
	Create func(ctx context.Context, conn *sessions.Conn, missing []string) error
	// Use runs f on a connection to the server in this life: see [Requires]. Positions are written there: a write may
	// take long, and no renewal must wait for it.
	Use func(ctx context.Context, server string, f func(*sessions.Conn) error) error
	// Gained is called with each shard that was taken. It must not block: nothing is renewed while it runs.
	Gained func(Lease)
	// Lost is called once for each call of Gained, in its own goroutine: when the shard goes to another relay, or when
	// this relay has lost its leases. It stops the shard, waits for its deliveries and writes the last position,
	// however long that takes. The shard is released, or gained again, when Lost has returned.
	Lost func(destination string, shard int)
	// Report, if set, is called with the error of a part of the holder, and with nil when the part works again.
	Report func(part string, err error)
}

// Holder holds the shards of one relay. Create one with [NewHolder], and call Run once.
type Holder struct {
	options Options
	log     *slog.Logger
	open    func(ctx context.Context) (table, func(), error)
	writer  writer

	requests      chan struct{}        // capacity 1
	reconnectTerm atomic.Pointer[term] // the term to end
	work          sync.WaitGroup       // calls of Lost, and writes of positions
	done          chan result          // results of work
	over          chan struct{}        // closed when Run no longer receives from done
	stopping      bool                 // this and the rest belong to the goroutine of Run

	term      *term // nil while the relay is not a member
	renewals  int64
	server    string
	settled   time.Time // from then no relay of an earlier server life starts anything
	held      map[shardKey]*held
	leaving   map[shardKey]bool  // Lost is running
	sightings map[int64]sighting // the other members, on this session
	hasRead   bool               // on any session
	creating  bool               // positions are being created
	arranging bool               // a destination gets the layout of this relay
	// refused has the shards whose position could not be written, and the first shard for a layout. 0 stands for
	// positions that could not be created.
	refused  map[int32]*refusal
	reported []string        // the wants that other relays see
	foreign  map[string]bool // destinations that wait for relays with another layout, and were logged
	outage   outage
}

// held is a shard that the relay holds.
type held struct {
	Lease
	state state
}

type state int

const (
	taking     state = iota // its row is being written
	working                 // the shard is at work
	leaving                 // Lost is running
	releasing               // its row is being written
	unreleased              // the release failed: the next rebalance tries again
	creating                // of a result: positions were created
	arranging               // of a result: a destination has got the layout of this relay
)

// result is the result of work on a shard in another goroutine.
type result struct {
	kind     state // taking, leaving, releasing, creating or arranging
	at       shardKey
	held     *held  // for taking and releasing
	position int32  // for arranging: the first shard's position
	server   string // for creating and arranging: the server life
	epoch    int64  // for taking: the new epoch, 0 if the row had changed
	done     bool   // for releasing
	err      error
}

// sighting is the last renewal of a member that was seen, and since when.
type sighting struct {
	renewals int64
	since    time.Time
}

// refusal is a shard whose position could not be written.
type refusal struct {
	pauses   store.Pauses
	next     time.Time // of the next attempt
	down     bool      // the database did not answer
	logged   bool
	reported bool
}

// table is the holder's access to the database, on one connection. An error means that the connection is lost.
type table interface {
	// life returns the server life of the connection, and whether it is older than a term by the clock of the database.
	life() (name string, old bool)
	// join makes the relay a member that wants these shards, and notifies the other relays. It begins with a number of
	// renewals that no other relay has seen.
	join(ctx context.Context, wants []string) (renewals int64, err error)
	// announce changes the wants of the member, and notifies the other relays. It returns the same as renew.
	announce(ctx context.Context, wants []string, least int64) (renewals int64, err error)
	// renew renews a membership with at least that many renewals; one with fewer was restored with the database. It
	// returns 0 without such a membership.
	renew(ctx context.Context, least int64) (renewals int64, err error)
	// read returns the positions and the members, read in this order.
	read(ctx context.Context) (snapshot, error)
	// remove ends the membership of another relay. It reports false if that relay has renewed since.
	remove(ctx context.Context, owner, renewals int64) (bool, error)
	// leave ends the membership of this relay, and notifies the others.
	leave(ctx context.Context) error
}

// writer writes positions in one server life, on other connections than table.
type writer interface {
	// create creates positions.
	create(ctx context.Context, server string, missing []string) error
	// arrange gives the positions of a destination the layout of this relay: see [Options].
	arrange(ctx context.Context, server, destination string) error
	// take takes a shard, if its row is unchanged and not locked. It returns the new epoch, 0 if it did not take the
	// shard.
	take(ctx context.Context, server string, r row) (epoch int64, err error)
	// release releases a shard, and notifies the other relays. It reports false if the row is locked.
	release(ctx context.Context, server string, position int32, epoch int64) (done bool, err error)
}

// snapshot has the rows that a read returned.
type snapshot struct {
	rows    map[shardKey]*row
	members map[int64]member
}

// keys returns the shards of a destination, the first one if it has no position.
func (s *snapshot) keys(destination string) []shardKey {
	all := []shardKey{{destination: destination}}
	for part := 1; s.rows[shardKey{destination, part}] != nil; part++ {
		all = append(all, shardKey{destination, part})
	}
	return all
}

// row is a position.
type row struct {
	id     int32
	epoch  int64
	owner  int64 // 0: none
	layout string
}

// member is a relay.
type member struct {
	wants    []string
	layouts  []string // of wants
	renewals int64
	ended    bool // its term has ended by the clock of the database, and its session has ended
}

// layout returns the layout of its i-th want.
func (m *member) layout(i int) string {
	if i < len(m.layouts) {
		return m.layouts[i]
	}
	return ""
}

// NewHolder returns a holder that connects when it runs.
func NewHolder(c *store.Connector, o Options, log *slog.Logger) *Holder {
	w := &positionWriter{options: &o, channel: pgschema.Channel(c.Schema)}
	return newHolder(o, log, w, func(ctx context.Context) (table, func(), error) { return openSession(ctx, c, &o) })
}

func newHolder(o Options, log *slog.Logger, w writer, open func(context.Context) (table, func(), error)) *Holder {
	return &Holder{
		options:   o,
		log:       log,
		open:      open,
		writer:    w,
		requests:  make(chan struct{}, 1),
		done:      make(chan result),
		over:      make(chan struct{}),
		held:      make(map[shardKey]*held),
		leaving:   make(map[shardKey]bool),
		sightings: make(map[int64]sighting),
		refused:   make(map[int32]*refusal),
		foreign:   make(map[string]bool),
		outage:    outage{log: log},
	}
}

// Rebalance makes the holder compare the shards with its fair share now: another relay came or went, or a write found
// that a position has another epoch. It never blocks.
func (h *Holder) Rebalance() {
	select {
	case h.requests <- struct{}{}:
	default: // already requested
	}
}

// Reconnect makes the holder reconnect and take all shards anew, unless it has done so since l was taken: connections
// no longer lead to the server of l. That occurs after a failover in which the old primary keeps its sessions. It never
// blocks.
func (h *Holder) Reconnect(l *Lease) {
	if l.term.sent.Load() == nil {
		return // the term has ended
	}
	h.reconnectTerm.Store(l.term)
	h.Rebalance()
}

// Run holds this relay's share of the shards until ctx ends, and then releases all of them and returns nil. It replaces
// a lost connection, for as long as necessary. It returns outboxsql.ErrMode if the table is not, or no longer, a
// stream, and outboxsql.ErrCopy if it is a copy.
func (h *Holder) Run(ctx context.Context) error {
	defer h.work.Wait()
	defer close(h.over)
	defer h.end()

	pauses := backoff.Reconnects()
	defer h.outage.end(0)

	for ctx.Err() == nil {
		began := time.Now()

		err := h.serve(ctx, h.outage.back)
		if modelock.EndsRelay(err) {
			return err
		}
		if ctx.Err() != nil || err == nil {
			return nil
		}

		h.outage.begin(err)

		if !store.IsDown(err) { // others report a database that does not answer
			h.report(connection, err)
		}
		if time.Since(began) > backoff.LongestReconnect {
			pauses.Reset()
		}

		sleep.For(ctx, pauses.Next())
	}

	return nil
}

// leasesLost is logged when another relay has removed this one, or the server has crashed.
const leasesLost = "leases lost"

// The names of the reporting parts.
const (
	connection = "session of the leases"
	positions  = "owners of shards"
)

func (h *Holder) report(part string, err error) {
	if h.options.Report != nil {
		h.options.Report(part, err)
	}
}

// serve holds shards for as long as one connection lasts, or until ctx ends.
func (h *Holder) serve(ctx context.Context, up func()) error {
	t, hangUp, err := h.open(ctx)
	if err != nil {
		return err
	}
	defer hangUp()

	// The database may have been away for the other relays, too.
	clear(h.sightings)
	h.reported = nil

	if err := h.renew(ctx, t); err != nil {
		return err
	}

	up()
	return h.hold(ctx, t)
}

// hold returns when the connection is lost, or nil when ctx has ended and all shards are released.
func (h *Holder) hold(ctx context.Context, t table) error {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()

	timer := time.NewTimer(0)
	defer timer.Stop()

	done := ctx.Done()
	for !h.stopping || h.busy() {
		var err error
		select {
		case <-done:
			done = nil
			err = h.stop(ctx, t)
		case <-renew.C:
			err = h.renew(ctx, t)
		case <-timer.C:
			var next time.Duration
			next, err = h.rebalance(ctx, t)
			timer.Reset(next)

		case <-h.requests:
			if d := h.reconnectTerm.Load(); d != nil && d == h.term {
				h.end()
				return errElsewhere
			}

			var next time.Duration
			next, err = h.rebalance(ctx, t)
			timer.Reset(next)

		case o := <-h.done:
			h.finish(ctx, o)
		}

		if err != nil {
			return err
		}
	}

	if h.term == nil {
		return nil
	}

	return t.leave(ctx)
}

// errElsewhere is why a working connection is closed.
var errElsewhere = errors.New("connections lead to a server without the leases")

// busy reports whether deliveries of a shard may be running.
func (h *Holder) busy() bool {
	for _, s := range h.held {
		if s.state != unreleased {
			return true
		}
	}
	return false
}

// end stops all shards at once, because another relay may have them, or the server has lost the ids that they have in
// memory.
func (h *Holder) end() {
	if h.term == nil {
		return
	}

	h.term.end()
	h.term = nil

	for at, s := range h.held {
		if s.state == working {
			h.lose(at)
		}
	}

	clear(h.held)
}

// lose stops a shard.
func (h *Holder) lose(at shardKey) {
	h.leaving[at] = true
	h.start(func() result {
		h.options.Lost(at.destination, at.shard)
		return result{kind: leaving, at: at}
	})
}

// start runs f in a goroutine, and then finish with its result.
func (h *Holder) start(f func() result) {
	h.work.Go(func() {
		o := f()
		select {
		case h.done <- o:
		case <-h.over:
		}
	})
}

// renew renews the membership, or begins another one.
func (h *Holder) renew(ctx context.Context, t table) error {
	sent := time.Now()
	if h.term != nil {
		now, _ := t.life()

		is := now == h.server
		if is {
			renewals, err := t.renew(ctx, h.renewals)
			if err != nil {
				return err
			}
			h.renewals = renewals
			is = renewals > 0
		}

		if is {
			h.term.answered(sent)
			return nil
		}

		h.log.WarnContext(ctx, leasesLost)
		h.end()
	}

	if h.stopping {
		return nil
	}

	// Before others see the wants: a share is fair only among existing positions.
	s, err := t.read(ctx)
	if err != nil {
		return err
	}

	if missing := h.missing(s.rows); len(missing) > 0 && !h.postponed(0) {
		now, _ := t.life()
		h.record(ctx, 0, notCreated, h.writer.create(ctx, now, missing))
	}

	wants := h.wantedDestinations(&s)
	sent = time.Now()

	h.renewals, err = t.join(ctx, wants)
	if err != nil {
		return err
	}

	h.term = &term{}
	h.reported = wants
	h.term.answered(sent)

	if now, old := t.life(); now != h.server {
		h.server = now
		h.settled = time.Time{}
		if !old {
			h.settled = time.Now().Add(Term)
		}
	}

	h.Rebalance()
	return nil
}

// wantedDestinations returns the destinations that this relay wants. It includes destinations with a shard that is
// being released: if the share has grown meanwhile, the relay takes the shard again. It excludes shards of an earlier
// term that still run. After a refused write it includes no shard of another relay until the next attempt: other relays
// may have the permission. The same holds for a destination whose layout it could not change.
func (h *Holder) wantedDestinations(s *snapshot) []string {
	restricted := false
	for id, r := range h.refused {
		if id != 0 && !r.down && h.postponed(id) {
			restricted = true
		}
	}

	would := []string{}
	for _, name := range append([]string{""}, h.options.Destinations...) {
		first := s.rows[shardKey{destination: name}]
		isForeign := first != nil && first.layout != h.options.Layouts[name]
		if restricted && isForeign && h.postponed(first.id) {
			continue
		}

		for _, at := range s.keys(name) {
			wants := !h.leaving[at]
			if r := s.rows[at]; wants && restricted && r != nil {
				_, owned := s.members[r.owner]
				wants = !h.postponed(r.id) && (!owned || r.owner == h.options.Owner)
			}

			if wants || h.held[at] != nil {
				would = append(would, name)
				break
			}
		}
	}

	return would
}

// postponed reports whether it is too early for the next attempt to write a position.
func (h *Holder) postponed(id int32) bool {
	r := h.refused[id]
	return r != nil && time.Now().Before(r.next)
}

// rebalance takes and releases shards according to the fair share. It returns the time until the next call.
func (h *Holder) rebalance(ctx context.Context, t table) (next time.Duration, err error) {
	began := time.Now()

	next = sleep.Spread(rebalanceEvery, 0.2)
	if h.term == nil {
		return next, h.renew(ctx, t)
	}

	s, err := t.read(ctx)
	if err != nil {
		return next, err
	}

	next = min(max(next, rebalanceShare*time.Since(began)), rebalanceAtMost)
	if left := time.Until(h.settled); left > 0 {
		next = min(next, left)
	}
	if _, is := s.members[h.options.Owner]; !is {
		return next, h.renew(ctx, t)
	}

	h.releaseAll(ctx)
	if h.stopping {
		return next, nil
	}

	if missing := h.missing(s.rows); len(missing) > 0 && !h.creating && !h.postponed(0) {
		h.creating = true
		server := h.server
		h.start(func() result {
			return result{kind: creating, server: server, err: h.writer.create(ctx, server, missing)}
		})
	}

	if wants := h.wantedDestinations(&s); !slices.Equal(wants, h.reported) {
		is, err := h.announce(ctx, t, wants)
		if err != nil || !is {
			return next, err
		}

		m := s.members[h.options.Owner]
		m.wants = wants
		m.layouts = h.options.layoutsOf(wants)
		s.members[h.options.Owner] = m
	}

	h.forget(s.rows)

	soonest, err := h.removeExpired(ctx, t, s.members)
	if err != nil {
		return next, err
	}

	h.dropFenced(s.rows)
	h.arrange(ctx, &s)
	h.spread(ctx, &s)

	return min(next, soonest), nil
}

// announce stores the destinations that this relay wants, for the other relays to see. It returns false if the relay has lost
// its membership.
func (h *Holder) announce(ctx context.Context, t table, wants []string) (bool, error) {
	renewals, err := t.announce(ctx, wants, h.renewals)
	if err != nil {
		return false, err
	}

	if renewals == 0 {
		h.log.WarnContext(ctx, leasesLost)
		h.end()
		h.Rebalance() // it joins again
		return false, nil
	}

	h.renewals = renewals
	h.reported = wants

	return true, nil
}

// missing returns the destinations without a position.
func (h *Holder) missing(rows map[shardKey]*row) (missing []string) {
	for _, name := range append([]string{""}, h.options.Destinations...) {
		if rows[shardKey{destination: name}] == nil {
			missing = append(missing, name)
		}
	}
	return missing
}

// removeExpired removes members that have not renewed for a term, also from members. It returns the time until the next
// member expires. It reports whether the database refuses the removal of one, which costs this relay nothing.
func (h *Holder) removeExpired(ctx context.Context, t table, members map[int64]member) (soonest time.Duration, err error) {
	now := time.Now()
	soonest = rebalanceAtMost
	maps.DeleteFunc(h.sightings, func(owner int64, _ sighting) bool { _, is := members[owner]; return !is })
	first := !h.hasRead
	h.hasRead = true

	var refused error
	for owner, m := range members {
		if owner == h.options.Owner {
			continue
		}

		s, known := h.sightings[owner]

		silent := known && s.renewals == m.renewals
		if !silent {
			s = sighting{m.renewals, now}
			h.sightings[owner] = s
		}

		left := Term - now.Sub(s.since)
		if left > 0 && (!first || !m.ended) {
			if silent {
				soonest = min(soonest, left)
			}
			continue
		}

		removed, err := t.remove(ctx, owner, m.renewals)
		switch {
		case sessions.IsOfRow(err):
			refused = err
		case err != nil:
			return soonest, err
		case removed:
			h.log.WarnContext(ctx, "removed a relay that has not renewed its leases", "owner", owner)
			delete(members, owner)
		}
	}

	h.report(connection, refused)
	return soonest, nil
}

// dropFenced drops shards whose position a person has moved or forgotten. The holder takes them again with the current
// position.
func (h *Holder) dropFenced(rows map[shardKey]*row) {
	for at, s := range maps.Clone(h.held) {
		r := rows[at]
		isSame := r != nil && r.id == s.PositionID && r.epoch == s.Epoch
		if isSame && (r.owner == h.options.Owner || s.state == unreleased) {
			continue
		}

		switch s.state {
		case working:
			s.state = leaving
			h.lose(at)
		case unreleased:
			delete(h.held, at)
		case taking, leaving, releasing, creating, arranging:
		}
	}
}

// releaseAll tries again to release shards whose rows could not be written.
func (h *Holder) releaseAll(ctx context.Context) {
	for _, s := range h.held {
		if s.state == unreleased && !h.postponed(s.PositionID) {
			h.release(ctx, s)
		}
	}
}

// owned reports whether a relay may be working on a shard.
func (h *Holder) owned(s *snapshot, r *row) bool {
	_, is := s.members[r.owner]
	return is || r.owner != 0 && time.Now().Before(h.settled)
}

// arrange gives this relay's layout to a destination whose layout no relay has, once all of its shards are free. While
// another relay has the layout in force, this one waits. Only one relay arranges: with several, each would interrupt
// the other's arrangement if that takes longer than the time between two rebalances.
func (h *Holder) arrange(ctx context.Context, s *snapshot) {
	for _, name := range h.options.Destinations {
		first := s.rows[shardKey{destination: name}]
		if first == nil || first.layout == h.options.Layouts[name] {
			delete(h.foreign, name)
			continue
		}

		if s.agreed(name, first.layout) {
			if !h.foreign[name] {
				h.foreign[name] = true
				h.log.WarnContext(ctx, "destination waits for relays with other shards or routes", "destination", name)
			}
			continue
		}

		free := !h.arranging && !h.postponed(first.id) && s.arranger(name) == h.options.Owner
		for _, at := range s.keys(name) {
			isUsed := h.owned(s, s.rows[at]) || h.held[at] != nil || h.leaving[at]
			free = free && !isUsed
		}

		if free {
			h.arranging = true
			server := h.server
			id := first.id
			h.start(func() result {
				return result{kind: arranging, position: id, server: server, err: h.writer.arrange(ctx, server, name)}
			})
		}
	}
}

// arranger returns the relay that arranges a destination: of the relays that want it, the one with the lowest number.
func (s *snapshot) arranger(destination string) (owner int64) {
	found := false
	for other, m := range s.members {
		if slices.Contains(m.wants, destination) && (!found || other < owner) {
			owner = other
			found = true
		}
	}

	return owner
}

// agreed reports whether any member wants the destination with this layout.
func (s *snapshot) agreed(destination, layout string) bool {
	for _, m := range s.members {
		if i := slices.Index(m.wants, destination); i >= 0 && m.layout(i) == layout {
			return true
		}
	}
	return false
}

// spread takes and releases shards according to the fair share.
func (h *Holder) spread(ctx context.Context, s *snapshot) {
	pic := view{self: h.options.Owner, wants: make(map[int64][]int32), owners: make(map[int32]int64), group: make(map[int32]int32)}
	at := make(map[int32]shardKey)
	for p, r := range s.rows {
		at[r.id] = p

		if first := s.rows[shardKey{destination: p.destination}]; first != nil {
			pic.group[r.id] = first.id
		}
		if h.owned(s, r) {
			pic.owners[r.id] = r.owner
		}

		if have := h.held[p]; have != nil {
			switch have.state {
			case taking:
				pic.owners[r.id] = h.options.Owner
			case leaving, releasing, unreleased: // counts as free: no other shard must go instead
				delete(pic.owners, r.id)
			case working, creating, arranging:
			}
		}
	}

	for owner, m := range s.members {
		for i, name := range m.wants {
			for _, at := range s.keys(name) {
				if r := s.rows[at]; r != nil && r.layout == m.layout(i) {
					pic.wants[owner] = append(pic.wants[owner], r.id)
				}
			}
		}
		slices.Sort(pic.wants[owner])
	}

	take, give := pic.shares()
	for _, id := range give {
		p := at[id]
		switch have := h.held[p]; {
		case have != nil && have.state == working:
			have.state = leaving
			h.lose(p)
		case have != nil, h.leaving[p], h.postponed(id): // later: its deliveries may still be running
		default: // of an earlier term
			have = &held{Lease: Lease{p.destination, p.shard, id, s.rows[p].epoch, h.server, h.term}}
			h.held[p] = have
			h.release(ctx, have)
		}
	}

	for p, r := range s.rows {
		ofEarlierTerm := r.owner == h.options.Owner && h.held[p] == nil
		if ofEarlierTerm && !slices.Contains(give, r.id) && pic.wantedBy(h.options.Owner, r.id) {
			take = append(take, r.id)
		}
		if _, is := s.members[r.owner]; is && r.owner != h.options.Owner {
			h.unreport(r.id) // the refusal does not matter now
		}
	}

	for _, id := range take {
		if p := at[id]; h.held[p] == nil && !h.leaving[p] && !h.postponed(id) {
			h.take(ctx, p, *s.rows[p])
		}
	}
}

// take takes a shard.
func (h *Holder) take(ctx context.Context, at shardKey, r row) {
	s := &held{Lease: Lease{at.destination, at.shard, r.id, r.epoch, h.server, h.term}, state: taking}
	h.held[at] = s
	server := h.server
	h.start(func() result {
		epoch, err := h.writer.take(ctx, server, r)
		return result{kind: taking, at: at, held: s, epoch: epoch, err: err}
	})
}

// release releases a shard that has stopped.
func (h *Holder) release(ctx context.Context, s *held) {
	s.state = releasing
	id := s.PositionID
	epoch := s.Epoch
	server := s.Server
	h.start(func() result {
		done, err := h.writer.release(ctx, server, id, epoch)
		return result{kind: releasing, at: s.key(), held: s, done: done, err: err}
	})
}

// finish continues after the result of another goroutine.
func (h *Holder) finish(ctx context.Context, o result) {
	switch o.kind {
	case creating, arranging:
		h.finishSetup(ctx, o)
	case leaving:
		h.finishLoss(ctx, o.at)
	case taking, working, releasing, unreleased:
		h.finishWrite(ctx, o)
	}
}

// finishSetup continues after positions were created, or a destination got its layout.
func (h *Holder) finishSetup(ctx context.Context, o result) {
	message := notCreated
	if o.kind == creating {
		h.creating = false
	} else {
		h.arranging = false
		message = notArranged
	}

	// An arrangement may take longer than a server life, and the end of ctx interrupts it.
	if ctx.Err() == nil && (o.server == h.server || !errors.Is(o.err, ErrMoved)) {
		h.record(ctx, o.position, message, o.err)
	}
}

// finishLoss continues after Lost has returned for a shard.
func (h *Holder) finishLoss(ctx context.Context, at shardKey) {
	delete(h.leaving, at)

	if s := h.held[at]; s != nil && s.state == leaving {
		h.release(ctx, s)
		return
	}

	h.Rebalance() // the shard was of an earlier term, and may now be taken again
}

// finishWrite continues after a shard was taken or released.
func (h *Holder) finishWrite(ctx context.Context, o result) {
	if h.held[o.at] != o.held { // the term has ended meanwhile
		h.Rebalance()
		return
	}

	id := o.held.PositionID
	switch {
	case o.err != nil:
		h.refuse(ctx, id, notWritten, o.err)
	case o.done, o.epoch > 0:
		h.accept(id)
	}

	switch {
	case o.kind == releasing && o.done:
		delete(h.held, o.at)
		h.log.InfoContext(ctx, "released a shard", "destination", observe.PositionName(o.at.destination),
			"shard", o.at.shard, "position", id, "epoch", o.held.Epoch)
		h.Rebalance() // it takes a shard again that no other relay takes

	case o.kind == releasing:
		o.held.state = unreleased
	case o.epoch == 0: // until the next rebalance: the row may stay locked for long
		delete(h.held, o.at)
	default:
		o.held.Epoch = o.epoch

		if h.stopping {
			h.release(ctx, o.held)
			return
		}

		o.held.state = working
		h.log.InfoContext(ctx, "took a shard", "destination", observe.PositionName(o.at.destination),
			"shard", o.at.shard, "position", id, "epoch", o.epoch)
		h.options.Gained(o.held.Lease)
	}
}

// record records whether the database refuses the creation of positions, or the layout of a destination.
func (h *Holder) record(ctx context.Context, id int32, message string, err error) {
	if err != nil {
		h.refuse(ctx, id, message, err)
		return
	}
	h.accept(id)
}

// forget drops the refusals of deleted positions.
func (h *Holder) forget(rows map[shardKey]*row) {
	for id := range maps.Clone(h.refused) {
		there := id == 0
		for _, r := range rows {
			there = there || r.id == id
		}
		if !there {
			h.accept(id)
		}
	}
}

// stop releases all shards.
func (h *Holder) stop(ctx context.Context, t table) error {
	h.stopping = true

	if h.term == nil {
		return nil
	}
	if is, err := h.announce(ctx, t, nil); err != nil || !is {
		return err
	}

	for at, s := range h.held {
		if s.state == working {
			s.state = leaving
			h.lose(at)
		}
	}

	return nil
}

// The messages of refused writes.
const (
	notCreated  = "positions could not be created"
	notArranged = "the shards of a destination could not be changed"
	notWritten  = "the owner of a position could not be written"
)

// refuse records that the position of a shard could not be written, and postpones the next attempt.
func (h *Holder) refuse(ctx context.Context, id int32, message string, err error) {
	if errors.Is(err, ErrMoved) { // so the session of the leases is on another server
		h.reconnectTerm.Store(h.term)
		h.Rebalance()
		return
	}

	r := h.refused[id]
	if r == nil {
		r = &refusal{pauses: store.NewPauses()}
		h.refused[id] = r
	}

	r.next = time.Now().Add(r.pauses.After(err))

	r.down = store.IsDown(err)
	if !r.logged && (!r.down || !h.outage.open()) { // the outage is already in the log
		r.logged = true
		switch message {
		case notCreated:
			h.log.WarnContext(ctx, notCreated, "err", err)
		case notArranged:
			h.log.WarnContext(ctx, notArranged, "err", err)
		default:
			h.log.WarnContext(ctx, notWritten, "position", id, "err", err)
		}
	}

	if !r.down { // others report the outage
		r.reported = true
		h.report(positions, err)
	}
}

// accept ends the refusal of a shard.
func (h *Holder) accept(id int32) {
	h.unreport(id)
	delete(h.refused, id)
}

// unreport ends the report of a refusal. The pause continues.
func (h *Holder) unreport(id int32) {
	r := h.refused[id]
	if r == nil || !r.reported {
		return
	}

	r.reported = false
	for _, other := range h.refused {
		if other.reported {
			return
		}
	}

	h.report(positions, nil)
}
