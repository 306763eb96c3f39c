package dispatch

import (
	"container/heap"
	"context"
	"time"
)

const (
	// readLinesEvery is how often the stored lines are read again: a row that
	// was changed by hand is noticed by nobody else.
	readLinesEvery = 30 * time.Second
	// maxLooks is how many lines one claim asks for.
	maxLooks = 256
	// maxPerLine is how many rows of one line it takes at most.
	maxPerLine = 100
)

// loadLines reads which aggregates have stored deliveries, before anything is
// claimed that might come after them. It waits for a database that is down.
func (d *Dispatcher) loadLines(ctx context.Context) {
	pause := reconnectPauses()
	for ctx.Err() == nil {
		err := d.readLines(ctx, d.sched.shares())
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			d.health.report(err)
			sleep(ctx, pause.NextBackOff())
		}
	}
}

// readLines reads those of the given slots; nil stands for all.
func (d *Dispatcher) readLines(ctx context.Context, slots []int32) error {
	switch {
	case d.parts.LineReader == nil, slots != nil && len(slots) == 0:
		return nil
	case len(slots) == Slots:
		slots = nil
	}
	err := d.parts.LineReader.Stored(ctx, d.sched.blocking(), slots, func(s StoredLine) {
		for _, l := range d.byName[s.Destination] {
			if !l.cfg.Unordered {
				l.know(s)
			}
		}
	})
	d.sched.moved()
	return err
}

// know takes word of the first stored row of a line.
func (l *lane) know(s StoredLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lineLocked([]byte(s.Key))
	if len(ln.jobs) > 0 || ln.writing > 0 || ln.looking {
		return
	}
	was := ln.stored
	l.beginsLocked(ln, s.EventID)
	switch s.State {
	case EntryDead:
		ln.head = headBlocked
	case EntryParked, EntryRunning: // nobody tells this relay when another's lease has ended
		ln.head = headUnknown
	default:
		if !was {
			ln.head = headDue
		}
	}
	l.closeLocked(ln)
}

// takeLooks returns up to n lines whose rows are to be looked at, none of them
// above the bound.
func (l *lane) takeLooks(n int, bound int64) (lines []*line, limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit = min(bound, l.behind)
	for len(lines) < n && len(l.looks) > 0 && l.looks[0].first <= limit {
		ln := heap.Pop(&l.looks).(*line) //nolint:forcetypeassert // nothing else is in there
		if len(ln.jobs) > 0 || ln.writing > 0 {
			continue // it comes back when that has ended
		}
		ln.looking = true
		lines = append(lines, ln)
	}
	return lines, limit
}

// waitsForLook reports whether there may be something to look at.
func (l *lane) waitsForLook() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.looks) > 0
}

// looked takes what was found of a line, after its rows were handed out.
func (l *lane) looked(ln *line, found LineState, first int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	again := ln.again
	ln.looking, ln.again, ln.missed = false, false, nil
	if again && found != LineClaimed {
		// Its first row may be another by now, and is looked for again.
		l.closeLocked(ln)
		return
	}
	switch found {
	case LineEmpty:
		ln.stored = false
	case LineWaiting:
		ln.head, ln.first = headDue, first
	case LineBlocked:
		ln.head, ln.first = headBlocked, first
	case LineBeyond:
		ln.first = first
	case LineLocked:
		l.later = append(l.later, ln)
		return
	case LineClaimed:
	}
	l.closeLocked(ln)
}

// lookAgain queues the lines that somebody else was at work with.
func (l *lane) lookAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range l.later {
		if l.lines[ln.key] == ln { // or it has come to its end, and another has its key
			l.closeLocked(ln)
		}
	}
	l.later = nil
}

// looked takes what was found of all lines of a query.
func (d *Dispatcher) looked(q *Query, c *Claimed) {
	for i, ln := range q.lines {
		q.lanes[i].looked(ln, c.Heads[i], c.Firsts[i])
	}
}

// lookQueryLocked asks for the rows of lines whose turn it is.
func (s *scheduler) lookQueryLocked(now time.Time) (Query, bool) {
	if s.claimingLines || len(s.slotsLocked(now)) == 0 && s.slotsLocked(now) != nil {
		return Query{}, false
	}
	q := Query{Source: SourceLines, Bytes: s.cfg.Bytes, PerLine: maxPerLine, Blocking: s.blocking(), asked: now}
	for _, l := range s.lanes {
		if !l.waitsForLook() || len(q.Lines) >= maxLooks {
			continue
		}
		room := min(l.roomy(), s.batchLocked())
		lines, limit := l.takeLooks(min(room, maxLooks-len(q.Lines)), s.boundLocked(l))
		for _, ln := range lines {
			q.Lines = append(q.Lines, LineRef{l.name, ln.key, limit})
			q.lines, q.lanes = append(q.lines, ln), append(q.lanes, l)
		}
		if len(lines) > 0 {
			q.PerLine = max(1, min(q.PerLine, room/len(lines)))
		}
	}
	s.claimingLines = len(q.Lines) > 0
	return q, s.claimingLines
}

// shares returns the slots that the relay has, nil for all.
func (s *scheduler) shares() []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.divided || len(s.slots) == Slots {
		return nil
	}
	return s.slots
}

// blocking returns the destinations at which a dead letter holds back others.
func (s *scheduler) blocking() []string {
	var names []string
	for _, l := range s.lanes {
		if l.cfg.BlockOnDead && !l.cfg.Unordered {
			names = append(names, l.name)
		}
	}
	return names
}

// moved takes word that lines or lanes may go on.
func (s *scheduler) moved() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cond.Broadcast()
}
