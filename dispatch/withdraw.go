package dispatch

import "slices"

// kept is a job that no worker begins, and its verdict.
type kept struct {
	job     *job
	verdict Verdict
}

// answerKept answers jobs that were not begun. The lock is held.
func (l *lane) answerKept(all []kept) {
	for _, k := range all {
		l.figures.passings.count(k.verdict)
		k.job.Value.parcel.answer([]*job{k.job}, []outcome{{verdict: k.verdict}})
	}
}

// drop removes all jobs from the lane that no worker has begun, and takes nothing more.
func (l *lane) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
	gone := l.emptyLocked()
	if l.agg != nil {
		gone = l.keepLocked(gone, l.agg.Withdraw(), VerdictReleased)
	}
	l.answerKept(gone)
}

// emptyLocked empties the queue, and returns its jobs and those that wait behind them.
func (l *lane) emptyLocked() (gone []kept) {
	queue := l.queue[l.head:]
	l.queue, l.head = nil, 0
	for _, j := range queue {
		if order := j.Value.parcel.order; order != nil {
			gone = l.keepLocked(gone, order.GiveUp(j), VerdictReleased)
			continue
		}
		l.load--
		gone = append(gone, kept{j, VerdictReleased})
	}
	return gone
}

// keepLocked appends to gone the jobs that the queues of aggregates have removed with the verdict v.
func (l *lane) keepLocked(gone []kept, jobs []*job, v Verdict) []kept {
	l.load -= len(jobs)
	for _, j := range jobs {
		gone = append(gone, kept{j, j.Value.behind(v)})
	}
	return gone
}

// TakeBack returns the deliveries of a parcel that no worker has begun.
func (l *lane) TakeBack(p *Parcel) {
	l.mu.Lock()
	var gone []kept
	waiting := l.queue[l.head:]
	left := slices.DeleteFunc(waiting, func(j *job) bool {
		if j.Value.parcel != p {
			return false
		}
		gone = append(gone, kept{j, VerdictReleased})
		return true
	})
	l.queue = l.queue[:l.head+len(left)]
	l.load -= len(gone)
	l.answerKept(gone)
	call := l.wakeLocked()
	l.mu.Unlock()
	call()
}
