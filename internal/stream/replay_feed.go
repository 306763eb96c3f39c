package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

const (
	// asidePage is how many events of a replay are read at once: live events wait for the statement.
	asidePage = 250
	// asideShare is how many times as long as it has read a replay then leaves the database, and the
	// relay, to others: a destination that is fast would take all there is of both.
	asideShare = 4
)

// feedReplay hands over events of the replay, as far as live events leave room. It reports whether it
// did anything.
func (u *unit) feedReplay(ctx context.Context, conn *session.Conn) (did bool, err error) {
	if u.aside.replay.over || u.gate.stuck || u.lane.Waits(false) {
		return false, nil
	}
	if u.aside.reads() {
		room := u.e.memory()/2 - u.gate.flight.bytes
		did, err = u.aside.read(ctx, conn, u.reader.Head(), room, func() tail.Ranges {
			_, live := u.account(true)
			return live
		})
		if err != nil {
			return false, err
		}
	}
	p, caughtUp := u.aside.next()
	if p == nil {
		return did, nil
	}
	u.gate.pass(p, nil)
	if caughtUp {
		u.shelf.searchNow()
	}
	return true, nil
}

// reads reports whether it is time to read the next events.
func (s *aside) reads() bool { return s.replay.reads() && !time.Now().Before(s.replay.restsUntil) }

// next returns what goes next of what was read or given back, as a parcel that the caller passes on; nil if nothing
// may go. caughtUp reports that stored lines waited for the last of these.
func (s *aside) next() (p *dispatch.Parcel, caughtUp bool) {
	r := s.replay
	now := time.Now()
	n := r.pace.allow(now, min(len(r.flight.again), s.e.limits.Batch))
	if n == 0 || now.Before(r.waitsUntil) {
		return nil, false
	}
	granted := s.lane.Reserve(dispatch.Request{N: n, Replay: true, Held: r.flight.left})
	if granted == 0 {
		return nil, false
	}
	goes := s.admit(r.flight.again[:granted])
	s.lane.Return(granted - goes)
	if granted = goes; granted == 0 {
		return nil, false
	}
	r.pace.took(granted)
	all := r.flight.again[:granted]
	p = r.flight.parcel(s.common)
	repeats := r.repeats()
	r.handed = max(r.handed, all[len(all)-1].Event.ID)
	p.Fill(append(p.Room(granted), all...))
	r.flight.begin(p, all)
	r.flight.again = slices.Delete(r.flight.again, 0, granted)
	s.ledger.dirty = true
	return p, repeats && !r.repeats()
}

// read reads the next events of the range, up to the head of what is live, and keeps those that are to be
// sent. room is how many bytes of events fit into memory beside what is live, whose open ids live returns.
func (s *aside) read(ctx context.Context, conn *session.Conn, head int64, room int, live func() tail.Ranges) (did bool, err error) {
	r := s.replay
	room -= r.flight.bytes + r.flight.waiting()
	upto := min(r.to, head)
	was, gaps := r.reader.Head(), r.reader.Gaps()
	if room <= 0 || upto < was || upto == was && gaps.Len() == 0 {
		return false, nil
	}
	began := time.Now()
	defer func() { r.restsUntil = time.Now().Add(asideShare * time.Since(began)) }()
	b, err := r.reader.Read(ctx, conn, tail.Query{
		Limit: asidePage, Rows: skipAhead * asidePage, Bytes: min(s.e.limits.Bytes, room), EventBytes: s.e.limits.EventBytes, Skip: r.types.skip,
		Assigned: upto, Passed: true,
	})
	if err == nil {
		err = s.keep(ctx, conn, &b, live())
	}
	if err != nil {
		r.reader = tail.NewReader(was, gaps, s.e.witnesses)
		return false, fmt.Errorf("read events for replay %d: %w", r.id, err)
	}
	s.ledger.dirty = true
	return true, nil
}

// keep keeps those events of a read that are to be sent, and counts those that are passed over because
// they are stored, or in flight, as deliveries of their own. After an error nothing is kept or counted.
func (s *aside) keep(ctx context.Context, conn *session.Conn, b *tail.Batch, live tail.Ranges) error {
	r := s.replay
	skipped := int64(0)
	ids, wanted := make([]int64, 0, len(b.Events)), make([]*delivery.Event, 0, len(b.Events))
	for i := range b.Events {
		e := &b.Events[i]
		switch {
		case r.leftOut.Contains(e.ID), !r.types.wants(s.common, e.Type, r.patterns):
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
	rows, err := conn.Query(ctx, `SELECT event_id FROM outbox_deliveries WHERE destination = $1 AND event_id = ANY($2) ORDER BY event_id`, s.name, ids)
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
		passes, refused := s.passes(e, b.Refused[e.ID])
		if !passes {
			continue // by the filters of today, like the routes
		}
		r.taken++
		r.flight.again = append(r.flight.again, s.delivery(e, refused))
	}
	r.skipped += skipped
	return nil
}

// delivery makes an event a delivery of the replay.
func (s *aside) delivery(e *delivery.Event, refused error) dispatch.Delivery {
	e.Destination, e.Outbox, e.Attempt, e.Replay = s.name, s.e.Outbox, 1, s.replay.number
	d := dispatch.Delivery{Event: e, Refused: refused} // one that is asked for again does not expire
	if s.order.kept {
		if name := s.replay.name(e); name != "" {
			d.Key = s.order.keys.Named(name)
		}
	}
	return d
}

// pace keeps a replay to a rate.
type pace struct {
	rate float64   // events per second; 0: no limit
	left float64   // events that may go
	at   time.Time // of left
	due  time.Time // when the next bunch may go
}

// paceEvery is how often events go at a rate: the bunches are as large as that takes.
const paceEvery = 50 * time.Millisecond

// maxPace bounds a pause.
const maxPace = time.Hour

// allow returns how many of n events may go now. It is 0 where it is too early for a bunch.
func (p *pace) allow(now time.Time, n int) int {
	if p.rate == 0 || n == 0 {
		return n
	}
	bunch := max(1, p.rate*paceEvery.Seconds())
	if p.at.IsZero() {
		p.at, p.left = now, 1
	}
	p.left = min(2*bunch, p.left+p.rate*now.Sub(p.at).Seconds())
	p.at = now
	if need := min(bunch, float64(n)) - p.left; need > 0 {
		p.due = now.Add(time.Duration(min(need/p.rate, maxPace.Seconds()) * float64(time.Second)))
		return 0
	}
	return int(min(float64(n), p.left)) // left may be more than an int
}

// took records that events went.
func (p *pace) took(n int) {
	if p.rate > 0 {
		p.left -= float64(n)
	}
}
