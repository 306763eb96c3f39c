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
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

const (
	// skipAhead is how many times as many rows as events are read at once.
	skipAhead = 10
	// share is how many times as long as it has read a replay then leaves the database, and the
	// relay, to others: a destination that is fast would take all there is of both.
	share = 4
)

// Shard is what a replay needs of the shard that sends it. Nothing of it changes.
type Shard struct {
	Outbox    string // delivery.Event.Outbox
	Lane      dispatch.StreamLane
	Keys      dispatch.Keys
	Limits    engine.Limits
	Witnesses *tail.Witnesses
	Log       *slog.Logger

	// Gets reports whether the destination gets events of a type.
	Gets func(eventType string) bool
	// Passes asks the filter about an event that is about to be delivered, as refused, the error that is known before, allows.
	Passes func(e *delivery.Event, refused error) (bool, error)
	// Page returns how many of n events are asked for in one call of Lane.Admit; nil where there is no rate limit.
	Page func(n int) int
	// Valid and Wake are those of [flight.New].
	Valid func() bool
	Wake  func()
	// Changed is called when there is progress to write.
	Changed func()
	// Write writes in a transaction that proves that the shard is held.
	Write func(ctx context.Context, conn *session.Conn, f func(pgx.Tx) error) error
}

// Sender sends the replay of a shard. Only the goroutine of the shard uses it: it passes on what Feed returns, takes the
// answers, stores what has failed, and writes the count with its position.
type Sender struct {
	shard  Shard
	span   *span     // nil for none
	lookAt time.Time // when to look for one
}

// NewSender returns a Sender that has not looked for a replay yet.
func NewSender(shard Shard) *Sender { return &Sender{shard: shard} }

// Forget makes it that of a shard that has just been taken over.
func (s *Sender) Forget() { s.span, s.lookAt = nil, time.Time{} }

// LookNow makes the next Look one at the table.
func (s *Sender) LookNow() { s.lookAt = time.Time{} }

// Look finds a replay that was requested, or is not running any more, if it is time to.
func (s *Sender) Look(ctx context.Context, conn *session.Conn) error {
	now, d := time.Now(), s.shard.Lane.Destination()
	if now.Before(s.lookAt) || d.Part > 0 { // the first shard sends a replay
		return nil
	}
	s.lookAt = now.Add(s.shard.Limits.PollInterval)
	r, err := running(ctx, conn, &s.shard)
	if err != nil {
		return fmt.Errorf("find a replay of %q: %w", d.Name, err)
	}
	switch {
	case r != nil && d.Total:
		return s.refuse(ctx, conn, r.id)
	case s.span == nil:
		s.span = r
	case r == nil || r.id != s.span.id:
		s.end()
	}
	return nil
}

// refusal is why a replay to a destination with a total order is stopped: what goes beside the one queue of
// all events is not in it.
const refusal = "stopped by the relay: in order: total nothing goes beside what is live; move the position instead"

