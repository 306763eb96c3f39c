package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// DefaultBacklogLimit is how many rows a question about what waits looks at,
// unless BacklogOptions says otherwise.
const DefaultBacklogLimit = 10_000

// BacklogOptions say what to look at. The zero value looks at the tables in
// the schema public from their beginning.
type BacklogOptions struct {
	// Schema holds the tables; "" is public.
	Schema string
	// After is the id above which fresh events are looked for: what a relay
	// knows to be settled (dispatch.Dispatcher.SettledBelow). 0 looks at all of
	// them, negative ids included.
	After int64
	// Limit bounds the rows that each question reads, and with it every count;
	// 0 is DefaultBacklogLimit.
	Limit int
	// Route returns the destinations of an event type, none for a type without a
	// route. Nil where the routes are not known: fresh events then count for no
	// destination.
	Route func(eventType string) []string
	// CountsOnly leaves errors, groups of dead letters and unrouted types out.
	CountsOnly bool
}

// Count is a number of rows. Counting ends at the limit: a table may hold
// millions.
type Count struct {
	// N is how many were counted.
	N int `json:"count"`
	// More says that counting ended before the rows did.
	More bool `json:"more,omitempty"`
}

// String returns "12", or "10000+" where there are more.
func (c Count) String() string {
	if c.More {
		return strconv.Itoa(c.N) + "+"
	}
	return strconv.Itoa(c.N)
}

// add returns both together.
func (c Count) add(d Count) Count { return Count{N: c.N + d.N, More: c.More || d.More} }

// Backlog is what waits, at one moment.
type Backlog struct {
	// At is that moment, by the clock of the database. Ages count from it.
	At time.Time `json:"at"`
	// Mode says whether the events are a queue or a stream.
	Mode outboxsql.Mode `json:"mode"`
	// Positions are how far the destinations of a stream have come, by name, that of the
	// router among them; nil in a queue.
	Positions []Position `json:"positions,omitempty"`
	// Fresh counts the events that no relay has dealt with yet, and Types counts
	// them by type, in the order of the types' names. Of a stream Fresh is the largest
	// lag of a position, and Types are not known.
	Fresh Count         `json:"fresh"`
	Types []TypeBacklog `json:"types"`
	// Delayed counts the events that were put aside until they are available; in a
	// stream once for each destination.
	Delayed Count `json:"delayed"`
	// Unrouted are the types that no route of a relay matched.
	Unrouted []TypeBacklog `json:"unrouted"`
	// Destinations are those for which something waits or is dead, by name.
	Destinations []DestinationBacklog `json:"destinations"`
	// Oldest is the event that has waited longest; nil if none waits. What is
	// parked waits, what is dead, delayed or unrouted does not.
	Oldest *Waiting `json:"oldest,omitempty"`
}

// TypeBacklog is what waits of one event type.
type TypeBacklog struct {
	EventType string `json:"event_type"`
	Count
	// Oldest is the one that has waited longest; nil for types that are unrouted,
	// and where all are delayed.
	Oldest *Waiting `json:"oldest,omitempty"`
}

// DestinationBacklog is what waits for one destination.
type DestinationBacklog struct {
	Name string `json:"name"`
	// Fresh counts the events that are routed to it and that no relay has dealt
	// with yet; always 0 where the routes are not known. Of a stream it is Position.Lag.
	Fresh Count `json:"fresh"`
	// Retry, Running, Parked and Dead count its deliveries by state. Events of a stream
	// that are not available yet are not among Retry.
	Retry   Count `json:"retry"`
	Running Count `json:"running"`
	Parked  Count `json:"parked"`
	Dead    Count `json:"dead"`
	// Blocked counts the aggregates of a stream of which a delivery is to be tried again;
	// 0 in a queue.
	Blocked Count `json:"blocked"`
	// NextDue is when the next delivery of state retry is due; nil if there is none.
	NextDue *time.Time `json:"next_due,omitempty"`
	// Oldest is the event that has waited longest for this destination, as far as
	// the rows that were looked at tell.
	Oldest *Waiting `json:"oldest,omitempty"`
	// LastError is the newest failure among the deliveries that are due next; nil
	// if none of them has failed.
	LastError *Failure `json:"last_error,omitempty"`
	// DeadLetters are the newest dead letters, grouped by error, largest group first.
	DeadLetters []DeadGroup `json:"dead_letters,omitempty"`
}

// Waiting returns all that waits for the destination, dead letters left out.
func (d *DestinationBacklog) Waiting() Count {
	return d.Fresh.add(d.Retry).add(d.Running).add(d.Parked)
}

// Waiting is an event that waits.
type Waiting struct {
	EventID int64 `json:"event_id"`
	// Since is when it was written, or when it was to be available.
	Since time.Time `json:"since"`
	// Age is how long that was before Backlog.At, in seconds; never negative.
	Age float64 `json:"age_seconds"`
}

