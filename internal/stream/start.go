package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Start is where a destination without a position begins. The zero value is the beginning for the
// first destinations of a table, and now for later ones.
type Start struct {
	from startFrom
	id   int64
	time time.Time
}

type startFrom int

const (
	startDefault startFrom = iota
	startBeginning
	startNow
	startID
	startTime
)

// FromBeginning begins with the first event, or where the former queue ended.
func FromBeginning() Start { return Start{from: startBeginning} }

// FromNow begins after the last assigned id. An event whose id was drawn before, and whose
// transaction commits later, is not delivered.
func FromNow() Start { return Start{from: startNow} }

// FromID begins with the event of that id, or the first above it.
func FromID(id int64) Start { return Start{from: startID, id: id} }

// FromTime begins with the first event of that time or later: see [FirstSince].
func FromTime(t time.Time) Start { return Start{from: startTime, time: t} }

// String returns the start as a log shows it.
func (s Start) String() string {
	switch s.from {
	case startBeginning:
		return "beginning"
	case startNow:
		return "now"
	case startID:
		return strconv.FormatInt(s.id, 10)
	case startTime:
		return s.time.Format(time.RFC3339)
	default:
		return "default"
	}
}

// createWithin bounds the creation of positions: some are found by time, and where many events were
// deleted the search for the first takes a while.
const createWithin = 15 * time.Second

// create creates the missing positions. Relays that start at the same time do it one after the
// other.
func (s *dbSession) create(ctx context.Context, missing []Wanted) error {
	var made []madePosition
	err := within(ctx, createWithin, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) (err error) {
			made, err = createPositions(ctx, tx, s.class, s.options.Destinations, missing)
			return err
		})
	})
	if err != nil {
		return err
	}
	for _, m := range made {
		s.log.InfoContext(ctx, "destination begins", "destination", unitName(m.destination), "from", m.from, "head", m.head)
	}
	return nil
}

// madePosition is a new position, as a log shows it.
type madePosition struct {
	destination string
	from        Start
	head        int64
}

func createPositions(ctx context.Context, tx pgx.Tx, class int32, all, missing []Wanted) (made []madePosition, err error) {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, class, creating); err != nil {
		return nil, fmt.Errorf("make positions: %w", err)
	}
	var origin, last int64
	var open string
	var first bool
	err = tx.QueryRow(ctx, `SELECT origin_head, origin_open::text, outbox_last_id(),
		NOT EXISTS (SELECT FROM outbox_positions WHERE destination <> '') FROM outbox_mode`).Scan(&origin, &open, &last, &first)
	if err != nil {
		return nil, fmt.Errorf("make positions: %w", err)
	}
	for _, w := range missing {
		p := madePosition{destination: w.Destination, from: w.Start.or(w.Destination, first), head: last}
		opening := "{}"
		switch p.from.from {
		case startBeginning:
			p.head, opening = origin, open
		case startID:
			p.head = p.from.id - 1
		case startTime:
			if p.head, err = FirstSince(ctx, tx, p.from.time); err != nil {
				return nil, err
			}
			p.head--
		default: // now
		}
		tag, err := tx.Exec(ctx, `INSERT INTO outbox_positions (destination, head, open) VALUES ($1, $2, $3::text::int8multirange)
			ON CONFLICT DO NOTHING`, p.destination, p.head, opening)
		if err != nil {
			return nil, fmt.Errorf("create the position of %q: %w", p.destination, err)
		}
		if tag.RowsAffected() == 0 {
			continue
		}
		made = append(made, p)
		if p.destination == "" {
			continue
		}
		// At once: otherwise the router would treat events that no destination reads yet as
		// unrouted.
		at := cut{head: p.head}
		if at.open, err = ParseRanges(opening); err == nil {
			err = firstRoutes(ctx, tx, all, &w, at)
		}
		if err != nil {
			return nil, fmt.Errorf("store the routes of %q: %w", p.destination, err)
		}
	}
	return made, nil
}

// or returns the start of a destination without a configured one.
func (s Start) or(destination string, first bool) Start {
	switch {
	case s.from != startDefault:
		return s
	case first || destination == "": // the router has to read everything
		return FromBeginning()
	default:
		return FromNow()
	}
}

// rower is a connection or a transaction.
type rower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// FirstSince returns the id at which the events begin whose created_at is t or later: that of the
// first of them, or a lower one without an event; or the next id to be assigned if there is no such
// event. It reads at most 64 events. It is exact if created_at rises with the ids. created_at is
// when the writing transaction began: events of transactions that were open at t, and those whose
// writer chose another created_at, may lie on either side.
func FirstSince(ctx context.Context, db rower, t time.Time) (int64, error) {
	var low, high int64 // the result is low, high, or between them
	err := db.QueryRow(ctx, `SELECT coalesce((SELECT id FROM outbox_events ORDER BY id LIMIT 1), outbox_last_id() + 1), outbox_last_id() + 1`).
		Scan(&low, &high)
	for err == nil && low < high {
		middle := low + (high-low)/2
		var id int64
		var early bool
		err = db.QueryRow(ctx, `SELECT id, created_at < $2 FROM outbox_events WHERE id >= $1 ORDER BY id LIMIT 1`, middle, t).Scan(&id, &early)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			err, high = nil, middle
		case early:
			low = id + 1
		default:
			high = middle
		}
	}
	if err != nil {
		return 0, fmt.Errorf("find the first event since %v: %w", t, err)
	}
	return low, nil
}
