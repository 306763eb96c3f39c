package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// lookEvery is the least time between two looks: they cost about a millisecond, and
	// PostgreSQL holds all of its lock table for as long.
	lookEvery = 50 * time.Millisecond
	// lookShare bounds the time that looks take where they are expensive, as with tens of
	// thousands of locks: one part in so many.
	lookShare = 20
	// lookTimeout bounds one look.
	lookTimeout = 15 * time.Second
)

// errNoSequence says that there is nothing to look for.
var errNoSequence = errors.New("outbox_events.id has no sequence of its own")

// nextval takes ROW EXCLUSIVE on the sequence before it draws, for the transaction
// at the top, and keeps it to its end: over ROLLBACK TO and PREPARE TRANSACTION, for
// COPY, for each partition, for an id that was drawn and is not inserted yet. Nothing
// of the relay ever takes that lock. The sequence is found anew by each look, because
// one that was replaced has no holders. Where nobody holds it, one row tells so.
const sqlLook = `SELECT s.oid::bigint, pg_postmaster_start_time(), l.virtualtransaction, l.pid
FROM (SELECT to_regclass(%s)::oid AS oid) AS s
LEFT JOIN pg_locks AS l ON l.locktype = 'relation' AND l.relation = s.oid AND l.mode = 'RowExclusiveLock' AND l.granted
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// theSequence is what is looked at; theTable is what must not be: see the tests.
const (
	theSequence = `pg_get_serial_sequence('outbox_events', 'id')`
	theTable    = `'outbox_events'`
)

// holder is a transaction that may have drawn ids and not yet ended.
type holder struct {
	transaction string // virtualtransaction of pg_locks
	pid         int32  // 0 for a prepared one
}

func (h holder) prepared() bool { return h.pid == 0 }

// server is what the names of transactions belong to. Where it changes, those that
// were known before mean nothing any more.
type server struct {
	sequence int64
	started  int64 // microseconds since 1970
}

// Look is one look at who may have drawn ids and not yet ended. It does not change.
type Look struct {
	began, ended uint64 // by the count of [Witnesses]
	server       server
	holders      []holder
}

// Witnesses looks for transactions that may still bring events, for any number of
// readers. It is safe for concurrent use.
type Witnesses struct {
	count  atomic.Uint64 // numbers reads and looks in the order of their begin and end
	object string        // SQL: what is looked at
	one    chan struct{} // held by the only one who looks
	last   *Look
	next   time.Time // not before
}

// NewWitnesses returns witnesses for the readers of one outbox_events, in one database.
func NewWitnesses() *Witnesses {
	return &Witnesses{object: theSequence, one: make(chan struct{}, 1)}
}

// Look looks once, on a connection whose search_path has outbox_events and which is in
// no transaction. Where the time for the next one has not come, it returns the last
// look: [Reader.Looked] knows what that is good for. An error is one of this connection
// only.
func (w *Witnesses) Look(ctx context.Context, conn *pgx.Conn) (*Look, error) {
	select {
	case w.one <- struct{}{}:
		defer func() { <-w.one }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	begin := time.Now()
	if w.last != nil && begin.Before(w.next) {
		return w.last, nil
	}
	l, err := w.look(ctx, conn)
	took := time.Since(begin)
	w.next = begin.Add(max(lookEvery, lookShare*took))
	if err != nil {
		return nil, fmt.Errorf("look for open writers: %w", err)
	}
	w.last = l
	return l, nil
}

// mark returns the time, as looks and reads count it.
func (w *Witnesses) mark() uint64 { return w.count.Add(1) }

func (w *Witnesses) look(ctx context.Context, conn *pgx.Conn) (*Look, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, fmt.Errorf("the database did not answer within %v", lookTimeout))
	defer cancel()
	l := &Look{began: w.count.Add(1)}
	rows, err := conn.Query(ctx, fmt.Sprintf(sqlLook, w.object))
	if err != nil {
		return nil, err
	}
	var sequence *int64
	var started time.Time
	var transaction *string
	var pid *int32
	_, err = pgx.ForEachRow(rows, []any{&sequence, &started, &transaction, &pid}, func() error {
		if sequence == nil {
			return errNoSequence
		}
		l.server = server{*sequence, started.UnixMicro()}
		if transaction != nil {
			h := holder{transaction: *transaction}
			if pid != nil {
				h.pid = *pid
			}
			l.holders = append(l.holders, h)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(l.holders, byTransaction)
	l.holders = slices.CompactFunc(l.holders, func(a, b holder) bool { return a.transaction == b.transaction })
	l.ended = w.count.Add(1)
	return l, nil
}
