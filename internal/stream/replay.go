package stream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// replay sends a range of events again that the destination has received, beside what is live. It is a
// row of outbox_replays, which only the owner of the unit moves, in the transaction of the position.
//
// It has a position of its own, with a last id, and its own parcels. Its events have an order of their own, too: the name of
// their aggregate has a prefix, so that a live event and a replayed one of the same aggregate never
// wait for each other. What fails is a row like any other, in the line of that name.
//
// It reads only what the live position has passed for good: the request left out what was open then.
// Only a position that was set back meanwhile is behind it, and then the replay waits.
type replay struct {
	id       int64
	to       int64       // the last id of the range
	leftOut  tail.Ranges // ids of it that the destination had not received at the request
	patterns []string    // none is all
	number   int         // delivery.Event.Replay
	prefix   string      // of the names of its aggregates
	over     bool        // it was stopped: only what is under way still ends

	reader     *tail.Reader
	begun      int64 // its head when this owner took it over
	types      types
	flight     flight // flight.again has what was read and not handed over, too
	handed     int64  // the highest id that was handed over, by this owner or the one before
	pace       pace
	restsUntil time.Time // when it may read again
	waitsUntil time.Time // when its next event may go by the rate limit of the destination
	taken      int64     // events that were read to be sent, by this owner
	failed     int64     // of them, those that have become rows
	skipped    int64
	written    tally
}

// tally counts events by what became of them.
type tally struct{ delivered, failed, skipped int64 }

// sqlReplay reads the running replay of a destination: there is one at most.
const sqlReplay = `SELECT id, to_id, left_out::text, patterns, rate, number, head, open::text FROM outbox_replays
WHERE destination = $1 AND state = 'running'`

// readReplay returns nil if there is none.
func readReplay(ctx context.Context, conn *session.Conn, destination string, w *tail.Witnesses) (*replay, error) {
	r := &replay{types: newTypes(), flight: newFlight()}
	var leftOut, text string
	err := conn.QueryRow(ctx, sqlReplay, destination).Scan(&r.id, &r.to, &leftOut, &r.patterns, &r.pace.rate, &r.number, &r.begun, &text)
	if isNoRows(err) {
		return nil, nil //nolint:nilnil // nearly always
	}
	if err != nil {
		return nil, err
	}
	if r.leftOut, err = tail.ParseRanges(leftOut); err != nil {
		return nil, err
	}
	open, err := tail.ParseRanges(text)
	if err != nil {
		return nil, err
	}
	r.prefix, r.handed, r.reader = replayPrefix(r.id), r.begun, tail.NewReader(r.begun, open, w)
	return r, nil
}

// repeats reports whether events that were handed over once have yet to be handed over again.
func (r *replay) repeats() bool {
	return r.reader.Gaps().Len() > 0 || len(r.flight.again) > 0 && r.flight.again[0].Event.ID <= r.handed
}

// replayCount is the part of a write that is about a replay.
type replayCount struct {
	replay *replay // nil: there is nothing to write
	head   int64
	open   tail.Ranges
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

// replayPrefix begins the names of the aggregates of a replay. A name that begins with it, has no slash
// and is shorter than 190 bytes is not that of a live aggregate: those have a slash, or are longer
// because they have a hash.
func replayPrefix(id int64) string { return "#" + strconv.FormatInt(id, 10) + "#" }

// replays reports whether a name is that of a line of a replay.
func replays(name string) bool {
	return strings.HasPrefix(name, "#") && !strings.Contains(name, "/") && len(name) < 190
}

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

// reads reports whether the next events must be read.
func (r *replay) reads() bool {
	return len(r.flight.again) < asidePage/4 && (r.reader.Head() < r.to || r.reader.Gaps().Len() > 0)
}
