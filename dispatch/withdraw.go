package dispatch

import "slices"

// detach takes the jobs of b that nobody has begun with out of the lane, and returns
// them and all that wait behind them. The others go on under leases. Both happen at
// once: where it is not known yet that the row of a leased job is to be waited for,
// what comes after it in its line would not wait.
func (l *lane) detach(b *batch, token func() int64) (gone []kept, leased []*job) {
	l.mu.Lock()
	gone = l.withdrawLocked(b)
	for i := range b.jobs {
		if j := &b.jobs[i]; j.lane == l && b.lease(j, token) {
			l.holdLocked(j)
			leased = append(leased, j)
		}
	}
	call := l.wakeLocked()
	l.mu.Unlock()
	call()
	return gone, leased
}

// withdrawLocked does the first part of that.
func (l *lane) withdrawLocked(b *batch) (gone []kept) {
	var fronts []*job
	kept := l.queue[:l.head]
	for _, j := range l.queue[l.head:] {
		switch {
		case j.batch != b:
			kept = append(kept, j)
		case j.line != nil:
			fronts = append(fronts, j)
		default:
			gone = append(gone, l.unqueueLocked(j))
		}
	}
	clear(l.queue[len(kept):])
	l.queue = kept
	for _, j := range fronts {
		gone = append(gone, l.cutLocked(j.line, 0, j.line.stored)...)
		l.closeLocked(j.line)
	}
	for i := range b.jobs {
		if j := &b.jobs[i]; j.lane == l && j.line != nil && !j.started && !j.queued {
			gone = append(gone, l.withdrawJobLocked(j)...)
		}
	}
	return gone
}

// unqueueLocked accounts for a job outside all lines that has left the queue. One that
// goes on under a lease has its row, and is not met again as a fresh event.
func (l *lane) unqueueLocked(j *job) kept {
	l.load--
	leased := j.batch.decide(j)
	if w := &j.batch.work[j.work]; w.Fresh && !leased {
		l.passLocked(j.batch, w.Event.ID)
	}
	return kept{j, released}
}

// withdrawJobLocked takes a job out of its line that waits in it, with all behind
// it. Where the one in front is under way it stays, and goes on under a lease
// like that one: a destination that is slow, or has few aggregates, would else
// cost a claim for every event.
func (l *lane) withdrawJobLocked(j *job) []kept {
	at := slices.Index(j.line.jobs, j)
	if at < 0 || j.line.jobs[0].started {
		return nil
	}
	cut := l.cutLocked(j.line, at, j.line.stored)
	l.closeLocked(j.line)
	return cut
}

// drop empties the lane of what nobody has begun with, and takes no more jobs.
// It returns what was in it.
func (l *lane) drop() []kept {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
	gone := l.emptyLocked()
	if l.agg != nil {
		answerKept(append(gone, l.agg.stop()...))
		return nil
	}
	for _, ln := range l.lines {
		if at := slices.IndexFunc(ln.jobs, func(j *job) bool { return !j.started }); at >= 0 {
			gone = append(gone, l.cutLocked(ln, at, ln.stored)...)
		}
	}
	return gone
}

// emptyLocked empties the queue. Nobody has begun with the lines of what is in it.
func (l *lane) emptyLocked() []kept {
	queue := l.queue[l.head:]
	l.queue, l.head = nil, 0
	var gone []kept
	for _, j := range queue {
		if j.parcel != nil {
			gone = append(gone, j.parcel.order.giveUp(j)...)
			continue
		}
		if j.line == nil {
			gone = append(gone, l.unqueueLocked(j))
			continue
		}
		gone = append(gone, l.cutLocked(j.line, 0, j.line.stored)...)
		l.closeLocked(j.line)
	}
	return gone
}
