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

	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// shareEvery is how often a relay looks whether its share of the units is fair,
	// give or take a fifth, so that relays do not look in step. Whoever is killed is
	// missed after that time at most.
	shareEvery = 500 * time.Millisecond
	// staleAfter is how long a unit is free until others take it than the one who should
	// have it: two looks.
	staleAfter = 2 * shareEvery
	// slowFor is how long nothing is meant for a member after it did not come: if it is
	// frozen, the server has ended its session by then.
	slowFor = 10 * time.Second
)

const (
	// firstReconnect is short: most broken connections come back at once.
	firstReconnect = 20 * time.Millisecond
	// longestReconnect bounds how long a database that is back goes unnoticed.
	longestReconnect = 2 * time.Second
)

// place is a destination, or a part of it; the router has no name.
type place struct {
	destination string
	part        int
}

// Wanted is a destination whose unit a relay would own.
type Wanted struct {
	// Destination is its name. The router, whose name is empty, is wanted in any case.
	Destination string
	// Start says where it begins if it has no position yet.
	Start Start
	// Routes say which events it gets. They are noted with a new position.
	Routes
}

// KeeperOptions say what a [Keeper] keeps, and whom it tells.
type KeeperOptions struct {
	// Owner is the number of the relay, see store.NewOwner.
	Owner int64
	// Destinations are those that the relay delivers to. Each may occur once.
	Destinations []Wanted
	// Gained is called with each unit that was taken, when it may begin. It must not
	// block: the session is not used while it runs.
	Gained func(Position)
	// Lost is called with each unit that is to be given away, and at once with all of
	// them when the session is lost. It stops the unit, waits for what runs, writes the
	// last position, and returns: then somebody else may have it. It runs on a goroutine
	// of its own, once for each call of Gained, and may take as long as that takes; the
	// unit is not gained again before it has returned.
	Lost func(destination string, part int)
}

// Keeper owns units for one relay: a session holds the locks of the units, and they
// end with it. Make one with [NewKeeper], and call Run once.
type Keeper struct {
	options KeeperOptions
	log     *slog.Logger
	open    func(ctx context.Context) (session, func(), error)

	proof atomic.Pointer[proof] // of the session, nil while there is none
	looks chan struct{}         // capacity 1
	renew atomic.Pointer[proof] // of the session that is to be given up

	work sync.WaitGroup // calls of Lost
	left chan place     // where Lost has returned; room for all

	// What follows belongs to the goroutine of Run.
	leaving map[place]bool      // Lost is running
	doubt   map[place]time.Time // when an owner that did not hand over is known to begin nothing more
}

// session is what the keeper asks of the database, on one connection. An error means
// that the session is lost, and all locks with it.
type session interface {
	// prove asks for a sign of life.
	prove(ctx context.Context) error
	// look says which places this relay would take, and returns what there is. A relay
	// that would take none takes no part.
	look(ctx context.Context, would []place) (seen, error)
	// take tries to get the lock of a unit, and takes its position over. It returns nil
	// if it did not.
	take(ctx context.Context, unit int32) (*taken, error)
	// release lets go of the lock of a unit, and tells the others. Cleanly says that
	// nothing of it is under way any more.
	release(ctx context.Context, p Position, how departure) error
}

// seen is what a look shows.
type seen struct {
	picture
	rows map[place]row
}

// row is what a look shows of a position.
type row struct {
	unit  int32
	epoch int64
}

// taken is a position as it was taken over.
type taken struct {
	Position
	mine bool // it was ours before
}

// departure is how a unit is given away.
type departure bool

const (
	cleanly   departure = true
	uncleanly departure = false // who had it before may still be at work
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

// Sure reports whether the session was proven to live within the last second. A unit
// asks [Position.Sure], which knows in addition whether it is still the session that
// the unit was taken on.
func (k *Keeper) Sure() bool {
	p := k.proof.Load()
	return p != nil && p.sure()
}

// Look has the keeper look at the shares now: because another relay came or went, or
// because a write found that the position has another owner. It never blocks.
func (k *Keeper) Look() {
	select {
	case k.looks <- struct{}{}:
	default: // it will
	}
}

// Renew has the keeper give up the session on which p was taken, unless it has another one
// by now: connections do not lead to where that lives any more. So it is after a failover where
// the old primary keeps its sessions. It never blocks.
func (k *Keeper) Renew(p Position) {
	k.renew.Store(p.proof)
	k.Look()
}

// Run keeps this relay's share of the units until ctx ends, and then gives all of them
// away and returns nil. Where the session is lost it connects again, for as long as it
// takes. A table that is no stream, or none any more, ends it with outboxsql.ErrMode.
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

// lose has a unit stopped.
func (k *Keeper) lose(at place) {
	k.leaving[at] = true
	k.work.Go(func() {
		k.options.Lost(at.destination, at.part)
		k.left <- at
	})
}

// places returns what is wanted.
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
