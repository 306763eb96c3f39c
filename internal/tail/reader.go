package tail

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

const (
	// readTimeout bounds one read. It exceeds the statement_timeout, so that the server gives up first.
	readTimeout = 15 * time.Second
	// ahead is how far a read after a full one may reach, in multiples of the limit.
	ahead = 8
	// searchEvery is how often all gaps are read, although they wait: a person may insert an event with an id in a gap.
	// searchShare bounds the share of time that these reads take to 1/searchShare.
	searchEvery = 10 * time.Second
	searchShare = 20
	// slowRead is how much more time than a scan a read takes that probably walks over uncommitted events above the head.
	slowRead = 20 * time.Millisecond
)

var (
	// ErrOrder reports impossible rows: out of the order of their ids, or with ids that were not requested. They are
	// not delivered.
	ErrOrder = errors.New("events out of order")
	// errFailed reports that a reader was used after an error.
	errFailed = errors.New("the reader was used after an error")
)

// Query is one read.
type Query struct {
	// Limit is the number of events, at least 1.
	Limit int
	// Rows bounds the rows that are read for Limit events, where some are of types to skip. Less than Limit means
	// Limit. A read takes no more rows than the ratio of the last read suggests.
	Rows int
	// Bytes bounds the size of the kept rows, except the first; 0 means no bound. A read may receive about twice as
	// much.
	Bytes int
	// EventBytes bounds the payload and headers of one event: a larger one is refused unread. 0 means no bound.
	EventBytes int
	// Skip are event types whose ids alone are read: their rows count as seen, and are not returned.
	Skip []string
	// Shard selects the wanted events. Of other shards only the ids are read, as of types to skip. The zero value
	// selects all.
	Shard Shard
	// Reach limits the read to a part of the table.
	Reach Reach
	// Assigned is an id up to which the sequence has assigned all ids: a read below it need not ask. 0 is always right.
	Assigned int64
	// Passed reports that another reader has passed all ids up to Assigned, which is not below the head. The read ends
	// there, ids that it does not find are dead, and the head moves to Assigned. Either all reads of a reader set it or
	// none.
	Passed bool
}

// Reach is the part of the table that a read covers.
type Reach int

// The parts of the table that a read covers.
const (
	ReachAll      Reach = iota // the gaps, and ids above the head
	ReachGaps                  // the gaps
	ReachFirstGap              // the first gap, and if it is clear, all clear gaps up to the first one that is not
)

// Shard selects the events of some aggregates: see [pgschema.Hash].
type Shard struct {
	// Number is the number of the shard, from 0.
	Number int
	// Of is the number of shards; 0 selects all events.
	Of int
}

// Batch is the result of a read.
type Batch struct {
	// Events are the wanted events, by id. Attempt, Replay and Destination are not set. The caller may keep them; the
	// events of a batch share memory.
	Events []delivery.Event
	// Delays is nil if no event is delayed. Otherwise it has for each event how long it must still wait, at most 100
	// years. It is negative for the time since it became available, and 0 for an event that was not delayed.
	Delays []time.Duration
	// Hashes has the hash of each event, which determines its shard; nil if all events were read.
	Hashes []int64
	// Refused has, by id, why events were not read and must not be delivered; nil if all were read.
	Refused map[int64]error
	// Clock is the database's clock at the read.
	Clock wire.Clock
	// Seen is the number of rows, including rows of types to skip.
	Seen int
	// Bytes is the size of the kept rows.
	Bytes int
	// Full reports that there may be more, and that another read pays at once.
	Full bool
	// Last is the highest id among the rows, 0 without rows. It may be in a gap. All ids up to [Reader.Head] are known.
	Last int64
}

