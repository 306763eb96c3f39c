package replay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/flight"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// span is the range that is being sent.
type span struct {
	id       int64
	to       int64       // the last id
	leftOut  tail.Ranges // ids of it that the destination had not received at the request
	patterns []string    // none is all
	number   int         // delivery.Event.Replay
	prefix   string      // of the keys of its aggregates
	over     bool        // it was stopped: only what is under way still ends

	reader     *tail.Reader
	begun      int64 // its head when this owner took it over
	types      routes.Types
	flight     flight.Events // Returned has what was read and not handed over, too
	handed     int64         // the highest id that was handed over, by this owner or the one before
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

// sqlRunning reads the running replay of a destination: there is one at most.
const sqlRunning = `SELECT id, to_id, left_out::text, patterns, rate, number, head, open::text FROM outbox_replays
WHERE destination = $1 AND state = 'running'`

// running returns the running replay of a shard, nil if there is none.
func running(ctx context.Context, conn *session.Conn, shard *Shard) (*span, error) {
	r := &span{types: routes.NewTypes(), flight: flight.New(shard.Valid, shard.Wake)}
	var leftOut, text string
	err := conn.QueryRow(ctx, sqlRunning, shard.Lane.Destination().Name).Scan(&r.id, &r.to, &leftOut, &r.patterns, &r.pace.rate, &r.number, &r.begun, &text)
	if errors.Is(err, pgx.ErrNoRows) {
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
	r.prefix, r.handed, r.reader = prefixOf(r.id), r.begun, tail.NewReader(r.begun, open, shard.Witnesses)
	return r, nil
}

// repeats reports whether events that were handed over once have yet to be handed over again.
func (r *span) repeats() bool {
	return r.reader.Gaps().Len() > 0 || len(r.flight.Returned) > 0 && r.flight.Returned[0].Event.ID <= r.handed
}

// page is how many events are read at once: live events wait for the statement.
const page = 250

// reads reports whether the next events must be read.
func (r *span) reads() bool {
	return len(r.flight.Returned) < page/4 && (r.reader.Head() < r.to || r.reader.Gaps().Len() > 0)
}

// keyOf returns the key of an event's aggregate within the replay, as outbox_deliveries.ordering_key has
// it; empty if the event has none.
func (r *span) keyOf(e *delivery.Event) string {
	key := dispatch.OrderingKey(e)
	switch {
	case key == "":
		return ""
	case len(key) > readableKey:
		sum := sha256.Sum256([]byte(key))
		key = hex.EncodeToString(sum[:])
	default:
		key = strings.ReplaceAll(key, "/", ":")
	}
	return r.prefix + key
}

// outcome counts an answer that is not simply a delivery, and returns the row that has its key.
func (r *span) outcome(a *dispatch.Answer) deliveries.Entry {
	out := deliveries.Entry{Replays: r.number}
	switch {
	case a.Key != (dispatch.Key{}):
		out.Key = r.keyOf(a.Event)
	case r.number == 0: // a key of its own: nothing else tells the row from that of a live event
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

// readableKey is up to how many bytes the key of an aggregate is kept.
const readableKey = 128

// longestKey is more than what keyOf returns. Keys of live aggregates that have no slash are longer, because they have a hash.
const longestKey = 190

func prefixOf(id int64) string { return "#" + strconv.FormatInt(id, 10) + "#" }

// IsKey reports whether an ordering key is that of an aggregate, or of an event, within a replay.
func IsKey(key string) bool {
	return strings.HasPrefix(key, "#") && !strings.Contains(key, "/") && len(key) < longestKey
}

// Count is the part of a write that is about a replay. The zero value has nothing to write.
type Count struct {
	of    *span
	head  int64
	open  tail.Ranges
	n     int   // events in memory
	total tally // of this owner, up to this write
	done  bool
	state string // after the write
}

// Empty reports whether there is nothing to write.
func (c *Count) Empty() bool { return c.of == nil }

// Collected counts the rows that are written with the progress: also those of events that have failed
// since it was counted, and are both open and a row until the next write.
func (c *Count) Collected() {
	if c.of != nil {
		c.total.failed = c.of.failed
	}
}

// sqlMove writes the progress of a replay, and returns its state. A replay that was stopped keeps
// that state, and its last events count.
const sqlMove = `UPDATE outbox_replays SET head = $2::bigint, open = $3::text::int8multirange, delivered = delivered + $4::bigint,
	failed = failed + $5::bigint, skipped = skipped + $6::bigint, updated_at = clock_timestamp(),
	state = CASE WHEN $7::boolean AND state = 'running' THEN 'done' ELSE state END,
	finished_at = CASE WHEN $7::boolean AND state = 'running' THEN clock_timestamp() ELSE finished_at END
WHERE id = $1::bigint RETURNING state`

// Write writes the progress, in the transaction that has written the position.
func (c *Count) Write(ctx context.Context, tx pgx.Tx) error {
	if c.of == nil {
		return nil
	}
	w := &c.of.written
	err := tx.QueryRow(ctx, sqlMove, c.of.id, c.head, c.open.String(),
		c.total.delivered-w.delivered, c.total.failed-w.failed, c.total.skipped-w.skipped, c.done).Scan(&c.state)
	if errors.Is(err, pgx.ErrNoRows) {
		c.state = "" // deleted by hand
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the progress of replay %d: %w", c.of.id, err)
	}
	return nil
}

// stateRunning is outbox_replays.state of a replay that goes on.
const stateRunning = "running"
