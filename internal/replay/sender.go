package replay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/flight"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/routing"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

const (
	// skipAhead is the ratio of rows to events in one read.
	skipAhead = 10
	// restFactor is the pause after a read, in multiples of its duration: a fast destination would otherwise use all
	// capacity of the database and the relay.
	restFactor = 4
)

// Shard is a replay's interface to the shard that sends it. It does not change.
type Shard struct {
	Outbox  string // delivery.Event.Outbox
	Lane    dispatch.StreamLane
	Keys    dispatch.Keys
	Limits  engine.Limits
	Writers *tail.WriterScanner
	Log     *slog.Logger

	// Gets reports whether the destination gets events of a type.
	Gets func(eventType string) bool
	// Passes applies the filter to an event that is about to be delivered. refused is an error that already forbids the
	// delivery; Passes returns it, or the error of the filter.
	Passes func(e *delivery.Event, refused error) (bool, error)
	// Page returns how many of n events one call of Lane.Admit asks for; nil without a rate limit.
	Page func(n int) int
	// Valid and Wake are the arguments of [flight.New].
	Valid func() bool
	Wake  func()
	// Changed is called when there is progress to write.
	Changed func()
	// Write writes in a transaction that proves that the shard is held.
	Write func(ctx context.Context, conn *session.Conn, f func(pgx.Tx) error) error
}

// Sender sends the replay of a shard. Only the goroutine of the shard uses it. The shard hands over the batches of
// Next, collects the answers, stores failed events, and writes the progress with its position.
type Sender struct {
	shard  Shard
	active *activeReplay // nil without a replay
	findAt time.Time     // when to search for a replay
}

// NewSender returns a Sender that has not searched for a replay yet.
func NewSender(shard Shard) *Sender { return &Sender{shard: shard} }

// Forget returns the Sender to the state after a take-over.
func (s *Sender) Forget() {
	s.active = nil
	s.findAt = time.Time{}
}

// FindNow makes the next Find search the table.
func (s *Sender) FindNow() { s.findAt = time.Time{} }

// Find looks for a replay that was requested or has ended, if a search is due.
func (s *Sender) Find(ctx context.Context, conn *session.Conn) error {
	now := time.Now()
	d := s.shard.Lane.Destination()
	if now.Before(s.findAt) || d.Shard > 0 { // the first shard sends the replay
		return nil
	}

	s.findAt = now.Add(s.shard.Limits.PollInterval)

	r, err := running(ctx, conn, &s.shard)
	if err != nil {
		return fmt.Errorf("find a replay of %q: %w", d.Name, err)
	}

	switch {
	case r != nil && d.Total:
		return s.refuse(ctx, conn, r.id)
	case s.active == nil:
		s.active = r
	case r == nil || r.id != s.active.id:
		s.stop()
	}

	return nil
}

// refusal is why a replay to a destination with a total order is stopped: replayed events would bypass its one queue of
// all events.
const refusal = "stopped by the relay: in order: total a replay would bypass the order; move the position instead"

