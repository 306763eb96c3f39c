package ops

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/routing"
)

// DeadLetterFilter chooses dead letters that match all its fields. The zero value lists all letters, and
// changing actions refuse it: they need All to mean every dead letter.
type DeadLetterFilter struct {
	// All chooses every dead letter. It cannot be combined with other fields.
	All bool
	// Destination is the name of one destination.
	Destination string
	// Type is an event type, a prefix such as order.*, or *.
	Type string
	// Fingerprint is the group of the error, see [DeadLetter].
	Fingerprint string
	// OlderThan and NewerThan bound how long ago the letters died, by the clock of the database. 0
	// means no bound.
	OlderThan, NewerThan time.Duration
	// Since and Until bound when the letters died. The zero time means no bound.
	Since, Until time.Time
	// Events are the ids of the events, nil for any.
	Events []int64
	// Letters are the dead letters themselves, nil for any.
	Letters []DeliveryRef
	// Missing chooses stored deliveries whose event is missing from outbox_events, in place of dead letters: dead
	// or waiting, but none that is under way. They can be listed and discarded.
	Missing bool

	waiting bool // waiting deliveries, in place of dead letters: see [WaitingFilter]
}

// Validate returns an error that wraps [ErrInvalid] for a filter that can
// choose nothing, or is misspelt.
func (f DeadLetterFilter) Validate() error {
	switch {
	case f.All && f.limits():
		return fmt.Errorf("%w: all dead letters and a choice of them", ErrInvalid)
	case f.OlderThan < 0 || f.NewerThan < 0:
		return fmt.Errorf("%w: an age is negative", ErrInvalid)
	case f.NewerThan > 0 && f.OlderThan >= f.NewerThan:
		return fmt.Errorf("%w: nothing is both older than %v and newer than %v", ErrInvalid, f.OlderThan, f.NewerThan)
	case !f.Since.IsZero() && !f.Until.IsZero() && f.Until.Before(f.Since):
		return fmt.Errorf("%w: nothing is both since %s and until %s", ErrInvalid,
			f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	case strings.ContainsRune(f.Destination+f.Type+f.Fingerprint, 0):
		return fmt.Errorf("%w: a filter contains a zero byte", ErrInvalid)
	case slices.ContainsFunc(f.Letters, func(l DeliveryRef) bool { return strings.ContainsRune(l.Destination, 0) }):
		return fmt.Errorf("%w: a destination contains a zero byte", ErrInvalid)
	case f.Fingerprint != "" && !isFingerprint(f.Fingerprint):
		return fmt.Errorf("%w: a fingerprint has twelve hexadecimal digits, such as 0a1b2c3d4e5f", ErrInvalid)
	case f.Type != "":
		if err := routing.Check(f.Type); err != nil {
			return fmt.Errorf("%w: event type: %w", ErrInvalid, err)
		}
	}
	return nil
}

// limits reports whether the filter may exclude any letter.
func (f DeadLetterFilter) limits() bool {
	switch {
	case f.Destination != "", f.Type != "", f.Fingerprint != "":
		return true
	case f.OlderThan != 0, f.NewerThan != 0, !f.Since.IsZero(), !f.Until.IsZero():
		return true
	}
	return f.Events != nil || f.Letters != nil || f.Missing
}

// validateToAct is Validate for changing actions. An empty filter may be a mistake, such as a list
// of ids that turned out to be empty.
func (f DeadLetterFilter) validateToAct() error {
	if !f.All && !f.limits() {
		return fmt.Errorf("%w: the filter is empty: choose deliveries, or set All to mean every one", ErrInvalid)
	}
	return f.Validate()
}

func isFingerprint(s string) bool {
	return len(s) == 12 && strings.Trim(s, "0123456789abcdef") == ""
}

// ageBounds are the times between which a letter must have died; zero means no bound.
type ageBounds struct{ from, to time.Time }

func (f DeadLetterFilter) bounds(now time.Time) (b ageBounds) {
	b = ageBounds{from: f.Since, to: f.Until}
	if limit := now.Add(-f.OlderThan); f.OlderThan > 0 && (b.to.IsZero() || limit.Before(b.to)) {
		b.to = limit
	}
	if limit := now.Add(-f.NewerThan); f.NewerThan > 0 && limit.After(b.from) {
		b.from = limit
	}

	return b
}

// letterQuery collects the conditions of a statement and their arguments. The statement contains only the
// given conditions: with "$1 = ” OR destination = $1" there would be no plan by index.
type letterQuery struct {
	conditions []string
	order      string
	args       []any
}

// add adds a condition; its first ? stands for value.
func (q *letterQuery) add(condition string, value any) {
	q.conditions = append(q.conditions, strings.Replace(condition, "?", q.arg(value), 1))
}

// arg adds an argument and returns its placeholder.
func (q *letterQuery) arg(value any) string {
	q.args = append(q.args, value)
	return fmt.Sprintf("$%d", len(q.args))
}

// where returns the conditions of a filter on {deliveries} AS d. The condition on state matches the index of dead
// letters. Filters for missing events and for waiting deliveries have no condition
// that an index covers, and read all rows in the order of the primary key.
func (f DeadLetterFilter) where(b ageBounds, after DeliveryRef) *letterQuery {
	q := &letterQuery{conditions: []string{"d.state = 'dead'"}, order: "d.destination, d.event_id"}
	byEvent := f.Missing || f.waiting
	if byEvent {
		q.order = "d.event_id, d.destination"
	}
	if f.Missing {
		q.conditions[0] = "d.state <> 'running' AND NOT EXISTS (SELECT FROM {events} AS e WHERE e.id = d.event_id)"
	}
	if f.waiting {
		q.conditions[0] = "d.state = 'retry' AND d.destination <> ''"
	}

	if f.waiting && f.Events == nil && f.Letters == nil {
		q.conditions = append(q.conditions, "(d.attempts > 0 OR d.last_error IS NOT NULL)")
	}
	if f.Destination != "" {
		q.add("d.destination = ?", f.Destination)
	}

	if after != (DeliveryRef{}) {
		place := fmt.Sprintf("(%s, %s)", q.arg(after.Destination), q.arg(after.EventID))
		if byEvent {
			place = fmt.Sprintf("($%[2]d, $%[1]d)", len(q.args)-1, len(q.args))
		}
		q.conditions = append(q.conditions, "("+q.order+") > "+place)
	}

	prefix, isPrefix := strings.CutSuffix(f.Type, "*")
	switch {
	case prefix == "": // any type
	case isPrefix:
		q.add("starts_with(d.event_type, ?)", prefix)
	default:
		q.add("d.event_type = ?", f.Type)
	}

	if f.Fingerprint != "" {
		q.add("d.error_fingerprint = ?", f.Fingerprint)
	}
	if f.Events != nil {
		q.add("d.event_id = ANY(?::bigint[])", f.Events)
	}

	if f.Letters != nil {
		ids := make([]int64, len(f.Letters))
		names := make([]string, len(f.Letters))
		for i, l := range f.Letters {
			ids[i] = l.EventID
			names[i] = l.Destination
		}

		q.conditions = append(q.conditions, fmt.Sprintf(
			"(d.event_id, d.destination) IN (SELECT * FROM unnest(%s::bigint[], %s::text[]))", q.arg(ids), q.arg(names)))
	}

	if !b.to.IsZero() {
		q.add("d.updated_at <= ?", b.to)
	}
	if !b.from.IsZero() {
		q.add("d.updated_at >= ?", b.from)
	}

	return q
}

// lock returns the locking clause for the chosen rows. A relay of a queue locks a waiting delivery while it delivers: that
// is not waited for.
func (f DeadLetterFilter) lock() string {
	if f.waiting {
		return ` FOR UPDATE SKIP LOCKED`
	}
	return ` FOR UPDATE`
}

func (q *letterQuery) text() string { return strings.Join(q.conditions, " AND ") }