// Reader reads outbox_events in the order of the ids, and misses none. Ids below its head that it has not seen are
// gaps. Every read includes the gaps until the reader knows that no transaction can fill them, nor attach a partition
// that has them. It passes no id that the sequence has not assigned. The package comment has the proof.
//
// A Reader holds no connection, and one goroutine uses it. After an error neither the reader nor the connection can be
// used again: the caller creates new ones, and reads the stored position.
type Reader struct {
	writers      *WriterScanner
	head         int64
	gaps         gaps
	reads        uint64
	server       server // server of the last scan
	began        uint64 // begin of the last scan
	scannedAt    time.Time
	scanTook     time.Duration // the time of the last scan
	names        wire.Names
	rowSize      wire.RowSize
	rowsPerEvent float64   // assumed number of rows read per event, at least 1
	full         bool      // the last read was full
	expected     int       // expected events of the next read: as many as in the last
	searchAt     time.Time // the next read of all gaps
	failed       bool
	begun        *begun // the read that was begun and not taken, or nil

	statements map[shape]string
}

// begun is a read that runs, or has run, in a goroutine.
type begun struct {
	fetch fetch
	at    time.Time
	done  chan struct{} // closed when the connection is free again, and err is set
	err   error
}

// NewReader returns a reader that continues after head, and with the open ids below: ids that were in flight and
// invisible ids. w numbers its reads, and makes the scans for [Reader.Apply].
func NewReader(head int64, open idset.Set, w *WriterScanner) *Reader {
	r := &Reader{writers: w, head: head, rowsPerEvent: 1}
	below := slices.Clone(open)
	below.Remove(idset.Range{From: head + 1, To: math.MaxInt64}) // ids above head are read anyway
	r.gaps.add(below, &gapGroup{found: w.count.Add(1), since: time.Now()})
	return r
}

// After returns a reader that takes the place of r after an error, and continues after head with the open ids below. Its
// reads are smaller: the failed one may have been too large to end in time.
func (r *Reader) After(head int64, open idset.Set) *Reader {
	n := NewReader(head, open, r.writers)
	n.rowSize = r.rowSize
	n.rowSize.Failed()
	return n
}

// Head returns the highest id that was seen.
func (r *Reader) Head() int64 { return r.head }

// Watermark returns the ids that were seen, or can no longer appear.
func (r *Reader) Watermark() idset.Watermark { return idset.Watermark{Head: r.head, Open: r.Gaps()} }

// Gaps returns the ids up to the head that were not seen and may still appear.
func (r *Reader) Gaps() idset.Set {
	all := make(idset.Set, 0, len(r.gaps.all))
	for _, g := range r.gaps.all {
		if n := len(all); n > 0 && all[n-1].To == g.From-1 {
			all[n-1].To = g.To // adjacent gaps that different reads found
			continue
		}
		all = append(all, g.Range)
	}

	return all
}

// Seen has the ids that another reader of the same table has seen: all ids above From and up to Head, except its gaps.
type Seen struct {
	From, Head int64
	Gaps       idset.Set
}

// Follow moves the head to the head of another reader, if that reader has seen all ids above this head. Both must read
// the same server in the same life. It reports whether the head has moved. Gaps above From that the other reader no
// longer has are filled or dead, and end. Its gaps above this head become new gaps of this reader, which need a new
// scan.
func (r *Reader) Follow(s Seen) bool {
	if s.From > r.head || s.Head <= r.head {
		return false
	}

	r.Drop()
	r.gaps.keep(s.From, s.Gaps)
	above := slices.Clone(s.Gaps)
	above.Remove(idset.Range{From: math.MinInt64, To: r.head}) // this reader has seen the ids below, or has them as gaps
	r.gaps.add(above, &gapGroup{found: r.writers.count.Add(1), since: time.Now()})
	r.head = s.Head
	r.full = false

	return true
}

// FirstGap returns the lowest id in a gap; math.MaxInt64 without gaps.
func (r *Reader) FirstGap() int64 {
	if len(r.gaps.all) == 0 {
		return math.MaxInt64
	}
	return r.gaps.all[0].From
}

// NextScan returns when a scan is worth its cost for the current gaps; false without such gaps. A scan is useful only
// if a read follows.
func (r *Reader) NextScan() (at time.Time, ok bool) {
	at, ok = r.gaps.next(r.scannedAt, r.reads)
	if again := r.scannedAt.Add(scanAtLeast); r.gaps.findAbove && (!ok || again.Before(at)) {
		return again, true
	}
	return at, ok
}

