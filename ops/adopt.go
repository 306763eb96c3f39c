package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/routes"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ErrHome is wrapped by the error about discarding the waiting events of an outbox that is at home.
var ErrHome = errors.New("the outbox is at home")

// Adoption is the result of Adopt, or in a dry run its plan.
type Adoption struct {
	// From is the home before, and To the place where the tables are. They are equal if the outbox is at home.
	From outboxsql.Place `json:"from"`
	To   outboxsql.Place `json:"to"`
	// Mode is the mode of the table.
	Mode outboxsql.Mode `json:"mode"`
	outboxsql.Waiting

	// Discarded is whether the events and deliveries were discarded.
	Discarded bool `json:"discarded"`
}

// Copy reports whether the outbox was a copy.
func (a *Adoption) Copy() bool { return a.From != a.To }

// discardBatch keeps a transaction, and with it the locks, to some ten milliseconds.
const discardBatch = 1000

// adopter adopts an outbox.
type adopter struct{ *Client }

// adopt implements [Client.Adopt].
func (s adopter) adopt(ctx context.Context, discard bool, a Action) (done Adoption, err error) {
	if err := a.validate(); err != nil {
		return done, err
	}

	done, err = s.adoptable(ctx)
	if err != nil {
		return done, err
	}
	if !done.Copy() && discard {
		return done, fmt.Errorf("%w: waiting events of a copy alone can be discarded", ErrHome)
	}

	done.Discarded = discard
	if a.DryRun || !done.Copy() {
		return done, nil
	}

	if discard {
		if err := s.discardWaiting(ctx); err != nil {
			return done, err
		}
	}

	return done, s.write(ctx, "adopt the outbox", func(tx pgx.Tx, _ time.Time) error {
		if _, err := s.copied(ctx, tx); err != nil {
			return err
		}

		for _, c := range []change{
			{sqlHome, `{mode} WHERE home IS DISTINCT FROM {place}(tableoid)`},
			{sqlAnchor, `{positions} WHERE sequence IS NOT NULL`},
		} {
			if err := s.change(ctx, tx, c); err != nil {
				return err
			}
		}

		details := map[string]any{"from": done.From, "to": done.To, "discarded": discard}
		if a.Reason != "" {
			details["reason"] = a.Reason
		}

		return s.record(ctx, tx, a, "adopt", nil, "", details)
	})
}

// adoptable returns what Adopt would do.
func (s adopter) adoptable(ctx context.Context) (a Adoption, err error) {
	err = s.read(ctx, "look at the home of the outbox", func(tx pgx.Tx, _ time.Time) error {
		home, err := s.home(ctx, tx, "")
		if err != nil {
			return err
		}

		a.From = home.Is
		a.To = home.Here

		a.Mode, err = s.mode(ctx, tx)
		if err != nil {
			return err
		}

		w := &a.Waiting
		w.Events, w.Deliveries, w.DeadLetters, err = pgschema.CountWaiting(ctx, tx, s.cfg.Schema, a.Mode == outboxsql.ModeStream)
		return err
	})
	return a, err
}

// home returns where the outbox belongs, and where it is.
func (s adopter) home(ctx context.Context, tx pgx.Tx, lock string) (h outboxsql.Home, err error) {
	err = tx.QueryRow(ctx, s.sql(`SELECT coalesce(home, ''), {place}(tableoid) FROM {mode}`+lock)).Scan(&h.Is, &h.Here)
	return h, err
}

// copied holds the home and the mode until the transaction ends. The error wraps [ErrHome] after a concurrent adoption: its
// relays may deliver.
func (s adopter) copied(ctx context.Context, tx pgx.Tx) (outboxsql.Mode, error) {
	mode, err := s.holdMode(ctx, tx)
	if err != nil {
		return "", err
	}

	h, err := s.home(ctx, tx, ` FOR UPDATE`)
	if err == nil && h.Is == h.Here {
		err = fmt.Errorf("%w: someone else has adopted it meanwhile", ErrHome)
	}

	return mode, err
}

// discardWaiting discards the waiting events of a copy, up to the last id at the beginning.
func (s adopter) discardWaiting(ctx context.Context) error {
	var last int64

	err := s.read(ctx, "find the last event", func(tx pgx.Tx, _ time.Time) error {
		return tx.QueryRow(ctx, s.sql(`SELECT {last_id}()`)).Scan(&last)
	})
	if err != nil {
		return err
	}

	steps := []func(context.Context, pgx.Tx, outboxsql.Mode, int64) (int64, error){s.discardPositions, s.discardFresh, s.discardStored}
	for _, step := range steps {
		for more := true; more; {
			err := s.retried(ctx, "discard waiting events", func(tx pgx.Tx, _ time.Time) error {
				mode, err := s.copied(ctx, tx)
				if err != nil {
					return err
				}

				n, err := step(ctx, tx, mode, last)
				more = n > 0 // a row with several reports of dead letters leaves one with the rest
				return err
			})
			if err != nil {
				return err
			}
		}
	}

	return nil
}

