package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
)

// Moved is the result of Seek, or in a dry run its plan.
type Moved struct {
	// From is the id up to which the destination had come, the lowest of its parts, and To the id up to
	// which it has come now: it continues with the first event above To.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// First is the id of the first stored event, 0 without events: all earlier events are deleted.
	First int64 `json:"first_kept"`
	// Last is the highest id assigned.
	Last int64 `json:"last_assigned"`
}

// Seek moves the position of a destination: to "beginning", the first event that is kept; "now", the end of the events
// written so far; the id of an event; or a time of RFC 3339, the first event written then or later. The destination
// continues with that event.
//
// Backwards, the destination receives events again that it has received since, by its present routes and under the same
// ids, so that consumers can drop duplicates. Events that were still due by ended routes come by the present routes.
// Forwards, the destination receives neither the skipped events, nor an event whose id was drawn before the move and
// whose transaction commits later.
//
// Stored deliveries, such as retries and dead letters, stay as they are, and deliveries under way end as usual. A
// destination with exactly_once receives again only events above the new position, and nothing again after a move
// forwards. The delivering relay continues at the new position within about a second. While a position is behind, no
// event above it is purged.
func (s *Client) Seek(ctx context.Context, destination, to string, a Action) (m Moved, err error) {
	start, err := engine.ParseStart(to)
	switch {
	case err != nil:
		return m, fmt.Errorf("%w: %q: %w", ErrInvalid, to, err)
	case start.Kind == engine.StartDefault:
		return m, fmt.Errorf("%w: %q is no position: use beginning, now, an id or a time", ErrInvalid, to)
	case destination == "":
		return m, fmt.Errorf("%w: a position has a destination; that of the search for events without a route cannot be moved", ErrInvalid)
	}

	if err := a.validate(); err != nil {
		return m, err
	}

	err = s.ofStream(ctx, "move a position", pgx.ReadWrite, func(tx pgx.Tx) error {
		// First the position of the destination, then the unrouted scanner's, in
		// the order of relays.
		m.From, err = s.lock(ctx, tx, destination)
		if err != nil {
			return err
		}
		if err := m.target(ctx, tx, start); err != nil || a.DryRun {
			return err
		}

		if m.To < m.From {
			if err := unreplayed(ctx, tx, destination); err != nil {
				return err
			}
		}

		if err := positionMove(ctx, tx, destination, m.To, m.To >= m.From); err != nil {
			return err
		}

		if m.To > m.From {
			if err := routes.Skip(ctx, tx, destination, m.From, m.To); err != nil {
				return err
			}
		}

		details := map[string]any{"to": to, "from_head": m.From, "to_head": m.To}
		return s.recordMove(ctx, tx, a, positionDeed{"seek", destination, details})
	})

	return m, err
}

// lock locks the positions of a destination, and returns the lowest of their heads.
func (s *Client) lock(ctx context.Context, tx pgx.Tx, destination string) (head int64, err error) {
	var n int
	err = tx.QueryRow(ctx, `SELECT count(*), coalesce(min(head), 0)
		FROM (SELECT head FROM outbox_positions WHERE destination = $1 ORDER BY shard FOR UPDATE) AS p`,
		destination).Scan(&n, &head)
	if err != nil || n > 0 {
		return head, err
	}

	all, err := store.ListPositions(ctx, tx, s.cfg.Schema)
	if err != nil {
		return 0, err
	}

	return 0, missing(destination, all)
}

// target finds the id that the position is moved to.
func (m *Moved) target(ctx context.Context, tx pgx.Tx, to engine.Start) error {
	err := tx.QueryRow(ctx, `SELECT coalesce((SELECT id FROM outbox_events ORDER BY id LIMIT 1), 0), outbox_last_id()`).
		Scan(&m.First, &m.Last)
	if err != nil {
		return err
	}

	switch to.Kind {
	case engine.StartAtBeginning:
		m.To = m.First - 1
		if m.First == 0 {
			m.To = m.Last
		}

	case engine.StartAtID:
		if to.ID > m.Last+1 {
			return fmt.Errorf("%w: id %d is not assigned yet: the last one is %d", ErrInvalid, to.ID, m.Last)
		}
		m.To = to.ID - 1

	case engine.StartAtTime:
		first, err := store.FirstSince(ctx, tx, to.Time)
		if err != nil {
			return err
		}
		m.To = first - 1

	default:
		m.To = m.Last
	}

	return nil
}