// NeedsScan reports whether the time of [Reader.NextScan] has come.
func (r *Reader) NeedsScan(now time.Time) bool {
	at, ok := r.NextScan()
	return ok && !now.Before(at)
}

// Apply applies a scan of the reader's WriterScanner, however old. It drops a begun read: the ids that a read may
// declare dead must be known when it begins.
func (r *Reader) Apply(l *WriterScan) {
	r.Drop()
	r.scannedAt = time.Now()
	if l.began <= r.began {
		return
	}
	if l.server != r.server {
		r.gaps.forget()
	}

	r.began = l.began
	r.server = l.server
	r.scanTook = l.took
	r.gaps.apply(l)
}

// GapStats are the figures of a reader's gaps.
type GapStats struct {
	// Ranges and IDs are the numbers of ranges and ids.
	Ranges int
	IDs    int64
	// Oldest is the age of the oldest gap in this process.
	Oldest time.Duration
	// PIDs are the server processes that may fill the oldest gap, as of the last scan; 0 stands for a prepared
	// transaction.
	PIDs []int32
}

// GapStats returns the current figures of the gaps.
func (r *Reader) GapStats() GapStats {
	s := GapStats{Ranges: len(r.gaps.all), IDs: r.Gaps().IDs()}
	if len(r.gaps.groups) > 0 { // in the order in which they were found
		oldest := r.gaps.groups[0]
		s.Oldest = time.Since(oldest.since)
		for _, h := range oldest.writers {
			s.PIDs = append(s.PIDs, h.PID)
		}
	}

	return s
}

// Read reads once: one statement, in no transaction, on a connection of store.Connector. It returns when the server has
// answered, even if ctx ends first: an interruption would cost the connection. It drops a begun read.
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

	p := r.newFetch(q)
	return r.finish(&p, p.read(ctx, conn, &r.gaps, r.statement))
}

// Begin begins a read, and does not wait for it. The connection belongs to the read until [Reader.Wait] returns. Head
// and gaps do not change until [Reader.Take] has returned its result. No other begun read may be waiting for Take.
func (r *Reader) Begin(ctx context.Context, conn *session.Conn, q Query) {
	b := &begun{fetch: r.newFetch(q), at: time.Now(), done: make(chan struct{})}
	r.begun = b
	go func() {
		defer close(b.done)
		b.err = b.fetch.read(ctx, conn, &r.gaps, r.statement)
	}()
}

// Begun reports whether a read was begun and not taken, and when.
func (r *Reader) Begun() (at time.Time, ok bool) {
	if r.begun == nil {
		return time.Time{}, false
	}
	return r.begun.at, true
}

// Wait waits until the connection of a begun read is free again. Without one it returns at once.
func (r *Reader) Wait() {
	if r.begun != nil {
		<-r.begun.done
	}
}

// Drop discards a begun read, once its connection is free again, as if it had never begun. Its error remains.
func (r *Reader) Drop() {
	r.Wait()
	r.failed = r.failed || r.begun != nil && r.begun.err != nil
	r.begun = nil
}

// Take returns the result of the begun read, as Read does.
func (r *Reader) Take() (Batch, error) {
	r.Wait()
	b := r.begun
	r.begun = nil
	if b == nil || r.failed {
		return Batch{}, errFailed
	}

	return r.finish(&b.fetch, b.err)
}

// newFetch returns a read that begins now.
func (r *Reader) newFetch(q Query) fetch {
	r.reads++
	p := fetch{query: q, began: r.writers.count.Add(1), every: r.gaps.all, head: r.head, last: math.MinInt64}
	p.decoder.Names = &r.names
	p.holds = r.gaps.anyDead(p.began)

	if q.Reach == ReachFirstGap {
		p.every = p.every[:r.gaps.first(p.began)]
	}

	p.limit, p.upto = r.bounds(q)
	p.reachEvery()
	if !q.Passed && time.Now().Before(r.searchAt) {
		r.leaveWaiting(&p)
	}

	p.batch.Events = make([]delivery.Event, 0, min(r.expected, p.limit))
	return p
}

