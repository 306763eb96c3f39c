package deliveries

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

// Entry is a row to write.
type Entry struct {
	Ref
	EventType string
	State     State
	// Failures counts the failed attempts so far.
	Failures int
	// Delay is the time from now until the delivery is due.
	Delay time.Duration
	// Own makes the row due exactly at the event's available_at, so that rows that are due together are in the order of
	// ids. Then Delay does not matter.
	Own bool
	// Key is the ordering_key, empty for none.
	Key string
	// Class and Err describe the last failure, and are empty without one. A row keeps its last failure.
	Class string
	Err   string
	// ReportTo is the destination that receives a dead letter, empty for none: see [SQLReport].
	ReportTo string
	// Report is set for the report of a dead letter: more reports may wait in its row, which are due when it is removed.
	Report bool
	// Replays is the number of replays of a new row. An existing row keeps its own number.
	Replays int
	// Token is the token of the lease, in state running only.
	Token int64
}

// The statements that write rows have the parameters of [Args]. All times come from the database, so the clocks of
// relays do not matter. A negative delay stands for the event's available_at.
const (
	columns = `event_id, destination, event_type, state, attempts, available_at, ordering_key, error_class, last_error, ` +
		`replays, lease_token, lease_owner, lease_until`
	values = `p.event_id, p.destination, p.event_type, p.state, p.attempts,
	coalesce(CASE WHEN p.delay < 0 THEN (SELECT e.available_at FROM outbox_events AS e WHERE e.id = p.event_id) END,
		clock_timestamp() + p.delay * interval '1 microsecond') AS available_at,
	nullif(p.ordering_key, '') AS ordering_key, nullif(p.error_class, '') AS error_class, nullif(p.last_error, '') AS last_error, p.replays,
	CASE p.state WHEN 'running' THEN p.token END AS lease_token,
	CASE p.state WHEN 'running' THEN $12::bigint END AS lease_owner,
	CASE p.state WHEN 'running' THEN clock_timestamp() + $13::bigint * interval '1 microsecond' END AS lease_until`
	from = ` FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[],
		$8::text[], $9::text[], $10::bigint[], $11::bigint[])
	AS p(event_id, destination, event_type, state, attempts, delay, ordering_key, error_class, last_error, replays, token)`
	set = `state = excluded.state, attempts = excluded.attempts, available_at = excluded.available_at, updated_at = clock_timestamp(),
	error_class = coalesce(excluded.error_class, d.error_class), last_error = coalesce(excluded.last_error, d.last_error),
	lease_token = excluded.lease_token, lease_owner = excluded.lease_owner, lease_until = excluded.lease_until`
	onConflict = ` ON CONFLICT (event_id, destination) `
	ofShard    = `INSERT INTO outbox_deliveries AS d (` + columns + `, shard) SELECT ` + values + `, $14::int` + from + onConflict

	// SQLPut writes rows, also over existing ones, whose ordering_key stays.
	SQLPut = `INSERT INTO outbox_deliveries AS d (` + columns + `) SELECT ` + values + from + onConflict + `DO UPDATE SET ` + set
	// SQLPutKeyed is SQLPut with the ordering_key, for rows of one shard. The parameter after [Args] is the number of
	// the shard, from 1. It is 0 if the destination has one shard.
	// A dead letter stays: a person has made the delivery one during its attempt.
	SQLPutKeyed = ofShard + `DO UPDATE SET ` + set + `, ordering_key = excluded.ordering_key, shard = excluded.shard
		WHERE d.state <> 'dead'`
	// SQLPutNew is SQLPutKeyed for new rows: it does not change existing ones.
	SQLPutNew = ofShard + `DO NOTHING`
)

// writtenX and writtenR are true for rows that this transaction has written, also under savepoints, which have transaction ids
// of their own. A visible row whose writer is still running must be such a row. Older ids are left out: their epoch is unknown.
const (
	writtenX = `CASE WHEN age(x.xmin) <= 0
		THEN pg_xact_status((pg_current_xact_id()::text::bigint - age(x.xmin))::text::xid8) = 'in progress' END`
	writtenR = `CASE WHEN age(r.xmin) <= 0
		THEN pg_xact_status((pg_current_xact_id()::text::bigint - age(r.xmin))::text::xid8) = 'in progress' END`
)

// SQLReport writes the reports of dead letters, after the statement that has written the dead letters and in its
// transaction: $1 events, $2 destinations, $3 the destinations that receive the reports. A row that is not dead, because
// another relay had its lease, is not reported, nor one that another transaction has made a dead letter. A report is a row
// like any other; reports of one event to one destination share a row, and the trigger outbox_deliveries_dead_letters stores
// the rest when the first one is delivered. A null in the list is the event itself, from when the destination had a route.
//
// The subquery reads by primary key: without statistics, the planner would read an index of all dead letters.
const SQLReport = `INSERT INTO outbox_deliveries AS d (event_id, destination, event_type, state, available_at, dead_letters)
SELECT p.event_id, p.receiver, min(o.event_type), 'retry', clock_timestamp(), jsonb_agg(o.letter ORDER BY p.destination)
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS p(event_id, destination, receiver)
CROSS JOIN LATERAL (SELECT x.event_type, jsonb_build_object('destination', x.destination, 'replay', x.replays, 'attempts', x.attempts,
		'since', to_char(x.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
		'at', to_char(x.updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
		'class', x.error_class, 'error', x.last_error) AS letter
	FROM outbox_deliveries AS x WHERE x.event_id = p.event_id AND x.destination = p.destination AND x.state || '' = 'dead'
		AND ` + writtenX + ` OFFSET 0) AS o
GROUP BY p.event_id, p.receiver ORDER BY p.event_id, p.receiver
ON CONFLICT (event_id, destination) DO UPDATE SET dead_letters = coalesce(d.dead_letters, '[null]') || excluded.dead_letters`

