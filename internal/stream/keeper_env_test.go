package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// patience bounds the wait for an expected event.
const patience = 2 * time.Minute

// keeping is a running keeper, and its reports.
type keeping struct {
	*Keeper
	tb    testing.TB
	owner int64
	stop  func() error
	halt  chan struct{} // Gained blocks while it is not nil and not closed

	mu      sync.Mutex
	changed *sync.Cond
	units   map[string]Position // that are gained and not lost
	losses  int
	refused map[string]bool // the parts that are refused something
}

// keep runs a keeper for destinations, which hears the notifications of others.
func (l *log) keep(owner int64, destinations ...string) *keeping {
	l.Helper()
	return l.keepHalted(owner, nil, destinations...)
}

func (l *log) keepHalted(owner int64, halt chan struct{}, destinations ...string) *keeping {
	l.Helper()
	cfg, err := pgx.ParseConfig(l.URL)
	if err != nil {
		l.Fatal(err)
	}
	k := &keeping{tb: l.TB, owner: owner, units: make(map[string]Position), halt: halt, refused: make(map[string]bool)}
	k.changed = sync.NewCond(&k.mu)
	o := KeeperOptions{Owner: owner, Gained: k.gained, Lost: k.lost, Report: k.reported}
	for _, d := range destinations {
		o.Destinations = append(o.Destinations, Wanted{Destination: d})
	}
	k.Keeper = NewKeeper(&store.Connector{Config: cfg, Schema: "public"}, o, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.Context()))
	var hearing sync.WaitGroup
	hearing.Go(func() { l.hear(ctx, k.Look) })
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	k.stop = sync.OnceValue(func() error {
		cancel()
		hearing.Wait()
		return <-ended
	})
	l.Cleanup(func() {
		if err := k.stop(); err != nil && !errors.Is(err, outboxsql.ErrMode) {
			l.Error(err)
		}
	})
	return k
}

// hear calls look when relays notify each other.
func (l *log) hear(ctx context.Context, look func()) {
	conn, err := pgx.Connect(ctx, l.URL)
	if err != nil {
		return // stopped already
	}
	defer store.Close(ctx, conn)
	_, err = conn.Exec(ctx, `LISTEN outbox_events`)
	for err == nil {
		_, err = conn.WaitForNotification(ctx)
		look()
	}
}

func (k *keeping) gained(p Position) {
	if k.halt != nil {
		<-k.halt
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, has := k.units[p.Destination]; has {
		k.tb.Errorf("%d gained %q twice", k.owner, p.Destination)
	}
	k.units[p.Destination] = p
	k.changed.Broadcast()
}

func (k *keeping) reported(part string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused[part] = err != nil && !store.IsDown(err)
	k.changed.Broadcast()
}

func (k *keeping) lost(destination string, _ int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, has := k.units[destination]; !has {
		k.tb.Errorf("%d lost %q, which it did not have", k.owner, destination)
	}
	delete(k.units, destination)
	k.losses++
	k.changed.Broadcast()
}

// until waits for a condition on the keeper's units.
func (k *keeping) until(what string, ok func(units map[string]Position) bool) {
	k.tb.Helper()
	late := false
	timer := time.AfterFunc(patience, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		late = true
		k.changed.Broadcast()
	})
	defer timer.Stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	for !ok(k.units) {
		if late {
			k.tb.Fatalf("%s did not happen; %d has %+v", what, k.owner, k.units)
		}
		k.changed.Wait()
	}
}

func (k *keeping) untilHas(n int) {
	k.tb.Helper()
	k.until(fmt.Sprintf("%d units", n), func(units map[string]Position) bool { return len(units) == n })
}

// untilSure waits until a position is surely this relay's: on a busy machine an answer may take
// longer than that is known for.
func (k *keeping) untilSure(p Position) {
	k.tb.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !p.Sure() || !k.Sure(); <-tick.C {
		if time.Now().After(deadline) {
			k.tb.Fatalf("it is not sure of %+v", p)
		}
	}
}

// has returns the destinations that the keeper has, in order.
func (k *keeping) has() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.units {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (k *keeping) lostSoFar() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.losses
}

func (k *keeping) position(destination string) Position {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.units[destination]
}

// holders returns the relays by the process of their session, and how many units
// each has.
const holders = `SELECT format('%s members, %s units', count(*) FILTER (WHERE objid = 0), count(*) FILTER (WHERE mode = 'ExclusiveLock'))
	FROM pg_locks WHERE locktype = 'advisory' AND classid = 'outbox_positions'::regclass AND granted
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// owners returns the owners in the order of destinations.
func (l *log) owners() string {
	l.Helper()
	return strings.Join(testdb.List[string](l.DB, l.Conn, `SELECT coalesce(owner::text, '-') FROM outbox_positions ORDER BY destination`), " ")
}

// untilTrue waits for a condition of the database that no notification reports.
func (l *log) untilTrue(what, query string, args ...any) {
	l.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !testdb.One[bool](l.DB, l.Conn, query, args...); <-tick.C {
		if time.Now().After(deadline) {
			l.Fatalf("%s did not happen", what)
		}
	}
}

// sessionOf returns the process of the session that has a unit.
func (l *log) sessionOf(unit int32) int32 {
	l.Helper()
	return testdb.One[int32](l.DB, l.Conn, `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 'outbox_positions'::regclass
		AND objid = $1 AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, int64(unit))
}
