package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/aggregates"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/flight"
	"github.com/notifyd/notifyd/internal/replay"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wire"
	"github.com/notifyd/notifyd/internal/withheld"
)

// stored owns the state of the rows of a shard: rows to write, running rows, aggregates to continue, and the time when
// rows are due. Only the goroutine of the shard uses it. A take-over makes a new one.
type stored struct {
	*common

	order    *order
	progress *progress // the rows are written with the position

	pending     writes
	withheld    withheld.Set[writes]
	running     map[int64]readRow // rows that were read, until their results are written
	aggregates  aggregates.Set
	due         deliveries.DueSearch
	dueTurn     bool   // due rows are searched before the table is read
	failures    uint64 // the lane's failures before stored rows were read
	readThrough int64  // no row is delivered before this id has been read; 0: no limit
	rowSize     wire.RowSize
	untried     bool // most of the last due rows are written again without an attempt
}

// readRow is a row as it was read.
type readRow struct {
	state deliveries.State
	key   string
}

func newStored(c *common, o *order, l *progress) stored {
	return stored{
		common:     c,
		order:      o,
		progress:   l,
		running:    make(map[int64]readRow),
		aggregates: aggregates.New(),
		due:        deliveries.NewDueSearch(),
		withheld:   withheld.NewSet[writes](),
	}
}

// pendingWritten drops the pending rows, which are now written. Until then the table has their old state, which must
// not be taken for deliveries to make.
func (s *stored) pendingWritten() {
	if s.pending.then&checksBuried != 0 {
		s.checkBuried()
	}

	if s.pending.isReported() {
		s.e.poke(true) // the notification does not arrive while the relay has no connection that listens
	}

	for i := range s.pending.rows {
		r := &s.pending.rows[i]
		delete(s.running, r.EventID)
		if r.State == deliveries.Retry {
			s.due.By(time.Now().Add(r.Delay))
		}
		if r.Own {
			s.due.Rewind(r.available)
		}
	}

	for _, id := range s.pending.removed {
		delete(s.running, id)
	}

	if s.pending.then&searches != 0 {
		s.due.By(time.Now())
	}

	s.pending = writes{}
}

// withhold keeps rows that were refused.
func (s *stored) withhold(w writes) {
	s.withheld.Rows.join(w)
	s.withheld.Wait()

	for _, r := range w.rows {
		s.withheld.Hold(s.order.queue(r.Key), r.EventID)
	}
	for _, id := range w.removed {
		s.withheld.Hold(s.order.queue(s.running[id].key), id)
	}
}

// retryWithheld makes the withheld rows pending again, if their time has come.
func (s *stored) retryWithheld() {
	if s.withheld.Rows.empty() || time.Now().Before(s.withheld.Until()) {
		return
	}

	rows, names := s.withheld.Take()
	s.pending.join(rows)
	for i := range rows.rows {
		s.aggregates.Pending(s.order.keyOf(rows.rows[i].Key), s.order.queue(rows.rows[i].Key))
	}

	for _, name := range names {
		s.aggregates.Move(s.order.keyOf(name), name, aggregates.Parked) // its later rows may wait for nothing
	}

	s.progress.dirty = true
}

// nothingWithheld records that all rows are written.
func (s *stored) nothingWithheld() {
	if s.withheld.Rows.empty() && s.withheld.Ended() {
		s.e.accepted(s.reportSingle())
	}
}

// checkBuried makes the shard check the aggregates whose rows were just written. One of the rows is a dead letter that a
// person has made during the attempt, and the later rows of its aggregate may wait for nothing.
func (s *stored) checkBuried() {
	for i := range s.pending.rows {
		r := &s.pending.rows[i]
		if key := s.order.keyOf(r.Key); !r.fresh && key != (dispatch.Key{}) {
			s.aggregates.Move(key, s.order.queue(r.Key), aggregates.Parked)
		}
	}
}

// markRunning records that a row was read. It is not read again until its result is written.
func (s *stored) markRunning(r *deliveries.Row) { s.running[r.Event.ID] = readRow{r.State, r.Key} }

// addPending makes an entry a pending row of an aggregate.
func (s *stored) addPending(out entry, key dispatch.Key) {
	s.pending.put(out)
	s.aggregates.Pending(key, s.order.queue(out.Key))
}

// nameOf returns the aggregate name in the row of an answered delivery. A replay's row has its own name.
func (s *stored) nameOf(a *dispatch.Answer) string {
	r := s.running[a.Event.ID]
	switch {
	case a.Row && replay.IsKey(r.key): // only the name distinguishes the row from a row of a live event
		return r.key
	case a.Key == dispatch.Key{}:
		return ""
	case a.Row && !s.order.unnamed(r.key):
		return r.key
	}

	return s.order.name(a.Event)
}

