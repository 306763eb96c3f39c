package tail

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

const (
	// readTimeout bounds one read. It is above the statement_timeout, so that the server gives up
	// first.
	readTimeout = 15 * time.Second
	// rowGuess is the assumed size of a row before any was read, in bytes.
	rowGuess = 16 << 10
	// ahead is how far a read looks ahead after a full one, in multiples of the limit.
	ahead = 8
)

var (
	// ErrOrder reports rows that cannot be: out of the order of their ids, or with ids that were
	// not requested. They are not delivered.
	ErrOrder = errors.New("events out of order")
	// errFailed says that a reader was used after an error.
	errFailed = errors.New("the reader has failed before")
)

// Query is one read.
type Query struct {
	// Limit is the number of events, 1 at least.
	Limit int
	// Rows is the number of rows that may be read for Limit events, where some are of types to
	// skip; less than Limit means Limit. No more rows are read than the last read has made likely
	// to be needed.
	Rows int
	// Bytes bounds the size of the kept rows, except the first; 0 means no bound. Up to about
	// twice as much is read.
	Bytes int
	// EventBytes bounds the payload and headers of one event: a larger one is refused unread. 0 is no
	// bound.
	EventBytes int
	// Skip are event types of which only the ids are read: their rows count as seen, and are not
	// returned.
	Skip []string
	// Shard are the events that are wanted: of those of other shards only the ids are read, as of types to skip. The zero
	// value is all.
	Shard Shard
	// Stay reads the gaps alone, and nothing above the head.
	Stay bool
	// Assigned is an id up to which the sequence has assigned all: a read that stays below need not ask. 0 is always
	// right.
	Assigned int64
	// Passed says that another reader has passed all ids up to Assigned, which is not below the head. The read ends there, ids that it
	// does not find are dead, and the head moves to Assigned. Either all reads of a reader set it or none.
	Passed bool
}

// Shard is a part of the events: those of its aggregates, see [outboxsql.Hash].
type Shard struct {
	// Part is its number, from 0 on.
	Part int
	// Of is the number of shards; 0 is none.
	Of int
}

// Batch is the result of a read.
type Batch struct {
	// Events are the wanted events, by id. Attempt, Replay and Destination are not set. The caller
	// may keep them; those of a batch share memory.
	Events []delivery.Event
	// Delays is nil if no event is delayed. Otherwise it has for each event how long it must still
	// wait, at most 100 years; negative since it became available, 0 if it was not delayed.
	Delays []time.Duration
	// Hashes has the hash of each event, from which follows its shard; nil if all events were read.
	Hashes []int64
	// Refused has, by id, why events were not read that must not be delivered; nil if there is none.
	Refused map[int64]error
	// Seen is the number of rows, including those of types to skip.
	Seen int
	// Bytes is the size of the rows that were kept.
	Bytes int
	// Full reports that there may be more, and that another read pays at once.
	Full bool
	// Last is the highest id among the rows, 0 if there are none. It may be in a gap; [Reader.Head]
	// is the id up to which all ids are known.
	Last int64
}

// Reader reads outbox_events in the order of the ids, and misses none: ids below its head that it
// has not seen are gaps, and every read includes them until the reader knows that no transaction
// can fill them any more, nor attach a partition that has them. It passes no id that the sequence has not assigned. DESIGN.md has the proof. A Reader holds no connection, and one goroutine
// uses it. After an error neither the reader nor the connection can be used again: the caller
// creates new ones, and reads the stored position.
type Reader struct {
	witnesses *Witnesses
	head      int64
	gaps      gaps
	reads     uint64
	server    server // server of the last look
	began     uint64 // begin of the last look
	looked    time.Time
	parts     bool // the table was partitioned at the last look
	names     wire.Names
	row       int     // assumed size of a row, in bytes
	rare      float64 // assumed number of rows read per event, at least 1
	full      bool    // the last read was full
	expected  int     // expected events of the next read: as many as in the last
	failed    bool
	begun     *begun // the read that was begun and not taken; nil if there is none

	statements map[shape]string
}

// begun is a read that runs, or has run, in a goroutine of its own.
type begun struct {
	pass pass
	at   time.Time
	done chan struct{} // closed when the connection is free again, and err is set
	err  error
}

