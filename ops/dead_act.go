package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// BulkAction describes an action on dead letters or waiting deliveries: who acts, why, and how.
type BulkAction struct {
	// Actor is the person who acts, for the audit; empty means the database's user.
	Actor string
	// Reason goes into the audit; it may be empty.
	Reason string
	// DryRun counts the letters and changes nothing.
	DryRun bool
	// Rate is the largest number of letters per second, 0 for no limit.
	Rate float64
	// Batch is the number of letters in one transaction, 0 for 500. With a Rate it is smaller where
	// that makes a smoother flow.
	Batch int
	// Progress, if set, is called after each transaction with the result so far.
	Progress func(BulkResult)
	// Acted, if set, is called after each transaction with the letters acted on, as they were
	// before it: see [Watch.Add].
	Acted func([]DeadLetter)
}

// MaxBatch is the largest BulkAction.Batch.
const MaxBatch = 10_000

// defaultBatch keeps a transaction, and with it the locks, to some ten milliseconds.
const defaultBatch = 500

// Validate returns an error that wraps [ErrInvalid] for values out of range.
func (a BulkAction) Validate() error {
	switch {
	case a.Rate < 0 || math.IsNaN(a.Rate):
		return fmt.Errorf("%w: a rate of %v per second", ErrInvalid, a.Rate)
	case a.Batch < 0 || a.Batch > MaxBatch:
		return fmt.Errorf("%w: a batch of %d is not between 1 and %d", ErrInvalid, a.Batch, MaxBatch)
	case strings.ContainsRune(a.Actor+a.Reason, 0):
		return fmt.Errorf("%w: the actor or the reason contains a zero byte", ErrInvalid)
	}
	return nil
}

// BulkResult is the committed result of an action, counted row by row.
type BulkResult struct {
	// Matched is the number of letters at the beginning.
	Matched int64 `json:"matched"`
	// Done is the number of deliveries acted on: 0 in a dry run, and fewer than matched
	// where another action has replayed or discarded some meanwhile, or a relay is delivering them.
	Done int64 `json:"done"`
	// Orphans are letters that were left alone because their event is missing: nothing can be
	// replayed. Discard them if it was deleted.
	Orphans int64 `json:"orphans"`
}

// countLetters returns how many dead letters f chooses, and bounds that exclude every letter that dies
// later.
func (s *Client) countLetters(ctx context.Context, f DeadLetterFilter) (n int64, limit ageBounds, err error) {
	err = s.read(ctx, "count dead letters", func(tx pgx.Tx, now time.Time) error {
		limit = f.bounds(now)
		q := f.where(limit, DeliveryRef{})
		query := `SELECT count(*), max(d.updated_at) FROM {deliveries} AS d WHERE ` + q.text()

		var last *time.Time
		if err := tx.QueryRow(ctx, s.sql(query), q.args...).Scan(&n, &last); err != nil {
			return err
		}
		if last != nil {
			limit.to = *last
		}

		return nil
	})
	return n, limit, err
}

// ReplayDeadLetters has the dead letters that f chooses delivered again: they become due at once, with no
// attempt counted, and with a new id for consumers that drop duplicates (see delivery.Event.DedupeID).
// Deliveries that die while it runs are not replayed, so it ends. An empty filter is [ErrInvalid]. Each
// batch is a transaction: after an error, or the end of ctx, the result has the number of replayed
// letters.
func (s *Client) ReplayDeadLetters(ctx context.Context, f DeadLetterFilter, a BulkAction) (BulkResult, error) {
	if f.Missing {
		return BulkResult{}, fmt.Errorf("%w: a delivery whose event is missing cannot be replayed", ErrInvalid)
	}
	return s.act(ctx, f, a, letterDeed{"replay dead letters", s.replayLetters, func(context.Context) error { return nil }})
}

// DiscardDeadLetters permanently discards the dead letters that f chooses. Their deliveries are deleted;
// the audit keeps their details. The event is done if none of its deliveries is left to do; see also
// [Config]. Like ReplayDeadLetters, it ends, may be interrupted, and refuses an empty filter.
func (s *Client) DiscardDeadLetters(ctx context.Context, f DeadLetterFilter, a BulkAction) (BulkResult, error) {
	var behind aggregateLines
	return s.act(ctx, f, a, letterDeed{"discard dead letters", func(ctx context.Context, tx pgx.Tx, w work) (done []DeadLetter, err error) {
		done, behind, err = s.discardLetters(ctx, tx, w)
		return done, err
	}, func(ctx context.Context) error { return s.goOnAgain(ctx, behind) }})
}