// refuse stops a replay that cannot be sent.
func (s *Sender) refuse(ctx context.Context, conn *session.Conn, id int64) error {
	s.shard.Log.WarnContext(ctx, "replay stopped", "destination", s.shard.Lane.Destination().Name, "replay", id, "reason", refusal)
	return s.shard.Write(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox_replays
			SET state = 'stopped', finished_at = clock_timestamp(), reason = concat_ws('; ', nullif(reason, ''), $2::text)
			WHERE id = $1 AND state = 'running'`, id, refusal)
		if err != nil {
			return fmt.Errorf("stop replay %d: %w", id, err)
		}
		return nil
	})
}

// stop ends a stopped replay: none of its events begins. Events in flight may still fail, and become rows; a last write
// counts them.
func (s *Sender) stop() {
	r := s.active
	r.read -= int64(len(r.flight.Returned))
	r.stopped = true
	r.flight.Returned = nil
	s.shard.Changed()
}

// Running reports whether there is a replay, including one that ends.
func (s *Sender) Running() bool { return s.active != nil }

// InFlight reports whether the lane has events of the replay.
func (s *Sender) InFlight() bool { return s.active != nil && len(s.active.flight.Batches) > 0 }

// Holds reports whether the stored deliveries of an aggregate must wait for earlier events of the replay: the previous
// owner had these in memory, or the lane has returned them.
func (s *Sender) Holds(key string) bool {
	r := s.active
	if r == nil || r.stopped {
		return false
	}
	return r.repeats() && strings.HasPrefix(key, r.prefix)
}

// Take collects the answers, and reports whether there was any. It calls settle for answers other than a plain
// delivery, with the row that the event may become. It calls returned for events that will be sent again, with the
// reason.
func (s *Sender) Take(settle func(*dispatch.Answer, deliveries.Entry), returned func(error)) (changed bool) {
	r := s.active
	if r == nil {
		return false
	}

	_, changed = r.flight.Take(func(a *dispatch.Answer) {
		switch {
		case a.Verdict != dispatch.VerdictReleased:
			settle(a, r.entryOf(a))
		case r.stopped:
			r.read--
		default:
			r.flight.Return(a.Delivery)
			returned(a.Err)
		}
	})

	return changed
}

// Live describes the live events of the shard.
type Live struct {
	Head      int64 // the highest live id that was read
	FreeBytes int   // how many bytes of events still fit into memory
	Open      func() idset.Set
}

// Next reads the next events if necessary, and returns a batch to hand over, or nil. did reports whether it did
// anything. caughtUp reports that stored deliveries have waited for the last of these events: see Holds.
func (s *Sender) Next(ctx context.Context, conn *session.Conn, live Live) (p *dispatch.Batch, caughtUp, did bool, err error) {
	r := s.active
	if r == nil || r.stopped || s.shard.Lane.Waits(false) {
		return nil, false, false, nil
	}

	if r.mustRead() && !time.Now().Before(r.restsUntil) {
		did, err = s.read(ctx, conn, live)
		if err != nil {
			return nil, false, false, err
		}
	}

	p, caughtUp = s.nextBatch()
	return p, caughtUp, did || p != nil, nil
}

// nextBatch returns the next read or returned events.
func (s *Sender) nextBatch() (p *dispatch.Batch, caughtUp bool) {
	r := s.active
	now := time.Now()
	n := r.pace.allow(now, min(len(r.flight.Returned), s.shard.Limits.Batch))
	if n == 0 || now.Before(r.limitedUntil) {
		return nil, false
	}

	reserved := s.shard.Lane.Reserve(dispatch.Request{N: n, Replay: true, Held: r.flight.Unanswered})
	if reserved == 0 {
		return nil, false
	}

	n = s.admit(r.flight.Returned[:reserved])
	s.shard.Lane.Return(reserved - n)
	if n == 0 {
		return nil, false
	}

	r.pace.sent(n)
	all := r.flight.Returned[:n]
	repeats := r.repeats()
	p = r.flight.Batch()
	r.highestHanded = max(r.highestHanded, all[n-1].Event.ID)
	p.Fill(append(p.Alloc(n), all...))
	r.flight.Begin(p, all)
	r.flight.Returned = slices.Delete(r.flight.Returned, 0, n)
	s.shard.Changed()

	return p, repeats && !r.repeats()
}

// admit applies the rate limit, and returns how many may go. A delayed event delays the events behind it, and no live
// event.
func (s *Sender) admit(all []dispatch.Delivery) int {
	if s.shard.Page == nil {
		return len(all)
	}

	n := s.shard.Page(len(all))
	for at := 0; at < len(all); at += n {
		for i, wait := range s.shard.Lane.Admit(all[at:at+n], 0) {
			if wait > 0 {
				all[at+i].Waited = true // its turn comes, and not always the next event's
				s.active.limitedUntil = time.Now().Add(min(wait, maxPace))
				return at + i
			}
		}
	}

	return len(all)
}

// read reads the next events of the range, up to the live head, and keeps the ones to send.
func (s *Sender) read(ctx context.Context, conn *session.Conn, live Live) (did bool, err error) {
	r := s.active
	limits := &s.shard.Limits

	capacity := live.FreeBytes - r.flight.Bytes - flight.Size(r.flight.Returned)
	upto := min(r.lastID, live.Head)
	was := r.reader.Head()
	gaps := r.reader.Gaps()
	hasRead := upto < was || upto == was && gaps.Len() == 0
	if capacity <= 0 || hasRead {
		return false, nil
	}

	began := time.Now()
	defer func() { r.restsUntil = time.Now().Add(restFactor * time.Since(began)) }()

	b, err := r.reader.Read(ctx, conn, tail.Query{
		Limit:      page,
		Rows:       skipAhead * page,
		Bytes:      min(limits.Bytes, capacity),
		EventBytes: limits.EventBytes,
		Skip:       r.types.Skip,
		Assigned:   upto,
		Passed:     true,
	})
	if err == nil {
		err = s.keep(ctx, conn, &b, live.Open())
	}

	if err != nil {
		r.reader = r.reader.After(was, gaps)
		return false, fmt.Errorf("read events for replay %d: %w", r.id, err)
	}

	s.shard.Changed()
	return true, nil
}

// keep keeps the events of a read that are to be sent. It counts events that it skips because they are stored, or in
// flight, as live deliveries. After an error nothing is kept or counted.
func (s *Sender) keep(ctx context.Context, conn *session.Conn, b *tail.Batch, live idset.Set) error {
	r := s.active
	gets := func(eventType string) bool {
		return s.shard.Gets(eventType) && (len(r.patterns) == 0 || routing.Best(r.patterns, eventType) >= 0)
	}

	skipped := int64(0)
	ids := make([]int64, 0, len(b.Events))
	wanted := make([]*delivery.Event, 0, len(b.Events))
	for i := range b.Events {
		e := &b.Events[i]
		switch {
		case r.leftOut.Contains(e.ID), !r.types.Wants(e.Type, gets):
		case b.Delays != nil && b.Delays[i] > 0, live.Contains(e.ID):
			skipped++
		default:
			ids = append(ids, e.ID)
			wanted = append(wanted, e)
		}
	}

	if len(ids) == 0 {
		r.skipped += skipped
		return nil
	}

	rows, err := conn.Query(ctx, `SELECT event_id FROM outbox_deliveries
		WHERE destination = $1 AND event_id = ANY($2) ORDER BY event_id`, s.shard.Lane.Destination().Name, ids)
	if err != nil {
		return err
	}

	stored, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}

	for _, e := range wanted {
		if _, is := slices.BinarySearch(stored, e.ID); is {
			if e.ID > r.startHead { // an earlier one failed, and was counted, in the write before the owner died
				skipped++
			}
			continue
		}

		passes, refused := s.shard.Passes(e, b.Refused[e.ID])
		if !passes {
			continue // by the current filters, as by the current routes
		}

		r.read++
		r.flight.Returned = append(r.flight.Returned, s.delivery(e, refused))
	}

	r.skipped += skipped
	return nil
}

// delivery makes an event a delivery of the replay.
func (s *Sender) delivery(e *delivery.Event, refused error) dispatch.Delivery {
	to := s.shard.Lane.Destination()
	e.Destination = to.Name
	e.Outbox = s.shard.Outbox
	e.Attempt = 1
	e.Replay = s.active.number

	d := dispatch.Delivery{Event: e, Refused: refused} // a replayed event does not expire
	if !to.Unordered {
		if key := s.active.keyOf(e); key != "" {
			d.Key = s.shard.Keys.Named(key)
		}
	}

	return d
}

// Progress begins a write of the progress. An event that is neither open nor failed was delivered. That includes an
// answer that was not collected yet, because the event is not open. withheld are failed events whose rows are not written.
func (s *Sender) Progress(withheld []int64) (c Progress) {
	r := s.active
	if r == nil {
		return c
	}

	c.replay = r
	c.at, c.n = r.flight.Watermark(r.reader, withheld)
	c.total = counters{delivered: r.read - int64(c.n) - r.failed, failed: r.failed, skipped: r.skipped}
	c.done = c.at.Lowest() >= r.lastID
	return c
}

// Written records a write that was committed.
func (s *Sender) Written(c *Progress) {
	r := c.replay
	if r == nil {
		return
	}

	r.written = c.total

	isIdle := c.n == 0 && len(r.flight.Batches) == 0 && r.failed == c.total.failed
	switch {
	case c.done, r.stopped && isIdle: // ids that an earlier owner had open stay open
		s.Forget()
	case c.state != stateRunning && !r.stopped:
		s.stop()
	}
}

// Due returns when the replay may continue by its rate, or read again, if that is before at.
func (s *Sender) Due(at time.Time) time.Time {
	r := s.active
	now := time.Now()
	if r == nil || r.stopped {
		return at
	}

	earlier := func(t time.Time) {
		if now.Before(t) && t.Before(at) {
			at = t
		}
	}

	if len(r.flight.Returned) > 0 {
		earlier(r.pace.due)
		earlier(r.limitedUntil)
	}

	if r.mustRead() {
		earlier(r.restsUntil)
	}

	return at
}
