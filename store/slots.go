package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
)

const (
	// memberClass is 'ntfk' in ASCII: each relay of a table holds this lock
	// shared, so that it can be counted.
	memberClass = 0x6e74666b
	// slotClass is 'nts' in ASCII, with the number of the slot in the last byte.
	slotClass = 0x6e747300
)

const (
	// keepEvery is how long the session is silent before Keep uses it.
	keepEvery = time.Second
	// keepTimeout bounds the answer, and so how long Keep goes on after its ctx.
	keepTimeout = 5 * time.Second
)

// Slots holds this relay's share of the slots, on a connection of its own: when
// that breaks, or nothing is asked on it for 10 s, they are free for others: see
// [Slots.Keep]. It implements dispatch.SlotKeeper. It is safe for several
// goroutines; whoever made it calls Close.
type Slots struct {
	connector *Connector
	owner     int64

	pid atomic.Int32 // of the server's process behind conn, 0 without one

	mu      sync.Mutex // guards what follows, and with conn the one session
	conn    *pgx.Conn
	session uint64
	held    []int32
	used    time.Time // when the server last answered on conn
}

// NewSlots returns the slots of the relay whose Options.Owner is given. They
// connect when they are first used.
func NewSlots(c *Connector, owner int64) *Slots { return &Slots{connector: c, owner: owner} }

// Close lets all slots go, also after ctx has ended.
func (s *Slots) Close(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && !s.conn.IsClosed() {
		// The server notices the end of a connection a moment later, and a relay
		// that starts meanwhile would believe that it is not alone, and wait.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		_, _ = s.conn.Exec(last, `SELECT pg_advisory_unlock_all()`) // if it fails, the end of the connection does it
		cancel()
	}
	s.closeLocked(ctx)
}

func (s *Slots) closeLocked(ctx context.Context) {
	if s.conn != nil {
		Close(ctx, s.conn)
		s.conn, s.held = nil, nil
		s.pid.Store(0)
	}
}

// do runs f on the connection, which it opens if need be, and gives it up after
// any error: what is held is then known again, and is nothing.
func (s *Slots) do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, roundTripTimeout, fmt.Errorf("the database did not answer within %v", roundTripTimeout))
	defer cancel()
	err := ctx.Err()
	if err == nil && (s.conn == nil || s.conn.IsClosed()) {
		err = s.connect(ctx)
	}
	if err == nil {
		err = f(ctx, s.conn)
	}
	if err != nil {
		s.closeLocked(ctx)
		return fmt.Errorf("share the aggregates with other relays: %w", err)
	}
	s.used = time.Now()
	return nil
}

// Keep keeps the slots while nobody asks for them, until ctx ends: the server takes
// a session that is silent for that of a relay that froze. The relay has nothing to
// ask while it reads what waits in slots that it got, while it lets work on slots
// that it gives away come to its end, and while it stops. Keep connects to nothing.
// Whoever starts it waits for its end before Close; that comes 5 s after ctx at most.
func (s *Slots) Keep(ctx context.Context) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.show(ctx)
		}
	}
}

// show uses the session if it was silent for a while.
func (s *Slots) show(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || s.conn.IsClosed() || time.Since(s.used) < keepEvery {
		return
	}
	// Not with ctx: a question that is broken off takes the connection with it, and
	// Close could not let the slots go in so many words.
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if err := s.conn.Ping(within); err != nil {
		s.closeLocked(ctx) // Share finds out, as it would have by itself
		return
	}
	s.used = time.Now()
}

// sqlTable is what the locks of one table have in common. It comes from the schema:
// the table has another oid once it is partitioned, and relays go on meanwhile.
const sqlTable = `(SELECT hashtext(relnamespace::text) FROM pg_class WHERE oid = 'outbox_events'::regclass)`

func (s *Slots) connect(ctx context.Context) error {
	conn, err := s.connector.Connect(ctx, roleSlots)
	if err != nil {
		return err
	}
	s.conn, s.held = conn, nil
	s.session++
	// Asked for, because behind a pooler the connection knows the pooler's number.
	var pid int32
	err = conn.QueryRow(ctx, `SELECT pg_backend_pid() FROM (SELECT pg_advisory_lock_shared($1::int, `+sqlTable+`)) AS l`, memberClass).Scan(&pid)
	if err == nil {
		s.pid.Store(pid)
	}
	return err
}

