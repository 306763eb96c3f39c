package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wire"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Session claims and settles on its own connection, opened on first use and after a loss. It implements [Claimer].
// Only one goroutine may use it; its creator closes it.
type Session struct {
	connector *store.Connector
	options   SessionOptions
	conn      *pgx.Conn
	names     wire.Names
	params    []byte   // buffer for parameters, reused by every flight
	sent      []string // statement names of a flight, reused by the next one
	changes   []int    // how many rows each of them should change, reused as well
	expected  int      // expected events in the next claim: as many as in the last one
	ranged    bool     // outbox_events is partitioned: see ranged.go
	refused   bool     // the database has refused the last settlement
	// A refusal is likely, so a settlement keeps the locks of its claim: see settle.
	referenced bool         // foreign keys reference events, which are to be deleted
	guardUntil time.Time    // a settlement was refused
	careful    map[int]bool // limits other than EventBytes whose statements this connection has
}

// SessionOptions configures the settlement of events, and the leases of a relay.
type SessionOptions struct {
	// Owner is the key of the relay's advisory lock, which its leases carry.
	Owner int64
	// Program describes the relay to the database.
	Program store.Program
	// Lease is how long a lease lasts unless it is renewed.
	Lease time.Duration
	// EventBytes bounds the payload and headers of one event: a larger one is refused unread. 0 means no bound.
	EventBytes int
	// Delete deletes delivered events at once instead of marking them done.
	Delete bool
	// Refused, if set, is called if the table is a stream, with an error that wraps outboxsql.ErrMode: this relay can
	// no longer work there. It must not block; several sessions may call it.
	Refused func(error)
}

// NewSession returns a session that connects on first use.
func NewSession(c *store.Connector, o SessionOptions) *Session {
	return &Session{connector: c, options: o}
}

// Close ends the session and unlocks its claim, even if ctx has ended.
func (s *Session) Close(ctx context.Context) {
	if s.conn != nil {
		store.Close(ctx, s.conn)
		s.conn = nil
	}
}

// Names of the prepared statements.
const (
	stmtBegin        = "begin"
	stmtCommit       = "commit"
	stmtRollback     = "rollback"
	stmtSavepoint    = "savepoint"
	stmtRelease      = "release"
	stmtBack         = "back"
	stmtImmediate    = "immediate"
	stmtSnapshot     = "snapshot"
	stmtOpenWriters  = "open_writers"
	stmtByIDs        = "by_ids"
	stmtSweep        = "sweep"
	stmtSweepSkip    = "sweep_skip"
	stmtHighest      = "highest"
	stmtDue          = "due"
	stmtNextDue      = "next_due"
	stmtDone         = "done"
	stmtDelete       = "delete"
	stmtBury         = "bury"
	stmtDefer        = "defer"
	stmtPut          = "put"
	stmtReport       = "report"
	stmtRemove       = "remove"
	stmtUnlocked     = "remove_unlocked"
	stmtAcknowledged = "acknowledged"
	stmtLock         = "lock"
	stmtFinish       = "finish"
	stmtForget       = "forget"
	stmtFinished     = "finished"
)

// claims returns the statements that read events, up to a limit: see [wire.EventBytes].
func (s *Session) claims(limit int) map[string]string {
	const (
		sweep = ` AND id > $1::bigint AND id <= $3::bigint`
		order = ` ORDER BY id LIMIT $2::bigint`
		skip  = ` AND event_type <> ALL($4::text[]) AND id <> ALL($5::bigint[])`
	)

	all := map[string]string{
		stmtByIDs: sqlFresh(limit, ` AND id = ANY($1::bigint[])`, s.lock()),
		stmtSweep: sqlFresh(limit, sweep+order, s.lock()), stmtSweepSkip: sqlFresh(limit, sweep+skip+order, s.lock()), stmtDue: sqlDue(limit),
	}

	if s.ranged {
		withRange(all)
	}

	byName := make(map[string]string, len(all))
	for name, sql := range all {
		byName[named(name, limit)] = sql
	}
	return byName
}

// lock returns the lock of a claim on its events. A transaction that inserts a foreign key to an event locks the event as
// well, until it ends. Only a claim that will delete the event must wait for it.
func (s *Session) lock() string {
	if s.options.Delete {
		return ` FOR UPDATE`
	}
	return ` FOR NO KEY UPDATE`
}

// named returns the name of a statement with a limit. The variants that read only readable columns have separate
// names.
func named(name string, limit int) string {
	switch limit {
	case wire.Escaped:
		return name + "_escaped"
	case wire.Bare:
		return name + "_bare"
	}
	return name
}

func (s *Session) statements() map[string]string {
	all := map[string]string{
		stmtBegin: "BEGIN", stmtCommit: "COMMIT", stmtRollback: "ROLLBACK", stmtImmediate: "SET CONSTRAINTS ALL IMMEDIATE",
		stmtSavepoint: "SAVEPOINT settlement", stmtRelease: "RELEASE SAVEPOINT settlement", stmtBack: "ROLLBACK TO SAVEPOINT settlement",
		stmtSnapshot: sqlSnapshot, stmtOpenWriters: sqlOpenWriters, stmtHighest: sqlHighest, stmtNextDue: sqlNextDue,
		stmtDone: sqlDone, stmtDelete: sqlDelete, stmtBury: sqlDone, stmtDefer: sqlDefer,
		stmtLock: sqlLock, stmtFinish: sqlFinish, stmtForget: sqlForget, stmtFinished: sqlFinished,
		stmtPut: deliveries.SQLPut, stmtAcknowledged: deliveries.SQLAcknowledged, stmtRemove: deliveries.SQLRemovePresent,
		stmtReport: deliveries.SQLReport, stmtUnlocked: deliveries.SQLRemoveUnlocked,
	}

	if s.ranged {
		withRange(all)
	}
	maps.Copy(all, s.claims(s.options.EventBytes))
	return all
}

