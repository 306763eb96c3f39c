package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/routing"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// ErrNothingToReplay is wrapped by the error about a range in which the destination has received nothing.
var ErrNothingToReplay = errors.New("nothing to replay")

// ErrReplayRunning is wrapped by the error about a second replay of a destination.
var ErrReplayRunning = errors.New("a replay is running")

// ErrNoReplay is wrapped by errors about a replay that does not exist or has ended.
var ErrNoReplay = errors.New("no such replay")

// ReplayRange is the range of events that a replay sends again.
type ReplayRange struct {
	// Destination receives it. It must have a position.
	Destination string
	// From is "beginning", the first event that is kept; the id of an event; or a time of RFC 3339, the
	// first event written then or later. Empty means "beginning".
	From string
	// To is "now", the last event that the destination has received; the id of the last event; or a time,
	// the last event written before it. Empty means "now".
	To string
	// Types are patterns of event types, as in a route; empty means all events of the
	// destination.
	Types []string
	// Rate is the largest number of events per second, 0 for no limit.
	Rate float64
	// KeepIDs sends the events under the ids that they had, which consumers that drop duplicates drop.
	KeepIDs bool
}

func (r *ReplayRange) validate() error {
	switch {
	case r.Destination == "":
		return fmt.Errorf("%w: a replay has a destination", ErrInvalid)
	case r.Rate < 0 || math.IsNaN(r.Rate) || math.IsInf(r.Rate, 0):
		return fmt.Errorf("%w: a rate of %v per second", ErrInvalid, r.Rate)
	}

	for _, p := range r.Types {
		if err := routing.Check(p); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}

	return nil
}

// StartReplay sends a range of events to a destination again, next to live events. The relay that has the destination
// begins within about a second, uses only the capacity that live events leave, and keeps the order of each aggregate
// within the replay. A failed event becomes a separate retry or dead letter, which does not hold back live events and
// is not held back by them. Only events that the position of the destination has passed are sent: later events come
// anyway. An event with a stored retry or dead letter is skipped. Events above the replay's head are not purged while
// it runs.
//
// The error wraps [ErrReplayRunning] while another replay runs for the destination, [ErrNothingToReplay] if the range
// is empty, and [ErrNoPosition] if the destination has no position. A dry run returns the range alone;
// [Client.CountReplay] counts the events in it.
func (s *Client) StartReplay(ctx context.Context, what ReplayRange, a Action) (r observe.Replay, err error) {
	from, ferr := engine.ParseStart(cmp.Or(what.From, "beginning"))
	to, terr := engine.ParseStart(cmp.Or(what.To, "now"))
	switch {
	case ferr != nil || from.Kind == engine.StartDefault || from.Kind == engine.StartNow:
		return r, fmt.Errorf("%w: from %q: use beginning, an id, or a time such as 2026-11-01T00:00:00Z", ErrInvalid, what.From)
	case terr != nil || to.Kind == engine.StartDefault || to.Kind == engine.StartAtBeginning:
		return r, fmt.Errorf("%w: to %q: use now, an id, or a time such as 2026-11-01T00:00:00Z", ErrInvalid, what.To)
	}

	if err := errors.Join(what.validate(), a.validate()); err != nil {
		return r, err
	}

	err = s.ofStream(ctx, "replay", pgx.ReadWrite, func(tx pgx.Tx) error {
		// It keeps a relay from moving the position, and another one from dropping the events.
		head, err := s.lock(ctx, tx, what.Destination)
		if err != nil {
			return err
		}

		r = observe.Replay{
			Destination: what.Destination,
			Types:       append([]string{}, what.Types...),
			Rate:        what.Rate,
			State:       observe.ReplayRunning,
		}
		if err := replayBounds(ctx, tx, &r, ends{head, from, to}); err != nil {
			return err
		}

		r.Head = r.From - 1
		r.Lowest = r.From - 1
		r.Remaining = r.To - r.From + 1
		if a.DryRun {
			return nil
		}
		if err := s.begin(ctx, tx, &r, what.KeepIDs, a); err != nil {
			return err
		}

		return s.noted(ctx, tx, a, positionDeed{"replay range", r.Destination, map[string]any{
			"replay": r.ID, "from": r.From, "to": r.To, "types": r.Types, "rate": r.Rate, "number": r.Number,
		}})
	})

	return r, err
}

// ends are the bounds of a range as they were requested, and the position of the destination.
type ends struct {
	head     int64
	from, to engine.Start
}