// totalHeld reports whether a total order waits for a stored event. Then only stored events go, and the shard reads
// nothing and keeps its events.
func (s *stored) totalHeld() bool { return s.order.total && s.lane.Order(s.order.totalKey).Blocked }

// storesUntried reports whether an event of a total order becomes a row without an attempt: it was open at a take-over,
// and events stored under another order may have to wait for it.
func (s *stored) storesUntried(id int64) bool { return id <= s.readThrough && s.totalHeld() }

// settle records the outcome of a delivery in a row.
func (s *stored) settle(a *dispatch.Answer, out entry) {
	id := a.Event.ID
	out.EventID = id
	out.EventType = a.Event.Type
	out.Failures = a.Failures
	out.Delay = a.Delay

	if a.Err != nil {
		out.Class = a.Class.String()
		out.Err = a.Err.Error()
	}

	name := s.order.queue(out.Key)
	switch a.Verdict {
	case dispatch.VerdictDelivered, dispatch.VerdictExpired:
		if a.Row {
			s.pending.remove(id)

			if a.Event.DeadLetter != nil {
				s.pending.then |= searches
			}
			if a.Verdict == dispatch.VerdictDelivered && (a.Event.Replay > 0 || replay.IsKey(s.running[id].key)) {
				s.pending.acked = append(s.pending.acked, id)
			}
		}

	case dispatch.VerdictParked:
		s.aggregates.Move(a.Key, name, aggregates.Parked)

		if a.Row && s.running[id].state == deliveries.Parked {
			delete(s.running, id) // its row is already right
			return
		}

		out.State = deliveries.Parked
		out.Class = ""
		out.Err = ""
		out.Delay = 0

	case dispatch.VerdictDead:
		out.State = deliveries.Dead
		out.ReportTo = s.lane.Destination().OnDead.To
	default:
		out.State = deliveries.Retry
	}

	if out.State != "" {
		out.fresh = !a.Row
		s.addPending(out, a.Key)
	}

	if a.Behind {
		s.aggregates.Move(a.Key, name, aggregates.Finished)
	}
}

const (
	// maxPending bounds the rows that wait to be written with the position.
	maxPending = 5000
	// maxUntried bounds them, and the due rows of one read, while most due rows are written again without an attempt. The
	// next events of the table wait for the write.
	maxUntried = 250
)

// mustWrite reports whether the pending rows must be written before more rows are read.
func (s *stored) mustWrite() bool {
	limit := maxPending
	if s.untried {
		limit = maxUntried
	}
	return len(s.pending.rows) >= limit
}

// readDue returns up to n rows that the search for due rows reads next, and whether there may be more. It keeps at least
// one row, and no more than batch_bytes of events.
func (s *stored) readDue(ctx context.Context, conn *session.Conn, n int) (all []deliveries.Row, more bool, err error) {
	if s.untried {
		n = min(n, maxUntried)
	}

	n = s.rowSize.Rows(n, s.e.limits.Bytes)

	began := time.Now()
	after, upto := s.due.Next(began)
	var cut bool

	retreated, err := wire.Retreat(n, s.e.limits.EventBytes, func(c wire.Care) (err error) {
		all, cut, err = deliveries.Read(ctx, conn, s.e.limits, c.Why, sqlDue(c.EventBytes, s.order),
			s.name, after.At, after.ID, c.Rows, s.lane.Destination().Blocks(), upto)
		return err
	})

	s.saw(all, err)
	switch {
	case store.IsCanceled(err) && s.due.Canceled():
		return nil, s.due.InSpan(), nil
	case err != nil:
		return nil, false, fmt.Errorf("read due deliveries of %q: %w", s.name, err)
	}

	var last *deliveries.Cursor
	if len(all) > 0 {
		row := &all[len(all)-1]
		last = &deliveries.Cursor{At: row.At, ID: row.Event.ID}
	}

	s.due.Read(time.Since(began), last)
	return all, retreated || cut || len(all) == n, nil
}

// saw records how large the rows of a read were.
func (s *stored) saw(all []deliveries.Row, err error) {
	if err != nil {
		s.rowSize.Failed()
		return
	}

	size := 0
	for i := range all {
		size += flight.EventSize(&all[i].Event)
	}

	s.rowSize.Saw(len(all), size)
}

// endSearch plans the next read of due rows after the last row was read. It reports whether to read again at once.
func (s *stored) endSearch(ctx context.Context, conn *session.Conn) (more bool, err error) {
	if s.due.InSpan() {
		return s.due.SpanEnded(time.Now()), nil
	}

	var now pgtype.Timestamptz
	var us *int64
	end := s.due.End()
	poll := s.e.limits.PollInterval

	err = conn.QueryRow(ctx, sqlNextDue(s.order), s.name, end.At, end.ID, poll.Microseconds()).Scan(&now, &us)
	if err != nil {
		return false, fmt.Errorf("find when deliveries of %q are due: %w", s.name, err)
	}

	wait := poll
	if us != nil {
		wait = min(wait, time.Duration(*us)*time.Microsecond)
	}

	if wait <= 0 {
		s.due.Resume(end)
		return true, nil // a row has become due since the read
	}

	return s.due.Reached(time.Now(), now, wait), nil
}

