package tail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
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
//
// All of that holds for ids that each session draws when it needs them. A look at another sequence fails: what
// its sessions have in advance cannot be seen. A sequence that was changed and changed back is fine: ALTER SEQUENCE
// waits for those who have drawn, and takes from sessions what they have in advance.
const sqlLook = `SELECT s.seq::bigint, pg_postmaster_start_time(), l.virtualtransaction, l.pid, (` + outboxsql.SQLOddSequence + `),
	(SELECT relkind = 'p' FROM pg_class WHERE oid = 'outbox_events'::regclass)
FROM (SELECT to_regclass(%s)::oid AS seq) AS s
LEFT JOIN pg_locks AS l ON l.locktype = 'relation' AND l.relation = s.seq AND l.mode = 'RowExclusiveLock' AND l.granted
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// theSequence is the object of looks; theTable is one that must not be: see the tests.
const (
	theSequence = `pg_get_serial_sequence('outbox_events', 'id')`
	theTable    = `'outbox_events'`
)

// Holder is a transaction that may have drawn ids and has not ended.
type Holder struct {
	Transaction string // virtualtransaction of pg_locks
	PID         int32  // 0 for a prepared one
}

func (h Holder) prepared() bool { return h.PID == 0 }

// server is the scope of the names of transactions. When it changes, earlier names are meaningless.
type server struct {
	sequence int64
	started  int64 // microseconds since 1970
}

// Look is one look at the transactions that may have drawn ids and have not ended. It is immutable.
type Look struct {
	began, ended uint64 // by the count of [Witnesses]
	server       server
	partitioned  bool

	Holders []Holder // sorted
}

// Began reports whether the look began after a mark of [Witnesses.Mark].
func (l *Look) Began(mark uint64) bool { return l.began >= mark }

// Remain reports whether one of the transactions of an earlier look is in this one. Every prepared one counts: a restart
// of the server gives it another name.
func (l *Look) Remain(earlier *Look) bool {
	return slices.ContainsFunc(l.Holders, func(h Holder) bool {
		return h.prepared() || earlier.server == l.server && slices.Contains(earlier.Holders, h)
	})
}

// remaining returns the earlier holders that still hold the lock. PREPARE TRANSACTION may change
// the name of a transaction: if one has gone that was not prepared, any prepared one may be the
// same.
func (l *Look) remaining(before []Holder) []Holder {
	left := make([]Holder, 0, len(before))
	renamed := false
	for _, b := range before {
		i, ok := slices.BinarySearchFunc(l.Holders, b, byTransaction)
		if ok {
			left = append(left, l.Holders[i])
		}
		renamed = renamed || !ok && !b.prepared()
	}
	if renamed {
		for _, h := range l.Holders {
			if h.prepared() {
				left = append(left, h)
			}
		}
		slices.SortFunc(left, byTransaction)
		left = slices.Compact(left)
	}
	return left
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
func (w *Witnesses) Look(ctx context.Context, conn session.Querier) (*Look, error) {
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

// Mark returns the current count of reads and looks.
func (w *Witnesses) Mark() uint64 { return w.count.Add(1) }

func (w *Witnesses) look(ctx context.Context, conn session.Querier) (*Look, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, fmt.Errorf("the database did not answer within %v", lookTimeout))
	defer cancel()
	l := &Look{began: w.count.Add(1)}
	rows, err := conn.Query(ctx, strings.Replace(sqlLook, "to_regclass(%s)", "to_regclass("+w.object+")", 1))
	if err != nil {
		return nil, err
	}
	var sequence *int64
	var started time.Time
	var transaction, odd *string
	var pid *int32
	_, err = pgx.ForEachRow(rows, []any{&sequence, &started, &transaction, &pid, &odd, &l.partitioned}, func() error {
		switch {
		case sequence == nil:
			return errNoSequence
		case odd != nil:
			return fmt.Errorf("%w: %s", outboxsql.ErrStream, *odd)
		}
		l.server = server{*sequence, started.UnixMicro()}
		if transaction != nil {
			h := Holder{Transaction: *transaction}
			if pid != nil {
				h.PID = *pid
			}
			l.Holders = append(l.Holders, h)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(l.Holders, byTransaction)
	l.Holders = slices.CompactFunc(l.Holders, func(a, b Holder) bool { return a.Transaction == b.Transaction })
	l.ended = w.count.Add(1)
	return l, nil
}