// aggregateLines are pairs of a destination and the key of an ordered aggregate.
type aggregateLines struct {
	destinations, keys []string
	// passDead makes a row due also behind a dead letter that may block: the new dead letter is in front of it.
	passDead bool
}

// collectLines reads rows of a destination and an ordering key, and leaves out those without a key.
func collectLines(rows pgx.Rows) (lines aggregateLines, err error) {
	var place, key string
	_, err = pgx.ForEachRow(rows, []any{&place, &key}, func() error {
		if key != "" {
			lines.destinations = append(lines.destinations, place)
			lines.keys = append(lines.keys, key)
		}
		return nil
	})

	return lines, err
}

// work is a batch of locked letters, and the action on them.
type work struct {
	BulkAction

	mode    outboxsql.Mode
	letters []DeadLetter
}

// letterDeed is an action on letters.
type letterDeed struct {
	what string
	// do acts on the letters, and returns those that it changed.
	do func(ctx context.Context, tx pgx.Tx, w work) (done []DeadLetter, err error)
	// then is called after each transaction.
	then func(context.Context) error
}

// act applies a deed to the letters that f chooses, one batch per transaction.
func (s *Client) act(ctx context.Context, f DeadLetterFilter, a BulkAction, d letterDeed) (BulkResult, error) {
	if err := errors.Join(f.validateToAct(), a.Validate()); err != nil {
		return BulkResult{}, err
	}

	matched, limit, err := s.countLetters(ctx, f)
	total := BulkResult{Matched: matched}
	if err != nil || a.DryRun || matched == 0 {
		return total, err
	}

	var after DeliveryRef
	err = inBatches(ctx, a, func(n int) (int, error) {
		var letters, done []DeadLetter
		err := s.retried(ctx, d.what, func(tx pgx.Tx, _ time.Time) error {
			mode, err := s.holdMode(ctx, tx)
			if err != nil {
				return err
			}

			letters, err = s.letters(ctx, tx, f.where(limit, after), n, f.lock())
			if err != nil || len(letters) == 0 {
				return err
			}

			done, err = d.do(ctx, tx, work{a, mode, letters})
			if err != nil {
				return err
			}

			return s.wake(ctx, tx, len(done))
		})
		if err != nil {
			return 0, err
		}
		if len(letters) > 0 {
			after = letters[len(letters)-1].DeliveryRef
		}

		total.Done += int64(len(done))
		total.Orphans += int64(len(letters) - len(done))

		if a.Acted != nil {
			a.Acted(done)
		}
		if a.Progress != nil {
			a.Progress(total)
		}

		return len(letters), d.then(ctx)
	})

	return total, err
}

// deadlockDetected is the SQLSTATE of a transaction that PostgreSQL has ended to resolve a deadlock; mostDeadlocks
// bounds the attempts per batch.
const (
	deadlockDetected = "40P01"
	mostDeadlocks    = 10
)

// retried calls write, and repeats a transaction that a deadlock with a relay or another person has rolled back, up to
// mostDeadlocks tries.
func (s *Client) retried(ctx context.Context, what string, f inTx) error {
	for tries := 1; ; tries++ {
		err := s.write(ctx, what, f)
		refused, isPg := errors.AsType[*pgconn.PgError](err)
		isDeadlock := isPg && refused.Code == deadlockDetected
		if !isDeadlock || tries == mostDeadlocks || ctx.Err() != nil {
			return err
		}
	}
}

// wake notifies listening relays: no writer notifies them that a delivery is
// due.
func (s *Client) wake(ctx context.Context, tx pgx.Tx, done int) error {
	if done == 0 {
		return nil
	}
	return s.notify(ctx, tx, pgschema.WordDeliveries)
}

// notify sends a word to the relays, unless the notification queue of the server is nearly full.
func (s *Client) notify(ctx context.Context, tx pgx.Tx, word string) error {
	err := pgschema.Notify(ctx, tx, pgschema.Channel(s.cfg.Schema), word)
	if errors.Is(err, pgschema.ErrNotifyQueue) {
		return nil
	}
	return err
}

func refs(letters []DeadLetter) (ids []int64, names []string) {
	for i := range letters {
		ids = append(ids, letters[i].EventID)
		names = append(names, letters[i].Destination)
	}
	return ids, names
}