// NewReader returns a reader that continues after head, and with the open ids below: ids that were
// in flight and invisible ids. w numbers its reads, and makes the looks for [Reader.Looked].
func NewReader(head int64, open Ranges, w *Witnesses) *Reader {
	r := &Reader{witnesses: w, head: head, row: rowGuess, rare: 1}
	below := slices.Clone(open)
	below.Remove(Range{head + 1, math.MaxInt64}) // ids above head are read anyway
	r.gaps.add(below, &mark{seen: w.count.Add(1), since: time.Now()})
	return r
}

// Head returns the highest id that was seen.
func (r *Reader) Head() int64 { return r.head }

// Gaps returns the ids up to the head that were not seen and may still appear.
func (r *Reader) Gaps() Ranges {
	all := make(Ranges, 0, len(r.gaps.all))
	for _, g := range r.gaps.all {
		if n := len(all); n > 0 && all[n-1].To == g.From-1 {
			all[n-1].To = g.To // found by different reads
			continue
		}
		all = append(all, g.Range)
	}
	return all
}

// Seen is what another reader of the same table has seen: all ids above From and up to Head, except for its gaps.
type Seen struct {
	From, Head int64
	Gaps       Ranges
}

// Follow moves the head to that of another reader of the same server in the same life, if the other reader has seen all ids above this
// head. It reports whether the head has moved. Gaps above From that the other reader no longer has are filled or dead, and end. Its gaps
// above this head become gaps of this reader, with new witnesses.
func (r *Reader) Follow(s Seen) bool {
	if s.From > r.head || s.Head <= r.head {
		return false
	}
	r.Drop()
	r.gaps.keep(s.From, s.Gaps)
	above := slices.Clone(s.Gaps)
	above.Remove(Range{math.MinInt64, r.head}) // this reader has seen the ids below, or has them as gaps
	r.gaps.add(above, &mark{seen: r.witnesses.count.Add(1), since: time.Now()})
	r.head, r.full = s.Head, false
	return true
}

// NextLook returns when a look is worth its cost for the current gaps; false if none is. A look
// must be followed by a read, which is its purpose.
func (r *Reader) NextLook() (at time.Time, ok bool) { return r.gaps.next(r.looked, r.reads) }

// NeedsLook reports whether the time of [Reader.NextLook] has come.
func (r *Reader) NeedsLook(now time.Time) bool {
	at, ok := r.NextLook()
	return ok && !now.Before(at)
}

// Looked applies a look of the reader's witnesses, however old. It drops a read that was begun: which ids a read may find dead
// must be known when it begins.
func (r *Reader) Looked(l *Look) {
	r.Drop()
	r.looked = time.Now()
	if l.began <= r.began {
		return
	}
	if l.server != r.server {
		r.gaps.forget()
	}
	r.began, r.server, r.parts = l.began, l.server, l.partitioned
	r.gaps.looked(l)
}

// GapStats are the figures of a reader's gaps.
type GapStats struct {
	// Ranges and IDs are the numbers of ranges and ids.
	Ranges int
	IDs    int64
	// Oldest is the age of the oldest gap, in this process.
	Oldest time.Duration
	// PIDs are the server processes that may fill the oldest gap, as of the last look; 0 stands for
	// a prepared transaction.
	PIDs []int32
}

// GapStats returns the current figures of the gaps.
func (r *Reader) GapStats() GapStats {
	s := GapStats{Ranges: len(r.gaps.all), IDs: r.Gaps().IDs()}
	if len(r.gaps.marks) > 0 { // in the order in which they were seen
		oldest := r.gaps.marks[0]
		s.Oldest = time.Since(oldest.since)
		for _, h := range oldest.holders {
			s.PIDs = append(s.PIDs, h.PID)
		}
	}
	return s
}

// Read reads once: one statement, in no transaction, on a connection of store.Connector. It returns
// when the server has answered, even if ctx ends before: the connection is worth more than the
// moment. It drops a read that was begun.
func (r *Reader) Read(ctx context.Context, conn *session.Conn, q Query) (Batch, error) {
	if b := r.begun; b != nil {
		if r.Wait(); b.err != nil {
			return r.Take()
		}
		r.begun = nil
	}
	if r.failed {
		return Batch{}, errFailed
	}
	p := r.pass(q)
	return r.took(&p, p.read(ctx, conn, &r.gaps, r.statement))
}

