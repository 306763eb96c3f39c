package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/wire"
)

const (
	// readTimeout bounds one read. It is above what the server gives a statement, so
	// that the server gives up first.
	readTimeout = 15 * time.Second
	// rowGuess is how many bytes a row is taken to have before any was read.
	rowGuess = 16 << 10
	// ahead is how many times the limit a read looks ahead when the last one was full.
	ahead = 8
)

var (
	// ErrOrder says that rows came which could not: not in the order of their ids, or of
	// ids that were not asked for. What has come of them is not delivered.
	ErrOrder = errors.New("events out of order")
	// errFailed says that a reader was used after an error.
	errFailed = errors.New("the reader has failed before")
)

// Query says what to read.
type Query struct {
	// Limit is the number of events, 1 at least.
	Limit int
	// Rows is the number of rows that may be read for that, where some are of types to
	// skip; less than Limit is Limit. No more are read than the last read has made
	// likely to be needed.
	Rows int
	// Bytes bounds what is kept of them, but for the first; 0 is no bound. Up to about
	// twice as much is read.
	Bytes int
	// Skip are the event types of which only the id is wanted, to know that it was
	// there: their rows are seen, and no more of them is read.
	Skip []string
}

// Batch is what a read has found.
type Batch struct {
	// Events are those that are wanted, by their ids. Attempt, Replay and Destination are
	// not set. The caller may keep them; those of a batch share memory.
	Events []delivery.Event
	// Delays are nil where no event is delayed. Else each event has here how long it has
	// to wait still, 0 for not at all, 100 years at most.
	Delays []time.Duration
	// Seen is the number of rows, with those of types to skip.
	Seen int
	// Bytes is the size of the rows that are kept.
	Bytes int
	// Full says that there may be more, and that the next read is worth while at once.
	Full bool
	// Last is the highest id among the rows, 0 where there are none. It may be in a gap;
	// how far all is known is [Reader.Head].
	Last int64
}

// Reader reads outbox_events in the order of the ids, and passes nothing over: what it
// has not seen below its head are gaps, and it looks into them with every read until it
// knows that nobody can fill them any more. DESIGN.md has the proof. It holds no connection,
// and one goroutine uses it. After an error it is of no more use, nor is the connection:
// whoever has them makes others, and reads the position that is stored.
type Reader struct {
	witnesses *Witnesses
	head      int64
	gaps      gaps
	reads     uint64
	server    server // of the last look
	began     uint64 // of the last look
	looked    time.Time
	names     wire.Names
	hits      []int64 // reused
	row       int     // bytes that a row is taken to have
	rare      float64 // rows that are taken to be read for an event, 1 at least
	full      bool    // the last read was
	expected  int     // events of the next read: as many as of the last
	failed    bool
}

// NewReader returns a reader that goes on after head, and with what is open below:
// ids that were in flight and ids that nobody had seen. w numbers what it does, and is
// where the looks for [Reader.Looked] come from.
func NewReader(head int64, open Ranges, w *Witnesses) *Reader {
	r := &Reader{witnesses: w, head: head, row: rowGuess, rare: 1}
	below := slices.Clone(open)
	below.Remove(Range{head + 1, math.MaxInt64}) // it is read anyway
	r.gaps.add(below, &mark{seen: w.count.Add(1), since: time.Now()})
	return r
}

// Head returns the highest id that was seen.
func (r *Reader) Head() int64 { return r.head }

// Gaps returns the ids up to the head that were not seen and may still come.
func (r *Reader) Gaps() Ranges {
	all := make(Ranges, 0, len(r.gaps.all))
	for _, g := range r.gaps.all {
		if n := len(all); n > 0 && all[n-1].To == g.From-1 {
			all[n-1].To = g.To // noticed by different reads
			continue
		}
		all = append(all, g.Range)
	}
	return all
}

// NextLook returns when a look is worth its price for the gaps that there are; false
// where none is. A look is followed by a read, which is what it is for.
func (r *Reader) NextLook() (at time.Time, ok bool) { return r.gaps.next(r.looked, r.reads) }