// refuse stops a replay that cannot be sent.
func (s *Sender) refuse(ctx context.Context, conn *session.Conn, id int64) error {
	s.shard.Log.WarnContext(ctx, "a replay is stopped", "destination", s.shard.Lane.Destination().Name, "replay", id, "reason", refusal)
	return s.shard.Write(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox_replays SET state = 'stopped', finished_at = clock_timestamp(), reason = concat_ws('; ', nullif(reason, ''), $2::text)
			WHERE id = $1 AND state = 'running'`, id, refusal)
		if err != nil {
			return fmt.Errorf("stop replay %d: %w", id, err)
		}
		return nil
	})
}

// end ends a replay that was stopped: nothing of it begins any more. What is under way may still
// fail, and become a row; then a last write counts it.
func (s *Sender) end() {
	r := s.span
	r.taken -= int64(len(r.flight.Returned))
	r.over, r.flight.Returned = true, nil
	s.shard.Changed()
}

// Running reports whether there is a replay, also one that ends.
func (s *Sender) Running() bool { return s.span != nil }

// UnderWay reports whether the lane has events of the replay.
func (s *Sender) UnderWay() bool { return s.span != nil && len(s.span.flight.Parcels) > 0 }

// Holds reports whether the stored deliveries of an aggregate must wait for events of the replay that come before them: the owner
// before had them in memory, or the lane has returned them.
func (s *Sender) Holds(key string) bool {
	r := s.span
	return r != nil && !r.over && r.repeats() && strings.HasPrefix(key, r.prefix)
}

// Take collects the answers, and reports whether there was any. It calls settle for those that are more than a delivery, with the row
// that they may become, and returned for events that will be sent again, with the reason.
func (s *Sender) Take(settle func(*dispatch.Answer, deliveries.Entry), returned func(error)) (news bool) {
	r := s.span
	if r == nil {
		return false
	}
	_, news = r.flight.Take(func(a *dispatch.Answer) {
		switch {
		case a.Verdict != dispatch.VerdictReleased:
			settle(a, r.outcome(a))
		case r.over:
			r.taken--
		default:
			r.flight.GiveBack(a.Delivery)
			returned(a.Err)
		}
	})
	return news
}

// Live is where the live events of the shard are.
type Live struct {
	Head int64 // the highest id that was read
	Room int   // how many bytes of events fit into memory beside those that are under way
	Open func() tail.Ranges
}

// Feed reads what is next if it must, and returns a parcel to hand over, nil if nothing may go. did reports whether it did anything;
// caughtUp that stored deliveries have waited for the last of these events: see Holds.
func (s *Sender) Feed(ctx context.Context, conn *session.Conn, live Live) (p *dispatch.Parcel, caughtUp, did bool, err error) {
	r := s.span
	if r == nil || r.over || s.shard.Lane.Waits(false) {
		return nil, false, false, nil
	}
	if r.reads() && !time.Now().Before(r.restsUntil) {
		if did, err = s.read(ctx, conn, live); err != nil {
			return nil, false, false, err
		}
	}
	p, caughtUp = s.next()
	return p, caughtUp, did || p != nil, nil
}

// next returns what goes next of what was read or returned.
func (s *Sender) next() (p *dispatch.Parcel, caughtUp bool) {
	r, now := s.span, time.Now()
	n := r.pace.allow(now, min(len(r.flight.Returned), s.shard.Limits.Batch))
	if n == 0 || now.Before(r.waitsUntil) {
		return nil, false
	}
	granted := s.shard.Lane.Reserve(dispatch.Request{N: n, Replay: true, Held: r.flight.Left})
	if granted == 0 {
		return nil, false
	}
	n = s.admit(r.flight.Returned[:granted])
	s.shard.Lane.Return(granted - n)
	if n == 0 {
		return nil, false
	}
	r.pace.took(n)
	all, repeats := r.flight.Returned[:n], r.repeats()
	p = r.flight.Parcel()
	r.handed = max(r.handed, all[n-1].Event.ID)
	p.Fill(append(p.Room(n), all...))
	r.flight.Begin(p, all)
	r.flight.Returned = slices.Delete(r.flight.Returned, 0, n)
	s.shard.Changed()
	return p, repeats && !r.repeats()
}

// admit asks the rate limit, and returns how many may go. One that has to wait holds up those behind it, and nothing that is live.
func (s *Sender) admit(all []dispatch.Delivery) int {
	if s.shard.Page == nil {
		return len(all)
	}
	n := s.shard.Page(len(all))
	for at := 0; at < len(all); at += n {
		for i, wait := range s.shard.Lane.Admit(all[at : at+n]) {
			if wait > 0 {
				all[at+i].Waited = true // its turn comes, and not always that of the one behind
				s.span.waitsUntil = time.Now().Add(min(wait, maxPace))
				return at + i
			}
		}
	}
	return len(all)
}

// read reads the next events of the range, up to the head of what is live, and keeps those that are to be sent.
func (s *Sender) read(ctx context.Context, conn *session.Conn, live Live) (did bool, err error) {
	r, limits := s.span, &s.shard.Limits
	room := live.Room - r.flight.Bytes - flight.Size(r.flight.Returned)
	upto := min(r.to, live.Head)
	was, gaps := r.reader.Head(), r.reader.Gaps()
	if room <= 0 || upto < was || upto == was && gaps.Len() == 0 {
		return false, nil
	}
	began := time.Now()
	defer func() { r.restsUntil = time.Now().Add(share * time.Since(began)) }()
	b, err := r.reader.Read(ctx, conn, tail.Query{
		Limit: page, Rows: skipAhead * page, Bytes: min(limits.Bytes, room), EventBytes: limits.EventBytes, Skip: r.types.Skip,
		Assigned: upto, Passed: true,
	})
	if err == nil {
		err = s.keep(ctx, conn, &b, live.Open())
	}
	if err != nil {
		r.reader = tail.NewReader(was, gaps, s.shard.Witnesses)
		return false, fmt.Errorf("read events for replay %d: %w", r.id, err)
	}
	s.shard.Changed()
	return true, nil
}

// keep keeps those events of a read that are to be sent, and counts those that are passed over because
// they are stored, or in flight, as deliveries of their own. After an error nothing is kept or counted.
func (s *Sender) keep(ctx context.Context, conn *session.Conn, b *tail.Batch, live tail.Ranges) error {
	r := s.span
	gets := func(eventType string) bool {
		return s.shard.Gets(eventType) && (len(r.patterns) == 0 || delivery.BestPattern(r.patterns, eventType) >= 0)
	}
	skipped := int64(0)
	ids, wanted := make([]int64, 0, len(b.Events)), make([]*delivery.Event, 0, len(b.Events))
	for i := range b.Events {
		e := &b.Events[i]
		switch {
		case r.leftOut.Contains(e.ID), !r.types.Wants(e.Type, gets):
		case b.Delays != nil && b.Delays[i] > 0, live.Contains(e.ID):
			skipped++
		default:
			ids, wanted = append(ids, e.ID), append(wanted, e)
		}
	}
	if len(ids) == 0 {
		r.skipped += skipped
		return nil
	}
	rows, err := conn.Query(ctx, `SELECT event_id FROM outbox_deliveries WHERE destination = $1 AND event_id = ANY($2) ORDER BY event_id`,
		s.shard.Lane.Destination().Name, ids)
	if err != nil {
		return err
	}
	stored, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	for _, e := range wanted {
		if _, is := slices.BinarySearch(stored, e.ID); is {
			if e.ID > r.begun { // otherwise it failed, and was counted, in the write before the owner died
				skipped++
			}
			continue
		}
		passes, refused := s.shard.Passes(e, b.Refused[e.ID])
		if !passes {
			continue // by the filters of today, like the routes
		}
		r.taken++
		r.flight.Returned = append(r.flight.Returned, s.delivery(e, refused))
	}
	r.skipped += skipped
	return nil
}

// delivery makes an event a delivery of the replay.
func (s *Sender) delivery(e *delivery.Event, refused error) dispatch.Delivery {
	to := s.shard.Lane.Destination()
	e.Destination, e.Outbox, e.Attempt, e.Replay = to.Name, s.shard.Outbox, 1, s.span.number
	d := dispatch.Delivery{Event: e, Refused: refused} // one that is asked for again does not expire
	if !to.Unordered {
		if key := s.span.keyOf(e); key != "" {
			d.Key = s.shard.Keys.Named(key)
		}
	}
	return d
}

// Count begins a write of the progress. What is neither open nor failed was delivered: an answer that
// was not taken yet counts, too, because the event is not open any more.
func (s *Sender) Count() (c Count) {
	r := s.span
	if r == nil {
		return c
	}
	c.of = r
	c.head, c.open, c.n = r.flight.Account(r.reader, nil)
	c.head, c.open = position.Bound(c.head, c.open)
	c.total = tally{delivered: r.taken - int64(c.n) - r.failed, failed: r.failed, skipped: r.skipped}
	c.done = c.head >= r.to && len(c.open) == 0
	return c
}

// Counted takes note of a write that was committed.
func (s *Sender) Counted(c *Count) {
	r := c.of
	if r == nil {
		return
	}
	r.written = c.total
	switch {
	case c.done, r.over && c.n == 0 && len(r.flight.Parcels) == 0 && r.failed == c.total.failed: // what an owner before had open stays so
		s.Forget()
	case c.state != stateRunning && !r.over:
		s.end()
	}
}

// Due returns when the replay may go on by its rate, or read again, if that is before at.
func (s *Sender) Due(at time.Time) time.Time {
	r, now := s.span, time.Now()
	if r == nil || r.over {
		return at
	}
	earlier := func(t time.Time) {
		if now.Before(t) && t.Before(at) {
			at = t
		}
	}
	if len(r.flight.Returned) > 0 {
		earlier(r.pace.due)
		earlier(r.waitsUntil)
	}
	if r.reads() {
		earlier(r.restsUntil)
	}
	return at
}
