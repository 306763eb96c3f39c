package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// answerWithin bounds one round trip: without an answer for that long the session counts as
	// lost. No delivery has started for two seconds by then.
	answerWithin = 3 * time.Second
	// unitLockTimeout bounds the wait for the row of a position that another session is writing:
	// the session must prove life meanwhile.
	unitLockTimeout = 300 * time.Millisecond
	// writeWithin bounds the write of a position's owner, which fires the triggers of the table. It is
	// above the statement_timeout: the session outlives a write that takes too long, and with it the
	// other units.
	writeWithin = store.RoundTripTimeout
	// creating is the object of the lock under which positions are created. All locks are of one
	// class. Objects above 0 are units, held by their owners; 0 is held shared by members; an
	// object below 0 is held shared by members that want the unit with the negated number.
	creating = math.MinInt32
)

// dbSession is a session on a connection of its own.
type dbSession struct {
	conn    *pgx.Conn
	options KeeperOptions
	log     *slog.Logger
	channel string
	schema  string

	me      int32              // process id of the server process
	class   int32              // class of all locks
	shown   []int32            // the units that others see this relay wants, ascending
	refused map[int32]*refusal // units whose position could not be written
	known   map[int32]bool     // sessions that own units without being members, and were looked at
}

// refusal is a unit whose position could not be written. Until its next attempt the session has
// time for the other units: no delivery begins while a statement keeps the session from its proof.
type refusal struct {
	pauses store.Pauses
	next   time.Time
}

// openSession connects, and checks that the table is a stream and stays one.
func openSession(ctx context.Context, c *store.Connector, o KeeperOptions, log *slog.Logger) (session, func(), error) {
	conn, err := c.Connect(ctx, store.RoleUnits)
	if err != nil {
		return nil, nil, err
	}
	s := &dbSession{
		conn: conn, options: o, log: log, channel: outboxsql.Channel(c.Schema), schema: c.Schema,
		refused: make(map[int32]*refusal), known: make(map[int32]bool),
	}
	hangUp := func() { s.close(ctx) }
	if err := s.begin(ctx, c.Schema); err != nil {
		hangUp()
		return nil, nil, err
	}
	return s, hangUp, nil
}

// close releases everything explicitly: the server notices the end of a connection a moment later.
func (s *dbSession) close(ctx context.Context) {
	if !s.conn.IsClosed() {
		_ = s.trip(ctx, func(ctx context.Context) error { // if it fails, the end of the connection releases the locks
			_, err := s.conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
			return err
		})
	}
	store.Close(ctx, s.conn)
}

// trip runs f within the time for one round trip. A running statement finishes even if ctx ends:
// interrupting it would lose the session.
func (s *dbSession) trip(ctx context.Context, f func(context.Context) error) error {
	return within(ctx, answerWithin, f)
}

func within(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, fmt.Errorf("the database did not answer within %v", limit))
	defer cancel()
	if err := f(ctx); err != nil {
		return fmt.Errorf("own units: %w", err)
	}
	return nil
}

// begin sets the settings that the session relies on, and keeps the table a stream. Take-overs are
// flushed to disk: a lost epoch would be given out twice.
func (s *dbSession) begin(ctx context.Context, schema string) error {
	err := s.trip(ctx, func(ctx context.Context) error {
		_, err := s.conn.Exec(ctx, `SELECT set_config('synchronous_commit', 'on', false), set_config('lock_timeout', $1, false)`,
			strconv.FormatInt(unitLockTimeout.Milliseconds(), 10))
		return err
	})
	if err != nil {
		return err
	}
	err = s.trip(ctx, func(ctx context.Context) error { return outboxsql.HoldMode(ctx, s.conn, schema, outboxsql.ModeStream) })
	if err != nil {
		return err
	}
	err = s.trip(ctx, func(ctx context.Context) error {
		return store.ShowLife(ctx, s.conn, schema, s.options.Owner, s.options.Program)
	})
	if err != nil {
		return err
	}
	return s.trip(ctx, func(ctx context.Context) error {
		return s.conn.QueryRow(ctx, `SELECT pg_backend_pid(), 'outbox_positions'::regclass::oid::bigint::bit(32)::int`).Scan(&s.me, &s.class)
	})
}

