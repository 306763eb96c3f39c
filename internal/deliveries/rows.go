package deliveries

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

// State is the state of a row, as stored in the column.
type State string

// The states of rows.
const (
	Retry    State = "retry"    // due at available_at
	Running  State = "running"  // leased to a relay of a queue
	Parked   State = "parked"   // waits behind another row of its aggregate, in a stream
	Unrouted State = "unrouted" // no route has its type
	Dead     State = "dead"     // dead-lettered
)

// Ref names a row.
type Ref struct {
	EventID     int64
	Destination string
}

// Row is a row as it was read, with its event.
type Row struct {
	// Event is the event, without Destination and Outbox. A missing event has only ID, Type and Replay.
	Event delivery.Event
	// Destination is empty if the routes have not decided yet.
	Destination string
	State       State
	// Key is the ordering_key.
	Key string
	// Failures counts the failed attempts so far.
	Failures int
	// At is available_at, which may be infinity.
	At pgtype.Timestamptz
	// Delay is how long the event must still wait, at most 100 years. It is negative for the time since the event
	// became available, and 0 for an event that was not delayed.
	Delay time.Duration
	// Due reports that At has passed.
	Due bool
	// Written is when the event was written, by this relay's clock.
	Written time.Time
	// First reports that no relevant row comes before it in its aggregate.
	First bool
	// Missing reports that the event is not in outbox_events, temporarily or permanently.
	Missing bool
	// Filtered is set by an engine whose filter excludes the event from the destination.
	Filtered bool
	// Refused is why the event was not read, and must not be delivered. It is nil for nearly all events.
	Refused error
}

// Available returns when a delayed event became available by this relay's clock, and zero for others.
func (r *Row) Available() time.Time {
	if r.Delay == 0 {
		return time.Time{}
	}
	return time.Now().Add(r.Delay)
}

// Lasts reports whether the delivery does not expire: a person or a relay has requested it after the event was written.
func (r *Row) Lasts() bool { return r.Event.Replay > 0 || r.Event.DeadLetter != nil }

// Entry returns the row of a destination, to be written in a state.
func (r *Row) Entry(destination string, state State) Entry {
	return Entry{
		Ref:       Ref{r.Event.ID, destination},
		EventType: r.Event.Type,
		State:     state,
		Failures:  r.Failures,
		Key:       r.Key,
		Report:    r.Event.DeadLetter != nil,
	}
}

// The columns of a row, behind those of its event.
const (
	columnDestination = wire.EventWidth + iota
	columnType
	columnState
	columnKey
	columnAttempts
	columnReplays
	columnAt
	columnDue
	columnLetters
	columnFirst
	width
)

// Columns returns the columns of a row that a [Decoder] reads, from outbox_deliveries AS d and [Event]. The statement
// adds the last one: whether the row is the first of its aggregate.
func Columns(limit int) string {
	return `d.event_id, ` + strings.Join(wire.EventColumns("e.", limit), ", ") + `,
	d.destination, ` + wire.Name("d.event_type", limit) + `, d.state, d.ordering_key,
	d.attempts::bigint, d.replays::bigint, d.available_at, d.available_at <= now(),
	(d.dead_letters -> 0)::text`
}

// Event returns the join with the event of a row, as e. The row stays if its event is missing.
func Event(limit int) string {
	return `LEFT JOIN LATERAL (SELECT *, ` + wire.EventBytes(limit, "") + ` AS bytes
		FROM outbox_events WHERE id = d.event_id OFFSET 0) AS e ON true`
}

// Formats returns the formats of a row's columns.
func Formats() []int16 {
	f := append(wire.EventFormats(), make([]int16, width-wire.EventWidth)...)
	for i := columnAttempts; i < width; i++ {
		f[i] = wire.Binary
	}
	f[columnLetters] = wire.Text
	return f
}

// Decoder decodes the rows of one statement.
type Decoder struct {
	// Events decodes their events.
	Events wire.Events
	// EventBytes is the limit of one event.
	EventBytes int
	// Why, if set, is why the events must not be delivered: see [wire.Care].
	Why error
}

