package dispatch

import (
	"container/heap"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"slices"
	"unicode/utf8"
)

const (
	// maxKeyBytes keeps a key well within an entry of the index by key.
	maxKeyBytes = 200
	// keptBytes of a longer one are kept: 32 characters at least, which is what
	// the database makes the slot of.
	keptBytes = 128
)

// appendKey appends what order is kept for: the aggregate of an event, nothing
// if it has none. Two aggregates may have one key where a name contains a
// slash; they then wait for one another, which does no harm.
func appendKey(b []byte, e *Event) []byte {
	if e.AggregateID == "" {
		return b
	}
	start := len(b)
	b = append(b, e.AggregateType...)
	b = append(b, '/')
	b = append(b, e.AggregateID...)
	if len(b)-start > maxKeyBytes {
		sum := sha256.Sum256(b[start:])
		end := start + keptBytes
		for !utf8.RuneStart(b[end]) {
			end--
		}
		b = append(b[:end], '#')
		b = hex.AppendEncode(b, sum[:])
	}
	return b
}

// inOrder means that a lane does not lag behind.
const inOrder = math.MaxInt64

// headState is what is known of the first stored delivery of a line.
type headState uint8

const (
	headUnknown headState = iota // to be looked for
	headDue                      // it will come by itself: tried again later, or leased
	headBlocked                  // dead, and the line waits for a person
)

// line is what one destination has yet to get of one aggregate, in order: jobs
// in memory first, and rows behind them. Either there is a job in front that is
// to be delivered, or a row. The lane's lock guards it.
type line struct {
	key     string
	jobs    []*job // not answered; the first of them may be delivered
	writing int    // settlements under way that write or remove rows
	stored  bool   // there may be rows
	head    headState
	first   int64   // no row has a smaller id
	place   int     // in the lane's looks, -1 if it is not there
	looking bool    // a claim is on its way to find out
	again   bool    // and something was written meanwhile
	missed  []int64 // rows that it may not see: they have been stored meanwhile
}

// looks are the lines whose rows are to be looked at, in the order of ids.
type looks []*line

func (h looks) Len() int           { return len(h) }
func (h looks) Less(i, j int) bool { return h[i].first < h[j].first }
func (h looks) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *looks) Push(x any) {
	ln := x.(*line) //nolint:forcetypeassert // nothing else is pushed
	ln.place = len(*h)
	*h = append(*h, ln)
}

// Pop implements heap.Interface.
func (h *looks) Pop() any {
	old := *h
	ln := old[len(old)-1]
	old[len(old)-1] = nil
	*h, ln.place = old[:len(old)-1], -1
	return ln
}

// kept is a job that may not be delivered now, and what becomes of it.
type kept struct {
	job     *job
	verdict verdict
}

// answerAll tells the claims of what may not be delivered now.
func answerAll(all []kept) {
	for _, k := range all {
		k.job.lane.passings.count(k.verdict)
		k.job.batch.answer(k.job, outcome{verdict: k.verdict, failures: k.job.batch.work[k.job.work].Failures})
	}
}

// lineLocked returns the line of a key, a new one if there is none.
func (l *lane) lineLocked(key []byte) *line {
	if ln := l.lines[string(key)]; ln != nil {
		return ln
	}
	if l.lines == nil {
		l.lines = make(map[string]*line)
	}
	ln := l.spareLine
	l.spareLine = nil
	if ln == nil {
		ln = &line{}
	}
	*ln = line{key: string(key), jobs: ln.jobs[:0], place: -1, first: math.MaxInt64}
	l.lines[ln.key] = ln
	return ln
}

// beginsLocked notes that there may be a row of the line with the id.
func (l *lane) beginsLocked(ln *line, id int64) {
	ln.stored = true
	if id >= ln.first {
		return
	}
	ln.first = id
	if ln.place >= 0 {
		heap.Fix(&l.looks, ln.place)
	}
}

// storeLocked notes that a settlement of b will write a row of the line.
func (l *lane) storeLocked(ln *line, id int64, b *batch) {
	l.beginsLocked(ln, id)
	ln.head = headUnknown
	if ln.again = ln.looking; ln.looking { // what is on its way may not have seen it
		ln.missed = append(ln.missed, id)
	}
	l.writeLocked(ln, b)
}

// storeBehindLocked does the same for what is given up because of another one of its
// line: what is known of the first row still holds, unless this is to be the first.
func (l *lane) storeBehindLocked(ln *line, id int64, b *batch) {
	head, behind := ln.head, id > ln.first
	l.storeLocked(ln, id, b)
	if behind {
		ln.head = head
	}
}

// misses reports whether something that comes before a row was stored while the claim
// that brings the row was on its way, and is not among what it has brought: the
// settlement that writes it may have come later than the one that wrote the row. It is
// asked for each row that was brought, in order.
func (ln *line) misses(row int64) bool {
	ln.missed = slices.DeleteFunc(ln.missed, func(id int64) bool { return id == row })
	return slices.ContainsFunc(ln.missed, func(id int64) bool { return id < row })
}

