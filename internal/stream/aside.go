package stream

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/session"
)

// aside is what a unit sends beside what is live. It owns the replay that runs, with its events in memory,
// and only the goroutine of the unit uses it. The unit passes on what next returns, brings the answers
// back, and puts what has failed on its shelf, like any other row.
type aside struct {
	*common

	order  *order
	ledger *ledger   // the progress is written with the position
	replay *replay   // nil for none
	lookAt time.Time // when to look for one
}

// forget makes it that of a unit that has just been taken over.
func (s *aside) forget() { s.replay, s.lookAt = nil, time.Time{} }

// look finds a replay that was requested, or is not running any more, if it is time to.
func (s *aside) look(ctx context.Context, conn *session.Conn, write owned) error {
	now := time.Now()
	if now.Before(s.lookAt) || s.pos.Part > 0 { // the first shard sends a replay
		return nil
	}
	s.lookAt = now.Add(s.e.limits.PollInterval)
	r, err := readReplay(ctx, conn, s.name, s.e.witnesses)
	if err != nil {
		return fmt.Errorf("find a replay of %q: %w", s.name, err)
	}
	switch {
	case r != nil && s.order.total:
		return s.refuse(ctx, conn, r.id, write)
	case s.replay == nil:
		s.replay = r
	case r == nil || r.id != s.replay.id:
		s.end()
	}
	return nil
}

// noReplay is why a replay to a destination with a total order is stopped: what goes beside the one line of
// all events is not in it.
const noReplay = "stopped by the relay: in order: total nothing goes beside what is live; move the position instead"

// refuse stops a replay that cannot be sent.
func (s *aside) refuse(ctx context.Context, conn *session.Conn, id int64, write owned) error {
	s.e.log.WarnContext(ctx, "a replay is stopped", "destination", s.name, "replay", id, "reason", noReplay)
	return write(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox_replays SET state = 'stopped', finished_at = clock_timestamp(), reason = concat_ws('; ', nullif(reason, ''), $2::text)
			WHERE id = $1 AND state = 'running'`, id, noReplay)
		if err != nil {
			return fmt.Errorf("stop replay %d: %w", id, err)
		}
		return nil
	})
}

// end ends a replay that was stopped: nothing of it begins any more. What is under way may still
// fail, and become a row; then a last write counts it.
func (s *aside) end() {
	r := s.replay
	r.taken -= int64(len(r.flight.again))
	r.over, r.flight.again, s.ledger.dirty = true, nil, true
}

// holds reports whether a stored line must wait for events of the replay that come before it: the owner
// before had them in memory, or the lane has given them back.
func (s *aside) holds(name string) bool {
	r := s.replay
	return r != nil && !r.over && r.repeats() && strings.HasPrefix(name, r.prefix)
}

// underWay reports whether the lane has events of the replay.
func (s *aside) underWay() bool { return s.replay != nil && len(s.replay.flight.parcels) > 0 }

// giveBack takes back an event that no worker has started. It reports whether the event will be sent
// again, which it will not if the replay was stopped.
func (s *aside) giveBack(d dispatch.Delivery) bool {
	if s.replay.over {
		s.replay.taken--
		return false
	}
	s.replay.flight.giveBack(d)
	return true
}

// outcome counts an answer that is not simply a delivery, and returns the row that has its line.
func (s *aside) outcome(a *dispatch.Answer) entry {
	r := s.replay
	out := entry{Entry: deliveries.Entry{Replays: r.number}, aside: true}
	switch {
	case a.Key != (dispatch.Key{}):
		out.Key = r.name(a.Event)
	case r.number == 0: // a line of its own: nothing else tells the row from that of a live event
		out.Key = r.prefix + strconv.FormatInt(a.Event.ID, 10)
	}
	switch {
	case !a.Verdict.Settles():
		r.failed++
	case a.Verdict != dispatch.VerdictDelivered: // for a later one
		r.taken--
		r.skipped++
	}
	return out
}

// count begins a write of the progress. What is neither open nor failed was delivered: an answer that
// was not taken yet counts, too, because the event is not open any more.
func (s *aside) count() (c replayCount) {
	r := s.replay
	if r == nil {
		return c
	}
	c.replay = r
	c.head, c.open, c.n = r.flight.account(r.reader, nil)
	c.head, c.open = position.Bound(c.head, c.open)
	c.total = tally{delivered: r.taken - int64(c.n) - r.failed, failed: r.failed, skipped: r.skipped}
	c.done = c.head >= r.to && len(c.open) == 0
	return c
}

// counted takes note of a write that was committed.
func (s *aside) counted(c *replayCount, state string) {
	r := c.replay
	if r == nil {
		return
	}
	r.written = c.total
	switch {
	case c.done, r.over && c.n == 0 && len(r.flight.parcels) == 0 && r.failed == c.total.failed: // what an owner before had open stays so
		s.forget()
	case state != replayRunning && !r.over:
		s.end()
	}
}

// due returns when the replay may go on by its rate, or read again; at if it waits for something else.
func (s *aside) due(at time.Time) time.Time {
	r, now := s.replay, time.Now()
	if r == nil || r.over {
		return at
	}
	if len(r.flight.again) > 0 && now.Before(r.pace.due) {
		at = earlier(at, r.pace.due)
	}
	if len(r.flight.again) > 0 && now.Before(r.waitsUntil) {
		at = earlier(at, r.waitsUntil)
	}
	if r.reads() && now.Before(r.restsUntil) {
		at = earlier(at, r.restsUntil)
	}
	return at
}