// lockEvents locks the events, in the order of their ids and after their deliveries, as relays do,
// and returns the existing ones. Events of a stream are not locked: no relay marks them, and no
// purge deletes one that has a delivery.
func (s *Client) lockEvents(ctx context.Context, tx pgx.Tx, mode outboxsql.Mode, ids []int64) (map[int64]bool, error) {
	lock := ` FOR UPDATE`
	if mode == outboxsql.ModeStream {
		lock = ""
	}

	rows, err := tx.Query(ctx, s.sql(`SELECT id FROM {events} WHERE id = ANY($1::bigint[]) ORDER BY id`+lock), ids)
	if err != nil {
		return nil, err
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	there := make(map[int64]bool, len(found))
	for _, id := range found {
		there[id] = true
	}

	return there, err
}

// sqlReplay makes dead letters due, in the shards that their destinations have now: a change of the number of shards leaves
// dead letters as they are. FOR KEY SHARE holds off such a change until the end of the transaction, and no relay that
// writes its position.
func sqlReplay() string {
	const shards = "coalesce((SELECT s.shards FROM shards AS s WHERE s.destination = d.destination), 1)"

	return `WITH shards AS MATERIALIZED (SELECT destination, shards FROM {positions}
		WHERE destination = ANY($2::text[]) AND shard = 0 ORDER BY destination FOR KEY SHARE)
	UPDATE {deliveries} AS d SET state = 'retry', attempts = 0, replays = d.replays + 1, available_at = clock_timestamp(),
		updated_at = clock_timestamp(),
		shard = ` + pgschema.NumberOfRow("{events}", shards) + `
	FROM unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
	WHERE d.event_id = p.event_id AND d.destination = p.destination`
}

// replayLetters keeps the ordering key, so that the order of the aggregate continues from this delivery.
func (s *Client) replayLetters(ctx context.Context, tx pgx.Tx, w work) ([]DeadLetter, error) {
	all, _ := refs(w.letters)

	there, err := s.lockEvents(ctx, tx, w.mode, all)
	if err != nil {
		return nil, err
	}

	var done []DeadLetter
	for _, l := range w.letters {
		if there[l.EventID] {
			done = append(done, l)
		}
	}

	ids, names := refs(done)
	if _, err := tx.Exec(ctx, s.sql(sqlReplay()), ids, names); err != nil {
		return nil, err
	}

	if w.mode != outboxsql.ModeStream {
		// No relay may treat the event as done: it ends when this delivery does.
		if _, err := tx.Exec(ctx, s.sql(`UPDATE {events} SET state = 'deferred', processed_at = NULL
			WHERE id = ANY($1::bigint[]) AND state = 'done'`), ids); err != nil {
			return nil, err
		}
	}

	return done, s.audit(ctx, tx, w.BulkAction, "replay", done)
}

func (s *Client) discardLetters(ctx context.Context, tx pgx.Tx, w work) (done []DeadLetter, behind aggregateLines, err error) {
	ids, names := refs(w.letters)

	rows, err := tx.Query(ctx, s.sql(`DELETE FROM {deliveries} AS d USING unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
		WHERE d.event_id = p.event_id AND d.destination = p.destination RETURNING d.destination, coalesce(d.ordering_key, '')`), ids, names)
	if err != nil {
		return nil, aggregateLines{}, err
	}

	behind, err = collectLines(rows)
	if err != nil {
		return nil, aggregateLines{}, err
	}
	if _, err := s.goOn(ctx, tx, behind); err != nil {
		return nil, aggregateLines{}, err
	}

	switch {
	case w.mode != outboxsql.ModeStream:
		err = s.finish(ctx, tx, ids)
	case s.cfg.DeleteEvents:
		err = s.forget(ctx, tx, ids)
	}

	if err != nil {
		return nil, aggregateLines{}, err
	}

	return w.letters, behind, s.audit(ctx, tx, w.BulkAction, "discard", w.letters)
}

// finish marks or deletes the events of a queue that have no deliveries left to do.
func (s *Client) finish(ctx context.Context, tx pgx.Tx, ids []int64) error {
	// A relay may settle the last other delivery of an event at this moment. So the event is locked
	// first, and read by a separate statement.
	if _, err := s.lockEvents(ctx, tx, outboxsql.ModeQueue, ids); err != nil {
		return err
	}

	if s.cfg.DeleteEvents {
		err := s.deleteEvents(ctx, tx, `DELETE FROM {events} AS e WHERE e.id = ANY($1::bigint[]) AND e.state IN ('deferred', 'done')
			AND NOT EXISTS (SELECT FROM {deliveries} AS d WHERE d.event_id = e.id)`, ids)
		if err != nil {
			return err
		}
	}

	_, err := tx.Exec(ctx, s.sql(`UPDATE {events} AS e SET state = 'done', processed_at = clock_timestamp()
		WHERE e.id = ANY($1::bigint[]) AND e.state = 'deferred'
		AND NOT EXISTS (SELECT FROM {deliveries} AS d WHERE d.event_id = e.id AND d.state <> 'dead')`), ids)
	return err
}

// deleteEvents deletes those of the events that no foreign key references. The others stay.
func (s *Client) deleteEvents(ctx context.Context, tx pgx.Tx, sql string, ids []int64) error {
	remove := func(some []int64) error {
		return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			if _, err := savepoint.Exec(ctx, s.sql(sql), some); err != nil {
				return err
			}
			_, err := savepoint.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE") // a deferred key would refuse the COMMIT
			return err
		})
	}

	err := remove(ids)
	if !session.IsConstraint(err) {
		return err
	}

	for _, id := range ids {
		if err := remove([]int64{id}); err != nil && !session.IsConstraint(err) {
			return err
		}
	}

	return nil
}