const (
	// maxQueues is how many queues one statement continues, and maxPerQueue how many rows it reads of each.
	maxQueues   = 64
	maxPerQueue = 100
)

// unwritten reports whether one of the rows would lead a queue with unwritten rows: an unwritten one may come before
// it.
func (s *stored) unwritten(rows []deliveries.Row) bool {
	return slices.ContainsFunc(rows, func(r deliveries.Row) bool {
		leads, waits := s.order.leads(&r)
		_, runs := s.running[r.Event.ID]
		if runs || !leads || waits {
			return false
		}

		return s.aggregates.Unwritten(s.order.keyOf(r.Key))
	})
}

// foundNone records that no rows are due now. A person may have discarded the dead letter in front of a total order's
// queue. In other orders the discard makes the next row due.
func (s *stored) foundNone() {
	if s.totalHeld() && !s.lane.Order(s.order.totalKey).Busy && s.withheld.Rows.empty() {
		s.aggregates.Move(s.order.totalKey, totalName, aggregates.Free)
	}
}

// takeDue appends a due row to all, unless it runs or waits for others.
func (s *stored) takeDue(all []dispatch.Delivery, r *deliveries.Row) []dispatch.Delivery {
	if _, is := s.running[r.Event.ID]; is {
		return all // it is running, or was until a moment ago
	}

	s.filter(r)
	leads, waits := s.order.leads(r)
	key := s.order.keyOf(r.Key)
	name := s.order.queue(r.Key)
	if waits {
		// Not the first of its queue. This occurs if a person replays several dead letters of an aggregate, in a table that
		// was a queue, or had another order, and behind a dead letter that blocks and that a person has made.
		waiting := r.Entry(s.name, deliveries.Parked)
		waiting.Key = s.order.nameOf(r)
		s.addPending(entry{Entry: waiting}, key)
		s.markRunning(r)
		s.aggregates.Move(key, name, aggregates.Parked)

		// A delivery in flight may end the queue: its answer must report that rows wait behind it.
		s.lane.SetRows(key, dispatch.SomeRows)
		s.progress.dirty = true
		return all
	}

	if r.Filtered && leads && s.lane.Order(key).Blocked {
		s.aggregates.Move(key, name, aggregates.Finished) // other rows may wait behind it
	}

	return s.take(all, r, leads)
}

// filter applies the filter to a row; take removes a row that it excludes.
func (s *stored) filter(r *deliveries.Row) {
	if r.Missing || r.Filtered {
		return
	}
	passes, refused := s.passes(&r.Event, r.Refused)
	r.Filtered = !passes
	r.Refused = refused
}

// take converts a row into a delivery, and appends it to all. A row whose event is missing is due later. A filtered row
// is removed.
func (s *stored) take(all []dispatch.Delivery, r *deliveries.Row, leads bool) []dispatch.Delivery {
	s.markRunning(r)

	if r.Missing {
		later := r.Entry(s.name, deliveries.Retry)
		later.Delay = s.e.missing.Met(s.name, r.Event.ID)
		later.Class = engine.ClassMissing
		later.Err = engine.ErrMissing.Error()

		key := s.order.keyOf(r.Key)
		s.addPending(entry{Entry: later}, key)
		if leads && key != (dispatch.Key{}) {
			// The row may have been restored while the shard was at work, with others of its aggregate behind it.
			s.lane.SetRows(key, dispatch.SomeRows)
		}

		s.progress.dirty = true
		return all
	}

	if r.Filtered {
		s.pending.remove(r.Event.ID)
		s.progress.dirty = true
		return all
	}

	d := dispatch.Delivery{
		Event:    &r.Event,
		Refused:  r.Refused,
		Failures: r.Failures,
		Row:      true,
		Leads:    leads,
		Since:    s.failures,
		Delayed:  r.Delay != 0,
		Waited:   true,
	}
	if !r.Lasts() && !replay.IsKey(r.Key) { // replayed events do not expire
		d.Expires = s.lane.Destination().Expires(r.Written, r.Available())
	}

	r.Event.Destination = s.name
	r.Event.Outbox = s.e.Outbox

	d.Key = s.order.keyOf(r.Key)
	if s.order.unnamed(r.Key) {
		d.Key = s.order.of(&r.Event) // the row is now in the queue of its aggregate
	}

	return append(all, d)
}

