package stream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/wire"
)

// replay sends a range of events again that the destination has received, beside what is live. It is a
// row of outbox_replays, which only the owner of the unit moves, in the transaction of the position.
//
// It has its own head, and its own parcels. Its events have an order of their own, too: the name of
// their aggregate has a prefix, so that a live event and a replayed one of the same aggregate never
// wait for each other. What fails is a row like any other, in the line of that name.
//
// It reads only what the live position has passed for good: the request left out what was open then.
// Only a position that was set back meanwhile is behind it, and then the replay waits.
type replay struct {
	id       int64
	to       int64    // the last id of the range
	leftOut  Ranges   // ids of it that the destination had not received at the request
	patterns []string // none is all
	number   int      // delivery.Event.Replay
	prefix   string   // of the names of its aggregates
	over     bool     // it was stopped: only what is under way still ends

	head       int64 // the highest id that was read
	before     cut   // progress of the owner before: what it has finished
	reading    reading
	flight     flight // flight.again has what was read and not handed over, too
	handed     int64  // the highest id that was handed over, by this owner or the one before
	pace       pace
	restsUntil time.Time // when it may read again
	taken      int64     // events that were read to be sent, by this owner
	failed     int64     // of them, those that have become rows
	skipped    int64
	written    tally
}

// tally counts events by what became of them.
type tally struct{ delivered, failed, skipped int64 }

// reading is what the last reads have shown.
type reading struct {
	names wire.Names
	types types
	row   int     // assumed size of a row, in bytes
	rare  float64 // assumed number of rows read per event, at least 1
}

// sqlReplay reads the running replay of a destination: there is one at most.
const sqlReplay = `SELECT id, to_id, left_out::text, patterns, rate, number, head, open::text FROM outbox_replays
WHERE destination = $1 AND state = 'running'`

// lookForReplay finds a replay that was requested, or is not running any more.
func (u *unit) lookForReplay(ctx context.Context, conn *pgx.Conn) error {
	now := time.Now()
	if now.Before(u.replayAt) {
		return nil
	}
	u.replayAt = now.Add(u.e.limits.PollInterval)
	r, err := readReplay(ctx, conn, u.name)
	if err != nil {
		return fmt.Errorf("find a replay of %q: %w", u.name, err)
	}
	switch {
	case r != nil && u.order.total:
		return u.refuseReplay(ctx, conn, r.id)
	case u.replay == nil:
		u.replay = r
	case r == nil || r.id != u.replay.id:
		u.endReplay()
	}
	return nil
}

// noReplay is why a replay to a destination with a total order is stopped: what goes beside the one line of
// all events is not in it.
const noReplay = "stopped by the relay: in order: total nothing goes beside what is live; move the position instead"

