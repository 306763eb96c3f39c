package deliveries

import (
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

const (
	// slowSearch is how long a full search may take before it is divided into spans, and a read of a span before the
	// next one is shorter.
	slowSearch = 100 * time.Millisecond
	// firstSpan is the length of the first span, and the shortest one. The span after longestSpan has all earlier rows.
	firstSpan   = time.Second
	longestSpan = 30 * 24 * time.Hour
	// shortestRest and longestRest bound the pause between two full searches, and restShare is its length relative to
	// the search.
	shortestRest = 20 * time.Millisecond
	longestRest  = time.Minute
	restShare    = 20
)

// DueSearch decides when a shard of a stream reads due rows, and which. Rows are read in the order of their times. A search
// begins where the last one ended: an old snapshot may keep millions of index entries of finished rows before that place.
// A few due rows may be there as well, if a slow transaction wrote them, or the server's clock was set back. A full search
// finds these rows. After a slow full search, the next ones are divided into spans of time, the latest one first. Rows
// after the cursor, and new events, are read between two spans.
type DueSearch struct {
	// FullAt is the time of the next full search.
	FullAt time.Time
	// Restored is the search for restored rows, which are not due.
	Restored RestoredSearch
	// Refused is set by the caller while the database refuses the reads.
	Refused bool

	at     time.Time // time of the next read
	nextAt time.Time // time of the next read after the cursor
	cursor Cursor    // the place where the last read after it ended
	ended  Cursor    // the place where the last search ended: a full search may end there

	begun  bool          // a search is in progress
	whole  bool          // it is full and not divided
	again  bool          // another full search must follow this one at once
	spent  time.Duration // time of the reads of a full search
	span   span          // the span of a divided search, if one is in progress
	length time.Duration // length of the next span; 0: full searches are not divided
	inSpan bool          // the last read was of the span
}

// span is a part of the rows before the cursor, by their times.
type span struct {
	open      bool
	low, high pgtype.Timestamptz
	cursor    Cursor // the next read of the span begins here
}

// newSpan returns the span that ends at a time.
func newSpan(high pgtype.Timestamptz, length time.Duration) span {
	low := BeforeAll().At
	if length < longestSpan && high.InfinityModifier == pgtype.Finite {
		low = pgtype.Timestamptz{Time: high.Time.Add(-length), Valid: true}
	}
	return span{open: true, low: low, high: high, cursor: Cursor{At: low, ID: math.MinInt64}}
}

// NewDueSearch returns a search that begins with the first row.
func NewDueSearch() DueSearch {
	return DueSearch{cursor: BeforeAll(), ended: BeforeAll()}
}

// At returns the time of the next read.
func (d *DueSearch) At() time.Time { return d.at }

// IsDue reports whether due rows must be read.
func (d *DueSearch) IsDue(now time.Time) bool { return !now.Before(d.at) }

// InSpan reports whether the last read was of rows before the cursor.
func (d *DueSearch) InSpan() bool { return d.inSpan }

// Resume makes the next read begin at a place.
func (d *DueSearch) Resume(at Cursor) { d.cursor = at }

// By moves the next read after the cursor forward to a time.
func (d *DueSearch) By(at time.Time) {
	if at.Before(d.nextAt) {
		d.nextAt = at
	}
	if at.Before(d.at) {
		d.at = at
	}
}

// Now begins a full search now. A divided one in progress ends first.
func (d *DueSearch) Now() {
	d.By(time.Time{})
	d.begun = false
	d.FullAt = time.Time{}
	d.again = d.span.open
}

// Rewind makes the next search begin at a time, or before.
func (d *DueSearch) Rewind(at time.Time) {
	if c := d.cursor.At; c.InfinityModifier == pgtype.Finite && at.Before(c.Time) {
		d.cursor = Cursor{At: pgtype.Timestamptz{Time: at, Valid: true}, ID: math.MinInt64}
		d.ended = d.cursor
	}
}

// Next returns the rows of the next read: those after a place, up to a time.
func (d *DueSearch) Next(now time.Time) (after Cursor, upto pgtype.Timestamptz) {
	d.inSpan = d.span.open && now.Before(d.nextAt)
	if d.inSpan {
		return d.span.cursor, d.span.high
	}

	if !d.begun {
		d.begun = true
		d.whole = d.length == 0 && !now.Before(d.FullAt)
		if d.whole {
			d.cursor = BeforeAll()
			d.spent = 0
		}
	}

	return d.cursor, pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
}

// Read records the time of a read, and the place of its last row.
func (d *DueSearch) Read(took time.Duration, last *Cursor) {
	if !d.inSpan {
		d.spent = max(d.spent, took) // reads with many rows are short
		if last != nil {
			d.cursor = *last
		}
		return
	}

	d.spent += took
	if last != nil {
		d.span.cursor = *last
	}

	switch {
	case took > slowSearch:
		d.length = max(d.length/2, firstSpan)
	case took < slowSearch/16:
		d.length = min(4*d.length, longestSpan)
	case took < slowSearch/4:
		d.length = min(2*d.length, longestSpan)
	}
}

// Canceled divides the rows of a read that took too long. It reports false if that is impossible.
func (d *DueSearch) Canceled() bool {
	switch {
	case d.inSpan && d.length > firstSpan:
		d.length = max(d.length/4, firstSpan)
		d.span = newSpan(d.span.high, d.length)
		return true
	case !d.inSpan && d.whole:
		d.length = firstSpan
		d.whole = false
		d.cursor.At = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true} // until Reached tells the server's time
		return true
	}
	return false
}

