package ops

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/routing"
)

const (
	// MaxEvents is the largest page of a list, in events.
	MaxEvents = 1000
	// DefaultSearch is the number of events that one search reads.
	DefaultSearch = 20_000
	// MaxSearch is the largest EventFilter.Search.
	MaxSearch = 1_000_000
	// chunk is the number of events that one statement reads.
	chunk = 1000
)

// EventFilter chooses events that match all its fields. The zero value chooses all.
type EventFilter struct {
	// Type is an event type, a prefix such as order.*, or *.
	Type string
	// AggregateType and AggregateID name the event's aggregate.
	AggregateType, AggregateID string
	// State is Waiting (for any destination), Dead (at any destination, others may wait), Done
	// (nothing waits, and nothing is dead), or empty for any.
	State State
	// NewerThan bounds how long ago the event was written, by the clock of the database; 0 means no bound.
	NewerThan time.Duration
	// Since bounds when the event was written; the zero time means no bound.
	Since time.Time
	// Destination is one that the event goes to; State is then that of its delivery there. A queue does not store the
	// destinations of an event that was not tried yet, or that each has received: such an event matches if Routes leads
	// there, or is nil.
	Destination string
	// Routes returns the destinations of an event type by the present routes; nil if they are unknown.
	Routes func(eventType string) []string `json:"-"`
	// Where reports whether an event matches by its headers and payload, which are read for each event that the other
	// fields do not exclude; nil does not read them.
	Where func(e *Event) bool `json:"-"`
	// Upto is the highest id, nil for any: EventPage.Next continues a search.
	Upto *int64
	// Search bounds the events that are read; 0 is DefaultSearch.
	Search int
}

// Validate returns an error that wraps [ErrInvalid] for a filter that can choose nothing, or is
// misspelt.
func (f EventFilter) Validate() error {
	for _, text := range []string{f.Type, f.AggregateType, f.AggregateID, f.Destination} {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("%w: a filter is not valid text", ErrInvalid)
		}
	}

	switch {
	case !slices.Contains([]State{"", Waiting, Dead, Done}, f.State):
		return fmt.Errorf("%w: a state of %q is not waiting, dead or done", ErrInvalid, f.State)
	case f.NewerThan < 0:
		return fmt.Errorf("%w: an age is negative", ErrInvalid)
	case f.Search < 0 || f.Search > MaxSearch:
		return fmt.Errorf("%w: a search through %d events is not between 1 and %d", ErrInvalid, f.Search, MaxSearch)
	case f.Type != "":
		if err := routing.Check(f.Type); err != nil {
			return fmt.Errorf("%w: event type: %w", ErrInvalid, err)
		}
	}

	return nil
}

// narrow reports whether the filter may exclude any event.
func (f *EventFilter) narrow() bool {
	switch {
	case f.Type != "", f.AggregateType != "", f.AggregateID != "", f.State != "", f.Destination != "":
		return true
	}
	return f.Where != nil || f.bounded()
}

// bounded reports whether the filter has a bound in time.
func (f *EventFilter) bounded() bool { return f.NewerThan != 0 || !f.Since.IsZero() }

// oldest returns the bound in time at now; the zero time means none.
func (f *EventFilter) oldest(now time.Time) time.Time {
	if limit := now.Add(-f.NewerThan); f.NewerThan > 0 && limit.After(f.Since) {
		return limit
	}
	return f.Since
}

// accepts reports whether the row of an event matches. In a queue only a marked event is done.
func (f *EventFilter) accepts(r *raw, oldest time.Time, stream bool) bool {
	switch {
	case f.Type != "" && routing.Best([]string{f.Type}, r.Type) != 0:
		return false
	case f.AggregateType != "" && f.AggregateType != r.AggregateType:
		return false
	case f.AggregateID != "" && f.AggregateID != r.AggregateID:
		return false
	case !oldest.IsZero() && r.CreatedAt.Before(oldest):
		return false
	case f.State != Done || stream:
		return true
	}

	return f.Destination != "" || r.mark == "done"
}

// acceptsState reports whether the state of the event matches.
func (f *EventFilter) acceptsState(e *Event) bool {
	if f.Destination != "" {
		return f.acceptsDelivery(e)
	}
	switch f.State {
	case "":
		return true
	case Dead:
		return e.Has(func(s State) bool { return s == Dead })
	case Done:
		return e.State == Done || e.State == Discarded
	default:
		return e.State == f.State
	}
}

// acceptsDelivery reports whether the state of the delivery to the wanted destination matches.
func (f *EventFilter) acceptsDelivery(e *Event) bool {
	routed := f.Routes == nil || slices.Contains(f.Routes(e.Type), f.Destination)

	state := State("")
	known := false
	for _, d := range e.Destinations {
		switch d.Name {
		case f.Destination:
			state = d.State
			known = true
		case "": // its destinations are not decided
			if routed && !known {
				state = d.State
				known = true
			}
		}
	}

	if !known && e.OthersSettled && routed {
		state = Delivered
		known = true // or passed over, which is not stored
	}

	if !known || state == NotRouted {
		return false
	}

	switch f.State {
	case "":
		return true
	case Waiting:
		return state.Pending()
	case Done:
		return !state.Pending() && state != Dead
	default:
		return state == f.State
	}
}

// EventPage is a part of a list, newest first.
type EventPage struct {
	Events []Event `json:"events"`
	// Searched is the number of events that were read for it.
	Searched int `json:"searched"`
	// Next is the EventFilter.Upto that continues the list, nil at its end.
	Next *int64 `json:"next"`
}