const (
	// sqlMove fences the relay that owns the position. Open ids up to the new head stay open: they are in flight, or
	// their transaction may still commit. A destination that keeps a copy of its position receives the events above
	// the new head again, unless the move is forwards: see package exactly. Where ids were assigned again, no copy
	// counts: a sealed above void marks this. A move backwards also drops the positions of former shards. Forwards
	// ($3), no shard moves back.
	sqlMove = `UPDATE outbox_positions SET head = CASE WHEN $3 THEN greatest(head, $2) ELSE $2 END,
		open = CASE WHEN $3 THEN open ELSE open * int8multirange(int8range(NULL, $2, '[]')) END,
		epoch = epoch + 1, updated_at = clock_timestamp(),
		void = CASE WHEN NOT $3 AND $2 < head OR reused IS NOT NULL THEN sealed ELSE void END,
		sealed = sealed + (reused IS NOT NULL)::int,
		former = CASE WHEN $3 THEN former ELSE '[]' END, sequence = NULL, seen = pg_snapshot_xmax(pg_current_snapshot()),
		seen_at = clock_timestamp(), reused = NULL
		WHERE destination = $1`

	// sqlAgain: where ids were given out again, the search for events without a route goes back to the first of them.
	sqlAgain = `UPDATE outbox_positions SET head = least(head, reused), open = open * int8multirange(int8range(NULL, reused, '[]')),
		sequence = NULL, seen = pg_snapshot_xmax(pg_current_snapshot()), seen_at = clock_timestamp(), reused = NULL
		WHERE destination = '' AND reused IS NOT NULL`

	// sqlStanding reads the number of positions, whether ids were given out again, the lowest head, and the open ids of all parts.
	sqlStanding = `SELECT count(*), bool_or(reused IS NOT NULL), min(head), coalesce((SELECT range_agg(g)
		FROM outbox_positions AS p, unnest(p.open) AS g WHERE p.destination = $1), '{}')::text
		FROM outbox_positions WHERE destination = $1`
)

// unreplayed returns an error if a replay of a destination with several shards is running: the first shard sends it, and does not
// see how far the others have come again.
func unreplayed(ctx context.Context, tx pgx.Tx, destination string) error {
	var id int64

	err := tx.QueryRow(ctx, `SELECT id FROM outbox_replays WHERE destination = $1 AND state = 'running' AND EXISTS
		(SELECT FROM outbox_positions WHERE destination = $1 AND shard > 0)`,
		destination).Scan(&id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}

	return fmt.Errorf("%s: %w, number %d: let it end, or stop it", destination, ErrReplayRunning, id)
}

func positionMove(ctx context.Context, tx pgx.Tx, destination string, head int64, forwards bool) error {
	if _, err := routes.Fence(ctx, tx); err != nil {
		return err
	}

	var again bool
	var positions int64
	var at idset.Watermark

	err := tx.QueryRow(ctx, sqlStanding, destination).Scan(&positions, &again, &at.Head, &at.Open)
	if err != nil {
		return err
	}

	forwards = forwards && !again
	tag, err := tx.Exec(ctx, sqlMove, destination, head, forwards)
	if err := cmp.Or(err, session.CheckChanged("move a position", tag.RowsAffected(), positions)); err != nil {
		return err // the positions are locked: none can be missing
	}

	if _, err := tx.Exec(ctx, sqlAgain); err != nil {
		return err
	}
	if forwards { // the present routes cover the events that the destination has not passed
		return nil
	}

	to := idset.Watermark{Head: head, Open: at.Back(head).Open}
	if again { // ids were assigned again: events due by ended routes are other events now
		at = idset.Watermark{Head: math.MaxInt64}
	}

	return routes.Rewind(ctx, tx, destination, to, at)
}

// Forgotten is the result of Forget, or in a dry run its plan.
type Forgotten struct {
	// Head is the id up to which the destination had come, the lowest of its parts.
	Head int64 `json:"head"`
	// Deliveries is the number of stored deliveries: retries, parked ones and dead letters.
	Deliveries int64 `json:"deliveries"`
}

// forgetBatch keeps a transaction, and with it the locks, to some ten milliseconds.
const forgetBatch = 1000