// goOn makes the first delivery due that waited behind discarded letters, and returns the number of such deliveries.
// Relays look for due rows, and would find a row that is parked behind a dead letter late. BETWEEN stops the planner
// from using an index that has the order of ids for all aggregates. A locked row is being delivered, and the rows
// behind it must keep waiting.
func (s *Client) goOn(ctx context.Context, tx pgx.Tx, behind aggregateLines) (int, error) {
	tag, err := tx.Exec(ctx, s.sql(`UPDATE {deliveries} AS d
		SET state = 'retry', available_at = clock_timestamp(), updated_at = clock_timestamp()
		FROM (SELECT DISTINCT destination, key FROM unnest($1::text[], $2::text[]) AS p(destination, key)) AS line
		CROSS JOIN LATERAL (
			SELECT event_id, state FROM {deliveries} AS o
			WHERE o.destination = line.destination AND o.event_id = least(
				(SELECT f.event_id FROM {deliveries} AS f
					WHERE f.destination = line.destination AND f.ordering_key BETWEEN line.key AND line.key
					AND f.state IN ('retry', 'parked') ORDER BY f.ordering_key, f.event_id LIMIT 1),
				(SELECT f.event_id FROM {deliveries} AS f
					WHERE NOT $3 AND f.destination = line.destination AND f.ordering_key BETWEEN line.key AND line.key
					AND f.state = 'dead' ORDER BY f.ordering_key, f.event_id LIMIT 1))
			FOR UPDATE SKIP LOCKED) AS next
		WHERE d.event_id = next.event_id AND d.destination = line.destination
			AND next.state = 'parked'`), behind.destinations, behind.keys, behind.passDead)
	return int(tag.RowsAffected()), err
}

// goOnAgain does the same for rows that a relay has stored behind the letters during the discard:
// the relay still saw the letters, and this transaction did not see the rows.
func (s *Client) goOnAgain(ctx context.Context, behind aggregateLines) error {
	if len(behind.keys) == 0 {
		return nil
	}
	return s.write(ctx, "go on behind dead letters", func(tx pgx.Tx, _ time.Time) error {
		if _, err := s.holdMode(ctx, tx); err != nil {
			return err
		}

		n, err := s.goOn(ctx, tx, behind)
		if err != nil {
			return err
		}

		return s.wake(ctx, tx, n)
	})
}

// details is the audit's copy of a dead letter: a replay overwrites most of the dead letter,
// and a discard deletes it.
type details struct {
	Reason   string    `json:"reason,omitempty"`
	Type     string    `json:"event_type"`
	Replay   int       `json:"replay,omitempty"`
	Attempts int       `json:"attempts"`
	DiedAt   time.Time `json:"died_at"`
	Class    string    `json:"error_class,omitempty"`
	Error    string    `json:"error,omitempty"`
	Group    string    `json:"fingerprint,omitempty"`
}

// audit records the action on each of the letters.
func (s *Client) audit(ctx context.Context, tx pgx.Tx, a BulkAction, action string, letters []DeadLetter) error {
	ids, names := refs(letters)

	texts := make([]string, len(letters))
	for i, l := range letters {
		d := details{
			Reason:   a.Reason,
			Type:     l.Type,
			Attempts: l.Attempts,
			DiedAt:   l.DiedAt,
			Class:    l.Class,
			Error:    l.Error,
			Group:    l.Fingerprint,
		}
		if action == "replay" {
			d.Replay = l.Replays + 1
		}

		text, err := json.Marshal(d)
		if err != nil {
			return err
		}

		texts[i] = string(text)
	}

	_, err := tx.Exec(ctx, s.sql(`INSERT INTO {audit} (actor, action, event_id, destination, details)
		SELECT coalesce(nullif($1::text, ''), session_user), $2, p.event_id, p.destination, p.details::jsonb
		FROM unnest($3::bigint[], $4::text[], $5::text[]) AS p(event_id, destination, details)`), a.Actor, action, ids, names, texts)
	return err
}
