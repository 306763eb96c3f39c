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

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// scanEvery is the least time between two scans. A scan costs about a millisecond, during which PostgreSQL holds
	// its whole lock table.
	scanEvery = 50 * time.Millisecond
	// scanShare bounds the share of time that expensive scans take to 1/scanShare. Tens of thousands of locks make a
	// scan expensive.
	scanShare = 20
	// scanAtMost bounds the time between two scans. A scan that took seconds has waited for a busy machine, which does
	// not predict the next one.
	scanAtMost = 5 * time.Second
	// scanTimeout bounds one scan.
	scanTimeout = 15 * time.Second
)

// errNoSequence means that the table's ids have no sequence.
var errNoSequence = errors.New("outbox_events.id has no sequence")

// nextval takes ROW EXCLUSIVE on the sequence before it draws, for the top-level transaction, which holds it to its
// end: over ROLLBACK TO and PREPARE TRANSACTION, for COPY, for each partition, and for an id that is drawn and not
// inserted yet. No part of the relay ever takes that lock. Each scan resolves the sequence again, because a replaced
// one has no holders. Without holders there is one row, without a transaction.
//
// All of this requires that each session draws ids when it needs them. A scan of another sequence fails: ids that its
// sessions have in advance cannot be seen. A sequence that was changed and changed back is fine: ALTER SEQUENCE waits
// for sessions that have drawn, and sessions lose the ids that they have in advance.
//
// The last column is the transaction id, NULL before the first write. A transaction locks its own id and those of its
// subtransactions; its own is the oldest. pg_locks has 32 bits of an id. The distance from the next id gives the rest.
const sqlWriters = `WITH locks AS MATERIALIZED (SELECT locktype, relation, database, virtualtransaction, pid,
	transactionid::text::bigint AS xid FROM pg_locks
	WHERE granted AND (locktype = 'relation' AND mode = 'RowExclusiveLock' OR locktype = 'transactionid' AND mode = 'ExclusiveLock')),
numbers AS (SELECT virtualtransaction, ` + sqlOldest + ` AS xid
	FROM locks, (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS n) AS next WHERE locktype = 'transactionid'
		GROUP BY virtualtransaction)
SELECT s.seq::bigint, pg_postmaster_start_time(), l.virtualtransaction, l.pid, (` + pgschema.OddSequence + `), x.xid
FROM (SELECT to_regclass(%s)::oid AS seq) AS s
LEFT JOIN locks AS l ON l.locktype = 'relation' AND l.relation = s.seq AND l.database = (SELECT oid FROM pg_database
	WHERE datname = current_database())
LEFT JOIN numbers AS x ON x.virtualtransaction = l.virtualtransaction`

// sqlOldest finds the oldest transaction id. xid is the lower half of each id, and n is the next id.
const sqlOldest = `min(n) - max(((n - xid + 2147483648) & 4294967295) - 2147483648)`

// sqlLast reads an id that the sequence has assigned, in a statement before sqlWriters. In one statement PostgreSQL could
// read pg_locks first, and miss the writer of an id that is assigned in between.
//
// It is 32 below the last one: each time that nextval logs the sequence, it puts a value that is 32 ahead (SEQ_LOG_VALS)
// into the row for a moment, and a read may see it. See also outbox_last_id() in functions.sql.
const sqlLast = `SELECT coalesce((SELECT id - 32 FROM outbox_last_id), 0)`

// theSequence is the object of scans. theTable must not be: see the tests.
const (
	theSequence = `pg_get_serial_sequence('outbox_events', 'id')`
	theTable    = `'outbox_events'`
)

// Writer is a transaction that may have drawn ids and has not ended.
type Writer struct {
	Transaction string // virtualtransaction of pg_locks
	PID         int32  // 0 for a prepared one
}

func (h Writer) prepared() bool { return h.PID == 0 }

// server is the scope of the names of transactions. When it changes, earlier names are meaningless.
type server struct {
	sequence int64
	started  int64 // microseconds since 1970
}

// WriterScan is the result of one scan for transactions that may have drawn ids and have not ended. It is immutable.
type WriterScan struct {
	began, ended uint64 // counts of the [WriterScanner]
	server       server
	assigned     int64 // an assigned id, one of the last, read before pg_locks
	took         time.Duration

	Writers []Writer // sorted

	// xids are the transaction ids, by Writer.Transaction, of writers that have one and that the scan before has found as
	// well. Most of the others end soon, and then reads that wait for them would be repeated.
	xids map[string]int64
}

// has reports whether a scan has found a writer; l may be nil.
func (l *WriterScan) has(h Writer) bool {
	if l == nil {
		return false
	}
	_, found := slices.BinarySearchFunc(l.Writers, h, byTransaction)
	return found
}

// numbers returns the transaction ids of some writers. It returns nil if one of them is unknown.
func (l *WriterScan) numbers(writers []Writer) []int64 {
	var xids []int64
	for _, h := range writers {
		xid, has := l.xids[h.Transaction]
		if !has {
			return nil
		}
		xids = append(xids, xid)
	}

	return xids
}