// Forget removes everything stored about a destination that is gone: its position, its routes and its deliveries, dead
// letters included. It stops a replay of the destination. Events that only this destination had yet to receive are then
// purged like others. The error wraps [ErrDelivered] while a relay delivers to the destination. A destination that
// returns under the same name is a new one. After an error, or the end of ctx, the position still exists, and some of
// the deliveries are gone.
func (s *Client) Forget(ctx context.Context, destination string, a Action) (f Forgotten, err error) {
	if err := a.validate(); err != nil {
		return f, err
	}
	if destination == "" {
		return f, fmt.Errorf("%w: a position has a destination; that of the search for events without a route is needed", ErrInvalid)
	}

	err = s.ofStream(ctx, "forget a position", pgx.ReadWrite, func(tx pgx.Tx) error {
		f.Head, err = s.forgettable(ctx, tx, destination)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT count(*) FROM outbox_deliveries WHERE destination = $1`, destination).Scan(&f.Deliveries)
	})
	if err != nil || a.DryRun {
		return f, err
	}

	f.Deliveries = 0
	for more := true; more; {
		err = s.ofStream(ctx, "forget a position", pgx.ReadWrite, func(tx pgx.Tx) error {
			if _, err := s.forgettable(ctx, tx, destination); err != nil {
				return err
			}

			tag, err := tx.Exec(ctx, `DELETE FROM outbox_deliveries
				WHERE ctid = ANY (ARRAY(SELECT ctid FROM outbox_deliveries WHERE destination = $1 LIMIT $2 FOR UPDATE))`,
				destination, forgetBatch)
			if err != nil {
				return err
			}

			f.Deliveries += tag.RowsAffected()

			more = tag.RowsAffected() == forgetBatch
			if more {
				return nil
			}

			if _, err := routes.Fence(ctx, tx); err != nil {
				return err
			}

			err = s.noneLeft(ctx, tx, `outbox_deliveries WHERE destination = $1`, destination)
			if err != nil {
				return err
			}

			const running = ` WHERE destination = $1 AND state = 'running'`
			for _, c := range []change{
				{`UPDATE outbox_replays SET state = 'stopped', finished_at = clock_timestamp()` + running, `outbox_replays` + running},
				{`DELETE FROM outbox_routes WHERE destination = $1`, `outbox_routes WHERE destination = $1`},
				{`DELETE FROM outbox_positions WHERE destination = $1`, `outbox_positions WHERE destination = $1`},
			} {
				if err := s.change(ctx, tx, c, destination); err != nil {
					return err
				}
			}

			details := map[string]any{"head": f.Head, "deliveries": f.Deliveries}
			return s.recordMove(ctx, tx, a, positionDeed{"forget", destination, details})
		})
		if err != nil {
			return f, err
		}
	}

	return f, nil
}

// change is a statement, and the rows that are left if a trigger or a rule ignores it.
type change struct{ do, left string }

// change runs a statement. It returns a [session.IgnoredError] if rows are left.
func (s *Client) change(ctx context.Context, tx pgx.Tx, c change, args ...any) error {
	if _, err := tx.Exec(ctx, s.sql(c.do), args...); err != nil {
		return err
	}
	return s.noneLeft(ctx, tx, c.left, args...)
}

// noneLeft returns a [session.IgnoredError] if there are rows that a statement should have changed.
func (s *Client) noneLeft(ctx context.Context, tx pgx.Tx, left string, args ...any) error {
	var n int64
	if err := tx.QueryRow(ctx, s.sql(`SELECT count(*) FROM `+left), args...).Scan(&n); err != nil {
		return err
	}
	return session.CheckChanged("discard or forget", 0, n)
}

// forgettable locks the positions of a destination unless a relay delivers to it.
func (s *Client) forgettable(ctx context.Context, tx pgx.Tx, destination string) (head int64, err error) {
	head, err = s.lock(ctx, tx, destination)
	if err != nil {
		return 0, err
	}

	all, err := store.ListPositions(ctx, tx, s.cfg.Schema)
	if err != nil {
		return 0, err
	}

	for i := range all {
		if p := &all[i]; p.Destination == destination && p.Session != nil {
			return 0, fmt.Errorf("%q, session %v: %w", destination, p.Session, ErrDelivered)
		}
	}

	return head, nil
}

// positionDeed is an action on a position, as the audit has it.
type positionDeed struct {
	action, destination string
	details             map[string]any
}

// recordMove writes the audit, and makes the relays look at their shards.
func (s *Client) recordMove(ctx context.Context, tx pgx.Tx, a Action, what positionDeed) error {
	if a.Reason != "" {
		what.details["reason"] = a.Reason
	}
	if err := s.record(ctx, tx, a, what.action, nil, what.destination, what.details); err != nil {
		return err
	}

	return s.notify(ctx, tx, pgschema.WordShards)
}
