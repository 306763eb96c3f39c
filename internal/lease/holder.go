package lease

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	sessions "github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// lookEvery is how often a relay compares the shards with its fair share, plus or minus a fifth, so
	// that relays do not look in step.
	lookEvery = 300 * time.Millisecond
	// lookPart limits looks to 1/lookPart of the time. An old snapshot makes each look read every later
	// version of the rows.
	lookPart = 20
	// lookAtMost bounds the time between two looks.
	lookAtMost = 5 * time.Second
)

const (
	// firstReconnect is short: most connections can be replaced at once.
	firstReconnect = 20 * time.Millisecond
	// longestReconnect bounds how long the return of a database goes unnoticed.
	longestReconnect = 2 * time.Second
)

// Lease is a shard that this relay has taken.
type Lease struct {
	// Destination is empty for the search for events without a route.
	Destination string
	Part        int
	// Unit is the number of the position's row.
	Unit int32
	// Epoch numbers the owners: the next owner's is higher. Every write of the position has it in its
	// condition.
	Epoch int64
	// Server names the life of the server in which the shard was taken: see [Verify].
	Server string

	term *term
}

// Valid reports whether the lease is known to last. While it is false no delivery may start; it may become true again, unless
// another relay has removed this one.
func (l *Lease) Valid() bool { return l.term.valid() }

func (l *Lease) place() place { return place{l.Destination, l.Part} }

// place is a destination, or a part of it.
type place struct {
	destination string
	part        int
}

// Options configure a [Holder].
type Options struct {
	// Owner is the number of the relay, see store.NewOwner.
	Owner int64
	// Program describes the relay's process for people; the zero value for none.
	Program store.Program
	// Destinations are the names of the relay's destinations, without duplicates. The search for events
	// without a route is always a shard, too.
	Destinations []string
	// Layouts are the layouts of the relay's configuration, by destination: empty for one shard. Only members with the layout of a
	// destination's positions take its shards.
	Layouts map[string]string
	// Arrange gives the positions of a destination this relay's layout. It is called while no relay that wants the destination has
	// the layout in force, and no relay has a shard of it. It checks both again, raises the epochs of all shards, and clears their
	// owners. It runs on connections to the server in this life, until ctx ends.
	Arrange func(ctx context.Context, server, destination string) error
	// Create creates the positions of destinations that have none; "" is the search for events
	// without a route.
	Create func(ctx context.Context, conn *sessions.Conn, missing []string) error
	// Use runs f on a connection to the server in this life: see [Verify]. Positions are written there, as
	// that may take long, and no renewal must wait for it.
	Use func(ctx context.Context, server string, f func(*sessions.Conn) error) error
	// Gained is called with each shard that was taken. It must not block: nothing is renewed while it
	// runs.
	Gained func(Lease)
	// Lost is called once for each call of Gained, on a goroutine of its own: when the shard goes to
	// another relay, or when this relay has lost its leases. It stops the shard, waits for its deliveries
	// and writes the last position, however long that takes. The shard is released, or gained again, when
	// Lost has returned.
	Lost func(destination string, part int)
	// Report, if set, is called with the error of a part of the holder, and with nil when the part works
	// again.
	Report func(part string, err error)
}

// Holder holds the shards of one relay. Create one with [NewHolder], and call Run once.
type Holder struct {
	options Options
	log     *slog.Logger
	open    func(ctx context.Context) (table, func(), error)
	writer  writer

	looks    chan struct{}        // capacity 1
	doubted  atomic.Pointer[term] // the term to end
	work     sync.WaitGroup       // calls of Lost, and writes of positions
	done     chan outcome         // of them
	over     chan struct{}        // closed when nobody takes from done any more
	stopping bool                 // this and the rest belong to the goroutine of Run

	term      *term // nil while the relay is no member
	renewals  int64
	server    string
	settled   time.Time // from when no relay of an earlier life of the server starts anything
	held      map[place]*held
	leaving   map[place]bool     // Lost is running
	seen      map[int64]sighting // the other members, on this session
	looked    bool               // on any session
	creating  bool               // positions are being created
	arranging bool               // a destination gets the layout of this relay
	refused   map[int32]*refusal // shards whose position could not be written, the first one for a layout; 0: positions that could not be created
	reported  []string           // the shards that others see this relay wants
	foreign   map[string]bool    // destinations that wait for relays with another layout, as the log says
	away      absence
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
	unreleased              // that did not succeed: the next look tries again
	creating                // of an outcome: positions were created
	arranging               // of an outcome: a destination has got the layout of this relay
)

