package stream

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/observe"
)

// create creates the positions of some of the wanted destinations. Relays that start at the same time take turns.
func create(ctx context.Context, conn *session.Conn, all []routes.Wanted, missing []Wanted, log *slog.Logger) error {
	var created []newPosition
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
		created, err = createPositions(ctx, tx, all, missing)
		return err
	})
	if err != nil {
		return fmt.Errorf("create positions: %w", err)
	}

	for _, m := range created {
		if m.beyond {
			log.WarnContext(ctx, "start_from is above the last id: the destination begins with the next event",
				"destination", m.destination, "start_from", m.from.ID, "last", m.head)
		}

		from := cmp.Or(m.from, engine.Start{Kind: engine.StartAtBeginning})
		log.InfoContext(ctx, "destination begins",
			"destination", observe.PositionName(m.destination), "from", from.String(), "head", m.head)
	}

	return nil
}

// sqlCreating serializes the relays that create positions. The lock needs the right to update positions, which an advisory lock
// does not, and lets updates through.
const sqlCreating = `LOCK TABLE outbox_positions IN SHARE UPDATE EXCLUSIVE MODE`

// newPosition is a new position, as the log shows it.
type newPosition struct {
	destination string
	from        engine.Start
	chosen      bool // from is a start_from
	beyond      bool // from is an id that is not assigned yet
	head        int64
	open        tail.Ranges
	sequence    string
}

func createPositions(ctx context.Context, tx pgx.Tx, all []routes.Wanted, missing []Wanted) (created []newPosition, err error) {
	if _, err := tx.Exec(ctx, sqlCreating); err != nil {
		return nil, fmt.Errorf("serialize with other relays: %w", err)
	}

	var s starts
	if err := s.read(ctx, tx); err != nil {
		return nil, fmt.Errorf("read where destinations start: %w", err)
	}

	for i := range missing {
		p, err := s.position(ctx, tx, &missing[i], missing)
		if err != nil {
			return nil, err
		}

		tag, err := tx.Exec(ctx, `INSERT INTO outbox_positions (destination, head, open, sequence, seen, seen_at)
			SELECT $1, $2, $3::text::int8multirange, $4, pg_snapshot_xmax(pg_current_snapshot()),
				CASE WHEN $4 = $5 THEN clock_timestamp() ELSE m.changed_at END
			FROM outbox_mode AS m ON CONFLICT DO NOTHING`,
			p.destination, p.head, p.open.String(), p.sequence, s.sequence)
		if err != nil {
			return nil, fmt.Errorf("create the position of %q: %w", p.destination, err)
		}

		if tag.RowsAffected() == 0 { // another relay was first
			var rows int64
			row := tx.QueryRow(ctx, `SELECT count(*) FROM outbox_positions WHERE destination = $1`, p.destination)
			if err := row.Scan(&rows); err != nil {
				return nil, fmt.Errorf("find the position of %q: %w", p.destination, err)
			}
			if err := session.CheckChanged("create a position", rows, 1); err != nil {
				return nil, fmt.Errorf("create the position of %q: %w", p.destination, err)
			}

			continue
		}

		created = append(created, p)

		if p.destination == "" {
			continue
		}

		// Immediately: until the routes are stored, the unrouted scanner treats the destination's events as unrouted.
		if err := p.storeRoutes(ctx, tx, all, missing[i].Wanted); err != nil {
			return nil, fmt.Errorf("store the routes of %q: %w", p.destination, err)
		}
	}

	return created, nil
}

// starts has what decides where destinations begin.
type starts struct {
	origin         tail.Watermark // events that a former queue has finished
	originSequence string
	last           int64 // the last assigned id
	sequence       string
	first          bool // no destination has a position
}

func (s *starts) read(ctx context.Context, tx pgx.Tx) error {
	var open string

	err := tx.QueryRow(ctx, `SELECT origin_head, origin_open::text, coalesce(origin_sequence, now), now, outbox_last_id(),
		NOT EXISTS (SELECT FROM outbox_positions WHERE destination <> '') FROM outbox_mode, (SELECT `+pgschema.Sequence+` AS now) AS s`).
		Scan(&s.origin.Head, &open, &s.originSequence, &s.sequence, &s.last, &s.first)
	if err != nil {
		return err
	}

	s.origin.Open, err = tail.ParseRanges(open)
	return err
}