// leaveWaiting restricts a read to ids that do not wait for open transactions.
func (r *Reader) leaveWaiting(p *fetch) {
	if p.query.Reach == ReachFirstGap {
		if len(p.every) == 1 && p.every[0].waits() {
			p.gaps = nil
			p.xids = p.every[0].xids
			p.upto = p.every[0].From - 1
		}
		return
	}

	p.gaps, p.xids = r.gaps.toRead()
	if a := r.gaps.above; a.gapGroup != nil && a.To > r.head && a.waits() {
		p.above = a.To
		p.xids = append(p.xids, a.xids...)
	}
}

// searched records that a read has found all visible events of the gaps: those that it has left out have none.
func (r *Reader) searched(p *fetch) {
	if p.query.Reach != ReachFirstGap {
		for _, m := range r.gaps.groups {
			m.searched = p.began
		}
	}
	if p.xids == nil {
		r.searchAt = time.Now().Add(max(searchEvery, searchShare*p.took))
	}
}

// searchedAbove records a read of all visible events above the head. After a slow read, a scan finds the ids above the head
// that wait for open transactions, unless the last scan has found them.
func (r *Reader) searchedAbove(p *fetch) {
	a := r.gaps.above
	leftOut := p.above != r.head
	if a.gapGroup != nil {
		a.searched = p.began
	}

	reaches := a.gapGroup != nil && a.To > p.head
	helps := reaches && !leftOut && a.waits()
	r.gaps.findAbove = p.took > r.scanTook+slowRead && !helps
}

// finish applies a read that has ended.
func (r *Reader) finish(p *fetch, err error) (Batch, error) {
	if err != nil {
		r.failed = true
		return Batch{}, fmt.Errorf("read events: %w", err)
	}
	r.advance(p)
	return p.batch, nil
}

// statement returns the statement of a shape, and caches it.
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

// bounds returns how many rows to read, and up to which id. A read after a full one reaches only as far as necessary,
// which skips most of a partitioned table. The next read has no such bound, and finds the events beyond.
func (r *Reader) bounds(q Query) (limit int, upto int64) {
	limit = max(1, q.Limit)
	upto = math.MaxInt64
	if (len(q.Skip) > 0 || q.Shard.Of > 1) && q.Rows > limit {
		limit = int(min(float64(q.Rows), max(1, float64(limit)*r.rowsPerEvent)))
	}

	limit = r.rowSize.Rows(limit, 2*q.Bytes)
	if r.full && r.head < math.MaxInt64-ahead*int64(limit) {
		upto = r.head + ahead*int64(limit)
	}

	switch {
	case q.Reach != ReachAll:
		upto = r.head
	case q.Passed:
		upto = min(upto, q.Assigned)
	}

	return limit, upto
}

// advance applies the result of a read. It cannot fail.
func (r *Reader) advance(p *fetch) {
	cut := p.truncated || p.rows >= p.limit
	horizon := int64(math.MaxInt64)
	switch {
	case cut:
		horizon = p.last
	case p.query.Reach == ReachFirstGap:
		horizon = p.upto
	}

	switch {
	case p.query.Passed:
		if !cut {
			p.head = p.upto
		}
		r.gaps.end(horizon)
	default:
		r.gaps.read(p.hits, horizon, p.began, p.detached)
	}

	if !p.query.Passed && (!cut || p.last > r.head) {
		r.searched(p)
	}
	if p.ended {
		r.gaps.stopWaiting()
	}
	if !p.query.Passed && !cut && p.upto == math.MaxInt64 {
		r.searchedAbove(p)
	}

	if len(p.missing) > 0 && !p.query.Passed {
		r.gaps.add(p.missing, &gapGroup{found: r.writers.count.Add(1), since: time.Now(), read: r.reads})
	}

	r.head = p.head
	r.expected = len(p.batch.Events)
	r.full = cut

	if p.rows > 0 {
		r.rowSize.Saw(p.rows, p.size)
		r.rowsPerEvent = float64(p.batch.Seen) / float64(max(1, len(p.batch.Events)))
		p.batch.Last = p.last
	}

	isBounded := p.upto < math.MaxInt64 && p.query.Reach == ReachAll
	mayHaveMore := !p.query.Passed || p.upto < p.query.Assigned
	p.batch.Full = cut || isBounded && mayHaveMore
}
