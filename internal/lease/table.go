package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/modelock"
	"github.com/notifyd/notifyd/internal/pgschema"
	sessions "github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// answerWithin bounds one round trip: without an answer for that long the connection counts as lost. Until then no
	// delivery has started for more than a second.
	answerWithin = 3 * time.Second
	// writeWithin bounds the write of a position's owner, which fires the triggers of the table. It exceeds the
	// statement_timeout: the connection survives a write that takes too long.
	writeWithin = store.RoundTripTimeout
	// createWithin bounds the creation of positions. Some are found by time, and after many deletes the search for the
	// first event takes a while.
	createWithin = 15 * time.Second
)

// session is a dedicated connection.
type session struct {
	conn          *sessions.Conn
	options       *Options
	schema        string
	channel       string
	server        string
	olderThanTerm bool   // the server life is older than a term
	row           string // ctid of the membership
}

// openSession connects, and checks that the table is a stream and stays one.
func openSession(ctx context.Context, c *store.Connector, o *Options) (table, func(), error) {
	conn, err := c.Open(ctx, store.RoleLeases)
	if err != nil {
		return nil, nil, err
	}

	s := &session{conn: conn, options: o, schema: c.Schema, channel: pgschema.Channel(c.Schema)}
	hangUp := func() { s.close(ctx) }
	if err := s.begin(ctx); err != nil {
		hangUp()
		return nil, nil, err
	}

	return s, hangUp, nil
}

// close explicitly releases the locks of life and of the mode: the server notices the end of a connection later.
func (s *session) close(ctx context.Context) {
	if !s.conn.IsClosed() && !s.conn.IsShared() {
		_ = s.roundTrip(ctx, func(ctx context.Context) error { // if it fails, the end of the connection releases the locks
			_, err := s.conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
			return err
		})
	}
	store.Close(ctx, s.conn.Conn)
}

// roundTrip runs f within the time for one round trip. A running statement finishes even if ctx ends: an interruption
// would cost the connection.
func (s *session) roundTrip(ctx context.Context, f func(context.Context) error) error {
	return within(ctx, answerWithin, f)
}

func within(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, fmt.Errorf("the database did not answer within %v", limit))
	defer cancel()
	if err := f(ctx); err != nil {
		return fmt.Errorf("lease shards: %w", err)
	}
	return nil
}

// A crash and a failover empty the table, which gives the server life another name. A start and another copy of the
// database have another name as well.
const (
	lifeName = `life || '/' || 'outbox_server'::regclass::oid`

	// sqlLife returns the life of the server, and whether it is older than a term. The first relay after a crash or a
	// start names it.
	sqlLife = `WITH made AS (INSERT INTO outbox_server AS s (life, started) VALUES (gen_random_uuid(), pg_postmaster_start_time())
		ON CONFLICT (one) DO UPDATE SET life = excluded.life, started = excluded.started, since = clock_timestamp()
			WHERE s.started <> excluded.started
		RETURNING ` + lifeName + ` AS name)
	SELECT name, false FROM made
	UNION ALL SELECT ` + lifeName + `, since < clock_timestamp() - $1::bigint * interval '1 microsecond' FROM outbox_server
		WHERE started = pg_postmaster_start_time()`

	sqlVerify = `SELECT EXISTS (SELECT FROM outbox_server WHERE ` + lifeName + ` = $1 AND started = pg_postmaster_start_time())`
)

// begin keeps the table a stream, and shows that the relay lives. Without a session it does neither: then each start of
// a membership checks the mode, and shows life as well.
func (s *session) begin(ctx context.Context) error {
	if !s.conn.IsShared() {
		err := s.roundTrip(ctx, func(ctx context.Context) error {
			return modelock.Hold(ctx, s.conn.Conn, s.schema, outboxsql.ModeStream)
		})
		if err != nil {
			return err
		}

		err = s.roundTrip(ctx, func(ctx context.Context) error {
			return store.ShowLife(ctx, s.conn, s.schema, s.options.Owner, s.options.Program)
		})
		if err != nil {
			return err
		}
	}

	err := s.roundTrip(ctx, func(ctx context.Context) error { return s.checkMode(ctx, nil) })
	if err != nil {
		return err
	}

	for range 2 { // another relay may name the life at the same time
		err = s.roundTrip(ctx, func(ctx context.Context) error {
			return s.conn.QueryRow(ctx, sqlLife, Term.Microseconds()).Scan(&s.server, &s.olderThanTerm)
		})
		if !errors.Is(err, pgx.ErrNoRows) {
			break
		}
	}

	if errors.Is(err, pgx.ErrNoRows) {
		err = sessions.CheckChanged("name the life of the server", 0, 1)
	}

	s.conn.Require(Requires(s.server))
	return err
}