// position returns the position with which a destination begins, or the unrouted scanner.
func (s *starts) position(ctx context.Context, tx pgx.Tx, w *Wanted, missing []Wanted) (p newPosition, err error) {
	p = newPosition{destination: w.Destination, from: w.Start, chosen: w.Start.Kind != engine.StartDefault, sequence: s.sequence}
	switch {
	case p.chosen:
		p.head, err = s.chosen(ctx, tx, w.Start)
		p.beyond = w.Start.Kind == engine.StartAtID && w.Start.ID-1 > p.head
	case w.Destination == "":
		err = s.scanner(ctx, tx, &p, missing)
	case s.first: // the undelivered events of a former queue, or everything
		p.head = s.origin.Head
		p.open = s.origin.Open
		p.sequence = s.originSequence
	default:
		p.from = engine.Start{Kind: engine.StartNow}
		p.head = s.last
		p.open, err = uncommitted(ctx, tx, s.last)
	}

	return p, err
}

// chosen returns the id after which a destination begins by its start_from.
func (s *starts) chosen(ctx context.Context, tx pgx.Tx, from engine.Start) (int64, error) {
	switch from.Kind {
	case engine.StartAtBeginning: // also the events of a former queue: a new destination has received none
		return 0, nil
	case engine.StartAtID: // an id that is not assigned yet would be taken for one that is assigned again
		return min(from.ID-1, s.last), nil
	case engine.StartAtTime:
		first, err := store.FirstSince(ctx, tx, from.Time)
		return first - 1, err
	default: // now
		return s.last, nil
	}
}

// scanner sets where the unrouted scanner begins: at the first stored event. If all first destinations of the stream
// have a start_from, the scanner begins at the lowest one, because no destination needs earlier events.
func (s *starts) scanner(ctx context.Context, tx pgx.Tx, p *newPosition, missing []Wanted) error {
	p.head = s.origin.Head
	p.open = s.origin.Open
	p.sequence = s.originSequence

	lowest := s.last
	chosen := false
	for i := range missing {
		w := &missing[i]
		switch {
		case w.Destination == "":
			continue
		case w.Start.Kind == engine.StartDefault:
			return nil
		}

		head, err := s.chosen(ctx, tx, w.Start)
		if err != nil {
			return err
		}

		lowest = min(lowest, head)
		chosen = true
	}

	if s.first && chosen && lowest > s.origin.Head {
		p.head = lowest
		p.open = nil
		p.sequence = s.sequence
	}

	return nil
}

// storeRoutes stores the first routes of a destination. A destination without a start_from gets the older events that no
// destination has read, and does not read the ids below its position. With a start_from it has no claim to them: its
// routes count for all ids, and it has skipped those below its position, as a seek does.
func (p *newPosition) storeRoutes(ctx context.Context, tx pgx.Tx, all []routes.Wanted, w routes.Wanted) error {
	if !p.chosen {
		return routes.Begin(ctx, tx, all, w, tail.Watermark{Head: p.head, Open: p.open})
	}
	if err := routes.Begin(ctx, tx, all, w, tail.Watermark{}); err != nil || p.head == 0 {
		return err
	}
	return routes.Skip(ctx, tx, p.destination, 0, p.head)
}

const (
	// searched is how many of the last ids are searched for events of open transactions, and maxUncommitted how many
	// ranges of them a new destination gets. Beyond that it begins behind them.
	searched       = 1_000_000
	maxUncommitted = 4096

	// sqlUncommitted returns the ids up to $1, and above $2, that the unrouted scanner has not passed, and that are not
	// visible.
	sqlUncommitted = `WITH unread AS (SELECT
		(open + int8multirange(int8range(head, greatest(head, $1), '(]'))) * int8multirange(int8range($2, $1, '(]')) AS ids
	FROM outbox_positions WHERE destination = '' AND $1 > $2)
SELECT (u.ids - coalesce((SELECT range_agg(int8range(e.id, e.id, '[]')) FROM unnest(u.ids) AS g
	CROSS JOIN LATERAL (SELECT id FROM outbox_events WHERE id >= lower(g) AND id < upper(g)) AS e), '{}'))::text FROM unread AS u`
)