// Events returns up to limit events, newest first. No index covers types or aggregates: Events reads by descending id,
// and ends when the page is full or after EventFilter.Search events. For the state Dead it reads only events with a
// stored delivery; for Waiting also the events that were not tried yet. With a bound in time it ends after the first
// thousand events in a row that are all too old.
func (s *Client) Events(ctx context.Context, f EventFilter, limit int) (page EventPage, err error) {
	page.Events = []Event{}

	if err := f.Validate(); err != nil {
		return page, err
	}
	if limit < 1 || limit > MaxEvents {
		return page, fmt.Errorf("%w: a limit of %d is not between 1 and %d", ErrInvalid, limit, MaxEvents)
	}
	if f.Search == 0 {
		f.Search = DefaultSearch
	}

	err = s.readEvents(ctx, "list events", func(tx pgx.Tx) error {
		t, err := s.tablesNow(ctx, tx)
		if err != nil {
			return err
		}

		l := lister{Client: s, tx: tx, tables: t, f: f, limit: limit, upto: math.MaxInt64}
		if f.Upto != nil {
			l.upto = *f.Upto
		}

		var now time.Time
		if err := tx.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
			return err
		}

		l.oldest = f.oldest(now)
		return l.run(ctx, &page)
	})

	return page, err
}

// lister makes one page.
type lister struct {
	*Client

	tx     pgx.Tx
	tables *tables
	f      EventFilter
	limit  int
	upto   int64
	oldest time.Time // zero without a bound in time
}

func (l *lister) run(ctx context.Context, page *EventPage) error {
	size := chunk
	if !l.f.narrow() {
		size = l.limit
	}

	for page.Searched < l.f.Search {
		n := min(size, l.f.Search-page.Searched)
		found, read, err := l.candidates(ctx, n)
		if err != nil {
			return err
		}

		page.Searched += len(read)
		full, err := l.take(ctx, page, found)
		if err != nil || full {
			return err
		}

		isRecent := func(r raw) bool { return !r.CreatedAt.Before(l.oldest) }
		areOld := l.f.bounded() && len(found) > 0 && !slices.ContainsFunc(found, isRecent)
		if len(read) < n || areOld || read[len(read)-1] == math.MinInt64 {
			page.Next = nil
			return nil
		}

		l.upto = read[len(read)-1] - 1
		page.Next = &l.upto
	}

	return nil
}

// take adds the events that match, and reports whether the page is full.
func (l *lister) take(ctx context.Context, page *EventPage, found []raw) (full bool, err error) {
	wanted := slices.DeleteFunc(slices.Clone(found), func(r raw) bool {
		return !l.f.accepts(&r, l.oldest, l.tables.stream)
	})
	if len(wanted) == 0 {
		return false, nil
	}

	all, err := l.outcomes(ctx, l.tx, l.tables, wanted)
	if err != nil {
		return false, err
	}

	all = slices.DeleteFunc(all, func(e Event) bool { return !l.f.acceptsState(&e) })
	for i := range all {
		if l.f.Where != nil {
			meets, err := l.meets(ctx, &all[i])
			if err != nil {
				return false, err
			}
			if !meets {
				continue
			}
		}

		page.Events = append(page.Events, all[i])
		if len(page.Events) == l.limit {
			page.Next = nil
			if last := all[i].ID; last > math.MinInt64 {
				next := last - 1
				page.Next = &next
			}
			return true, nil
		}
	}

	return false, nil
}

// meets reads an event whole and asks the filter. One event is in memory at a time.
func (l *lister) meets(ctx context.Context, e *Event) (bool, error) {
	whole := *e
	if err := l.readContent(ctx, l.tx, &whole); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, err
	}
	return l.f.Where(&whole), nil
}

// The statements that find the ids of the next events, from $1 down, $2 at most. Each reads the
// primary key of a table, or the index of fresh events, in its order.
const (
	sqlStored = `SELECT DISTINCT event_id AS id FROM {deliveries} WHERE event_id <= $1 ORDER BY event_id DESC LIMIT $2`
	sqlBoth   = `SELECT DISTINCT id FROM ((SELECT id FROM {events} WHERE id <= $1 AND %s ORDER BY id DESC LIMIT $2)
		UNION ALL (` + sqlStored + `)) AS c ORDER BY id DESC LIMIT $2`
	isFresh    = `state = 'fresh'` // as the index has it
	isAbove    = `id > $3`
	sqlByEvent = ` FROM {events} WHERE id <= $1 ORDER BY id DESC LIMIT $2`
)

// candidates returns the next n events that may match, and the ids that were read: of some of them
// the event may be gone.
func (l *lister) candidates(ctx context.Context, n int) (found []raw, read []int64, err error) {
	var rows pgx.Rows
	switch {
	case l.f.State == Dead:
		rows, err = l.tx.Query(ctx, l.sql(sqlStored), l.upto, n)
	case l.f.State == Waiting && l.tables.stream:
		rows, err = l.tx.Query(ctx, l.sql(fmt.Sprintf(sqlBoth, isAbove)), l.upto, n, l.tables.lowest())
	case l.f.State == Waiting:
		rows, err = l.tx.Query(ctx, l.sql(fmt.Sprintf(sqlBoth, isFresh)), l.upto, n)
	default:
		query := func(name func(string) string) string { return l.sql(`SELECT ` + columns(name) + sqlByEvent) }
		found, err = named(ctx, l.tx, query, scanRaw, l.upto, n)
		for i := range found {
			read = append(read, found[i].ID)
		}
		return found, read, err
	}

	if err != nil {
		return nil, nil, err
	}

	read, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, nil, err
	}

	found, err = l.byID(ctx, l.tx, read)
	return found, read, err
}