// End returns the place where the reads of a search have ended. A full search without late rows ends where the last search
// ended.
func (d *DueSearch) End() Cursor {
	at := d.cursor.At
	isFirst := at.InfinityModifier == pgtype.NegativeInfinity
	isEarlier := at.InfinityModifier == pgtype.Finite && at.Time.Before(d.ended.At.Time)
	if isFirst || isEarlier {
		return d.ended
	}

	return d.cursor
}

// Reached ends the reads after the cursor. No row is due up to a time of the server, and none before the wait is over.
// Reached reports whether a span must be read.
func (d *DueSearch) Reached(now time.Time, at pgtype.Timestamptz, wait time.Duration) bool {
	d.cursor = Cursor{At: at, ID: math.MaxInt64}
	d.ended = d.cursor
	d.nextAt = now.Add(wait)
	d.at = d.nextAt
	d.begun = false

	switch {
	case d.whole:
		d.whole = false
		d.endFull(now)
	case d.span.open:
		d.at = now
	case d.length > 0 && !now.Before(d.FullAt):
		d.span = newSpan(at, d.length)
		d.spent = 0
		d.at = now
	case d.FullAt.Before(d.at):
		d.at = d.FullAt
	}

	return d.span.open
}

// SpanEnded moves to the next span. It reports whether there is one.
func (d *DueSearch) SpanEnded(now time.Time) bool {
	if d.span.low.InfinityModifier == pgtype.Finite {
		d.span = newSpan(d.span.low, d.length)
		return true
	}

	d.span = span{}
	d.at = d.nextAt
	d.endFull(now)
	return false
}

// endFull ends a full search, and divides the next one if it was slow.
func (d *DueSearch) endFull(now time.Time) {
	d.length = 0
	if d.spent > slowSearch {
		d.length = firstSpan
	}

	d.FullAt = now.Add(min(max(shortestRest, restShare*d.spent), longestRest))
	if d.again {
		d.again = false
		d.FullAt = now
		d.at = now
	}
}

const (
	// restoredEvery is the time between two searches for restored rows, and restoredShare bounds the share of time that they
	// take to 1/restoredShare.
	restoredEvery = 10 * time.Second
	restoredShare = 20
	// restoredAgain is the pause after a search that the server has canceled.
	restoredAgain = time.Minute
)

// RestoredSearch decides when a shard searches for parked rows that a person has restored, and where. A search reads the
// queues in the order of their names, page by page.
type RestoredSearch struct {
	// After is the name of the last queue of the last page, empty before the first page.
	After string
	// Unreleased has the events whose rows keep their place of a former order, because their write is refused. The end of
	// each search releases them again.
	Unreleased map[int64]bool

	at time.Time // time of the next page
}

// IsDue reports whether the next page must be read.
func (r *RestoredSearch) IsDue(now time.Time) bool { return !now.Before(r.at) }

// Read records a page, the time that it took, and the name of its last queue, empty if it was the last page.
func (r *RestoredSearch) Read(took time.Duration, last string) {
	pause := restoredShare * took
	if last == "" {
		pause = max(pause, restoredEvery)
	}
	r.After = last
	r.at = time.Now().Add(pause)
}

// Canceled records that the server has canceled a page. An old snapshot may keep millions of index entries of finished
// rows. The next search begins anew.
func (r *RestoredSearch) Canceled() { r.After, r.at = "", time.Now().Add(restoredAgain) }