// writeLocked notes that the settlement of b changes rows of the line.
func (l *lane) writeLocked(ln *line, b *batch) {
	ln.writing++
	b.writes(l, ln)
}

// joinLocked puts a job into its line. It returns false, with the verdict, if
// it may not be delivered now, and whether it is the first.
func (l *lane) joinLocked(j *job) (first bool, v verdict) {
	w := &j.batch.work[j.work]
	ln := j.line
	row := !w.Fresh && w.Destination != ""
	switch {
	case row && l.earlyLocked(ln, w, j.batch.query):
		l.storeLocked(ln, w.Event.ID, j.batch)
		return false, parked
	case row && j.batch.query.Source == SourceLines && (w.Event.ID > l.behind || ln.misses(w.Event.ID)):
		// What comes before the row has been stored since the claim was asked for, or
		// may be on its way to the end of the line, because the lane has been thrown
		// back. The row is locked until the claim is settled: nobody looks before that.
		l.writeLocked(ln, j.batch)
		return false, released
	case row:
		ln.head = headUnknown
		ln.again = ln.looking // what is on its way may have seen it where it does not stay
		l.writeLocked(ln, j.batch)
	case !j.batch.query.sees(l, w.Event.ID) || !l.takesLocked(w.Event.ID, j.batch.query):
		if w.Fresh {
			return false, released
		}
		l.storeLocked(ln, w.Event.ID, j.batch) // it becomes a row in any case
		return false, parked
	case ln.stored || ln.writing > 0 || len(ln.jobs) > 0 && l.slowLocked():
		l.storeLocked(ln, w.Event.ID, j.batch)
		return false, parked
	}
	ln.jobs = append(ln.jobs, j)
	if len(ln.jobs) > 1 {
		l.followers++
		return false, 0
	}
	return true, 0
}

// earlyLocked reports whether a stored delivery that is due may have to wait for what its
// lane has yet to meet. What was begun before was so in its turn. What was not may have
// been made due by somebody who discarded a dead letter in front of it.
func (l *lane) earlyLocked(ln *line, w *Work, q *Query) bool {
	id := w.Event.ID
	return q.Source == SourceDue && !w.Begun && (!q.sees(l, id) || id > l.behind || ln.stored && ln.first < id)
}

// leaveLocked takes the verdict on a begun job out of its line, and returns
// what may not be delivered because of it. The next in line is queued.
func (l *lane) leaveLocked(j *job, v verdict) []kept {
	ln := j.line
	leased := j.batch.decide(j)
	for i, other := range ln.jobs {
		if other == j {
			ln.jobs = append(ln.jobs[:i], ln.jobs[i+1:]...)
			break
		}
	}
	if leased {
		for _, other := range ln.jobs {
			if other.batch != j.batch { // those are leased with it, and would wait for themselves
				other.batch.follows(j)
			}
		}
	}
	w := &j.batch.work[j.work]
	row := !w.Fresh && w.Destination != ""
	var cut []kept
	switch {
	case v == delivered || v == dead && !l.cfg.BlockOnDead:
	case v == released && !leased:
		if !row {
			l.passLocked(j.batch, w.Event.ID)
		}
		cut = l.cutLocked(ln, 0, row)
	case v == parked:
		if !row && !leased {
			l.storeBehindLocked(ln, w.Event.ID, j.batch)
		}
		// What was before it in its call may be dead, which keeps nobody back.
		l.beginsLocked(ln, w.Event.ID)
		cut = l.cutLocked(ln, 0, true)
	default:
		if !row && !leased { // whoever writes the lease has said so
			l.storeLocked(ln, w.Event.ID, j.batch)
		}
		l.beginsLocked(ln, w.Event.ID)
		ln.head = headDue
		switch {
		case ln.first < w.Event.ID:
			ln.head = headUnknown // what was committed while this one was under way may be in front of it
		case v == dead:
			ln.head = headBlocked
		}
		cut = l.cutLocked(ln, 0, true)
	}
	cut = append(cut, l.promoteLocked(ln)...)
	l.closeLocked(ln)
	return cut
}

// promoteLocked queues the first job of a line if nobody has begun with it. A
// lane that is not at work has the line given back instead.
func (l *lane) promoteLocked(ln *line) []kept {
	if len(ln.jobs) == 0 || ln.jobs[0].started || ln.jobs[0].queued {
		return nil
	}
	if l.stopped || l.restingLocked() {
		return l.cutLocked(ln, 0, ln.stored)
	}
	ln.jobs[0].queued = true
	l.followers--
	l.queue = append(l.queue, ln.jobs[0])
	return nil
}

