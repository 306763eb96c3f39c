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
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// activeReplay is the range that is being sent.
type activeReplay struct {
	id       int64
	lastID   int64     // the last id
	leftOut  idset.Set // ids of the range that the destination had not received at the request
	patterns []string  // empty: all
	number   int       // delivery.Event.Replay
	prefix   string    // prefix of its aggregates' keys
	stopped  bool      // it was stopped: deliveries in flight still end

	reader        *tail.Reader
	startHead     int64 // head when this owner took it over
	types         routes.Types
	flight        flight.Events // Returned also has events that were read and not handed over
	highestHanded int64         // the highest id that this owner or the previous one handed over
	pace          pace
	restsUntil    time.Time // when it may read again
	limitedUntil  time.Time // when its next event may go by the rate limit of the destination
	read          int64     // events that this owner read to send them
	failed        int64     // the part of read that has become rows
	skipped       int64
	written       counters
}

// counters counts events by outcome.
type counters struct{ delivered, failed, skipped int64 }

// sqlRunning reads the running replay of a destination: there is at most one.
const sqlRunning = `SELECT id, to_id, left_out::text, patterns, rate, number, head, open::text FROM outbox_replays
WHERE destination = $1 AND state = 'running'`

// running returns the running replay of a shard, or nil.
func running(ctx context.Context, conn *session.Conn, shard *Shard) (*activeReplay, error) {
	r := &activeReplay{types: routes.NewTypes(), flight: flight.New(shard.Valid, shard.Wake)}
	var open idset.Set
	err := conn.QueryRow(ctx, sqlRunning, shard.Lane.Destination().Name).
		Scan(&r.id, &r.lastID, &r.leftOut, &r.patterns, &r.pace.rate, &r.number, &r.startHead, &open)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // nearly always
	}
	if err != nil {
		return nil, err
	}

	r.prefix = prefixOf(r.id)
	r.highestHanded = r.startHead
	r.reader = tail.NewReader(r.startHead, open, shard.Writers)

	return r, nil
}

// repeats reports whether events that were already handed over must be handed over again.
func (r *activeReplay) repeats() bool {
	return r.reader.Gaps().Len() > 0 || len(r.flight.Returned) > 0 && r.flight.Returned[0].Event.ID <= r.highestHanded
}

// page is how many events one read takes: live events wait for the statement.
const page = 250

// mustRead reports whether the next events must be read.
func (r *activeReplay) mustRead() bool {
	return len(r.flight.Returned) < page/4 && (r.reader.Head() < r.lastID || r.reader.Gaps().Len() > 0)
}

// keyOf returns the key of an event's aggregate within the replay, as outbox_deliveries.ordering_key has it; empty if
// the event has no aggregate.
func (r *activeReplay) keyOf(e *delivery.Event) string {
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

// entryOf counts an answer that is not simply a delivery, and returns the row that has its key.
func (r *activeReplay) entryOf(a *dispatch.Answer) deliveries.Entry {
	out := deliveries.Entry{Replays: r.number}
	switch {
	case a.Key != (dispatch.Key{}):
		out.Key = r.keyOf(a.Event)
	case r.number == 0: // a unique key: nothing else distinguishes the row from a live event's
		out.Key = r.prefix + strconv.FormatInt(a.Event.ID, 10)
	}

	switch {
	case !a.Verdict.Settles():
		r.failed++
	case a.Verdict != dispatch.VerdictDelivered: // expired, for a later one
		r.read--
		r.skipped++
	}

	return out
}

// readableKey is the number of bytes up to which an aggregate's key is kept unhashed.
const readableKey = 128

// longestKey exceeds the length of all keys of keyOf. Keys of live aggregates without a slash are longer, because they
// have a hash.
const longestKey = 190

func prefixOf(id int64) string { return "#" + strconv.FormatInt(id, 10) + "#" }

// IsKey reports whether an ordering key belongs to an aggregate, or an event, within a replay.
func IsKey(key string) bool {
	return strings.HasPrefix(key, "#") && !strings.Contains(key, "/") && len(key) < longestKey
}

// Progress is the part of a write that concerns a replay. The zero value has nothing to write.
type Progress struct {
	replay *activeReplay
	at     idset.Watermark
	n      int      // events in memory
	total  counters // of this owner, up to this write
	done   bool
	state  string // after the write
}

// Empty reports whether there is nothing to write.
func (c *Progress) Empty() bool { return c.replay == nil }

// CountFailed counts the rows that are written with the progress. These include events that have failed since the
// progress was taken: they are both open and a row until the next write.
func (c *Progress) CountFailed() {
	if c.replay != nil {
		c.total.failed = c.replay.failed
	}
}

// sqlProgress writes the progress of a replay, and returns its state. A stopped replay keeps that state, and its last
// events count.
const sqlProgress = `UPDATE outbox_replays SET head = $2::bigint, open = $3::text::int8multirange, delivered = delivered + $4::bigint,
	failed = failed + $5::bigint, skipped = skipped + $6::bigint, updated_at = clock_timestamp(),
	state = CASE WHEN $7::boolean AND state = 'running' THEN 'done' ELSE state END,
	finished_at = CASE WHEN $7::boolean AND state = 'running' THEN clock_timestamp() ELSE finished_at END
WHERE id = $1::bigint RETURNING state`

// Write writes the progress, in the transaction that has written the position.
func (c *Progress) Write(ctx context.Context, tx pgx.Tx) error {
	if c.replay == nil {
		return nil
	}

	w := &c.replay.written
	err := tx.QueryRow(ctx, sqlProgress, c.replay.id, c.at.Head, c.at.Open.String(),
		c.total.delivered-w.delivered, c.total.failed-w.failed, c.total.skipped-w.skipped, c.done).Scan(&c.state)
	if errors.Is(err, pgx.ErrNoRows) {
		c.state = "" // deleted by hand, or a trigger or a rule has ignored the write
		var rows int64
		err = tx.QueryRow(ctx, `SELECT count(*) FROM outbox_replays WHERE id = $1`, c.replay.id).Scan(&rows)
		if err == nil {
			err = session.CheckChanged("progress", 0, rows)
		}
	}

	if err != nil {
		return fmt.Errorf("write the progress of replay %d: %w", c.replay.id, err)
	}

	return nil
}

// stateRunning is outbox_replays.state of a running replay.
const stateRunning = "running"