// outcome is what has become of a shard in another goroutine.
type outcome struct {
	what   state // taking, leaving, releasing, creating or arranging
	at     place
	held   *held  // of taking and releasing
	unit   int32  // of arranging: that of the first shard
	server string // of creating and arranging: the life of the server
	epoch  int64  // of taking: the new epoch, 0 if the row was not as it was seen
	done   bool   // of releasing
	err    error
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

// table is the holder's access to the database, on one connection. An error means that the
// connection is lost.
type table interface {
	// life returns the life of the server that the connection leads to, and whether it is older than a term, by the
	// clock of the database.
	life() (name string, old bool)
	// join makes the relay a member that wants these shards, and notifies the other relays. It begins with a number of
	// renewals that no other relay has seen.
	join(ctx context.Context, wants []string) (renewals int64, err error)
	// announce changes what the member wants, and notifies the other relays. It returns as renew does.
	announce(ctx context.Context, wants []string, least int64) (renewals int64, err error)
	// renew renews a membership with at least that many renewals; one with fewer was restored with the
	// database. It returns 0 if there is none.
	renew(ctx context.Context, least int64) (renewals int64, err error)
	// look returns the positions and the members, read in this order.
	look(ctx context.Context) (sight, error)
	// remove ends the membership of another relay. It reports false if that one has renewed it since.
	remove(ctx context.Context, owner, renewals int64) (bool, error)
	// leave ends the membership of this relay, and notifies the others.
	leave(ctx context.Context) error
}

// writer writes positions in one life of the server, on other connections than table.
type writer interface {
	// create creates positions.
	create(ctx context.Context, server string, missing []string) error
	// arrange gives the positions of a destination the layout of this relay: see [Options].
	arrange(ctx context.Context, server, destination string) error
	// take takes a shard, if its row is still as it was seen, and is not locked. It returns the new
	// epoch, 0 if it did not.
	take(ctx context.Context, server string, r row) (epoch int64, err error)
	// release gives a shard away, and notifies the other relays. It reports false if the row is locked.
	release(ctx context.Context, server string, unit int32, epoch int64) (done bool, err error)
}

// sight is the result of a look.
type sight struct {
	rows    map[place]*row
	members map[int64]member
}

// places returns the shards of a destination, the first one if it has no position.
func (s *sight) places(destination string) []place {
	all := []place{{destination: destination}}
	for part := 1; s.rows[place{destination, part}] != nil; part++ {
		all = append(all, place{destination, part})
	}
	return all
}

// row is a position.
type row struct {
	unit   int32
	epoch  int64
	owner  int64 // 0: none
	layout string
}

// member is a relay.
type member struct {
	wants    []string
	layouts  []string // of these
	renewals int64
	ended    bool // its term, by the clock of the database, and its session
}

// layout returns the layout of one of its wants.
func (m *member) layout(i int) string {
	if i < len(m.layouts) {
		return m.layouts[i]
	}
	return ""
}

// NewHolder returns a holder that connects when it runs.
func NewHolder(c *store.Connector, o Options, log *slog.Logger) *Holder {
	w := &positionWriter{options: &o, channel: outboxsql.Channel(c.Schema)}
	return newHolder(o, log, w, func(ctx context.Context) (table, func(), error) { return openSession(ctx, c, &o) })
}

func newHolder(o Options, log *slog.Logger, w writer, open func(context.Context) (table, func(), error)) *Holder {
	return &Holder{
		options: o, log: log, open: open, writer: w, looks: make(chan struct{}, 1), done: make(chan outcome), over: make(chan struct{}),
		held: make(map[place]*held), leaving: make(map[place]bool), seen: make(map[int64]sighting), refused: make(map[int32]*refusal),
		foreign: make(map[string]bool),
		away:    absence{log: log},
	}
}

// Look makes the holder compare the shards with its fair share now: another relay came or went, or
// a write found that a position has another epoch. It never blocks.
func (h *Holder) Look() {
	select {
	case h.looks <- struct{}{}:
	default: // a look is already requested
	}
}

// Doubt makes the holder reconnect, and take all shards anew, unless it has done so since l was
// taken: connections do not lead to the server of l any more. That happens after a failover where
// the old primary keeps its sessions. It never blocks.
func (h *Holder) Doubt(l *Lease) {
	if l.term.sent.Load() == nil {
		return // it has ended
	}
	h.doubted.Store(l.term)
	h.Look()
}

// Run holds this relay's share of the shards until ctx ends, and then gives all of them away and
// returns nil. A lost connection is replaced, for as long as necessary. It ends with
// outboxsql.ErrMode if the table is not a stream, or not any more.
func (h *Holder) Run(ctx context.Context) error {
	defer h.work.Wait()
	defer close(h.over)
	defer h.end()
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstReconnect), backoff.WithMaxInterval(longestReconnect),
		backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))
	defer h.away.settle(0)
	for ctx.Err() == nil {
		began := time.Now()
		err := h.serve(ctx, h.away.back)
		if errors.Is(err, outboxsql.ErrMode) {
			return err
		}
		if ctx.Err() != nil || err == nil {
			return nil
		}
		h.away.begin(err)
		if !store.IsDown(err) { // others notice that the database does not answer
			h.report(connection, err)
		}
		if time.Since(began) > longestReconnect {
			pause.Reset()
		}
		sleep(ctx, pause.NextBackOff())
	}
	return nil
}