// checkParked checks aggregates whose first row was just parked: it may wait for nothing. The row in front may have
// died in the same call, a person may have handled it, or the lane may have returned all of a blocked aggregate.
// Nothing else would continue such an aggregate.
func (s *stored) checkParked(ctx context.Context, conn *session.Conn, holds func(name string) bool) error {
	if s.readThrough > 0 {
		return nil
	}

	toCheck := s.aggregates.ToCheck(func(k dispatch.Key) bool { return s.lane.Order(k).Busy }, holds)
	for some := range slices.Chunk(toCheck, headsPage) {
		names := make([]string, len(some))
		for i, g := range some {
			names[i] = g.Name
		}

		rows, err := conn.Query(ctx, sqlUnblocked(s.order), s.name, names, s.lane.Destination().Blocks())
		if err != nil {
			return fmt.Errorf("check the stored deliveries of %q: %w", s.name, err)
		}

		free, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("check the stored deliveries of %q: %w", s.name, err)
		}

		slices.Sort(free)
		for _, g := range some {
			_, is := slices.BinarySearch(free, g.Name)
			s.aggregates.Checked(g, is)
		}
	}

	return nil
}

// firstRows are the first rows of some aggregates, one aggregate after the other.
type firstRows struct {
	of   []*aggregates.Aggregate
	per  int // maximum number of rows of each
	rows []deliveries.Row
	cut  bool // there were more
}

// readFirst reads the first rows of aggregates that are ready, n at most.
func (s *stored) readFirst(ctx context.Context, conn *session.Conn, n int) (read firstRows, err error) {
	n = s.rowSize.Rows(n, s.e.limits.Bytes)
	some := s.aggregates.Take(min(maxQueues, n))
	_, err = wire.Retreat(n, s.e.limits.EventBytes, func(c wire.Care) (err error) {
		read, err = s.readSome(ctx, conn, some[:min(len(some), c.Rows)], c)
		return err
	})

	s.saw(read.rows, err)
	if err != nil {
		read.of = nil
		err = fmt.Errorf("read the stored deliveries of %q: %w", s.name, err)
	}
	for _, g := range some[len(read.of):] {
		s.aggregates.Move(g.Key, g.Name, aggregates.Free)
	}

	return read, err
}

func (s *stored) readSome(ctx context.Context, conn *session.Conn, some []*aggregates.Aggregate, c wire.Care) (read firstRows, err error) {
	read.of = some
	read.per = min(maxPerQueue, c.Rows/len(some))

	names := make([]string, len(some))
	for i, g := range some {
		names[i] = g.Name
	}

	read.rows, read.cut, err = deliveries.Read(ctx, conn, s.e.limits, c.Why, sqlQueueHeads(c.EventBytes, s.order),
		s.name, names, read.per, s.lane.Destination().Blocks())

	return read, err
}

// takeFirst converts rows into deliveries, and returns the aggregates that continue in memory behind them. It unblocks
// aggregates without a row to deliver.
func (s *stored) takeFirst(read *firstRows) (all []dispatch.Delivery, unblock []dispatch.Key) {
	rows := read.rows
	for _, g := range read.of {
		n := 0
		for n < len(rows) && s.order.queue(rows[n].Key) == g.Name {
			n++
		}

		before := len(all)
		var waits bool
		all, waits = s.takeRows(all, rows[:n])
		rows = rows[n:]

		isCut := read.cut && len(rows) == 0
		whole := n < read.per && !isCut && !s.aggregates.Unwritten(g.Key)
		switch {
		case waits: // until a row is due, or a person has handled a dead letter
		case whole && len(all) == before:
			s.lane.SetRows(g.Key, dispatch.NoRows)
		case whole:
			unblock = append(unblock, g.Key)
		case len(all) == before: // continued with the rows that are still pending
			s.aggregates.Move(g.Key, g.Name, aggregates.Finished)
			s.progress.dirty = true
		}
	}

	return all, unblock
}

// takeRows converts the rows of an aggregate into deliveries, up to the first one that may not be delivered yet: it
// runs, is due later, is behind a dead letter that blocks, or lost its event. waits reports that there is such a row, or
// a dead letter that blocks.
func (s *stored) takeRows(all []dispatch.Delivery, rows []deliveries.Row) (_ []dispatch.Delivery, waits bool) {
	for i := range rows {
		r := &rows[i]
		if r.State == deliveries.Dead {
			waits = true
			continue
		}

		_, runs := s.running[r.Event.ID]
		waitsForTime := r.State == deliveries.Retry && !r.Due
		waitsForDead := waits && !s.order.passesDead(r)
		if runs || waitsForTime || waitsForDead {
			return all, true
		}

		s.filter(r)

		all = s.take(all, r, true)
		if r.Missing {
			return all, true
		}
	}
	return all, waits
}