// Failure is a failed attempt.
type Failure struct {
	EventID   int64     `json:"event_id"`
	EventType string    `json:"event_type"`
	Attempts  int       `json:"attempts"`
	Class     string    `json:"class"` // event, destination or ours
	Text      string    `json:"text"`
	At        time.Time `json:"at"`
}

// DeadGroup are dead letters of one destination with one error. Errors that
// differ in numbers and UUIDs only are the same.
type DeadGroup struct {
	Count
	Class string `json:"class"`
	// Error is the text of the newest one.
	Error string `json:"error"`
	// EventID and EventType are those of the newest one, and At is when it was
	// given up.
	EventID   int64     `json:"event_id"`
	EventType string    `json:"event_type"`
	At        time.Time `json:"at"`
}

// Destination returns what waits for the named destination; nothing for a name
// that is not there.
func (b *Backlog) Destination(name string) DestinationBacklog {
	for _, d := range b.Destinations {
		if d.Name == name {
			return d
		}
	}
	return DestinationBacklog{Name: name}
}

// ReadBacklog returns what waits. It never counts a table: every question
// reads as many rows of an index as the limit says, and of a stream what waits to be
// read is the distance between two numbers. All of them see the same
// moment. conn may be any connection that is in no transaction; its settings
// are as they were afterwards. The error names the cure where the tables are
// missing.
func ReadBacklog(ctx context.Context, conn *pgx.Conn, o BacklogOptions) (Backlog, error) {
	o = o.withDefaults()
	r := backlogReader{options: o, names: make(map[string]*DestinationBacklog)}
	moment := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, conn, moment, func(tx pgx.Tx) error {
		if err := r.prepare(ctx, tx); err != nil {
			return err
		}
		for _, step := range r.steps() {
			if err := step(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && (refused.Code == "42P01" || refused.Code == "3F000") {
		return Backlog{}, fmt.Errorf("schema %q has no tables of notifyd: run `notifyd migrate up`: %w", o.Schema, outboxsql.ErrNotMigrated)
	}
	if err != nil {
		return Backlog{}, fmt.Errorf("read what waits: %w", err)
	}
	return r.finish(), nil
}

func (o BacklogOptions) withDefaults() BacklogOptions {
	o.Schema = cmp.Or(o.Schema, outboxsql.DefaultSchema)
	o.Limit = cmp.Or(max(0, o.Limit), DefaultBacklogLimit)
	return o
}

// backlogReader collects the answers.
type backlogReader struct {
	options BacklogOptions
	result  Backlog
	names   map[string]*DestinationBacklog
	oldest  map[int64][]*DestinationBacklog // by event, of deliveries
}

func (r *backlogReader) steps() []func(context.Context, pgx.Tx) error {
	steps := []func(context.Context, pgx.Tx) error{
		r.readTypes, r.readNames, r.readRunning, r.readRetry, r.readParked, r.readDead, r.readOldest,
	}
	if r.result.Mode == outboxsql.ModeStream {
		steps = []func(context.Context, pgx.Tx) error{
			r.readPositions, r.readPositionsOldest, r.readNames, r.readRetryOfStream, r.readParked, r.readBlocked, r.readDead, r.readOldest,
		}
	}
	if !r.options.CountsOnly {
		steps = append(steps, r.readErrors, r.readDeadGroups, r.readUnrouted)
	}
	return steps
}

// destination returns the entry of a name, a new one if need be.
func (r *backlogReader) destination(name string) *DestinationBacklog {
	d := r.names[name]
	if d == nil {
		d = &DestinationBacklog{Name: name}
		r.names[name] = d
	}
	return d
}

// known returns the names in their order, the undecided one "" among them.
func (r *backlogReader) known() []string {
	names := make([]string, 0, len(r.names))
	for name := range r.names {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// count makes a Count of n rows that were found by asking for one more than
// the limit.
func (r *backlogReader) count(n int) Count {
	return Count{N: min(n, r.options.Limit), More: n > r.options.Limit}
}

// waiting is an event that has waited since then.
func (r *backlogReader) waiting(id int64, since time.Time) *Waiting {
	return &Waiting{EventID: id, Since: since, Age: max(0, r.result.At.Sub(since).Seconds())}
}

// older returns the one that has waited longer; either may be nil.
func older(a, b *Waiting) *Waiting {
	if a == nil || b != nil && b.Since.Before(a.Since) {
		return b
	}
	return a
}

// finish puts together what belongs to a destination and what to nobody.
func (r *backlogReader) finish() Backlog {
	b := r.result
	for _, t := range b.Types {
		b.Oldest = older(b.Oldest, t.Oldest)
		if r.options.Route == nil {
			continue
		}
		for _, name := range r.options.Route(t.EventType) {
			d := r.destination(name)
			d.Fresh, d.Oldest = d.Fresh.add(t.Count), older(d.Oldest, t.Oldest)
		}
	}
	for _, name := range r.known() {
		d := r.names[name]
		if name == "" {
			b.Delayed = b.Delayed.add(d.Retry)
			continue
		}
		b.Oldest = older(b.Oldest, d.Oldest)
		b.Destinations = append(b.Destinations, *d)
	}
	return b
}