// bounds finds the first and the last id of a range.
func replayBounds(ctx context.Context, tx pgx.Tx, r *observe.Replay, e ends) (err error) {
	var first, last int64

	err = tx.QueryRow(ctx, `SELECT coalesce((SELECT id FROM outbox_events ORDER BY id LIMIT 1), outbox_last_id() + 1),
		outbox_last_id()`).Scan(&first, &last)
	if err != nil {
		return err
	}

	switch r.From = first; e.from.Kind {
	case engine.StartAtID:
		r.From = max(first, e.from.ID)
	case engine.StartAtTime:
		r.From, err = store.FirstSince(ctx, tx, e.from.Time)
		if err != nil {
			return err
		}

	default:
	}

	switch r.To = last; e.to.Kind {
	case engine.StartAtID:
		r.To = min(last, e.to.ID)
	case engine.StartAtTime:
		next, err := store.FirstSince(ctx, tx, e.to.Time)
		if err != nil {
			return err
		}
		r.To = next - 1

	default:
	}

	r.To = min(r.To, e.head)
	if r.From > r.To {
		return fmt.Errorf("%w: events are kept from %d on, and %s has received them up to %d",
			ErrNothingToReplay, first, r.Destination, e.head)
	}

	return nil
}

// sqlBegin inserts a replay. Its number is a thousand times the count of the destination's replays, so that consumers
// that drop duplicates accept its events and those of each earlier replay. The numbers in between are for replays of its
// dead letters, which count up by one.
const sqlBegin = `INSERT INTO outbox_replays (destination, from_id, to_id, head, patterns, rate, number, created_by, reason, left_out)
SELECT $1::text, $2::bigint, $3::bigint, $2::bigint - 1, $4::text[], $5::double precision,
	CASE WHEN $6::boolean THEN 0 ELSE 1000 * (1 + (SELECT coalesce(max(number), 0) / 1000 FROM outbox_replays WHERE destination = $1)) END,
	coalesce(nullif($7::text, ''), session_user), $8::text,
	coalesce((SELECT range_agg(g) FROM outbox_positions AS p, unnest(p.open) AS g WHERE p.destination = $1), '{}')
		* int8multirange(int8range($2, $3, '[]'))
RETURNING id, number, created_by, reason, created_at, updated_at`

func (s *Client) begin(ctx context.Context, tx pgx.Tx, r *observe.Replay, keepIDs bool, a Action) error {
	// The lock of the position keeps others from beginning one.
	var running int64
	err := tx.QueryRow(ctx, `SELECT coalesce((SELECT id FROM outbox_replays
		WHERE destination = $1 AND state = 'running'), 0)`, r.Destination).Scan(&running)
	switch {
	case err != nil:
		return err
	case running != 0:
		return fmt.Errorf("%s: %w, number %d: let it end, or stop it", r.Destination, ErrReplayRunning, running)
	}

	return tx.QueryRow(ctx, sqlBegin, r.Destination, r.From, r.To, r.Types, r.Rate, keepIDs, a.Actor, a.Reason).
		Scan(&r.ID, &r.Number, &r.CreatedBy, &r.Reason, &r.CreatedAt, &r.UpdatedAt)
}

// noted records a deed about a replay, and has relays look for it.
func (s *Client) noted(ctx context.Context, tx pgx.Tx, a Action, what positionDeed) error {
	if err := s.recordMove(ctx, tx, a, what); err != nil {
		return err
	}
	return s.notify(ctx, tx, pgschema.WordDeliveries)
}

// maxReplays bounds a list of replays.
const maxReplays = 1000

// Replays returns the newest replays, at most 1,000 of them, the newest first, running or not.
func (s *Client) Replays(ctx context.Context) (all []observe.Replay, err error) {
	err = s.ofStream(ctx, "list replays", pgx.ReadOnly, func(tx pgx.Tx) error {
		all, err = store.ListReplays(ctx, tx, s.cfg.Schema, store.ReplaysNewest, maxReplays)
		return err
	})
	return all, err
}

// ReplayOutcome counts the outcomes of a replay's events so far.
type ReplayOutcome struct {
	// Delivered events were acknowledged, at the first attempt or later.
	Delivered int64 `json:"delivered"`
	// Gone events failed and left the tables without an acknowledgement: a person discarded them, or they were removed.
	Gone int64 `json:"gone"`
	// Waiting events failed and are tried again, or wait behind one that failed.
	Waiting int64 `json:"waiting"`
	// Dead events are dead letters.
	Dead int64 `json:"dead"`
	// More is true if more than 100,000 events failed at first; then only as many were counted.
	More bool `json:"more"`
}

