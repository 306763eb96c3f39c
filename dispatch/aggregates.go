package dispatch

// maxLine bounds how many events of one aggregate wait in memory at a slow destination. The others
// wait as rows, so that one aggregate does not take the room of all.
const maxLine = 256

// maxBehind bounds how many jobs wait in memory behind other events of their aggregate.
const maxBehind = maxQueued

// aggregates keeps the events of each aggregate in order within a lane, for an engine that hands
// them over in order: one event, or the events of one call, is in flight, and the others wait in
// line. An aggregate is blocked after a failure: its later events are parked until the engine has
// dealt with the stored ones. The lane's lock guards it.
type aggregates struct {
	lane    *lane
	lines   map[Key]*aggregate
	blocked keySet
	spare   *aggregate
	spills  uint64 // how often a job was given back
	spilled bool   // a job was given back, and the engine has not taken it: nothing may be pushed, or it would overtake
	fails   uint64 // how often a failure blocked an aggregate, plus 1
	over    bool   // the engine has withdrawn: jobs that a worker has not begun are given back
}

// aggregate is the line of one aggregate.
type aggregate struct {
	key         Key
	first, last *job // linked by job.next
	n           int
}

func newAggregates(l *lane) *aggregates {
	return &aggregates{lane: l, lines: make(map[Key]*aggregate), fails: 1}
}

// join adds a pushed job. The job may begin or waits for its turn; otherwise join returns the
// verdict that keeps it from being delivered.
func (a *aggregates) join(j *job, d *Delivery) (begins bool, v Verdict) {
	if d.Leads && d.Since == 0 {
		d.Since = a.fails
	}
	switch {
	case a.spilled:
		return false, VerdictReleased
	case d.Key == Key{}:
		return true, 0
	}
	if a.blocked.has(d.Key) && !a.leads(d) {
		v = a.waits(d)
		if v == VerdictReleased {
			a.spill()
		}
		return false, v
	}
	g := a.lines[d.Key]
	switch {
	case g == nil:
		if g = a.spare; g == nil {
			g = &aggregate{}
		}
		a.spare = nil
		*g = aggregate{key: d.Key, first: j, last: j, n: 1}
		a.lines[d.Key] = g
		j.agg = g
		return true, 0
	case g.n >= maxLine && !d.Leads && a.lane.tempo.slow() && !a.lane.dest.Total: // a line of all events has no more room than that
		a.blocked.add(d.Key)
		return false, VerdictParked
	}
	g.last.next = j
	g.last, j.agg = j, g
	g.n++
	a.lane.followers++
	return false, 0
}

// waits returns the verdict for a delivery that waits behind a failure. In a total order every later
// event waits, and storing them all would turn the whole table into rows: the engine keeps those that
// are not stored yet and hands them over again when deliveries continue.
func (a *aggregates) waits(d *Delivery) Verdict {
	if a.lane.dest.Total && !d.Row {
		return VerdictReleased
	}
	return VerdictParked
}

// leads reports whether a delivery goes although its aggregate is blocked. It does not if one of the
// aggregate has failed since the stored deliveries were read: that one may come before it.
func (a *aggregates) leads(d *Delivery) bool {
	return d.Leads && d.Since >= a.blocked.all[d.Key]
}

// follow appends to buf the jobs that wait behind j, up to n jobs in all: one worker delivers them
// one after the other. It ends before one that shares no call.
func (a *aggregates) follow(buf []*job, n int, j *job) []*job {
	for k := j.next; k != nil && len(buf) < n && !k.started && !a.lane.aloneLocked(k); k = k.next {
		k.started = true
		a.lane.followers--
		buf = append(buf, k)
	}
	return buf
}

// untake takes back a job that a worker has not begun. It reports whether the job is the first of
// its line and must be queued.
func (a *aggregates) untake(j *job) (first bool) {
	if j.agg == nil || j.agg.first == j {
		return true
	}
	j.queued = false
	a.lane.followers++
	return false
}

