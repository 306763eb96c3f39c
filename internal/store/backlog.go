package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// DefaultBacklogLimit is the default of BacklogOptions.Limit.
const DefaultBacklogLimit = 10_000

// BacklogOptions selects the backlog to read. The zero value reads the tables in the schema public from their
// beginning.
type BacklogOptions struct {
	// Schema has the tables; "" is public.
	Schema string
	// After is the id above which fresh events are searched: an id below which a relay knows events to be settled
	// (queue.Engine.SettledBelow). 0 searches all of them, including negative ids.
	After int64
	// Limit bounds the rows that each query reads, and so every count; 0 means DefaultBacklogLimit.
	Limit int
	// Route returns the destinations of an event type, none for a type without a route. With a nil Route, fresh
	// events count for no destination.
	Route func(eventType string) []string
	// Types bounds the listed unrouted types; 0 means 1,000.
	Types int
	// CountsOnly omits errors, groups of dead letters and unrouted types.
	CountsOnly bool
}

// ReadBacklog returns the backlog. It never counts a whole table: every query reads at most Limit rows of an index.
// The unread part of a stream is the difference of two numbers. All queries see the same snapshot. conn must not be
// in a transaction; its settings are the same afterwards. If the tables are missing, the error names the cure.
func ReadBacklog(ctx context.Context, conn outboxsql.DB, o BacklogOptions) (observe.Backlog, error) {
	o = o.withDefaults()
	r := backlogReader{options: o, names: make(map[string]*observe.DestinationBacklog)}
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
		return observe.Backlog{}, pgschema.MissingTables(ctx, conn, o.Schema)
	}
	if err != nil {
		return observe.Backlog{}, fmt.Errorf("read the backlog: %w", err)
	}

	return r.finish(), nil
}

func (o BacklogOptions) withDefaults() BacklogOptions {
	o.Schema = cmp.Or(o.Schema, outboxsql.DefaultSchema)
	o.Limit = cmp.Or(max(0, o.Limit), DefaultBacklogLimit)
	o.Types = cmp.Or(max(0, o.Types), backlogNames)
	return o
}

// backlogReader collects the results of the queries.
type backlogReader struct {
	options BacklogOptions
	result  observe.Backlog
	names   map[string]*observe.DestinationBacklog
	oldest  map[int64][]*observe.DestinationBacklog // by event: the destinations whose oldest delivery has that event
}

func (r *backlogReader) steps() []func(context.Context, pgx.Tx) error {
	steps := []func(context.Context, pgx.Tx) error{
		r.readTypes, r.readPauses, r.readNames, r.readRunning, r.readRetry, r.readParked, r.readDead, r.readOldest,
	}
	if r.result.Mode == string(outboxsql.ModeStream) {
		steps = []func(context.Context, pgx.Tx) error{
			r.readPositions, r.readPositionsOldest, r.readPauses, r.readNames, r.readRetryOfStream,
			r.readParked, r.readBlocked, r.readDead, r.readOldest,
		}
	}

	if !r.options.CountsOnly {
		steps = append(steps, r.readErrors, r.readPositionErrors, r.readDeadGroups, r.readUnrouted)
	}

	return steps
}

// destination returns the entry of a name, and creates it if necessary.
func (r *backlogReader) destination(name string) *observe.DestinationBacklog {
	d := r.names[name]
	if d == nil {
		d = &observe.DestinationBacklog{Name: name}
		r.names[name] = d
	}
	return d
}

// known returns the sorted names, including "" for undecided events.
func (r *backlogReader) known() []string {
	names := make([]string, 0, len(r.names))
	for name := range r.names {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// count converts n into a Count. n rows were read with a limit of one more than the bound.
func (r *backlogReader) count(n int) observe.Count {
	return observe.Count{N: min(n, r.options.Limit), More: n > r.options.Limit}
}

// waiting returns an event that has waited since the given time.
func (r *backlogReader) waiting(id int64, since time.Time) *observe.Waiting {
	return &observe.Waiting{EventID: id, Since: since, Age: max(0, r.result.At.Sub(since).Seconds())}
}

// older returns the event that has waited longer; either may be nil.
func older(a, b *observe.Waiting) *observe.Waiting {
	if a == nil || b != nil && b.Since.Before(a.Since) {
		return b
	}
	return a
}

// finish merges the results for each destination, and for events without one.
func (r *backlogReader) finish() observe.Backlog {
	b := r.result
	for _, t := range b.Types {
		b.Oldest = older(b.Oldest, t.Oldest)
		if r.options.Route == nil {
			continue
		}

		for _, name := range r.options.Route(t.EventType) {
			d := r.destination(name)
			d.Fresh = d.Fresh.Plus(t.Count)
			d.Oldest = older(d.Oldest, t.Oldest)
		}
	}

	for _, name := range r.known() {
		d := r.names[name]
		b.Missing = b.Missing.Plus(d.Missing)
		if name == "" {
			b.Delayed = b.Delayed.Plus(d.Retry)
			b.NextDelayed = d.NextDue
			continue
		}

		b.Oldest = older(b.Oldest, d.Oldest)
		b.Destinations = append(b.Destinations, *d)
	}

	return b
}