// sqlOutcome counts the rows of a replay: they have its number, and those of dead letters that were
// replayed a higher one. A replay that keeps ids has rows that are younger than itself, in a range that
// the position has passed.
const (
	sqlOutcome = `SELECT count(*) FILTER (WHERE state <> 'dead'), count(*) FILTER (WHERE state = 'dead')
FROM (SELECT d.state FROM outbox_replays AS r JOIN outbox_deliveries AS d ON d.event_id >= r.from_id AND d.event_id <= r.to_id
	AND d.destination = r.destination AND d.replays >= r.number AND d.replays < r.number + 1000 AND d.created_at >= r.created_at
	WHERE r.id = $1 LIMIT $2) AS d`
	// sqlLater counts the events of a replay that were acknowledged after a
	// failure.
	sqlLater = `SELECT count(*) FROM (SELECT FROM outbox_replays AS r
		JOIN outbox_audit AS a ON a.event_id >= r.from_id AND a.event_id <= r.to_id
	AND a.destination = r.destination AND a.action = 'delivered' AND a.at >= r.created_at
	AND (a.details->>'replay')::bigint >= r.number AND (a.details->>'replay')::bigint < r.number + 1000
	WHERE r.id = $1 LIMIT $2) AS d`
	maxOutcome = 100_000
)

// Replay returns a replay and the outcomes of its events. The error wraps [ErrNoReplay] if no replay has that id.
func (s *Client) Replay(ctx context.Context, id int64) (r observe.Replay, o ReplayOutcome, err error) {
	err = s.ofStream(ctx, "show a replay", pgx.ReadOnly, func(tx pgx.Tx) error {
		all, err := store.ListReplays(ctx, tx, s.cfg.Schema, store.ReplayByID, id)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return fmt.Errorf("%d: %w", id, ErrNoReplay)
		}

		r = all[0]
		if err := tx.QueryRow(ctx, sqlOutcome, id, maxOutcome+1).Scan(&o.Waiting, &o.Dead); err != nil {
			return err
		}

		var later int64
		if r.Failed > 0 {
			if err := tx.QueryRow(ctx, sqlLater, id, maxOutcome+1).Scan(&later); err != nil {
				return err
			}
		}

		o.More = o.Waiting+o.Dead > maxOutcome || later > maxOutcome
		o.Delivered = r.Delivered + later
		if !o.More {
			o.Gone = max(0, r.Failed-o.Waiting-o.Dead-later)
		}

		return nil
	})
	return r, o, err
}

// StopReplay ends a running replay: the relay begins none of its remaining events. Failed events stay retries or dead
// letters. The error wraps [ErrNoReplay] if the replay does not run.
func (s *Client) StopReplay(ctx context.Context, id int64, a Action) (r observe.Replay, err error) {
	if err := a.validate(); err != nil {
		return r, err
	}

	err = s.ofStream(ctx, "stop a replay", pgx.ReadWrite, func(tx pgx.Tx) error {
		stop := `UPDATE outbox_replays SET state = 'stopped', finished_at = clock_timestamp(),
			updated_at = clock_timestamp() WHERE id = $1 AND state = 'running' RETURNING id`
		if a.DryRun {
			stop = `SELECT id FROM outbox_replays WHERE id = $1 AND state = 'running'`
		}

		err := tx.QueryRow(ctx, stop, id).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%d: %w that runs", id, ErrNoReplay)
		}
		if err != nil {
			return err
		}

		all, err := store.ListReplays(ctx, tx, s.cfg.Schema, store.ReplayByID, id)
		if err != nil {
			return err
		}

		r = all[0]
		if a.DryRun {
			return nil
		}

		return s.noted(ctx, tx, a, positionDeed{"stop replay", r.Destination, map[string]any{"replay": r.ID, "head": r.Head}})
	})

	return r, err
}

// The pause between two looks at a replay, which is longer the longer nothing changes.
const (
	awaitFirst = 20 * time.Millisecond
	awaitLast  = time.Second
)

// AwaitReplay waits until a replay has ended and none of its events waits, or until ctx ends; then the error is the
// cause of ctx. It calls progress, if set, after each query.
func (s *Client) AwaitReplay(
	ctx context.Context, id int64, progress func(observe.Replay, ReplayOutcome),
) (observe.Replay, ReplayOutcome, error) {
	var before ReplayOutcome
	for pause := awaitFirst; ; pause = min(2*pause, awaitLast) {
		r, o, err := s.Replay(ctx, id)
		switch {
		case ctx.Err() != nil:
			return r, o, context.Cause(ctx)
		case err != nil:
			return r, o, err
		}

		if progress != nil {
			progress(r, o)
		}
		if r.State != observe.ReplayRunning && o.Waiting == 0 {
			return r, o, nil
		}

		if o != before {
			before = o
			pause = awaitFirst
		}

		sleep.For(ctx, pause)
	}
}