// Begin begins a read, and does not wait for it. The connection belongs to the read until [Reader.Wait] returns; head and gaps
// stay as they are until [Reader.Take] has returned its result. No read may have been begun and not taken.
func (r *Reader) Begin(ctx context.Context, conn *session.Conn, q Query) {
	b := &begun{pass: r.pass(q), at: time.Now(), done: make(chan struct{})}
	r.begun = b
	go func() {
		defer close(b.done)
		b.err = b.pass.read(ctx, conn, &r.gaps, r.statement)
	}()
}

// Begun reports whether a read was begun and not taken, and when.
func (r *Reader) Begun() (at time.Time, ok bool) {
	if r.begun == nil {
		return time.Time{}, false
	}
	return r.begun.at, true
}

// Wait waits until the connection of a read that was begun is free again. Without one it returns at once.
func (r *Reader) Wait() {
	if r.begun != nil {
		<-r.begun.done
	}
}

// Drop forgets a read that was begun, once its connection is free again: it is as if it had not been. Its error remains.
func (r *Reader) Drop() {
	r.Wait()
	r.failed = r.failed || r.begun != nil && r.begun.err != nil
	r.begun = nil
}

// Take returns the result of the read that was begun, as Read does.
func (r *Reader) Take() (Batch, error) {
	r.Wait()
	b := r.begun
	r.begun = nil
	if b == nil || r.failed {
		return Batch{}, errFailed
	}
	return r.took(&b.pass, b.err)
}

// pass returns a read that begins now.
func (r *Reader) pass(q Query) pass {
	r.reads++
	p := pass{query: q, began: r.witnesses.count.Add(1), gaps: r.gaps.all, head: r.head, last: math.MinInt64}
	p.decoder.Names = &r.names
	p.sure = r.parts && r.gaps.ends(p.began)
	p.limit, p.upto = r.bounds(q)
	p.batch.Events = make([]delivery.Event, 0, min(r.expected, p.limit))
	return p
}

// took applies a read that has ended.
func (r *Reader) took(p *pass, err error) (Batch, error) {
	if err != nil {
		r.failed = true
		return Batch{}, fmt.Errorf("read events: %w", err)
	}
	r.advance(p)
	return p.batch, nil
}

// statement returns the statement of a shape, which is put together once.
func (r *Reader) statement(s shape) string {
	sql, ok := r.statements[s]
	if !ok {
		sql = s.statement()
		if r.statements == nil {
			r.statements = make(map[shape]string)
		}
		r.statements[s] = sql
	}
	return sql
}

// bounds returns how many rows to read, and up to which id. A read after a full one looks ahead no
// further than necessary, which skips most of a partitioned table. The next read has no such bound,
// and finds the events beyond.
func (r *Reader) bounds(q Query) (limit int, upto int64) {
	limit, upto = max(1, q.Limit), math.MaxInt64
	if (len(q.Skip) > 0 || q.Shard.Of > 1) && q.Rows > limit {
		limit = int(min(float64(q.Rows), max(1, float64(limit)*r.rare)))
	}
	if q.Bytes > 0 {
		limit = min(limit, max(1, 2*q.Bytes/r.row))
	}
	if r.full && r.head < math.MaxInt64-ahead*int64(limit) {
		upto = r.head + ahead*int64(limit)
	}
	switch {
	case q.Stay:
		upto = r.head
	case q.Passed:
		upto = min(upto, q.Assigned)
	}
	return limit, upto
}

// advance applies the result of a read. It cannot fail.
func (r *Reader) advance(p *pass) {
	cut := p.cut || p.rows >= p.limit
	horizon := int64(math.MaxInt64)
	if cut {
		horizon = p.last
	}
	switch {
	case p.query.Passed:
		if !cut {
			p.head = p.upto
		}
		r.gaps.end(horizon)
	default:
		r.gaps.read(p.hits, horizon, p.began, p.away)
	}
	if len(p.missing) > 0 && !p.query.Passed {
		r.gaps.add(p.missing, &mark{seen: r.witnesses.count.Add(1), since: time.Now(), read: r.reads})
	}
	r.head, r.expected = p.head, len(p.batch.Events)
	r.full = cut
	if p.rows > 0 {
		r.row = max(1, p.size/p.rows, r.row/2)
		r.rare = float64(p.batch.Seen) / float64(max(1, len(p.batch.Events)))
		p.batch.Last = p.last
	}
	p.batch.Full = cut || p.upto < math.MaxInt64 && !p.query.Stay && (!p.query.Passed || p.upto < p.query.Assigned)
}