// ReportArgs returns the parameters of [SQLReport], and nil if no entry is reported.
func ReportArgs(entries []Entry) []any {
	var ids []int64
	var names, to []string
	for i := range entries {
		if e := &entries[i]; e.ReportTo != "" {
			ids = append(ids, e.EventID)
			names = append(names, e.Destination)
			to = append(to, e.ReportTo)
		}
	}

	if ids == nil {
		return nil
	}

	return []any{ids, names, to}
}

// Reports returns how many rows [SQLReport] writes for the entries, if it reports all of them.
func Reports(entries []Entry) int {
	rows := make(map[Ref]bool)
	for i := range entries {
		if e := &entries[i]; e.ReportTo != "" {
			rows[Ref{e.EventID, e.ReportTo}] = true
		}
	}

	return len(rows)
}

// sqlUnreported counts the dead letters that the transaction has written without their report.
const sqlUnreported = `SELECT count(*) FROM unnest($1::bigint[], $2::text[], $3::text[]) AS p(event_id, destination, receiver)
WHERE EXISTS (SELECT FROM outbox_deliveries AS x
	WHERE x.event_id = p.event_id AND x.destination = p.destination AND x.state || '' = 'dead' AND ` + writtenX + `)
AND NOT EXISTS (SELECT FROM outbox_deliveries AS r WHERE r.event_id = p.event_id AND r.destination = p.receiver AND ` + writtenR + `)`

// CheckReports returns a [session.IgnoredError] if a trigger or a rule has ignored a report that the transaction has
// written.
func CheckReports(ctx context.Context, tx pgx.Tx, entries []Entry) error {
	args := ReportArgs(entries)
	if args == nil {
		return nil
	}

	var ignored int64
	if err := tx.QueryRow(ctx, sqlUnreported, args...).Scan(&ignored); err != nil {
		return err
	}

	return session.CheckChanged("report", 0, ignored)
}

// SQLRemove deletes rows: $1 events, $2 destinations.
const SQLRemove = `DELETE FROM outbox_deliveries AS d USING unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
WHERE d.event_id = p.event_id AND d.destination = p.destination`

// SQLRemovePresent is SQLRemove of rows whose event is in the table.
const SQLRemovePresent = SQLRemove + ` AND ` + present

// SQLRemoveUnlocked is SQLRemovePresent for rows that the relay no longer locks, and that another relay may have
// delivered since. It spares reports of dead letters: the row may have the next one.
const SQLRemoveUnlocked = SQLRemovePresent + ` AND d.dead_letters IS NULL`

// present is the condition of all statements that end a delivery of a queue: the event is in the table. If a delivery
// ended while the event's partition is detached, the event would return as deferred, without a delivery, and wait
// forever. A delivery that is not ended loses its lease, waits as missing, and is made again. The condition is a
// subquery that PostgreSQL cannot make a join over all events.
const present = `(SELECT true FROM outbox_events AS v WHERE v.id = d.event_id)`

// SQLAcknowledged records in outbox_audit that replayed deliveries ($1 events, $2 destinations) were acknowledged. It
// runs before their rows are deleted, in the same transaction: a deleted row without such an entry counts as not
// delivered. Rows that no person has replayed have no entry. Rows of a replayed range have a number of replays, or an
// ordering_key that begins with #.
const SQLAcknowledged = `INSERT INTO outbox_audit (actor, action, event_id, destination, details)
	SELECT 'relay', 'delivered', d.event_id, d.destination, jsonb_build_object('event_type', d.event_type, 'replay', d.replays)
	FROM unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
	JOIN outbox_deliveries AS d ON d.event_id = p.event_id AND d.destination = p.destination
	WHERE d.replays > 0 OR starts_with(d.ordering_key, '#')`

const (
	// maxFailures fits the column.
	maxFailures = 1 << 30
	// maxDelay keeps now plus a delay within PostgreSQL's range, and any event within a person's lifetime.
	maxDelay = 100 * 365 * 24 * time.Hour
)

// RefArgs returns the parameters of a statement that finds rows by their names.
func RefArgs(refs []Ref) []any {
	ids := make([]int64, len(refs))
	names := make([]string, len(refs))
	for i, r := range refs {
		ids[i] = r.EventID
		names[i] = r.Destination
	}
	return []any{ids, names}
}

// Args returns the parameters of a statement that writes rows. encoding is the database's encoding. owner and lease
// apply to rows in the state running.
func Args(entries []Entry, encoding string, owner int64, lease time.Duration) []any {
	n := len(entries)
	ids := make([]int64, n)
	failures := make([]int64, n)
	delays := make([]int64, n)
	replays := make([]int64, n)
	tokens := make([]int64, n)
	names := make([]string, n)
	types := make([]string, n)
	states := make([]string, n)
	keys := make([]string, n)
	classes := make([]string, n)
	texts := make([]string, n)

	for i, e := range entries {
		ids[i] = e.EventID
		names[i] = e.Destination
		types[i] = e.EventType
		states[i] = string(e.State)
		keys[i] = e.Key
		failures[i] = int64(min(e.Failures, maxFailures))
		replays[i] = int64(e.Replays)
		tokens[i] = e.Token
		classes[i] = e.Class
		texts[i] = wire.ErrorText(e.Err, encoding)

		delays[i] = min(max(e.Delay, 0), maxDelay).Microseconds()
		if e.Own {
			delays[i] = -1
		}
	}

	return []any{ids, names, types, states, failures, delays, keys, classes, texts, replays, tokens, owner, lease.Microseconds()}
}
