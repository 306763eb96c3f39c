package stream

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// shareEvery is how often a relay checks whether its share of the units is fair, plus or minus
	// a fifth, so that relays do not check in step. It also bounds how long a killed relay goes
	// unnoticed.
	shareEvery = 500 * time.Millisecond
	// staleAfter is how long a unit is free until relays other than the intended owner take it: two
	// looks.
	staleAfter = 2 * shareEvery
	// slowFor is how long no units are planned for a member that did not take its own: if it is
	// frozen, the server has ended its session by then.
	slowFor = 10 * time.Second
)

const (
	// firstReconnect is short: most connections can be replaced at once.
	firstReconnect = 20 * time.Millisecond
	// longestReconnect bounds how long the return of a database goes unnoticed.
	longestReconnect = 2 * time.Second
)

// place is a destination, or a part of it; the router has no name.
type place struct {
	destination string
	part        int
}

// Wanted is a destination whose unit a relay wants to own.
type Wanted struct {
	// Destination is its name. The router, whose name is empty, is always wanted.
	Destination string
	// Start is where it begins if it has no position yet.
	Start engine.Start
	// Routes are the routes of its events. They are stored with a new position.
	Routes
}

// KeeperOptions configure a [Keeper] and its callbacks.
type KeeperOptions struct {
	// Owner is the number of the relay, see store.NewOwner.
	Owner int64
	// Program is what the relay says of itself; nothing without a process.
	Program store.Program
	// Destinations are the destinations of the relay, each at most once.
	Destinations []Wanted
	// Gained is called with each unit that was taken, when it may begin. It must not block: the
	// session is not used while it runs.
	Gained func(Position)
	// Lost is called with each unit that must be given away, and at once with all of them when the
	// session is lost. It stops the unit, waits for its deliveries, writes the last position, and
	// returns: then another relay may have the unit. It runs on a goroutine of its own, once for
	// each call of Gained, and may take as long as that takes; the unit is not gained again before
	// it has returned.
	Lost func(destination string, part int)
	// Report, if set, is called with what the statements of a part of the keeper have come to: nil if
	// all is well.
	Report func(part string, err error)
}

// Keeper owns units for one relay: a session holds the locks of the units, and they end with it.
// Create one with [NewKeeper], and call Run once.
type Keeper struct {
	options KeeperOptions
	log     *slog.Logger
	open    func(ctx context.Context) (session, func(), error)

	proof atomic.Pointer[proof] // of the session, nil while there is none
	looks chan struct{}         // capacity 1
	renew atomic.Pointer[proof] // of the session to give up

	work sync.WaitGroup // calls of Lost
	left chan place     // units for which Lost has returned; room for all

	// The following fields belong to the goroutine of Run.
	leaving map[place]bool      // Lost is running
	doubt   map[place]time.Time // from when an owner without a handover certainly starts nothing more
}

// session is the keeper's access to the database, on one connection. An error means that the
// session is lost, and all locks with it.
type session interface {
	// prove makes the server show that the session is alive.
	prove(ctx context.Context) error
	// look announces the places that this relay wants, and returns what it sees. A relay that wants
	// none is no member.
	look(ctx context.Context, would []place) (seen, error)
	// take tries to get the lock of a unit, and takes over its position. It returns nil if it did
	// not.
	take(ctx context.Context, unit int32) (*taken, error)
	// release releases the lock of a unit, and notifies the other relays. how says whether none of
	// its deliveries is running any more.
	release(ctx context.Context, p Position, how departure) error
}

// seen is the result of a look.
type seen struct {
	picture
	rows map[place]row
}

// row is a position as a look sees it.
type row struct {
	unit  int32
	epoch int64
}

// taken is a position as it was taken over.
type taken struct {
	Position
	mine bool // the unit was ours before
}

// departure is the manner in which a unit is given away.
type departure bool

const (
	cleanly   departure = true
	uncleanly departure = false // its deliveries may still be running
)

// NewKeeper returns a keeper that connects when it runs.
func NewKeeper(c *store.Connector, o KeeperOptions, log *slog.Logger) *Keeper {
	return newKeeper(o, log, func(ctx context.Context) (session, func(), error) { return openSession(ctx, c, o, log) })
}

func newKeeper(o KeeperOptions, log *slog.Logger, open func(context.Context) (session, func(), error)) *Keeper {
	return &Keeper{
		options: o, log: log, open: open,
		looks:   make(chan struct{}, 1),
		left:    make(chan place, 1+len(o.Destinations)),
		leaving: make(map[place]bool), doubt: make(map[place]time.Time),
	}
}

// Sure reports whether the session was proven alive within the last second. A unit asks
// [Position.Sure], which also knows whether it is still the session on which the unit was taken.
func (k *Keeper) Sure() bool {
	p := k.proof.Load()
	return p != nil && p.sure()
}

// Look makes the keeper check the shares now: because another relay came or went, or because a
// write found that the position has another owner. It never blocks.
func (k *Keeper) Look() {
	select {
	case k.looks <- struct{}{}:
	default: // a look is already requested
	}
}

// Renew makes the keeper give up the session on which p was taken, unless it has another one
// already: connections do not lead to its server any more. That happens after a failover where the
// old primary keeps its sessions. It never blocks.
func (k *Keeper) Renew(p Position) {
	k.renew.Store(p.proof)
	k.Look()
}

// Run keeps this relay's share of the units until ctx ends, and then gives all of them away and
// returns nil. If the session is lost it reconnects, for as long as necessary. It ends with
// outboxsql.ErrMode if the table is not a stream, or not any more.
func (k *Keeper) Run(ctx context.Context) error {
	defer k.work.Wait()
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstReconnect), backoff.WithMaxInterval(longestReconnect),
		backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))
	away := absence{log: k.log}
	defer away.settle(0)
	for ctx.Err() == nil {
		began := time.Now()
		err := k.serve(ctx, away.back)
		if errors.Is(err, outboxsql.ErrMode) {
			return err
		}
		if ctx.Err() != nil || err == nil {
			return nil
		}
		away.begin(err)
		if !store.IsDown(err) { // others notice that the database does not answer
			k.report(err)
		}
		if time.Since(began) > longestReconnect {
			pause.Reset()
		}
		sleep(ctx, pause.NextBackOff())
	}
	return nil
}

// serve keeps units for as long as one session lives, or until ctx ends.
func (k *Keeper) serve(ctx context.Context, up func()) error {
	sent := time.Now()
	s, hangUp, err := k.open(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	t := newTenure(k, s)
	t.proof.answered(sent)
	k.proof.Store(t.proof)
	defer k.proof.Store(nil)
	defer t.end()
	up()
	return t.run(ctx)
}

// report passes on what has become of the session.
func (k *Keeper) report(err error) {
	if k.options.Report != nil {
		k.options.Report("session that owns units", err)
	}
}

// lose stops a unit.
func (k *Keeper) lose(at place) {
	k.leaving[at] = true
	k.work.Go(func() {
		k.options.Lost(at.destination, at.part)
		k.left <- at
	})
}

// places returns the wanted places.
func (k *Keeper) places() []place {
	places := []place{{}}
	for _, w := range k.options.Destinations {
		places = append(places, place{destination: w.Destination})
	}
	return places
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