// cutLocked ends the waiting of the jobs in a line, from the one at the given
// place on: fresh ones go to the table, or are given back; rows are left as they
// are.
func (l *lane) cutLocked(ln *line, from int, store bool) []kept {
	cut := make([]kept, 0, len(ln.jobs)-from)
	at := from
	for _, j := range ln.jobs[from:] {
		if j.started && l.batch != nil {
			ln.jobs[at] = j // in the same call, and answered with it
			at++
			continue
		}
		if j.started {
			j.cut = true // whoever is at work with the one before it skips it
		} else if !j.queued {
			l.followers--
		}
		l.load--
		v := released
		w := &j.batch.work[j.work]
		switch {
		case j.batch.decide(j):
			v = parked // its claim has been settled; the answer is written by itself
		case !w.Fresh && w.Destination != "":
		case store:
			v = parked
			l.storeBehindLocked(ln, w.Event.ID, j.batch)
		default:
			l.passLocked(j.batch, w.Event.ID)
		}
		cut = append(cut, kept{j, v})
	}
	clear(ln.jobs[at:])
	ln.jobs = ln.jobs[:at]
	return cut
}

// passLocked notes that a fresh event is given back: until the lane's own sweep
// has come by again, it takes nothing that comes after it.
func (l *lane) passLocked(b *batch, id int64) {
	l.lagLocked(id - 1)
	if b.passes(l) {
		l.passing++
	}
}

// closeLocked forgets a line of which nothing is left, and has one looked at
// of which only rows are.
func (l *lane) closeLocked(ln *line) {
	switch {
	case len(ln.jobs) > 0 || ln.writing > 0:
	case ln.looking:
		ln.again = true
	case !ln.stored:
		if ln.place >= 0 {
			heap.Remove(&l.looks, ln.place)
		}
		delete(l.lines, ln.key)
		l.spareLine = ln
	case ln.head == headUnknown && ln.place < 0:
		heap.Push(&l.looks, ln)
	}
}

// holdLocked takes word that a job goes on under a lease: until its answer is
// written, too, nobody looks at the rows of its line.
func (l *lane) holdLocked(j *job) {
	if j.line == nil {
		return
	}
	j.hold = j.line
	l.beginsLocked(j.hold, j.event.ID)
	j.hold.writing++
	j.ahead = max(0, slices.Index(j.hold.jobs, j))
}

// keyOf returns what order is kept for, nothing where it is not.
func (l *lane) keyOf(e *Event) string {
	if l.cfg.Unordered || e.AggregateID == "" {
		return ""
	}
	return string(appendKey(nil, e))
}

// store notes that the settlement of b writes a row that waits in its line.
func (l *lane) store(b *batch, key string, id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.storeLocked(l.lineLocked([]byte(key)), id, b)
}

// refuse takes word that there is no room for a fresh event.
func (l *lane) refuse(b *batch, id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passLocked(b, id)
}

// refuseRow takes word that there is no room for a stored delivery. One that is to be
// split up waits in its line from now on, or what is written later would go past it; the
// others are locked until the settlement of b, and not looked at before.
func (l *lane) refuseRow(b *batch, w *Work) {
	key := l.keyOf(&w.Event)
	if key == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lineLocked([]byte(key))
	if w.Destination == "" {
		l.storeLocked(ln, w.Event.ID, b)
	} else {
		l.writeLocked(ln, b)
	}
}

// doubt takes word that the rows of the lines may not be what was to be written: the
// first ones, which were to come by themselves, may wait in their lines as before.
func (l *lane) doubt(lines []*line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range lines {
		ln.head = headUnknown
	}
}

// written takes word that a settlement has come to its end, well or not.
func (l *lane) written(lines []*line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range lines {
		ln.writing--
		if ln.head == headBlocked {
			ln.head = headUnknown // whoever has dealt with the dead letter meanwhile did not see these rows
		}
		l.closeLocked(ln)
	}
}

// passed takes word that the events which were given back are free.
func (l *lane) passed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passing--
}

// lagging returns behind which id the lane's own sweep has to look, and
// whether it may begin.
func (l *lane) lagging() (after int64, lags, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.behind, l.behind != inOrder, l.passing == 0 && !l.sweeping
}

// lag makes the lane look again behind the id.
func (l *lane) lag(after int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lagLocked(after)
}

func (l *lane) lagLocked(after int64) {
	l.behind, l.refused = min(l.behind, after), min(l.refused, after)
}

// sweepBegins takes word that the lane's own sweep is on its way behind the id. It
// returns false, and forgets nothing, if it may not begin there any more.
func (l *lane) sweepBegins(after int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.passing > 0 || l.behind != after {
		return false
	}
	l.sweeping, l.refused = true, inOrder
	return true
}

// sweepEnded takes word that the lane's own sweep, which began behind from, has
// come to the id: with that the lane has caught up, or goes on from there,
// unless it was thrown back meanwhile.
func (l *lane) sweepEnded(from, to int64) (caughtUp bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweeping = false
	if l.behind < from {
		return false
	}
	l.behind = min(to, l.refused)
	return l.behind == inOrder
}

// takesLocked reports whether a fresh event may be delivered: nothing that comes
// before it was left behind. The lane's own sweep may go on where that ended.
func (l *lane) takesLocked(id int64, q *Query) bool {
	return id <= l.behind || q.lane == l && l.behind >= q.After && id <= l.refused
}