// Share implements dispatch.SlotKeeper.
func (s *Slots) Share(ctx context.Context, first bool) (share dispatch.SlotShare, err error) { //nolint:revive // what to look at is asked for
	err = s.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		members, taken, err := s.look(ctx, conn)
		if err != nil {
			return err
		}
		fair := (dispatch.Slots + members - 1) / members
		if missing := fair - len(s.held); missing > 0 {
			if err := s.take(ctx, conn, free(taken), missing); err != nil {
				return err
			}
		}
		share = dispatch.SlotShare{Held: slices.Clone(s.held), Excess: max(0, len(s.held)-fair), Session: s.session}
		if first && members == 1 {
			share.Alone, err = s.alone(ctx, conn)
		}
		return err
	})
	return share, err
}

// look counts the relays, and returns which slots anybody has.
func (s *Slots) look(ctx context.Context, conn *pgx.Conn) (members int, taken []int32, err error) {
	rows, err := conn.Query(ctx, `SELECT l.classid::bigint FROM pg_locks AS l
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.objid = (`+sqlTable+`::bigint & 4294967295)::oid
		AND (l.classid::bigint = $1 OR l.classid::bigint BETWEEN $2 AND $2 + $3 - 1)`,
		int64(memberClass), int64(slotClass), int64(dispatch.Slots))
	if err != nil {
		return 0, nil, err
	}
	classes, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, class := range classes {
		if class == memberClass {
			members++
		} else {
			taken = append(taken, int32(class-slotClass)) //nolint:gosec // 0 to 63
		}
	}
	if err == nil && members == 0 {
		err = errors.New("the relay's own lock is gone")
	}
	return members, taken, err
}

// aloneLook is how many of the oldest events are looked at: more than a relay
// has claimed at once, unless it was told to.
const aloneLook = 5000

// alone reports whether no other relay of the database shows life, and none can
// be at work with an aggregate: one that has lost all its connections just now
// goes on with what it has in memory. That cannot be if no event of an aggregate
// waits.
func (s *Slots) alone(ctx context.Context, conn *pgx.Conn) (alone bool, err error) {
	err = conn.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM pg_locks AS l
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.classid = $1::bigint::oid AND l.objid <> ($2::bigint & 4294967295)::oid)
		AND NOT EXISTS (SELECT FROM (SELECT aggregate_id FROM outbox_events WHERE state = 'fresh' ORDER BY id LIMIT $3) AS e
			WHERE e.aggregate_id <> '')
		AND NOT EXISTS (SELECT FROM outbox_deliveries WHERE ordering_key IS NOT NULL AND state <> 'dead')`,
		int64(ownerSpace), s.owner, aloneLook).Scan(&alone)
	return alone, err
}

// free returns the slots that are not taken, in an order of its own: relays that
// look at the same moment should not try the same ones.
func free(taken []int32) []int32 {
	var list []int32
	for _, i := range rand.Perm(dispatch.Slots) { //nolint:gosec // spreads the tries, hides nothing
		if slot := int32(i); !slices.Contains(taken, slot) { //nolint:gosec // 0 to 63
			list = append(list, slot)
		}
	}
	return list
}

// take tries to lock up to n of the slots.
func (s *Slots) take(ctx context.Context, conn *pgx.Conn, slots []int32, n int) error {
	slots = slots[:min(n, len(slots))]
	if len(slots) == 0 {
		return nil
	}
	rows, err := conn.Query(ctx, `SELECT s FROM unnest($1::int[]) AS s WHERE pg_try_advisory_lock($2::int + s, `+sqlTable+`)`, slots, slotClass)
	if err != nil {
		return err
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	s.held = append(s.held, got...)
	slices.Sort(s.held)
	return err
}

// Release implements dispatch.SlotKeeper.
func (s *Slots) Release(ctx context.Context, slots []int32) error {
	return s.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_advisory_unlock($2::int + s, `+sqlTable+`) FROM unnest($1::int[]) AS s`, slots, slotClass)
		s.held = slices.DeleteFunc(s.held, func(slot int32) bool { return slices.Contains(slots, slot) })
		return err
	})
}

var _ dispatch.SlotKeeper = (*Slots)(nil)