// roleClaim is the role of the sessions that claim.
const roleClaim = "claim"

// sqlReferenced reads whether a foreign key references the events.
const sqlReferenced = `SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE contype = 'f' AND confrelid = 'outbox_events'::regclass)`

// connect ensures a connection with all statements prepared.
func (s *Session) connect(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	s.conn = nil

	conn, err := s.connector.Connect(ctx, roleClaim)
	if err != nil {
		return err
	}

	// Every session checks the mode: after a reconnect to a table that has become a stream, all its events would look
	// fresh.
	err = s.connector.HoldMode(ctx, conn, outboxsql.ModeQueue, s.options.Refused)
	if err == nil {
		s.ranged, err = store.IsPartitioned(ctx, conn)
	}

	if err == nil && s.options.Delete {
		err = conn.QueryRow(ctx, sqlReferenced).Scan(&s.referenced)
	}
	if err == nil {
		err = prepareAll(ctx, conn.PgConn(), s.statements())
	}

	if err != nil {
		store.Close(ctx, conn)
		return err
	}

	s.conn = conn
	s.careful = make(map[int]bool)
	return nil
}

// prepareAll prepares the statements in one flight.
func prepareAll(ctx context.Context, conn *pgconn.PgConn, statements map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, store.RoundTripTimeout)
	defer cancel()

	p := conn.StartPipeline(ctx)
	names := make([]string, 0, len(statements))
	for name, sql := range statements {
		names = append(names, name)
		p.SendPrepare(name, sql, nil)
	}

	errs := []error{p.Sync()}
	for _, name := range names {
		if _, err := p.GetResults(); err != nil {
			errs = append(errs, fmt.Errorf("prepare statement %s: %w", name, err))
			break
		}
	}

	return errors.Join(append(errs, p.Close())...)
}

// flight is one pipelined round trip: statements leave together, and results are read in order.
type flight struct {
	pipeline *pgconn.Pipeline
	cancel   context.CancelFunc
	names    []string // of the statements
	read     int      // how many of them are answered
}

// fly sends the queued statements. The context bounds only the round trip: a stopping relay still reads the result of
// a claim in flight.
func (s *Session) fly(ctx context.Context, queue func(*flight)) (*flight, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), store.RoundTripTimeout,
		fmt.Errorf("the database did not answer within %v", store.RoundTripTimeout))
	f := &flight{pipeline: s.conn.PgConn().StartPipeline(ctx), cancel: cancel, names: s.sent[:0]}
	queue(f)
	s.sent = f.names
	if err := f.pipeline.Sync(); err != nil {
		cancel()
		return nil, errors.Join(err, f.pipeline.Close())
	}
	return f, nil
}

// send queues a prepared statement.
func (f *flight) send(name string, args [][]byte, formats, results []int16) {
	f.names = append(f.names, name)
	f.pipeline.SendQueryPrepared(name, args, formats, results)
}

// failed adds the refused statement, and the bound that stopped it, to an error.
func (f *flight) failed(err error) error {
	name := f.names[min(max(f.read-1, 0), len(f.names)-1)]
	if bound := store.BoundOf(err); bound != "" {
		return fmt.Errorf("statement %s (%s): %w", name, bound, err)
	}
	return fmt.Errorf("statement %s: %w", name, err)
}

// next returns the next statement's result. Read it before the following one.
func (f *flight) next() (*pgconn.ResultReader, error) {
	results, err := f.pipeline.GetResults()
	f.read++
	if err != nil {
		return nil, f.failed(err)
	}
	reader, ok := results.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("expected rows, got %T", results)
	}
	return reader, nil
}

// each calls read for each row of the next result.
func (f *flight) each(read func(values [][]byte) error) error {
	reader, err := f.next()
	if err != nil {
		return err
	}
	for reader.NextRow() {
		if err := read(reader.Values()); err != nil {
			return err
		}
	}
	return f.end(reader)
}

// number reads a result of one bigint. It returns none for no row, and for NULL.
func (f *flight) number(none int64) (n int64, err error) {
	n = none
	err = f.each(func(values [][]byte) (err error) {
		if values[0] != nil {
			n, err = wire.DecodeInt8(values[0])
		}
		return err
	})
	return n, err
}

// skip reads and drops a statement's result.
func (f *flight) skip() error {
	_, err := f.changed()
	return err
}

// changed reads a statement's result, and returns how many rows it has changed.
func (f *flight) changed() (int64, error) {
	reader, err := f.next()
	if err != nil {
		return 0, err
	}
	tag, err := reader.Close()
	if err != nil {
		return 0, f.failed(err)
	}
	return tag.RowsAffected(), nil
}

// end reads the rest of a result.
func (f *flight) end(reader *pgconn.ResultReader) error {
	if _, err := reader.Close(); err != nil {
		return f.failed(err)
	}
	return nil
}

func (f *flight) close() error {
	defer f.cancel()
	return f.pipeline.Close()
}

// abandon closes the connection after an error, and with it the transaction and its locks. Reconnecting is rare and
// always right; resuming a half-read pipeline is neither.
func (s *Session) abandon(ctx context.Context, what string, err error) error {
	s.Close(ctx)
	return fmt.Errorf("%s: %w", what, err)
}

var _ Claimer = (*Session)(nil)