// NeedsLook reports whether the time of [Reader.NextLook] has come.
func (r *Reader) NeedsLook(now time.Time) bool {
	at, ok := r.NextLook()
	return ok && !now.Before(at)
}

// Looked takes a look of the reader's witnesses, however old, between two reads.
func (r *Reader) Looked(l *Look) {
	r.looked = time.Now()
	if l.began <= r.began {
		return
	}
	if l.server != r.server {
		r.gaps.forget()
	}
	r.began, r.server = l.began, l.server
	r.gaps.looked(l)
}

// GapStats tell of the gaps of a reader.
type GapStats struct {
	// Ranges and IDs are how many there are.
	Ranges int
	IDs    int64
	// Oldest is the age of the oldest one, in this process.
	Oldest time.Duration
	// PIDs are the processes of the server that may fill the oldest, as of the last look;
	// 0 stands for a prepared transaction.
	PIDs []int32
}

// GapStats returns what is known of the gaps now.
func (r *Reader) GapStats() GapStats {
	s := GapStats{Ranges: len(r.gaps.all), IDs: r.Gaps().IDs()}
	if len(r.gaps.marks) > 0 { // in the order in which they were seen
		oldest := r.gaps.marks[0]
		s.Oldest = time.Since(oldest.since)
		for _, h := range oldest.holders {
			s.PIDs = append(s.PIDs, h.pid)
		}
	}
	return s
}

// Read reads once: one statement, in no transaction, on a connection of store.Connector.
// It returns when the server has answered, also where ctx ends before: the connection is
// worth more than the moment.
func (r *Reader) Read(ctx context.Context, conn *pgx.Conn, q Query) (Batch, error) {
	if r.failed {
		return Batch{}, errFailed
	}
	r.reads++
	p := pass{query: q, began: r.witnesses.count.Add(1), gaps: r.gaps.all, hits: r.hits[:0], head: r.head, last: math.MinInt64}
	p.decoder.names = &r.names
	p.limit, p.upto = r.bounds(q)
	p.batch.Events = make([]delivery.Event, 0, min(r.expected, p.limit))
	if err := p.run(ctx, conn, &r.gaps); err != nil {
		r.failed = true
		return Batch{}, fmt.Errorf("read events: %w", err)
	}
	r.advance(&p)
	return p.batch, nil
}

// bounds returns how many rows to read, and up to which id. A read behind a full one looks
// ahead no further than it needs to: so much of a partitioned table is left alone. What
// lies behind is found by the read after it, which has no such bound.
func (r *Reader) bounds(q Query) (limit int, upto int64) {
	limit, upto = max(1, q.Limit), math.MaxInt64
	if len(q.Skip) > 0 && q.Rows > limit {
		limit = int(min(float64(q.Rows), max(1, float64(limit)*r.rare)))
	}
	if q.Bytes > 0 {
		limit = min(limit, max(1, 2*q.Bytes/r.row))
	}
	if r.full && r.head < math.MaxInt64-ahead*int64(limit) {
		upto = r.head + ahead*int64(limit)
	}
	return limit, upto
}

// advance takes over what a read has found. It cannot fail.
func (r *Reader) advance(p *pass) {
	cut := p.cut || p.rows >= p.limit
	horizon := int64(math.MaxInt64)
	if cut {
		horizon = p.last
	}
	r.gaps.read(p.hits, horizon, p.began)
	if len(p.missing) > 0 {
		r.gaps.add(p.missing, &mark{seen: r.witnesses.count.Add(1), since: time.Now(), read: r.reads})
	}
	r.head, r.hits, r.expected = p.head, p.hits, len(p.batch.Events)
	r.full = cut
	if p.rows > 0 {
		r.row = max(1, p.size/p.rows, r.row/2)
		r.rare = float64(p.batch.Seen) / float64(max(1, len(p.batch.Events)))
		p.batch.Last = p.last
	}
	p.batch.Full = cut || p.upto < math.MaxInt64
}
