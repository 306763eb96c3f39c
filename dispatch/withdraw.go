package dispatch

import "slices"

// withdraw takes the jobs of b that nobody has begun with out of the lane, and
// returns them and all that wait behind them.
func (l *lane) withdraw(b *batch) []kept {
	l.mu.Lock()
	var gone []kept
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
			gone = append(gone, l.withdrawLocked(j)...)
		}
	}
	call := l.wakeLocked()
	l.mu.Unlock()
	call()
	return gone
}

// unqueueLocked accounts for a job outside all lines that has left the queue.
func (l *lane) unqueueLocked(j *job) kept {
	l.load--
	if w := &j.batch.work[j.work]; w.Fresh {
		l.passLocked(j.batch, w.Event.ID)
	}
	return kept{j, released}
}

// withdrawLocked takes a job out of its line that waits in it, with all behind
// it. The one in front takes long: what waits for it is written down.
func (l *lane) withdrawLocked(j *job) []kept {
	at := slices.Index(j.line.jobs, j)
	if at < 0 {
		return nil
	}
	cut := l.cutLocked(j.line, at, j.line.stored || j.line.jobs[0].started)
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
		if j.line == nil {
			gone = append(gone, l.unqueueLocked(j))
			continue
		}
		gone = append(gone, l.cutLocked(j.line, 0, j.line.stored)...)
		l.closeLocked(j.line)
	}
	return gone
}
