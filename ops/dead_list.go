package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// MaxDeadLetters is the largest page of a list, in letters or groups.
const MaxDeadLetters = 10_000

// DeadLetterPage is a part of a list.
type DeadLetterPage struct {
	Letters []DeadLetter `json:"letters"`
	// Next is the argument of DeadLetters for the next page, nil on the last one.
	Next *DeliveryRef `json:"next"`
}

func letterColumns(name func(column string) string) string {
	return `d.event_id, d.destination, ` + name("d.event_type") + `, coalesce(d.error_fingerprint, ''), d.updated_at,
	d.attempts, d.replays, coalesce(d.error_class, ''), coalesce(d.last_error, '')`
}

// DeadLetters returns up to limit dead letters after the given one, by destination, and for each
// destination in the order of events. The zero DeliveryRef begins at the start.
func (s *Client) DeadLetters(ctx context.Context, f DeadLetterFilter, after DeliveryRef, limit int) (DeadLetterPage, error) {
	page := DeadLetterPage{Letters: []DeadLetter{}}
	if err := errors.Join(f.Validate(), checkLimit(limit)); err != nil {
		return page, err
	}

	err := s.read(ctx, "list dead letters", func(tx pgx.Tx, now time.Time) error {
		letters, err := s.letters(ctx, tx, f.where(f.bounds(now), after), limit+1, "")
		if len(letters) > limit {
			letters = letters[:limit]
			page.Next = &letters[limit-1].DeliveryRef
		}

		page.Letters = letters
		return err
	})

	return page, err
}

func checkLimit(limit int) error {
	if limit < 1 || limit > MaxDeadLetters {
		return fmt.Errorf("%w: a limit of %d is not between 1 and %d", ErrInvalid, limit, MaxDeadLetters)
	}
	return nil
}

// letters reads letters in the order of their index; lock is the locking clause of the statement.
func (s *Client) letters(ctx context.Context, tx pgx.Tx, q *letterQuery, limit int, lock string) ([]DeadLetter, error) {
	from := ` FROM {deliveries} AS d WHERE ` + q.text() + ` ORDER BY ` + q.order + ` LIMIT ` + q.arg(limit) + lock
	query := func(name func(string) string) string { return s.sql(`SELECT ` + letterColumns(name) + from) }

	return named(ctx, tx, query, scanLetter, q.args...)
}

func scanLetter(row pgx.CollectableRow) (l DeadLetter, err error) {
	err = row.Scan(&l.EventID, &l.Destination, &l.Type, &l.Fingerprint, &l.DiedAt, &l.Attempts, &l.Replays, &l.Class, &l.Error)
	return l, err
}

// DeadLetterGroup is a set of dead letters with a common destination, type and error: most likely a common
// cause.
type DeadLetterGroup struct {
	Destination string `json:"destination"`
	Type        string `json:"event_type"`
	Fingerprint string `json:"fingerprint"`
	Count       int64  `json:"count"`
	// Oldest and Newest are when the first and the last dead letter of the
	// group died.
	Oldest time.Time `json:"oldest"`
	Newest time.Time `json:"newest"`
	// Example is the dead letter of the newest event.
	Example DeadLetter `json:"example"`
}

// DeadLetterGroups returns up to limit groups of the dead letters that f chooses, the largest first. It reads
// all those letters.
func (s *Client) DeadLetterGroups(ctx context.Context, f DeadLetterFilter, limit int) ([]DeadLetterGroup, error) {
	groups := []DeadLetterGroup{}
	if err := errors.Join(f.Validate(), checkLimit(limit)); err != nil {
		return groups, err
	}

	err := s.read(ctx, "group dead letters", func(tx pgx.Tx, now time.Time) error {
		q := f.where(f.bounds(now), DeliveryRef{})
		grouped := `WITH g AS (
				SELECT d.destination, d.event_type, d.error_fingerprint, count(*) AS n, min(d.updated_at) AS oldest,
					max(d.updated_at) AS newest, max(d.event_id) AS example
				FROM {deliveries} AS d WHERE ` + q.text() + ` GROUP BY 1, 2, 3
				ORDER BY n DESC, 1, 2, 3 LIMIT ` + q.arg(limit) + `)`

		var err error
		groups, err = named(ctx, tx, func(name func(string) string) string {
			return s.sql(grouped + ` SELECT g.destination,
				` + name("g.event_type") + `, coalesce(g.error_fingerprint, ''), g.n, g.oldest, g.newest, ` + letterColumns(name) + `
				FROM g JOIN {deliveries} AS d ON d.event_id = g.example AND d.destination = g.destination
				ORDER BY g.n DESC, 1, 2, 3`)
		}, func(row pgx.CollectableRow) (g DeadLetterGroup, err error) {
			l := &g.Example
			err = row.Scan(&g.Destination, &g.Type, &g.Fingerprint, &g.Count, &g.Oldest, &g.Newest,
				&l.EventID, &l.Destination, &l.Type, &l.Fingerprint, &l.DiedAt, &l.Attempts, &l.Replays, &l.Class, &l.Error)
			return g, err
		}, q.args...)

		return err
	})

	return groups, err
}