// prove implements session.
func (s *dbSession) prove(ctx context.Context) error { return s.trip(ctx, s.conn.Ping) }

const (
	sqlPlaces = `SELECT destination, part, unit, epoch FROM outbox_positions WHERE part = 0 AND destination = ANY($1)`
	sqlLocks  = `SELECT coalesce(pid, 0), objid::bigint, mode = 'ExclusiveLock' FROM pg_locks
		WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = 'outbox_positions'::regclass
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
)

// look implements session. Usually it is one flight.
func (s *dbSession) look(ctx context.Context, would []place) (seen, error) {
	shown, err := s.lookOnce(ctx)
	if err == nil && len(would) > 0 {
		if missing := s.missing(shown.rows); len(missing) > 0 {
			if err := s.create(ctx, missing); err != nil {
				return seen{}, err
			}
			shown, err = s.lookOnce(ctx)
		}
	}
	if err != nil {
		return seen{}, err
	}
	var units []int32
	for _, at := range would {
		if r, found := shown.rows[at]; found {
			units = append(units, r.unit)
		}
	}
	slices.Sort(units)
	if slices.Equal(units, s.shown) {
		return shown, nil
	}
	if err := s.show(ctx, units); err != nil {
		return seen{}, err
	}
	return s.lookOnce(ctx)
}

// missing returns the destinations without a position.
func (s *dbSession) missing(rows map[place]row) []Wanted {
	var missing []Wanted
	for _, w := range append([]Wanted{{}}, s.options.Destinations...) {
		if _, found := rows[place{destination: w.Destination}]; !found {
			missing = append(missing, w)
		}
	}
	return missing
}

func (s *dbSession) lookOnce(ctx context.Context) (seen, error) {
	names := []string{""}
	for _, w := range s.options.Destinations {
		names = append(names, w.Destination)
	}
	shown := seen{picture: picture{me: s.me}, rows: make(map[place]row)}
	var batch pgx.Batch
	batch.Queue(sqlPlaces, names).Query(func(rows pgx.Rows) error {
		var at place
		var r row
		_, err := pgx.ForEachRow(rows, []any{&at.destination, &at.part, &r.unit, &r.epoch}, func() error {
			shown.rows[at] = r
			return nil
		})
		return err
	})
	batch.Queue(sqlLocks).Query(func(rows pgx.Rows) (err error) {
		shown.wants, shown.owners, err = readLocks(rows)
		return err
	})
	err := s.trip(ctx, func(ctx context.Context) error { return s.conn.SendBatch(ctx, &batch).Close() })
	if err == nil {
		s.forget(shown.owners)
		err = s.nameForeign(ctx, shown.picture)
	}
	return shown, err
}

// forget drops the refusals of units that another relay owns: whether their positions can be written
// is for that one to say.
func (s *dbSession) forget(owners map[int32]int32) {
	if len(s.refused) == 0 {
		return
	}
	maps.DeleteFunc(s.refused, func(unit int32, _ *refusal) bool { return owners[unit] != 0 && owners[unit] != s.me })
	if len(s.refused) == 0 {
		s.report(nil)
	}
}

// readLocks returns which members want and own which units.
func readLocks(rows pgx.Rows) (wants map[int32][]int32, owners map[int32]int32, err error) {
	wants, owners = make(map[int32][]int32), make(map[int32]int32)
	var pid int32
	var object int64
	var exclusive bool
	_, err = pgx.ForEachRow(rows, []any{&pid, &object, &exclusive}, func() error {
		switch unit := int32(object); { //nolint:gosec // an oid that has the bits of an integer
		case unit > 0 && exclusive:
			owners[unit] = pid
		case unit < 0 && !exclusive:
			wants[pid] = append(wants[pid], -unit)
		}
		return nil
	})
	for _, units := range wants {
		slices.Sort(units)
	}
	return wants, owners, err
}

// show publishes the units that this relay wants, and notifies the other relays. The first unit
// makes it a member; without units it is none any more.
func (s *dbSession) show(ctx context.Context, units []int32) error {
	less := slices.DeleteFunc(slices.Clone(s.shown), func(u int32) bool { return slices.Contains(units, u) })
	more := slices.DeleteFunc(slices.Clone(units), func(u int32) bool { return slices.Contains(s.shown, u) })
	if len(units) == 0 {
		less = append(less, 0)
	}
	if len(s.shown) == 0 {
		more = append(more, 0)
	}
	err := s.trip(ctx, func(ctx context.Context) error {
		_, err := s.conn.Exec(ctx, `SELECT CASE WHEN `+outboxsql.MayNotify+` THEN pg_notify($4, 'units') END
			FROM (SELECT count(pg_advisory_unlock_shared($1, -u)::text) FROM unnest($2::int[]) AS u) AS less,
			(SELECT count(pg_advisory_lock_shared($1, -u)::text) FROM unnest($3::int[]) AS u) AS more`, s.class, less, more, s.channel)
		return err
	})
	s.shown = units
	return err
}

// take implements session.
func (s *dbSession) take(ctx context.Context, unit int32) (*taken, error) {
	if r := s.refused[unit]; r != nil && time.Now().Before(r.next) {
		return nil, nil
	}
	var locked bool
	err := s.trip(ctx, func(ctx context.Context) error {
		return s.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, s.class, unit).Scan(&locked)
	})
	if err != nil || !locked {
		return nil, err
	}
	var got *taken
	err = within(ctx, writeWithin, func(ctx context.Context) (err error) {
		got, err = takeOver(ctx, s.conn, s.options.Owner, unit)
		return err
	})
	if err == nil {
		if delete(s.refused, unit); len(s.refused) == 0 {
			s.report(nil)
		}
		got.Backend = s.me
		return got, nil
	}
	if s.isLost(err) {
		return nil, err
	}
	s.complain(ctx, unit, err)
	return nil, s.unlock(ctx, unit)
}

// release implements session.
func (s *dbSession) release(ctx context.Context, p Position, how departure) error {
	if how == cleanly {
		err := within(ctx, writeWithin, func(ctx context.Context) error {
			_, err := s.conn.Exec(ctx, sqlHandOver, p.Unit, p.Epoch)
			return err
		})
		if err != nil && s.isLost(err) {
			return err
		}
		if err != nil {
			s.complain(ctx, p.Unit, err)
		}
	}
	return s.unlock(ctx, p.Unit)
}

// unlock releases the lock of a unit, and then notifies the other relays.
func (s *dbSession) unlock(ctx context.Context, unit int32) error {
	return s.trip(ctx, func(ctx context.Context) error {
		_, err := s.conn.Exec(ctx, `SELECT CASE WHEN `+outboxsql.MayNotify+` THEN pg_notify($3, 'units') END FROM pg_advisory_unlock($1, $2)`, s.class, unit, s.channel)
		return err
	})
}

// isLost reports whether the session ended with err, or is useless: after a failover the old
// primary may keep its sessions, but is read-only.
func (s *dbSession) isLost(err error) bool {
	const readOnly = "25006"
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return !ok || pg.Code == readOnly || s.conn.IsClosed() || s.conn.PgConn().TxStatus() != 'I'
}

// complain reports that the position of a unit could not be written, and postpones the next attempt.
func (s *dbSession) complain(ctx context.Context, unit int32, err error) {
	r := s.refused[unit]
	if r == nil {
		r = &refusal{pauses: store.NewPauses()}
		s.refused[unit] = r
		s.log.WarnContext(ctx, "the position of a unit could not be written; trying again", "unit", unit, "err", err)
	}
	r.next = time.Now().Add(r.pauses.After(err))
	s.report(err)
}

func (s *dbSession) report(err error) {
	if s.options.Report != nil {
		s.options.Report("owners of units", err)
	}
}
