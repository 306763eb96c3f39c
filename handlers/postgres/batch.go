package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// The tries of a statement that the database refuses for another transaction's sake: rows together, whose
// halves conflict less often, and a single row.
const (
	triesTogether = 2
	triesAlone    = 5
)

// maxStatement is about how many bytes one statement has. PostgreSQL takes a gigabyte, and needs several
// times the memory.
const maxStatement = 16 << 20

// batch is one call of DeliverBatch.
type batch struct {
	h      *Handler
	l      *link
	events []*delivery.Event
	errs   []error   // by event; nil while nothing has failed
	until  time.Time // no statement is tried again after this
}

func (b *batch) fail(from int, err error) {
	if b.errs == nil {
		b.errs = make([]error, len(b.events))
	}
	b.errs[from] = err
}

// run writes all events, in lots that are not too large. After a failure that is not one event's it stops,
// so that nothing overtakes.
func (b *batch) run(ctx context.Context) {
	b.until = time.Now().Add(b.h.cfg.RequestTimeout)
	for from := 0; from < len(b.events); {
		to, n := from, 0
		for to < len(b.events) && (to == from || n+size(b.events[to]) <= maxStatement) {
			n += size(b.events[to])
			to++
		}
		if failed, err := b.write(ctx, from, to); err != nil {
			for i := failed; i < len(b.events); i++ {
				b.fail(i, err)
			}
			return
		}
		from = to
	}
}

// size is about the size of an event in a statement.
func size(e *delivery.Event) int {
	n := len(e.Payload) + len(e.Type) + len(e.AggregateType) + len(e.AggregateID)
	for name, value := range e.Headers {
		n += len(name) + len(value)
	}
	return n
}

// write writes the events from one to before another, each or in halves if the database refuses the content
// of a row, or a row for another transaction's sake: it refuses all of a statement together. The error is not
// about one event; those before failed are answered.
func (b *batch) write(ctx context.Context, from, to int) (failed int, err error) {
	tries := triesTogether
	if to-from == 1 {
		tries = triesAlone
	}
	conflict := false
	for ; tries > 0; tries-- {
		err = b.insert(ctx, from, to)
		if conflict = errors.Is(err, errConflict) && time.Now().Before(b.until); !conflict {
			break
		}
	}
	switch {
	case err == nil:
		return to, nil
	case !delivery.IsPermanent(err) && (!conflict || to-from == 1):
		return from, err
	case to-from == 1:
		b.fail(from, err)
		return to, nil
	}
	mid := from + (to-from+1)/2
	if failed, err = b.write(ctx, from, mid); err != nil {
		return failed, err
	}
	return b.write(ctx, mid, to)
}

// insert writes rows in one statement.
func (b *batch) insert(ctx context.Context, from, to int) error {
	within, cancel := outcome.Within(ctx, "request_timeout", b.h.cfg.RequestTimeout)
	defer cancel()
	conn, err := b.l.ready(within)
	if err != nil {
		return b.h.classify(ctx, within, err)
	}
	r := rowsOf(b.events[from:to])
	tag, err := conn.Exec(within, b.h.insert, pgx.QueryExecModeExec, b.h.cfg.Source, r.dedupeID, r.eventID, r.eventType, r.aggregateType, r.aggregateID,
		r.payload, r.payloadBytes, r.contentType, r.headers, r.createdAt)
	if err == nil && tag.RowsAffected() < int64(to-from) {
		err = b.compare(within, conn, from, r)
	}
	if err != nil {
		b.l.leave(within, err)
		return b.h.classify(ctx, within, err)
	}
	return nil
}

// compare fails the events whose key another event has: it would be lost without a word.
func (b *batch) compare(ctx context.Context, conn *pgx.Conn, from int, r rows) error {
	found, err := conn.Query(ctx, b.h.others, pgx.QueryExecModeExec, b.h.cfg.Source, r.dedupeID, r.createdAt)
	if err != nil {
		return err
	}
	others, err := pgx.CollectRows(found, pgx.RowTo[string])
	for _, id := range others {
		for i, own := range r.dedupeID {
			if own == id {
				b.fail(from+i, delivery.Permanent(fmt.Errorf("postgres: another event with the id %s of source %s is in %s: "+
					"two outboxes have this source, or its ids have begun anew (set another source, and replay the event)", id, b.h.cfg.Source, b.h.cfg.name())))
			}
		}
	}
	return err
}

// rows are the columns of a statement.
type rows struct {
	dedupeID, eventType, aggregateType, aggregateID, contentType, headers []string

	payload      []*string // nil where the event has bytes
	payloadBytes [][]byte  // nil where it has JSON
	eventID      []int64
	createdAt    []time.Time
}

func rowsOf(events []*delivery.Event) rows {
	var r rows
	for _, e := range events {
		r.dedupeID, r.eventID, r.eventType = append(r.dedupeID, e.DedupeID()), append(r.eventID, e.ID), append(r.eventType, e.Type)
		r.aggregateType, r.aggregateID = append(r.aggregateType, e.AggregateType), append(r.aggregateID, e.AggregateID)
		text, raw := payloadOf(e)
		r.payload, r.payloadBytes, r.contentType = append(r.payload, text), append(r.payloadBytes, raw), append(r.contentType, e.ContentType)
		r.headers, r.createdAt = append(r.headers, headersOf(e)), append(r.createdAt, e.CreatedAt)
	}
	return r
}

// payloadOf returns the payload for the column of its kind, and nil for the other one.
func payloadOf(e *delivery.Event) (text *string, raw []byte) {
	if e.IsJSON() {
		s := string(e.Payload)
		return &s, nil
	}
	if e.Payload == nil {
		return nil, []byte{} // none are bytes as well
	}
	return nil, e.Payload
}

// headersOf returns the event's headers as a JSON object.
func headersOf(e *delivery.Event) string {
	if len(e.Headers) == 0 {
		return "{}"
	}
	text, _ := json.Marshal(e.Headers) // a map of texts can always be written
	return string(text)
}