// uncommitted returns the ids up to the last one whose events may still be committed. A new destination reads them: an
// event that is committed later belongs to all destinations of its route. The statement begins after the last id was
// read, so all events that were committed by then are visible to it.
func uncommitted(ctx context.Context, tx pgx.Tx, last int64) (tail.Ranges, error) {
	var text string

	err := tx.QueryRow(ctx, sqlUncommitted, last, max(0, last-searched)).Scan(&text)
	switch {
	case isNoRows(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find the ids of open transactions: %w", err)
	}

	all, err := tail.ParseRanges(text)
	return all[max(0, len(all)-maxUncommitted):], err
}

// Beginning is where a new destination begins, or where a returning one continues.
type Beginning struct {
	Destination string
	// From is the start that counts: now for a later destination without a start_from.
	From engine.Start
	// Returns reports that the destination has a position, at which it continues.
	Returns bool
	// Kept are the kept events that it would read, by type, and Stored the deliveries that wait for it.
	Kept   []KeptEvents
	Stored int
	// AtLeast reports that more events than were counted may follow, and AtMost that some of them were delivered already.
	AtLeast, AtMost bool
}

// KeptEvents counts events of a type.
type KeptEvents struct {
	Type  string
	Count int
	First int64 // the lowest id
}

// sqlKept counts, by type, the first $3 kept events above the id $1 or in the ranges $2.
const sqlKept = `SELECT event_type, count(*)::int, min(id), sum(count(*)) OVER () >= $3
	FROM (SELECT id, event_type FROM (
			(SELECT o.* FROM unnest($2::text::int8multirange) AS g CROSS JOIN LATERAL (
				SELECT id, event_type FROM outbox_events WHERE id >= lower(g) AND id < upper(g) ORDER BY id LIMIT $3) AS o LIMIT $3)
			UNION
			(SELECT id, event_type FROM outbox_events WHERE id > $1 ORDER BY id LIMIT $3)
		) AS e ORDER BY id LIMIT $3) AS f GROUP BY event_type ORDER BY 3`

// sqlPosition returns the lowest position of the shards of the destination $1, the ids up to it that are open in any of
// them, and whether no relay wants the destination while relays run.
const sqlPosition = `SELECT min(head), count(*) > 1,
	coalesce((SELECT range_agg(g) FROM outbox_positions AS o CROSS JOIN LATERAL unnest(o.open) AS g WHERE o.destination = $1), '{}')::text,
	(SELECT count(*) > 0 AND NOT bool_or($1 = ANY (wants)) FROM outbox_members WHERE alive_until > clock_timestamp() AND wants <> '{}')
	FROM outbox_positions WHERE destination = $1 HAVING count(*) > 0`

// sqlStored counts the deliveries that wait for the destination $1, at most $2 of each state.
const sqlStored = `SELECT count(*)::int FROM (
	(SELECT 1 FROM outbox_deliveries WHERE destination = $1 AND state = 'retry' LIMIT $2) UNION ALL
	(SELECT 1 FROM outbox_deliveries WHERE destination = $1 AND ordering_key IS NOT NULL AND state = 'parked' LIMIT $2)) AS d`

// Beginnings returns where the destinations that have no position would begin, as [create] decides it, and where those
// continue that come back. It reads at most limit events for each, and changes nothing. was reports whether the
// configuration in force has a destination; if it is nil, the relays that run decide.
func Beginnings(ctx context.Context, tx pgx.Tx, wanted []Wanted, was func(destination string) bool, limit int) (all []Beginning, err error) {
	var s starts
	if err := s.read(ctx, tx); err != nil {
		return nil, fmt.Errorf("read where destinations start: %w", err)
	}

	for i := range wanted {
		w := &wanted[i]
		b := Beginning{Destination: w.Destination, Returns: true}
		var head int64
		var open string
		var isMissed bool

		err := tx.QueryRow(ctx, sqlPosition, w.Destination).Scan(&head, &b.AtMost, &open, &isMissed)
		if err != nil && !isNoRows(err) {
			return nil, fmt.Errorf("find the position of %q: %w", w.Destination, err)
		}
		if was != nil {
			isMissed = !was(w.Destination)
		}

		switch {
		case isNoRows(err):
			p, err := s.position(ctx, tx, w, wanted)
			if err != nil {
				return nil, err
			}
			b.From = p.from
			b.Returns = false
			head = p.head
			open = p.open.String()
		case !isMissed:
			continue
		}

		if err := b.count(ctx, tx, head, open, limit); err != nil {
			return nil, fmt.Errorf("count the kept events: %w", err)
		}

		all = append(all, b)
	}

	return all, nil
}

// count counts the kept events above the id head, and those in open, and the stored deliveries.
func (b *Beginning) count(ctx context.Context, tx pgx.Tx, head int64, open string, limit int) error {
	rows, err := tx.Query(ctx, sqlKept, head, open, limit)
	if err != nil {
		return err
	}

	var k KeptEvents
	_, err = pgx.ForEachRow(rows, []any{&k.Type, &k.Count, &k.First, &b.AtLeast}, func() error {
		b.Kept = append(b.Kept, k)
		return nil
	})
	if err != nil || !b.Returns {
		return err
	}

	return tx.QueryRow(ctx, sqlStored, b.Destination, limit).Scan(&b.Stored)
}
