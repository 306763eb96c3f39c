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
	// lookEvery is the least time between two looks: a look costs about a millisecond, during which
	// PostgreSQL holds all of its lock table.
	lookEvery = 50 * time.Millisecond
	// lookShare bounds the share of time, 1/lookShare, that looks take if they are expensive, as
	// with tens of thousands of locks.
	lookShare = 20
	// lookAtMost bounds the time between two looks: one that took seconds has waited for a busy
	// machine, which says nothing of the next.
	lookAtMost = 5 * time.Second
	// lookTimeout bounds one look.
	lookTimeout = 15 * time.Second
)

// errNoSequence means that there is no sequence to look at.
var errNoSequence = errors.New("outbox_events.id has no sequence of its own")

// nextval takes ROW EXCLUSIVE on the sequence before it draws, for the top-level transaction, which
// keeps it to its end: over ROLLBACK TO and PREPARE TRANSACTION, for COPY, for each partition, and
// for an id that was drawn and is not inserted yet. No part of the relay ever takes that lock. Each
// look finds the sequence again, because a replaced one has no holders. Without holders
// there is one row, without a transaction.
const sqlLook = `SELECT s.oid::bigint, pg_postmaster_start_time(), l.virtualtransaction, l.pid
FROM (SELECT to_regclass(%s)::oid AS oid) AS s
LEFT JOIN pg_locks AS l ON l.locktype = 'relation' AND l.relation = s.oid AND l.mode = 'RowExclusiveLock' AND l.granted
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// theSequence is the object of looks; theTable is one that must not be: see the tests.
const (
	theSequence = `pg_get_serial_sequence('outbox_events', 'id')`
	theTable    = `'outbox_events'`
)

// holder is a transaction that may have drawn ids and has not ended.
type holder struct {
	transaction string // virtualtransaction of pg_locks
	pid         int32  // 0 for a prepared one
}

func (h holder) prepared() bool { return h.pid == 0 }

// server is the scope of the names of transactions. When it changes, earlier names are meaningless.
type server struct {
	sequence int64
	started  int64 // microseconds since 1970
}

// Look is one look at the transactions that may have drawn ids and have not ended. It is immutable.
type Look struct {
	began, ended uint64 // by the count of [Witnesses]
	server       server
	holders      []holder
}

// Witnesses finds transactions that may still write events, for any number of readers. It is safe
// for concurrent use.
type Witnesses struct {
	count  atomic.Uint64 // numbers the beginnings and ends of reads and looks
	object string        // SQL: the object of looks
	one    chan struct{} // held during a look
	last   *Look
	next   time.Time // no look before this time
}

// NewWitnesses returns witnesses for the readers of one outbox_events, in one database.
func NewWitnesses() *Witnesses {
	return &Witnesses{object: theSequence, one: make(chan struct{}, 1)}
}

// Look looks once, on a connection whose search_path has outbox_events and which is in no
// transaction. If it is too early for another look, it returns the last one: [Reader.Looked] knows
// what that is worth. An error concerns only this connection.
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
	w.next = begin.Add(min(max(lookEvery, lookShare*took), lookAtMost))
	if err != nil {
		return nil, fmt.Errorf("find open writers: %w", err)
	}
	w.last = l
	return l, nil
}

// mark returns the current count of reads and looks.
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