// checkMode checks the mode in a transaction, which f uses. A dedicated session already holds the mode.
func (s *session) checkMode(ctx context.Context, f func(pgx.Tx) error) error {
	if !s.conn.IsShared() {
		return nil
	}
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		err := modelock.HoldIn(ctx, tx, s.schema, outboxsql.ModeStream)
		if err != nil || f == nil {
			return err
		}
		return f(tx)
	})
}

// ErrMoved means that connections lead to another server, or to another server life, than the one in which a shard was
// taken: the server may have assigned ids again that a relay has in memory.
var ErrMoved = errors.New("the server has crashed, or was replaced, since the shard was taken")

// Requires returns a check that the server is in the life in which a shard was taken. Later statements on a direct
// connection need no further check, because a connection does not outlive a crash.
func Requires(life string) func(context.Context, sessions.Querier) error {
	return func(ctx context.Context, db sessions.Querier) error {
		var ok bool
		if err := db.QueryRow(ctx, sqlVerify, life).Scan(&ok); err != nil {
			return fmt.Errorf("find the life of the server: %w", err)
		}
		if !ok {
			return ErrMoved
		}

		return nil
	}
}

func (s *session) life() (name string, old bool) { return s.server, s.olderThanTerm }

// sqlJoin adds the relay to the members. Its row may be left from a connection whose last answer was lost.
const sqlJoin = `WITH joined AS (
		INSERT INTO outbox_members AS m (owner, wants, layouts, pid, alive_until, renewals)
			VALUES ($1, $2, $7, CASE WHEN $6 THEN 0 ELSE pg_backend_pid() END,
				clock_timestamp() + $3::bigint * interval '1 microsecond', $5)
		ON CONFLICT (owner) DO UPDATE SET wants = excluded.wants, layouts = excluded.layouts, pid = excluded.pid,
			alive_until = excluded.alive_until, renewals = m.renewals + 1
		RETURNING ctid, renewals)
	SELECT ctid::text, renewals, CASE WHEN ` + pgschema.MayNotify + ` THEN pg_notify($4, '` + pgschema.WordShards + `') END::text FROM joined`

func (s *session) join(ctx context.Context, wants []string) (renewals int64, err error) {
	join := func(ctx context.Context, db sessions.Querier) error {
		first := 1 + rand.Int64N(1<<62) //nolint:gosec // differs from earlier ones, hides nothing

		joined := db.QueryRow(ctx, sqlJoin, s.options.Owner, wants, Term.Microseconds(), s.channel, first,
			s.conn.IsShared(), s.options.layoutsOf(wants))
		err := joined.Scan(&s.row, &renewals, nil)
		if errors.Is(err, pgx.ErrNoRows) {
			err = sessions.CheckChanged("join", 0, 1)
		}

		return err
	}

	if !s.conn.IsShared() {
		err = s.roundTrip(ctx, func(ctx context.Context) error { return join(ctx, s.conn) })
		return renewals, err
	}

	err = s.roundTrip(ctx, func(ctx context.Context) error {
		return s.checkMode(ctx, func(tx pgx.Tx) error { return join(ctx, tx) }) // the mode cannot change while members renew
	})
	if err != nil {
		return 0, err
	}

	err = s.roundTrip(ctx, func(ctx context.Context) error {
		return store.Introduce(ctx, s.conn, s.options.Owner, s.options.Program)
	})
	return renewals, err
}

// sqlAnnounce changes the destinations that the relay wants.
const sqlAnnounce = `WITH changed AS (UPDATE outbox_members SET wants = $2, layouts = $5, renewals = renewals + 1
	WHERE owner = $1 AND renewals >= $3 RETURNING ctid, renewals)
	SELECT ctid::text, renewals, CASE WHEN ` + pgschema.MayNotify + ` THEN pg_notify($4, '` + pgschema.WordShards + `') END::text FROM changed`