// discardFresh marks events of a queue that no destination has tried.
func (s adopter) discardFresh(ctx context.Context, tx pgx.Tx, mode outboxsql.Mode, last int64) (int64, error) {
	if mode != outboxsql.ModeQueue {
		return 0, nil
	}

	const waiting = `{events} WHERE state = 'fresh' AND id <= $1`
	tag, err := tx.Exec(ctx, s.sql(`WITH batch AS MATERIALIZED (SELECT id FROM `+waiting+` ORDER BY id LIMIT $2 FOR UPDATE)
		UPDATE {events} AS e SET state = 'done', processed_at = clock_timestamp() FROM batch WHERE e.id = batch.id`), last, discardBatch)
	if err == nil && tag.RowsAffected() == 0 {
		err = s.noneLeft(ctx, tx, waiting, last)
	}

	return tag.RowsAffected(), err
}

// discardStored deletes deliveries that are not dead. Events of a queue with nothing else to do are done.
func (s adopter) discardStored(ctx context.Context, tx pgx.Tx, mode outboxsql.Mode, last int64) (int64, error) {
	const waiting = `{deliveries} WHERE state <> 'dead' AND event_id <= $1`

	rows, err := tx.Query(ctx, s.sql(`DELETE FROM {deliveries} WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM `+waiting+` LIMIT $2 FOR UPDATE)) RETURNING event_id`), last, discardBatch)
	if err != nil {
		return 0, err
	}

	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err == nil && len(ids) == 0 {
		err = s.noneLeft(ctx, tx, waiting, last)
	}
	if err != nil || mode != outboxsql.ModeQueue {
		return int64(len(ids)), err
	}

	const settled = `e.id = ANY ($1) AND e.state = 'deferred' AND NOT EXISTS
		(SELECT FROM {deliveries} AS d WHERE d.event_id = e.id AND d.state <> 'dead')`
	settle := change{
		`UPDATE {events} AS e SET state = 'done', processed_at = clock_timestamp() WHERE ` + settled,
		`{events} AS e WHERE ` + settled,
	}
	err = s.change(ctx, tx, settle, ids)

	return int64(len(ids)), err
}

const (
	// sqlHome makes this place the home of the outbox.
	sqlHome = `UPDATE {mode} SET home = {place}(tableoid), origin_sequence = NULL`
	// sqlAnchor makes positions rely on the sequence of this place. Otherwise a relay would take it for one that was restored
	// below them. One that really is behind a position is still found: see position.ErrIDs.
	sqlAnchor = `UPDATE {positions} SET sequence = NULL, seen = pg_snapshot_xmax(pg_current_snapshot()), seen_at = clock_timestamp()`
	// sqlEnd moves all positions to the end, the search for events without a route among them. It fences every relay, as a move
	// by hand does.
	sqlEnd = `UPDATE {positions} SET head = greatest(head, $1), open = '{}', epoch = epoch + 1, owner = NULL,
		updated_at = clock_timestamp(), former = '[]', reused = NULL`
	// sqlOrigin lets destinations that have no position yet begin there, too.
	sqlOrigin = `UPDATE {mode} SET origin_head = $1, origin_open = '{}'`
	// sqlStopReplays stops replays, which would deliver the passed events again.
	sqlStopReplays = `UPDATE {replays} SET state = 'stopped', finished_at = clock_timestamp() WHERE state = 'running'`
)

// discardPositions moves the positions of a stream past everything.
func (s adopter) discardPositions(ctx context.Context, tx pgx.Tx, mode outboxsql.Mode, last int64) (int64, error) {
	if mode != outboxsql.ModeStream {
		return 0, nil
	}
	if _, err := tx.Exec(ctx, `SELECT set_config('search_path', $1, true)`, pgx.Identifier{s.cfg.Schema}.Sanitize()); err != nil {
		return 0, err
	}

	rows, err := tx.Query(ctx, s.sql(`SELECT destination, min(head) FROM {positions} WHERE destination <> '' GROUP BY destination`))
	if err != nil {
		return 0, err
	}

	heads := make(map[string]int64)
	var name string
	var head int64
	_, err = pgx.ForEachRow(rows, []any{&name, &head}, func() error {
		heads[name] = head
		return nil
	})
	if err != nil {
		return 0, err
	}

	if _, err := routes.Fence(ctx, tx); err != nil {
		return 0, err
	}

	for name, head := range heads {
		if err := routes.Skip(ctx, tx, name, head, max(head, last)); err != nil {
			return 0, err
		}
	}

	for _, c := range []change{
		{sqlEnd, `{positions} WHERE head < $1 OR open <> '{}'`},
		{sqlOrigin, `{mode} WHERE origin_head IS DISTINCT FROM $1`},
	} {
		if err := s.change(ctx, tx, c, last); err != nil {
			return 0, err
		}
	}

	return 0, s.change(ctx, tx, change{sqlStopReplays, `{replays} WHERE state = 'running'`})
}