// leave removes a job from its line with its verdict. It returns the jobs that get a verdict along
// with it, and whether rows may wait behind the job.
func (a *aggregates) leave(j *job, v Verdict) (behind bool, gone []kept) {
	if v == VerdictReleased {
		a.spill()
	}
	g := j.agg
	if g == nil {
		return false, nil
	}
	g.remove(j)
	goes := v.Settles() || v == VerdictDead && !a.lane.dest.BlockOnDead
	switch {
	case goes:
	case v == VerdictReleased:
		gone = a.cut(g, VerdictReleased, true)
	default:
		a.fails++
		a.blocked.mark(g.key, a.fails)
		gone = a.cut(g, VerdictParked, true)
		if a.lane.dest.Total {
			a.spill()
		}
	}
	if g.first == nil {
		delete(a.lines, g.key)
		a.spare = g
		return goes && a.blocked.has(g.key), gone
	}
	return false, append(gone, a.promote(g)...)
}

// promote queues the first job of a line unless a worker has begun it. The line of a resting lane
// is given back instead.
func (a *aggregates) promote(g *aggregate) []kept {
	j, l := g.first, a.lane
	if j.started || j.queued {
		return nil
	}
	if l.stopped || l.restingLocked() || a.spilled {
		a.spill()
		gone := a.cut(g, VerdictReleased, true)
		delete(a.lines, g.key)
		return gone
	}
	j.queued = true
	l.followers--
	l.queue = append(l.queue, j)
	return nil
}

// giveUp ends the line of a job that was taken out of the queue, and returns it and all jobs that
// wait behind it.
func (a *aggregates) giveUp(j *job) []kept {
	a.spill()
	if j.agg == nil {
		a.lane.load--
		return []kept{{j, VerdictReleased}}
	}
	g := j.agg // giveUp clears it
	gone := a.cut(g, VerdictReleased, true)
	delete(a.lines, g.key)
	return gone
}

// stop gives back the jobs that wait behind others; the jobs of workers continue.
func (a *aggregates) stop() (gone []kept) {
	a.spill()
	a.over = true
	for _, g := range a.lines {
		gone = append(gone, a.cut(g, VerdictReleased, false)...)
	}
	return gone
}

// spill notes that a job is given back: the lane takes nothing until the engine has noticed, or
// later events would overtake it.
func (a *aggregates) spill() { a.spilled, a.spills = true, a.spills+1 }

// cut removes the jobs of a line with the verdict. Jobs that share a call stay in the line and get
// the verdict of the call. Jobs that a worker would begin next are cancelled if taken is set, and
// stay otherwise.
func (a *aggregates) cut(g *aggregate, v Verdict, taken bool) (gone []kept) {
	l := a.lane
	var first, last *job
	n := 0
	for j := g.first; j != nil; {
		next := j.next
		if j.started && (l.target.batch != nil || !taken) {
			if last == nil {
				first = j
			} else {
				last.next = j
			}
			last, j.next = j, nil
			n++
			j = next
			continue
		}
		switch {
		case j.started:
			j.cut = true
		case !j.queued:
			l.followers--
		}
		l.load--
		j.next, j.agg = nil, nil
		one := v
		if v == VerdictParked {
			one = a.waits(&j.parcel.events[j.work])
		}
		gone = append(gone, kept{j, one})
		j = next
	}
	g.first, g.last, g.n = first, last, n
	return gone
}

// remove takes a job out of the line.
func (g *aggregate) remove(j *job) {
	g.n--
	if g.first == j {
		g.first = j.next
		if g.first == nil {
			g.last = nil
		}
		j.next = nil
		return
	}
	for k := g.first; k != nil; k = k.next {
		if k.next == j {
			k.next = j.next
			if g.last == j {
				g.last = k
			}
			j.next = nil
			return
		}
	}
}