func (s *session) announce(ctx context.Context, wants []string, least int64) (renewals int64, err error) {
	err = s.roundTrip(ctx, func(ctx context.Context) error {
		announced := s.conn.QueryRow(ctx, sqlAnnounce, s.options.Owner, append([]string{}, wants...), least, s.channel,
			s.options.layoutsOf(wants))
		return announced.Scan(&s.row, &renewals, nil)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, s.checkIgnored(ctx, "announce", s.options.Owner, least, math.MaxInt64)
	}
	return renewals, err
}

// checkIgnored returns an error if a statement has changed no membership, and the membership is there: then a trigger or a
// rule has ignored the write. Only the member writes its renewals, and another relay deletes only the number that it has seen.
func (s *session) checkIgnored(ctx context.Context, statement string, owner, least, most int64) error {
	return s.roundTrip(ctx, func(ctx context.Context) error {
		var rows int64
		err := s.conn.QueryRow(ctx, `SELECT count(*) FROM outbox_members
			WHERE owner = $1 AND renewals BETWEEN $2 AND $3`, owner, least, most).Scan(&rows)
		if err != nil {
			return err
		}
		return sessions.CheckChanged(statement, 0, rows)
	})
}

// sqlRenew finds the row by ctid: under an old snapshot its earlier versions stay, and a search by the key would read
// all of them.
const (
	sqlRenew = `UPDATE outbox_members SET renewals = renewals + 1, alive_until = clock_timestamp() + $2::bigint * interval '1 microsecond'
		WHERE owner = $1 AND renewals >= $3 AND ctid = $4::text::tid RETURNING ctid::text, renewals`
	sqlRenewByKey = `UPDATE outbox_members SET renewals = renewals + 1,
		alive_until = clock_timestamp() + $2::bigint * interval '1 microsecond', pid = CASE WHEN $4 THEN 0 ELSE pg_backend_pid() END
		WHERE owner = $1 AND renewals >= $3 RETURNING ctid::text, renewals`
)

func (s *session) renew(ctx context.Context, least int64) (renewals int64, err error) {
	err = s.roundTrip(ctx, func(ctx context.Context) error {
		term := Term.Microseconds()
		err := pgx.ErrNoRows
		if s.row != "" {
			err = s.conn.QueryRow(ctx, sqlRenew, s.options.Owner, term, least, s.row).Scan(&s.row, &renewals)
		}
		if errors.Is(err, pgx.ErrNoRows) {
			err = s.conn.QueryRow(ctx, sqlRenewByKey, s.options.Owner, term, least, s.conn.IsShared()).Scan(&s.row, &renewals)
		}

		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, s.checkIgnored(ctx, "renew", s.options.Owner, least, math.MaxInt64)
	}

	return renewals, err
}

const (
	sqlPositions = `SELECT destination, shard, number, epoch, coalesce(owner, 0), layout FROM outbox_positions`
	// The clock of the server counts only if the member's session is gone as well. A member without a session is
	// watched for a term.
	sqlMembers = `SELECT owner, wants, layouts, renewals, alive_until < clock_timestamp() AND m.pid <> 0
		AND NOT EXISTS (SELECT FROM pg_stat_activity AS a
			WHERE a.pid = m.pid AND a.application_name = 'notifyd/` + store.RoleLeases + `')
	FROM outbox_members AS m`
)

// read reads positions and members in one round trip. Each statement has its own snapshot, and the members' is the
// later one.
func (s *session) read(ctx context.Context) (snapshot, error) {
	seen := snapshot{rows: make(map[shardKey]*row), members: make(map[int64]member)}
	var batch pgx.Batch
	batch.Queue(sqlPositions).Query(func(rows pgx.Rows) error {
		var at shardKey
		var r row
		_, err := pgx.ForEachRow(rows, []any{&at.destination, &at.shard, &r.id, &r.epoch, &r.owner, &r.layout}, func() error {
			seen.rows[at] = new(r)
			return nil
		})

		return err
	})

	batch.Queue(sqlMembers).Query(func(rows pgx.Rows) error {
		var owner int64
		var m member
		_, err := pgx.ForEachRow(rows, []any{&owner, &m.wants, &m.layouts, &m.renewals, &m.ended}, func() error {
			seen.members[owner] = m
			m.wants = nil
			m.layouts = nil
			return nil
		})

		return err
	})

	err := s.roundTrip(ctx, func(ctx context.Context) error { return s.conn.SendBatch(ctx, &batch).Close() })
	return seen, err
}

// layoutsOf returns the layouts of destinations, in this order, never nil.
func (o *Options) layoutsOf(names []string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = o.Layouts[name]
	}
	return all
}

func (s *session) remove(ctx context.Context, owner, renewals int64) (removed bool, err error) {
	err = s.roundTrip(ctx, func(ctx context.Context) error {
		tag, err := s.conn.Exec(ctx, `DELETE FROM outbox_members WHERE owner = $1 AND renewals = $2`, owner, renewals)
		removed = tag.RowsAffected() == 1
		return err
	})
	if err == nil && !removed {
		err = s.checkIgnored(ctx, "remove a relay", owner, renewals, renewals)
	}

	return removed, errors.Join(err, sessions.ForgetIgnored(ctx, s.conn.Conn, err))
}

func (s *session) leave(ctx context.Context) error {
	return s.roundTrip(ctx, func(ctx context.Context) error {
		_, err := s.conn.Exec(ctx, `WITH gone AS (DELETE FROM outbox_members WHERE owner = $1)
			SELECT CASE WHEN `+pgschema.MayNotify+` THEN pg_notify($2, '`+pgschema.WordShards+`') END`, s.options.Owner, s.channel)
		return err
	})
}

// positionWriter implements writer.
type positionWriter struct {
	options *Options
	channel string
}

// use runs f on a connection from the pool.
func (w *positionWriter) use(ctx context.Context, server string, limit time.Duration, f func(context.Context, *sessions.Conn) error) error {
	return within(ctx, limit, func(ctx context.Context) error {
		return w.options.Use(ctx, server, func(conn *sessions.Conn) error { return f(ctx, conn) })
	})
}

func (w *positionWriter) create(ctx context.Context, server string, missing []string) error {
	return w.use(ctx, server, createWithin, func(ctx context.Context, conn *sessions.Conn) error {
		return w.options.Create(ctx, conn, missing)
	})
}

func (w *positionWriter) arrange(ctx context.Context, server, destination string) error {
	return w.options.Arrange(ctx, server, destination)
}

// sqlTake skips a locked row: the lock may be held indefinitely. It commits synchronously: if a crash took it back,
// another relay would find the shard without an owner, and begin at once. It returns no epoch for a shard that it cannot
// take, and whether it has locked the row: then an UPDATE that changes nothing was ignored.
const sqlTake = `WITH durable AS MATERIALIZED (SELECT set_config('synchronous_commit', 'on', true) AS is),
	free AS (SELECT p.number FROM outbox_positions AS p CROSS JOIN durable
		WHERE p.number = $1 AND p.epoch = $2 AND durable.is = 'on' FOR NO KEY UPDATE OF p SKIP LOCKED),
	taken AS (UPDATE outbox_positions AS p SET epoch = p.epoch + 1, owner = $3, updated_at = clock_timestamp() FROM free
		WHERE p.number = free.number RETURNING p.epoch)
	SELECT coalesce((SELECT epoch FROM taken), 0), (SELECT count(*) FROM taken), (SELECT count(*) FROM free)`

func (w *positionWriter) take(ctx context.Context, server string, r row) (epoch int64, err error) {
	err = w.use(ctx, server, writeWithin, func(ctx context.Context, conn *sessions.Conn) error {
		var taken, free int64
		if err := conn.QueryRow(ctx, sqlTake, r.id, r.epoch, w.options.Owner).Scan(&epoch, &taken, &free); err != nil {
			return err
		}
		return sessions.CheckChanged("take a shard", taken, free)
	})
	return epoch, err
}

// sqlRelease does nothing if the position has another epoch: then it is done as well. It returns whether it has released
// and whether it has locked the row, as sqlTake does.
const sqlRelease = `WITH mine AS (SELECT number FROM outbox_positions WHERE number = $1 AND epoch = $2 FOR NO KEY UPDATE SKIP LOCKED),
	released AS (UPDATE outbox_positions AS p SET owner = NULL, updated_at = clock_timestamp() FROM mine
		WHERE p.number = mine.number RETURNING p.number)
	SELECT EXISTS (SELECT FROM released) OR NOT EXISTS (SELECT FROM outbox_positions WHERE number = $1 AND epoch = $2),
		(SELECT count(*) FROM released), (SELECT count(*) FROM mine),
		CASE WHEN EXISTS (SELECT FROM released) AND ` + pgschema.MayNotify + ` THEN pg_notify($3, '` + pgschema.WordShards + `') END::text`

func (w *positionWriter) release(ctx context.Context, server string, id int32, epoch int64) (done bool, err error) {
	err = w.use(ctx, server, writeWithin, func(ctx context.Context, conn *sessions.Conn) error {
		var released, mine int64
		if err := conn.QueryRow(ctx, sqlRelease, id, epoch, w.channel).Scan(&done, &released, &mine, nil); err != nil {
			return err
		}
		return sessions.CheckChanged("release a shard", released, mine)
	})
	return done, err
}