// refuseReplay stops a replay that cannot be sent.
func (u *unit) refuseReplay(ctx context.Context, conn *pgx.Conn, id int64) error {
	u.e.log.WarnContext(ctx, "a replay is stopped", "destination", u.name, "replay", id, "reason", noReplay)
	return u.owned(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox_replays SET state = 'stopped', finished_at = clock_timestamp(), reason = concat_ws('; ', nullif(reason, ''), $2::text)
			WHERE id = $1 AND state = 'running'`, id, noReplay)
		if err != nil {
			return fmt.Errorf("stop replay %d: %w", id, err)
		}
		return nil
	})
}

// readReplay returns nil if there is none.
func readReplay(ctx context.Context, conn *pgx.Conn, destination string) (*replay, error) {
	r := &replay{reading: reading{row: rowGuess, rare: 1, types: types{skipped: make(map[string]bool)}}, flight: newFlight()}
	var leftOut, open string
	err := conn.QueryRow(ctx, sqlReplay, destination).Scan(&r.id, &r.to, &leftOut, &r.patterns, &r.pace.rate, &r.number, &r.before.head, &open)
	if isNoRows(err) {
		return nil, nil //nolint:nilnil // nearly always
	}
	if err != nil {
		return nil, err
	}
	if r.leftOut, err = ParseRanges(leftOut); err != nil {
		return nil, err
	}
	if r.before.open, err = ParseRanges(open); err != nil {
		return nil, err
	}
	r.prefix = replayPrefix(r.id)
	r.head, r.handed = r.before.head, r.before.head
	if len(r.before.open) > 0 {
		r.head = r.before.open[0].From - 1
	}
	return r, nil
}

// endReplay ends a replay that was stopped: nothing of it begins any more. What is under way may still
// fail, and become a row; then a last write counts it.
func (u *unit) endReplay() {
	r := u.replay
	r.taken -= int64(len(r.flight.again))
	r.over, r.flight.again, u.ledger.dirty = true, nil, true
}

// holds reports whether a stored line must wait for events of the replay that come before it: the owner
// before had them in memory, or the lane has given them back.
func (u *unit) holds(name string) bool {
	r := u.replay
	return r != nil && !r.over && r.repeats() && strings.HasPrefix(name, r.prefix)
}

// repeats reports whether events that were handed over once have yet to be handed over again.
func (r *replay) repeats() bool {
	return r.head < r.before.head || len(r.flight.again) > 0 && r.flight.again[0].Event.ID <= r.handed
}

// account returns the progress to write, as account of a unit does, and the number of events in memory.
func (r *replay) account() (head int64, open Ranges, n int) {
	ids := r.flight.openIDs()
	n = len(ids)
	slices.Sort(ids)
	for _, id := range ids {
		if n := len(open); n > 0 && id <= open[n-1].To+1 {
			open[n-1].To = max(open[n-1].To, id)
			continue
		}
		open = append(open, Range{id, id})
	}
	if r.head >= r.before.head {
		head, open = bound(r.head, open)
		return head, open, n
	}
	for _, g := range r.before.open { // the rest is still to be read
		if g.To > r.head {
			open.Add(Range{max(g.From, r.head+1), g.To})
		}
	}
	head, open = bound(r.before.head, open)
	return head, open, n
}

// replayCount is the part of a write that is about a replay.
type replayCount struct {
	replay *replay // nil: there is nothing to write
	head   int64
	open   Ranges
	n      int   // events in memory
	total  tally // of this owner, up to this write
	done   bool
}

// collected counts the rows that are written with the progress: also those of events that have failed
// since it was counted, and are both open and a row until the next write.
func (c *replayCount) collected() {
	if c.replay != nil {
		c.total.failed = c.replay.failed
	}
}

// countReplay begins a write of the progress. What is neither open nor failed was delivered: an answer that
// was not taken yet counts, too, because the event is not open any more.
func (u *unit) countReplay() (c replayCount) {
	r := u.replay
	if r == nil {
		return c
	}
	c.replay = r
	c.head, c.open, c.n = r.account()
	c.total = tally{delivered: r.taken - int64(c.n) - r.failed, failed: r.failed, skipped: r.skipped}
	c.done = c.head >= r.to && len(c.open) == 0
	return c
}

// sqlReplayed writes the progress of a replay, and returns its state. A replay that was stopped keeps
// that state, and its last events count.
const sqlReplayed = `UPDATE outbox_replays SET head = $2::bigint, open = $3::text::int8multirange, delivered = delivered + $4::bigint,
	failed = failed + $5::bigint, skipped = skipped + $6::bigint, updated_at = clock_timestamp(),
	state = CASE WHEN $7::boolean AND state = 'running' THEN 'done' ELSE state END,
	finished_at = CASE WHEN $7::boolean AND state = 'running' THEN clock_timestamp() ELSE finished_at END
WHERE id = $1::bigint RETURNING state`

// write writes the progress, in the transaction that has written the position. It returns the state.
func (c *replayCount) write(ctx context.Context, tx pgx.Tx) (state string, err error) {
	if c.replay == nil {
		return "", nil
	}
	w := &c.replay.written
	err = tx.QueryRow(ctx, sqlReplayed, c.replay.id, c.head, c.open.String(),
		c.total.delivered-w.delivered, c.total.failed-w.failed, c.total.skipped-w.skipped, c.done).Scan(&state)
	if isNoRows(err) {
		return replayStopped, nil // deleted by hand
	}
	if err != nil {
		return "", fmt.Errorf("write the progress of replay %d: %w", c.replay.id, err)
	}
	return state, nil
}

// The states of replays.
const (
	replayRunning = "running"
	replayStopped = "stopped"
)

// replayed takes note of a write that was committed.
func (u *unit) replayed(c *replayCount, state string) {
	r := c.replay
	if r == nil {
		return
	}
	r.written = c.total
	switch {
	case c.done, r.over && c.n == 0 && len(r.flight.parcels) == 0 && r.failed == c.total.failed: // what an owner before had open stays so
		u.replay, u.replayAt = nil, time.Time{}
	case state != replayRunning && !r.over:
		u.endReplay()
	}
}

// answeredAside records the outcome of a replayed event, except for one that was simply delivered.
func (u *unit) answeredAside(a *dispatch.Answer) {
	r := u.replay
	if a.Verdict == dispatch.VerdictReleased {
		if r.over {
			r.taken--
			return
		}
		r.flight.giveBack(a.Delivery)
		u.exact.doubt(a.Err)
		return
	}
	out := entry{aside: true, replays: r.number}
	if a.Key != (dispatch.Key{}) {
		out.key = r.name(a.Event)
	}
	if a.Verdict != dispatch.VerdictDelivered {
		r.failed++
	}
	u.shelf.settle(a, out)
}

// replayPrefix begins the names of the aggregates of a replay. A name that begins with it, has no slash
// and is shorter than 190 bytes is not that of a live aggregate: those have a slash, or are longer
// because they have a hash.
func replayPrefix(id int64) string { return "#" + strconv.FormatInt(id, 10) + "#" }

// readableName is up to how many bytes the name of an aggregate is kept.
const readableName = 128

// name returns the name of an event's aggregate within the replay, as outbox_deliveries.ordering_key has
// it; empty if the event has none.
func (r *replay) name(e *delivery.Event) string {
	name := dispatch.OrderingKey(e)
	switch {
	case name == "":
		return ""
	case len(name) > readableName:
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:])
	default:
		name = strings.ReplaceAll(name, "/", ":")
	}
	return r.prefix + name
}