// Event decodes the columns of an event.
func (d *Decoder) Event(r *Row, values [][]byte) (err error) {
	r.Event.ID, err = wire.DecodeInt8(values[wire.ColumnID])
	if err != nil {
		return err
	}

	if raw := values[wire.ColumnDelay]; raw != nil {
		r.Delay, err = wire.DecodeDelay(raw)
		if err != nil {
			return err
		}
	}

	r.Refused = cmp.Or(d.Why, wire.TooLarge(values[wire.ColumnBytes], d.EventBytes))
	if err := d.Events.Decode(&r.Event, values); err != nil {
		return err
	}

	r.Written = d.Events.Clock.Here(r.Event.CreatedAt)
	return nil
}

// corruptError is a row that an intact table cannot have.
type corruptError struct {
	event  int64
	column int
}

func (e *corruptError) Error() string {
	return fmt.Sprintf("delivery of event %d: column %d of the answer, which cannot be NULL, is: "+
		"an index and its table do not match: REINDEX the tables of notifyd", e.event, e.column)
}

// SQLState returns the code of index_corrupted: the database has answered, wrongly.
func (*corruptError) SQLState() string { return "XX002" }

// given returns the columns that are never NULL.
func given() [8]int {
	return [...]int{columnDestination, columnType, columnState, columnAttempts, columnReplays, columnAt, columnDue, columnFirst}
}

// intact returns an error if a column is NULL that cannot be.
func intact(values [][]byte) error {
	for _, column := range given() {
		if values[column] == nil {
			id, _ := wire.DecodeInt8(values[wire.ColumnID]) // 0 where that is NULL
			return &corruptError{id, column}
		}
	}
	return nil
}

// Row decodes a row.
func (d *Decoder) Row(values [][]byte) (r Row, err error) {
	if err := intact(values); err != nil {
		return r, err
	}

	r.Missing = values[wire.ColumnType] == nil
	if r.Missing {
		r.Event.Type = d.Events.Names.Intern(values[columnType])
		r.Event.ID, err = wire.DecodeInt8(values[wire.ColumnID])
	} else {
		err = d.Event(&r, values)
	}

	if err != nil {
		return r, err
	}

	failures, ferr := wire.DecodeInt8(values[columnAttempts])
	replays, rerr := wire.DecodeInt8(values[columnReplays])
	at := new(pgtype.TimestamptzCodec).PlanScan(nil, pgtype.TimestamptzOID, pgtype.BinaryFormatCode, &r.At)
	err = cmp.Or(ferr, rerr, at.Scan(values[columnAt], &r.At))
	if err != nil {
		return r, fmt.Errorf("delivery of event %d: %w", r.Event.ID, err)
	}

	r.Failures = int(failures)
	r.Event.Replay = int(replays)
	r.Event.Attempt = r.Failures + 1

	names := d.Events.Names
	r.Destination = names.Intern(values[columnDestination])
	r.State = State(names.Intern(values[columnState]))
	r.Key = string(values[columnKey])
	r.Due = values[columnDue][0] != 0
	r.First = values[columnFirst][0] != 0

	if raw := values[columnLetters]; raw != nil {
		// encoding/json matches the names of SQLReport to the fields. A list that a person has edited may be wrong.
		if err := json.Unmarshal(raw, &r.Event.DeadLetter); err != nil {
			wrong := fmt.Errorf("dead_letters of event %d for %q is not as the relay writes it: correct or discard the delivery",
				r.Event.ID, r.Destination)
			r.Refused = cmp.Or(r.Refused, wrong)
		}
	}

	return r, nil
}

// Cursor is a place in the order of due rows.
type Cursor struct {
	At pgtype.Timestamptz
	ID int64
}

// BeforeAll returns the place before all rows.
func BeforeAll() Cursor {
	return Cursor{pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, math.MinInt64}
}

// Read returns the rows of a query. It keeps at least one row, and no more than l.Bytes of rows; cut reports that there
// were more. why, if set, is why the events must not be delivered.
func Read(ctx context.Context, conn *session.Conn, l engine.Limits, why error, query string, args ...any) (all []Row, cut bool, err error) {
	rows, err := conn.Query(ctx, query, append([]any{pgx.QueryResultFormats(Formats())}, args...)...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()

	capacity := l.Bytes
	d := Decoder{Events: wire.Events{Names: new(wire.Names)}, EventBytes: l.EventBytes, Why: why}
	for rows.Next() {
		values := rows.RawValues()

		capacity -= wire.Size(values)
		if capacity < 0 && len(all) > 0 {
			return all, true, rows.Err()
		}

		r, err := d.Row(values)
		if err != nil {
			return nil, false, err
		}

		all = append(all, r)
	}

	return all, false, rows.Err()
}