// Case is everything about one event.
type Case struct {
	// Event is the event with its state at each destination; Gone if the row was deleted: discarded, purged, or by hand.
	Event Event `json:"event"`
	// Deliveries are the rows of outbox_deliveries: those that are not done, dead or not.
	Deliveries []StoredDelivery `json:"deliveries"`
	// Audit is the history of people's actions on it, oldest first.
	Audit []AuditEntry `json:"audit"`
}

// StoredDelivery is a row of outbox_deliveries, dead or not.
type StoredDelivery struct {
	DeadLetter
	// State is retry, running, parked, unrouted or dead, and DiedAt the time of its last change. In a state other than
	// dead, Fingerprint is the fingerprint of the last time the delivery was dead-lettered.
	State string `json:"state"`
	// OrderingKey is the aggregate, where order applies.
	OrderingKey string `json:"ordering_key,omitempty"`
}

// AuditEntry is a row of outbox_audit.
type AuditEntry struct {
	ID           int64           `json:"id"`
	At           time.Time       `json:"at"`
	Action       string          `json:"action"`
	Actor        string          `json:"actor"`
	DatabaseUser string          `json:"database_user"`
	EventID      int64           `json:"event_id"`
	Destination  string          `json:"destination,omitempty"`
	Details      json.RawMessage `json:"details"`
	OldPayload   json.RawMessage `json:"old_payload,omitempty"`
	// OldPayloadBytes is the payload before an edit, of an event that was not written as JSON.
	OldPayloadBytes []byte `json:"old_payload_bytes,omitempty"`
}

// ByRelay reports that a relay has recorded the entry: it has delivered a replay. All other entries are actions of people.
func (e AuditEntry) ByRelay() bool { return e.Action == "delivered" }

// Case returns everything about an event, dead letter or not. The error wraps [ErrNoEvent] if no table knows the event.
func (s *Client) Case(ctx context.Context, eventID int64) (c Case, err error) {
	err = s.read(ctx, fmt.Sprintf("show event %d", eventID), func(tx pgx.Tx, _ time.Time) error {
		c.Event, err = s.ReadWholeEvent(ctx, tx, eventID)
		if errors.Is(err, ErrNoEvent) { // it may have been edited once
			c.Event = Event{ID: eventID, Gone: true}
		} else if err != nil {
			return err
		}

		c.Deliveries, err = named(ctx, tx, func(name func(string) string) string {
			return s.sql(`SELECT ` + letterColumns(name) + `, d.state, coalesce(` + name("d.ordering_key") + `, '')
				FROM {deliveries} AS d WHERE d.event_id = $1 ORDER BY d.destination`)
		}, func(row pgx.CollectableRow) (d StoredDelivery, err error) {
			err = row.Scan(&d.EventID, &d.Destination, &d.Type, &d.Fingerprint, &d.DiedAt, &d.Attempts, &d.Replays, &d.Class, &d.Error,
				&d.State, &d.OrderingKey)
			return d, err
		}, eventID)
		if err != nil {
			return err
		}

		rows, err := tx.Query(ctx, s.sql(`SELECT id, at, action, actor, database_user, event_id, coalesce(destination, ''),
			details::text, old_payload::text, old_payload_bytes
			FROM {audit} WHERE event_id = $1 ORDER BY id`), eventID)
		if err != nil {
			return err
		}

		c.Audit, err = pgx.CollectRows(rows, pgx.RowToStructByPos[AuditEntry])
		if err == nil && c.Event.Gone && len(c.Deliveries)+len(c.Audit) == 0 {
			return ErrNoEvent
		}

		return err
	})
	return c, err
}
