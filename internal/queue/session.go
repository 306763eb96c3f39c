package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wire"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Session claims and settles on a connection of its own, which it opens on first use and again
// after a loss. It implements [Claimer]. Only one goroutine may use it; its creator closes it.
type Session struct {
	connector *store.Connector
	options   SessionOptions
	conn      *pgx.Conn
	names     wire.Names
	params    []byte // buffer for parameters, reused by every flight
	expected  int    // expected number of events in the next claim: that of the last
	ranged    bool   // outbox_events is partitioned: see ranged.go
}

// SessionOptions configure the settlement of events, and the leases of a relay.
type SessionOptions struct {
	// Owner is the key of the relay's advisory lock, which its leases carry.
	Owner int64
	// Program is what the relay says of itself.
	Program store.Program
	// Lease is how long a lease lasts unless it is renewed.
	Lease time.Duration
	// Delete deletes delivered events at once instead of marking them done.
	Delete bool
	// Refused, if set, is called when the table turns out to be a stream, with an error that wraps
	// outboxsql.ErrMode: this relay cannot work there any more. It must not block; several sessions
	// may call it.
	Refused func(error)
}

// NewSession returns a session that connects on first use.
func NewSession(c *store.Connector, o SessionOptions) *Session {
	return &Session{connector: c, options: o}
}

// Close ends the session, also after ctx has ended, and unlocks its claim.
func (s *Session) Close(ctx context.Context) {
	if s.conn != nil {
		store.Close(ctx, s.conn)
		s.conn = nil
	}
}

// Names of the prepared statements.
const (
	stmtBegin     = "begin"
	stmtCommit    = "commit"
	stmtSnapshot  = "snapshot"
	stmtByIDs     = "by_ids"
	stmtSweep     = "sweep"
	stmtSweepSkip = "sweep_skip"
	stmtReach     = "reach"
	stmtDue       = "due"
	stmtNextDue   = "next_due"
	stmtDone      = "done"
	stmtDelete    = "delete"
	stmtBury      = "bury"
	stmtDefer     = "defer"
	stmtPut       = "put"
	stmtRemove    = "remove"
	stmtLock      = "lock"
	stmtFinish    = "finish"
	stmtForget    = "forget"
)

func (s *Session) statements() map[string]string {
	const (
		sweep = ` AND id > $1::bigint AND id <= $3::bigint`
		order = ` ORDER BY id LIMIT $2::bigint FOR UPDATE SKIP LOCKED`
		skip  = ` AND event_type <> ALL($4::text[])`
	)
	all := map[string]string{
		stmtBegin: "BEGIN", stmtCommit: "COMMIT",
		stmtSnapshot: sqlSnapshot, stmtReach: sqlReach,
		stmtByIDs: sqlFresh + ` AND id = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED`,
		stmtSweep: sqlFresh + sweep + order, stmtSweepSkip: sqlFresh + sweep + skip + order,
		stmtDue: sqlDue, stmtNextDue: sqlNextDue,
	}
	maps.Copy(all, settleStatements())
	if s.ranged {
		withRange(all)
	}
	return all
}

// connect ensures a connection with all statements prepared.
func (s *Session) connect(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	s.conn = nil
	conn, err := s.connector.Connect(ctx, "claim")
	if err != nil {
		return err
	}
	// Every session checks the mode: after a reconnect to a table that has become a stream, all its
	// events would look fresh.
	if err = s.connector.HoldMode(ctx, conn, outboxsql.ModeQueue, s.options.Refused); err == nil {
		s.ranged, err = store.IsPartitioned(ctx, conn)
	}
	if err == nil {
		err = prepareAll(ctx, conn.PgConn(), s.statements())
	}
	if err != nil {
		store.Close(ctx, conn)
		return err
	}
	s.conn = conn
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

// flight is one pipelined round trip: statements leave together, and their answers are read in
// order.
type flight struct {
	pipeline *pgconn.Pipeline
	cancel   context.CancelFunc
}

// fly sends the queued statements. The context bounds the round trip only: a stopping relay still
// reads the answer of a claim in flight.
func (s *Session) fly(ctx context.Context, queue func(*pgconn.Pipeline)) (*flight, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), store.RoundTripTimeout,
		fmt.Errorf("the database did not answer within %v", store.RoundTripTimeout))
	p := s.conn.PgConn().StartPipeline(ctx)
	queue(p)
	if err := p.Sync(); err != nil {
		cancel()
		return nil, errors.Join(err, p.Close())
	}
	return &flight{p, cancel}, nil
}

// next returns the answer of the next statement, to be read before the one after it.
func (f *flight) next() (*pgconn.ResultReader, error) {
	results, err := f.pipeline.GetResults()
	if err != nil {
		return nil, err
	}
	reader, ok := results.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("expected rows, got %T", results)
	}
	return reader, nil
}

// skip reads and drops the answer of a statement.
func (f *flight) skip() error {
	reader, err := f.next()
	if err != nil {
		return err
	}
	_, err = reader.Close()
	return err
}

func (f *flight) close() error {
	defer f.cancel()
	return f.pipeline.Close()
}

// abandon gives up the connection after an error, and with it the transaction and its locks.
// Reconnecting is rare and always right; resuming a half-read pipeline is neither.
func (s *Session) abandon(ctx context.Context, what string, err error) error {
	s.Close(ctx)
	return fmt.Errorf("%s: %w", what, err)
}

var _ Claimer = (*Session)(nil)