// leasesLost is logged when another relay has removed this one, or the server has crashed.
const leasesLost = "leases lost, taking all shards again"

// The parts that report.
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
	clear(h.seen)
	h.reported = nil
	if err := h.renew(ctx, t); err != nil {
		return err
	}
	up()
	return h.hold(ctx, t)
}

// hold returns when the connection is lost, or nil when ctx has ended and all shards are given away.
func (h *Holder) hold(ctx context.Context, t table) error {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	look := time.NewTimer(0)
	defer look.Stop()
	done := ctx.Done()
	for !h.stopping || h.busy() {
		var err error
		select {
		case <-done:
			done = nil
			err = h.stop(ctx, t)
		case <-renew.C:
			err = h.renew(ctx, t)
		case <-look.C:
			var next time.Duration
			next, err = h.look(ctx, t)
			look.Reset(next)
		case <-h.looks:
			if d := h.doubted.Load(); d != nil && d == h.term {
				h.end()
				return errElsewhere
			}
			var next time.Duration
			next, err = h.look(ctx, t)
			look.Reset(next)
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

// errElsewhere is the reason to give up a connection that works.
var errElsewhere = errors.New("connections lead to another server than the one where the leases are")

// busy reports whether deliveries of a shard may be running.
func (h *Holder) busy() bool {
	for _, s := range h.held {
		if s.state != unreleased {
			return true
		}
	}
	return false
}

// end stops all shards at once, because another relay may have them, or the server has lost what they
// have in memory.
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
func (h *Holder) lose(at place) {
	h.leaving[at] = true
	h.begin(func() outcome {
		h.options.Lost(at.destination, at.part)
		return outcome{what: leaving, at: at}
	})
}

// begin runs f in a goroutine, and then finish with its outcome.
func (h *Holder) begin(f func() outcome) {
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
			h.renewals, is = renewals, renewals > 0
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
	// Before others see what it wants: a share is fair among positions that exist.
	s, err := t.look(ctx)
	if err != nil {
		return err
	}
	if missing := h.missing(s.rows); len(missing) > 0 && !h.waits(0) {
		now, _ := t.life()
		h.record(ctx, 0, notCreated, h.writer.create(ctx, now, missing))
	}
	wants := h.would(&s)
	sent = time.Now()
	if h.renewals, err = t.join(ctx, wants); err != nil {
		return err
	}
	h.term, h.reported = &term{}, wants
	h.term.answered(sent)
	if now, old := t.life(); now != h.server {
		h.server, h.settled = now, time.Time{}
		if !old {
			h.settled = time.Now().Add(Term)
		}
	}
	h.Look()
	return nil
}

// would returns the shards that this relay wants. It includes shards that are being given away: if the
// share has grown meanwhile, the relay takes them again. It excludes shards of an earlier term that still
// run. After a refused write it includes no shard of another relay until the next attempt: other relays
// may have the permission. The same holds for a destination whose layout it could not change.
func (h *Holder) would(s *sight) []string {
	content := false
	for unit, r := range h.refused {
		content = content || unit != 0 && !r.down && h.waits(unit)
	}
	would := []string{}
	for _, name := range append([]string{""}, h.options.Destinations...) {
		first := s.rows[place{destination: name}]
		if content && first != nil && first.layout != h.options.Layouts[name] && h.waits(first.unit) {
			continue
		}
		for _, at := range s.places(name) {
			wants := !h.leaving[at]
			if r := s.rows[at]; wants && content && r != nil {
				_, owned := s.members[r.owner]
				wants = !h.waits(r.unit) && (!owned || r.owner == h.options.Owner)
			}
			if wants || h.held[at] != nil {
				would = append(would, name)
				break
			}
		}
	}
	return would
}

// waits reports whether it is too early for the next attempt to write a position.
func (h *Holder) waits(unit int32) bool {
	r := h.refused[unit]
	return r != nil && time.Now().Before(r.next)
}

// look takes and gives shards according to the fair share. It returns the time to the next look.
func (h *Holder) look(ctx context.Context, t table) (next time.Duration, err error) {
	began := time.Now()
	next = jittered(lookEvery)
	if h.term == nil {
		return next, h.renew(ctx, t)
	}
	s, err := t.look(ctx)
	if err != nil {
		return next, err
	}
	next = min(max(next, lookPart*time.Since(began)), lookAtMost)
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
	if missing := h.missing(s.rows); len(missing) > 0 && !h.creating && !h.waits(0) {
		h.creating = true
		server := h.server
		h.begin(func() outcome {
			return outcome{what: creating, server: server, err: h.writer.create(ctx, server, missing)}
		})
	}
	if wants := h.would(&s); !slices.Equal(wants, h.reported) {
		is, err := h.announce(ctx, t, wants)
		if err != nil || !is {
			return next, err
		}
		m := s.members[h.options.Owner]
		m.wants, m.layouts = wants, h.options.layoutsOf(wants)
		s.members[h.options.Owner] = m
	}
	h.report(connection, nil)
	h.forget(s.rows)
	soonest, err := h.removeExpired(ctx, t, s.members)
	if err != nil {
		return next, err
	}
	h.dropFenced(s.rows)
	h.arrange(ctx, &s)
	h.share(ctx, &s)
	return min(next, soonest), nil
}

// announce changes what others see this relay wants. It reports false if the relay is no member any more.
func (h *Holder) announce(ctx context.Context, t table, wants []string) (bool, error) {
	renewals, err := t.announce(ctx, wants, h.renewals)
	if err != nil {
		return false, err
	}
	if renewals == 0 {
		h.log.WarnContext(ctx, leasesLost)
		h.end()
		h.Look() // and it joins again
		return false, nil
	}
	h.renewals, h.reported = renewals, wants
	return true, nil
}

// missing returns the destinations without a position.
func (h *Holder) missing(rows map[place]*row) (missing []string) {
	for _, name := range append([]string{""}, h.options.Destinations...) {
		if rows[place{destination: name}] == nil {
			missing = append(missing, name)
		}
	}
	return missing
}

// removeExpired removes members that have not renewed for a term, also from members, and returns how long it takes until
// the next one has not.
func (h *Holder) removeExpired(ctx context.Context, t table, members map[int64]member) (soonest time.Duration, err error) {
	now := time.Now()
	soonest = lookAtMost
	maps.DeleteFunc(h.seen, func(owner int64, _ sighting) bool { _, is := members[owner]; return !is })
	first := !h.looked
	h.looked = true
	for owner, m := range members {
		if owner == h.options.Owner {
			continue
		}
		s, known := h.seen[owner]
		silent := known && s.renewals == m.renewals
		if !silent {
			s = sighting{m.renewals, now}
			h.seen[owner] = s
		}
		left := Term - now.Sub(s.since)
		if left > 0 && (!first || !m.ended) {
			if silent {
				soonest = min(soonest, left)
			}
			continue
		}
		removed, err := t.remove(ctx, owner, m.renewals)
		if err != nil {
			return soonest, err
		}
		if removed {
			h.log.WarnContext(ctx, "removed a relay that has not renewed its leases", "owner", owner)
			delete(members, owner)
		}
	}
	return soonest, nil
}

// dropFenced gives away shards whose position was overwritten: moved by hand, or forgotten. They are
// taken again with the current position.
func (h *Holder) dropFenced(rows map[place]*row) {
	for at, s := range maps.Clone(h.held) {
		if r := rows[at]; r != nil && r.unit == s.Unit && r.epoch == s.Epoch && (r.owner == h.options.Owner || s.state == unreleased) {
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
		if s.state == unreleased && !h.waits(s.Unit) {
			h.release(ctx, s)
		}
	}
}

// owned reports whether a relay may be at work for a shard.
func (h *Holder) owned(s *sight, r *row) bool {
	_, is := s.members[r.owner]
	return is || r.owner != 0 && time.Now().Before(h.settled)
}

// arrange gives this relay's layout to a destination whose layout no relay has, once all of its shards are free. While another
// relay has the layout in force, this one waits. Of several relays only one arranges: an arrangement that takes longer than the
// time between two looks would be interrupted by that of the next relay each time.
func (h *Holder) arrange(ctx context.Context, s *sight) {
	for _, name := range h.options.Destinations {
		first := s.rows[place{destination: name}]
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
		free := !h.arranging && !h.waits(first.unit) && s.arranger(name) == h.options.Owner
		for _, at := range s.places(name) {
			free = free && !h.owned(s, s.rows[at]) && h.held[at] == nil && !h.leaving[at]
		}
		if free {
			h.arranging = true
			server, unit := h.server, first.unit
			h.begin(func() outcome {
				return outcome{what: arranging, unit: unit, server: server, err: h.writer.arrange(ctx, server, name)}
			})
		}
	}
}

// arranger returns the relay that arranges a destination: the one with the lowest number of those that want it.
func (s *sight) arranger(destination string) (owner int64) {
	found := false
	for other, m := range s.members {
		if slices.Contains(m.wants, destination) && (!found || other < owner) {
			owner, found = other, true
		}
	}
	return owner
}

// agreed reports whether any member wants the destination with this layout.
func (s *sight) agreed(destination, layout string) bool {
	for _, m := range s.members {
		if i := slices.Index(m.wants, destination); i >= 0 && m.layout(i) == layout {
			return true
		}
	}
	return false
}

// share takes and gives shards according to the fair share.
func (h *Holder) share(ctx context.Context, s *sight) {
	pic := picture{me: h.options.Owner, wants: make(map[int64][]int32), owners: make(map[int32]int64), group: make(map[int32]int32)}
	at := make(map[int32]place)
	for p, r := range s.rows {
		at[r.unit] = p
		if first := s.rows[place{destination: p.destination}]; first != nil {
			pic.group[r.unit] = first.unit
		}
		if h.owned(s, r) {
			pic.owners[r.unit] = r.owner
		}
		if have := h.held[p]; have != nil {
			switch have.state {
			case taking:
				pic.owners[r.unit] = h.options.Owner
			case leaving, releasing, unreleased: // as good as gone: no other shard must go in its place
				delete(pic.owners, r.unit)
			case working, creating, arranging:
			}
		}
	}
	for owner, m := range s.members {
		for i, name := range m.wants {
			for _, at := range s.places(name) {
				if r := s.rows[at]; r != nil && r.layout == m.layout(i) {
					pic.wants[owner] = append(pic.wants[owner], r.unit)
				}
			}
		}
		slices.Sort(pic.wants[owner])
	}
	take, give := pic.shares()
	for _, unit := range give {
		p := at[unit]
		switch have := h.held[p]; {
		case have != nil && have.state == working:
			have.state = leaving
			h.lose(p)
		case have != nil, h.leaving[p], h.waits(unit): // later: its deliveries may still be running
		default: // of an earlier term
			have = &held{Lease: Lease{p.destination, p.part, unit, s.rows[p].epoch, h.server, h.term}}
			h.held[p] = have
			h.release(ctx, have)
		}
	}
	for p, r := range s.rows {
		if r.owner == h.options.Owner && h.held[p] == nil && !slices.Contains(give, r.unit) && pic.wantedBy(h.options.Owner, r.unit) { // of an earlier term
			take = append(take, r.unit)
		}
		if _, is := s.members[r.owner]; is && r.owner != h.options.Owner {
			h.unreport(r.unit) // the refusal does not matter now
		}
	}
	for _, unit := range take {
		if p := at[unit]; h.held[p] == nil && !h.leaving[p] && !h.waits(unit) {
			h.take(ctx, p, *s.rows[p])
		}
	}
}

// take takes a shard.
func (h *Holder) take(ctx context.Context, at place, r row) {
	s := &held{Lease: Lease{at.destination, at.part, r.unit, r.epoch, h.server, h.term}, state: taking}
	h.held[at] = s
	server := h.server
	h.begin(func() outcome {
		epoch, err := h.writer.take(ctx, server, r)
		return outcome{what: taking, at: at, held: s, epoch: epoch, err: err}
	})
}

// release releases a shard that does not work.
func (h *Holder) release(ctx context.Context, s *held) {
	s.state = releasing
	unit, epoch, server := s.Unit, s.Epoch, s.Server
	h.begin(func() outcome {
		done, err := h.writer.release(ctx, server, unit, epoch)
		return outcome{what: releasing, at: s.place(), held: s, done: done, err: err}
	})
}

// finish goes on with what another goroutine has done.
func (h *Holder) finish(ctx context.Context, o outcome) {
	switch o.what {
	case creating, arranging:
		message := notCreated
		if o.what == creating {
			h.creating = false
		} else {
			h.arranging, message = false, notArranged
		}
		// An arrangement may take longer than a life of the server, and the end of ctx interrupts it.
		if ctx.Err() == nil && (o.server == h.server || !errors.Is(o.err, ErrMoved)) {
			h.record(ctx, o.unit, message, o.err)
		}
		return
	case leaving:
		delete(h.leaving, o.at)
		if s := h.held[o.at]; s != nil && s.state == leaving {
			h.release(ctx, s)
			return
		}
		h.Look() // it was of an earlier term, and may now be taken again
		return
	case taking, working, releasing, unreleased:
	}
	if h.held[o.at] != o.held { // the term has ended meanwhile
		h.Look()
		return
	}
	unit := o.held.Unit
	switch {
	case o.err != nil:
		h.complain(ctx, unit, notWritten, o.err)
	case o.done, o.epoch > 0:
		h.accept(unit)
	}
	switch {
	case o.what == releasing && o.done:
		delete(h.held, o.at)
		h.log.InfoContext(ctx, "released a shard", "destination", shardName(o.at.destination), "part", o.at.part, "unit", unit, "epoch", o.held.Epoch)
		h.Look() // a shard that no other relay takes, it takes again
	case o.what == releasing:
		o.held.state = unreleased
	case o.epoch == 0: // until the next look: whoever has locked the row may keep it for long
		delete(h.held, o.at)
	default:
		o.held.Epoch = o.epoch
		if h.stopping {
			h.release(ctx, o.held)
			return
		}
		o.held.state = working
		h.log.InfoContext(ctx, "took a shard", "destination", shardName(o.at.destination), "part", o.at.part, "unit", unit, "epoch", o.epoch)
		h.options.Gained(o.held.Lease)
	}
}

// record records whether the database has refused the creation of positions, or the layout of a destination.
func (h *Holder) record(ctx context.Context, unit int32, message string, err error) {
	if err != nil {
		h.complain(ctx, unit, message, err)
		return
	}
	h.accept(unit)
}

// forget drops the refusals of positions that are gone.
func (h *Holder) forget(rows map[place]*row) {
	for unit := range maps.Clone(h.refused) {
		there := unit == 0
		for _, r := range rows {
			there = there || r.unit == unit
		}
		if !there {
			h.accept(unit)
		}
	}
}

// shardName is the name of a destination in a log: the search for events without a route has none.
func shardName(destination string) string {
	if destination == "" {
		return "(router)"
	}
	return destination
}

// stop gives all shards away.
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

// complain reports that the position of a shard could not be written, and postpones the next attempt.
func (h *Holder) complain(ctx context.Context, unit int32, message string, err error) {
	if errors.Is(err, ErrMoved) { // and so the session of the leases is on another server
		h.doubted.Store(h.term)
		h.Look()
		return
	}
	r := h.refused[unit]
	if r == nil {
		r = &refusal{pauses: store.NewPauses()}
		h.refused[unit] = r
	}
	r.next = time.Now().Add(r.pauses.After(err))
	r.down = store.IsDown(err)
	if !r.logged && (!r.down || !h.away.open()) { // what the log says already is no news
		r.logged = true
		switch message {
		case notCreated:
			h.log.WarnContext(ctx, notCreated, "err", err)
		case notArranged:
			h.log.WarnContext(ctx, notArranged, "err", err)
		default:
			h.log.WarnContext(ctx, notWritten, "unit", unit, "err", err)
		}
	}
	if !r.down { // others report that
		r.reported = true
		h.report(positions, err)
	}
}

// accept ends the refusal of a shard.
func (h *Holder) accept(unit int32) {
	h.unreport(unit)
	delete(h.refused, unit)
}

// unreport ends the report of a refusal. The pause goes on.
func (h *Holder) unreport(unit int32) {
	r := h.refused[unit]
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

// jittered returns about d.
func jittered(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5) //nolint:gosec // spreads the looks, hides nothing
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
