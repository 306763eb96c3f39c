package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	sessions "github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// patience bounds the wait for an expected event.
const patience = 2 * time.Minute

// log is a database with a stream.
type log struct{ *testdb.DB }

func newStream(tb testing.TB) *log {
	tb.Helper()
	return asStream(testdb.New(tb, testdb.Tables{Mode: outboxsql.ModeStream, Notify: outboxsql.NotifyOff}))
}

func asStream(d *testdb.DB) *log { return &log{d} }

// create creates the positions of destinations.
func (l *log) create(destinations ...string) {
	l.Helper()
	if err := create(l.Context(), sessions.Direct(l.Conn), destinations); err != nil {
		l.Fatal(err)
	}
}

func create(ctx context.Context, conn *sessions.Conn, missing []string) error {
	_, err := conn.Exec(ctx, `INSERT INTO outbox_positions (destination, head) SELECT d, 0 FROM unnest($1::text[]) AS d ON CONFLICT DO NOTHING`, missing)
	return err
}

// use runs f on a connection to the server in this life.
func (l *log) use(ctx context.Context, server string, f func(*sessions.Conn) error) error {
	conn, err := pgx.Connect(ctx, l.URL)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)
	if err := Requires(server)(ctx, conn); err != nil {
		return err
	}
	return f(sessions.Direct(conn))
}

// keeping is a running holder, and its reports.
type keeping struct {
	*Holder
	tb    testing.TB
	owner int64
	stop  func() error
	halt  chan struct{} // Gained blocks while it is not nil and not closed

	mu      sync.Mutex
	changed *sync.Cond
	text    bytes.Buffer     // its log
	shards  map[string]Lease // that are gained and not lost, by the names of their places
	losses  int
	refused map[string]bool // the parts that are refused something
}

// keep runs a holder for destinations, which hears the notifications of others.
func (l *log) keep(owner int64, destinations ...string) *keeping {
	l.Helper()
	return l.keepWith(owner, func(*keeping, *Options) {}, destinations...)
}

// keepWith runs a holder with other options.
func (l *log) keepWith(owner int64, with func(*keeping, *Options), destinations ...string) *keeping {
	l.Helper()
	cfg, err := pgx.ParseConfig(l.URL)
	if err != nil {
		l.Fatal(err)
	}
	k := &keeping{tb: l.TB, owner: owner, shards: make(map[string]Lease), refused: make(map[string]bool)}
	k.changed = sync.NewCond(&k.mu)
	o := Options{Owner: owner, Destinations: destinations, Create: create, Use: l.use, Gained: k.gained, Lost: k.lost, Report: k.reported}
	with(k, &o)
	k.Holder = NewHolder(&store.Connector{Config: cfg, Schema: "public"}, o, slog.New(slog.NewTextHandler(k, nil)))
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.Context()))
	var hearing sync.WaitGroup
	hearing.Go(func() { l.hear(ctx, k.Rebalance) })
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

func (k *keeping) gained(p Lease) {
	if k.halt != nil {
		<-k.halt
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	name := p.key().String()
	if _, has := k.shards[name]; has {
		k.tb.Errorf("%d gained %q twice", k.owner, name)
	}
	k.shards[name] = p
	k.changed.Broadcast()
}

func (k *keeping) reported(part string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused[part] = err != nil && !store.IsDown(err)
	k.changed.Broadcast()
}

func (k *keeping) lost(destination string, part int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := shardKey{destination, part}.String()
	if _, has := k.shards[name]; !has {
		k.tb.Errorf("%d lost %q, which it did not have", k.owner, name)
	}
	delete(k.shards, name)
	k.losses++
	k.changed.Broadcast()
}

// until waits for a condition on the holder's shards.
func (k *keeping) until(what string, ok func(shards map[string]Lease) bool) {
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
	for !ok(k.shards) {
		if late {
			k.tb.Fatalf("%s did not happen; %d has %+v", what, k.owner, k.shards)
		}
		k.changed.Wait()
	}
}

func (k *keeping) untilHas(n int) {
	k.tb.Helper()
	k.until(fmt.Sprintf("%d shards", n), func(shards map[string]Lease) bool { return len(shards) == n })
}

// untilValid waits until a lease is valid: on a busy machine an answer may take longer than a term.
func (k *keeping) untilValid(l Lease) {
	k.tb.Helper()
	testenv.Await(k.tb, "a valid lease", l.Valid)
}

// Write writes to the log.
func (k *keeping) Write(line []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.changed.Broadcast()
	return k.text.Write(line)
}

// logged returns how often the log has a text.
func (k *keeping) logged(text string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Count(k.text.String(), text)
}

// has returns the shards that the holder has, in order.
func (k *keeping) has() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.shards {
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

func (k *keeping) position(destination string) Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shards[destination]
}

// arranges makes a holder one with a layout of all destinations, and returns how often it called Arrange.
func (l *log) arranges(layout string) (with func(*keeping, *Options), calls *atomic.Int32) {
	calls = new(atomic.Int32)
	return func(_ *keeping, o *Options) {
		o.Layouts = make(map[string]string)
		for _, name := range o.Destinations {
			o.Layouts[name] = layout
		}
		o.Arrange = func(ctx context.Context, server, destination string) error {
			calls.Add(1)
			return l.use(ctx, server, func(conn *sessions.Conn) error { return arrange(ctx, conn, destination, layout) })
		}
	}, calls
}

// arrange gives a destination a layout, unless another relay was faster.
func arrange(ctx context.Context, conn *sessions.Conn, destination, layout string) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM outbox_positions WHERE destination = $1 FOR UPDATE`, destination); err != nil {
			return err
		}
		var late bool
		var epoch int64
		err := tx.QueryRow(ctx, `SELECT bool_or(layout = $2 OR EXISTS (SELECT FROM outbox_members AS m WHERE m.owner = p.owner)), max(epoch) + 1 FROM outbox_positions AS p WHERE destination = $1`,
			destination, layout).Scan(&late, &epoch)
		if err != nil || late {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO outbox_positions (destination, shard, shards, layout, head, epoch) SELECT $1, shard, $2, $3, 0, $4 FROM generate_series(0, $2::int - 1) AS shard
			ON CONFLICT (destination, shard) DO UPDATE SET shards = excluded.shards, layout = excluded.layout, epoch = excluded.epoch, owner = NULL`,
			destination, shardsOf(layout), layout, epoch)
		if err == nil {
			_, err = tx.Exec(ctx, `DELETE FROM outbox_positions WHERE destination = $1 AND shard >= $2`, destination, shardsOf(layout))
		}
		if err == nil {
			_, err = tx.Exec(ctx, `NOTIFY outbox_events, 'shards'`)
		}
		return err
	})
}

// holders returns the number of members, and of positions with an owner.
const holders = `SELECT format('%s members, %s shards', (SELECT count(*) FROM outbox_members), (SELECT count(owner) FROM outbox_positions))`

// owners returns the owners in the order of destinations.
func (l *log) owners() string {
	l.Helper()
	return strings.Join(testdb.List[string](l.DB, l.Conn, `SELECT coalesce(owner::text, '-') FROM outbox_positions ORDER BY destination`), " ")
}

// untilTrue waits for a condition of the database that no notification reports.
func (l *log) untilTrue(what, query string, args ...any) {
	l.Helper()
	testenv.Await(l, what, func() bool { return testdb.One[bool](l.DB, l.Conn, query, args...) })
}

// endSession ends the session of a relay.
func (l *log) endSession(owner int64) {
	l.Helper()
	l.Exec(`SELECT pg_terminate_backend(pid) FROM outbox_members WHERE owner = $1`, owner)
}