// BeganAfter reports whether the scan began after a tick of [WriterScanner.Tick].
func (l *WriterScan) BeganAfter(tick uint64) bool { return l.began >= tick }

// HasAny reports whether a transaction of an earlier scan is in this one. Every prepared one counts: a restart of the
// server gives it another name.
func (l *WriterScan) HasAny(earlier *WriterScan) bool {
	return slices.ContainsFunc(l.Writers, func(h Writer) bool {
		return h.prepared() || earlier.server == l.server && slices.Contains(earlier.Writers, h)
	})
}

// remaining returns the earlier writers that still hold the lock. PREPARE TRANSACTION may change the name of a
// transaction: if an unprepared one has gone, any prepared one may be the same.
func (l *WriterScan) remaining(before []Writer) []Writer {
	left := make([]Writer, 0, len(before))
	renamed := false
	for _, b := range before {
		i, ok := slices.BinarySearchFunc(l.Writers, b, byTransaction)
		if ok {
			left = append(left, l.Writers[i])
		}
		renamed = renamed || !ok && !b.prepared()
	}

	if renamed {
		for _, h := range l.Writers {
			if h.prepared() {
				left = append(left, h)
			}
		}

		slices.SortFunc(left, byTransaction)
		left = slices.Compact(left)
	}

	return left
}

// remainingWriters are the writers of a group after a scan.
type remainingWriters struct {
	writers []Writer
	xids    []int64
	changed bool
}

// remain applies the scan to earlier writers.
func (l *WriterScan) remain(before []Writer) remainingWriters {
	writers := l.remaining(before)
	same := slices.EqualFunc(writers, before, func(a, b Writer) bool { return a.Transaction == b.Transaction })
	return remainingWriters{writers, l.numbers(writers), !same}
}

// WriterScanner finds transactions that may still write events, for any number of readers. It is safe for concurrent
// use.
type WriterScanner struct {
	count   atomic.Uint64 // numbers the begins and ends of reads and scans
	object  string        // SQL: the object of scans
	running chan struct{} // held during a scan
	last    *WriterScan
	life    string    // server life of the last scan
	next    time.Time // no scan before this time
}

// NewWriterScanner returns a scanner for the readers of one outbox_events, in one database.
func NewWriterScanner() *WriterScanner {
	return &WriterScanner{object: theSequence, running: make(chan struct{}, 1)}
}

// Scan scans once, on a connection whose search_path has outbox_events and which is in no transaction. If it is too
// early for another scan, it returns the last one: [Reader.Apply] decides what an old scan proves. An error concerns
// only this connection.
//
// life names the server life for which the connection was verified; empty without a verification. Scan never returns a
// scan of another server life.
func (w *WriterScanner) Scan(ctx context.Context, conn session.Querier, life string) (*WriterScan, error) {
	select {
	case w.running <- struct{}{}:
		defer func() { <-w.running }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	begin := time.Now()
	if w.last != nil && w.life == life && begin.Before(w.next) {
		return w.last, nil
	}

	l, err := w.scan(ctx, conn)
	took := time.Since(begin)
	w.next = begin.Add(min(max(scanEvery, scanShare*took), scanAtMost))

	if err != nil {
		return nil, fmt.Errorf("find open writers: %w", err)
	}

	l.took = took
	w.last = l
	w.life = life

	return l, nil
}

// Tick returns the next count of reads and scans.
func (w *WriterScanner) Tick() uint64 { return w.count.Add(1) }

func (w *WriterScanner) scan(ctx context.Context, conn session.Querier) (*WriterScan, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, scanTimeout, fmt.Errorf("the database did not answer within %v", scanTimeout))
	defer cancel()

	l := &WriterScan{began: w.count.Add(1), xids: make(map[string]int64)}
	if err := conn.QueryRow(ctx, sqlLast).Scan(&l.assigned); err != nil {
		return nil, err
	}

	rows, err := conn.Query(ctx, strings.Replace(sqlWriters, "to_regclass(%s)", "to_regclass("+w.object+")", 1))
	if err != nil {
		return nil, err
	}

	var sequence *int64
	var started time.Time
	var transaction, odd *string
	var pid *int32
	var xid *int64
	_, err = pgx.ForEachRow(rows, []any{&sequence, &started, &transaction, &pid, &odd, &xid}, func() error {
		switch {
		case sequence == nil:
			return errNoSequence
		case odd != nil:
			return fmt.Errorf("%w: %s", outboxsql.ErrStream, *odd)
		}

		l.server = server{*sequence, started.UnixMicro()}

		if transaction != nil {
			h := Writer{Transaction: *transaction}
			if pid != nil {
				h.PID = *pid
			}

			l.Writers = append(l.Writers, h)

			if xid != nil && w.last.has(h) {
				l.xids[h.Transaction] = *xid
			}
		}

		return nil
	})
	if err != nil {
		return nil, err
	}

	slices.SortFunc(l.Writers, byTransaction)
	l.Writers = slices.CompactFunc(l.Writers, func(a, b Writer) bool { return a.Transaction == b.Transaction })
	l.ended = w.count.Add(1)

	return l, nil
}
