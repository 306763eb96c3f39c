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

// aggregate is the unit of order.
type aggregate struct{ kind, id string }

// batch is one call of DeliverBatch.
type batch struct {
	h      *Handler
	l      *link
	events []*delivery.Event
	errs   []error   // by event; nil while nothing has failed
	until  time.Time // no statement is tried again after this

	held map[aggregate]bool // an event of these has failed and may be written later
}

func (b *batch) fail(i int, err error) {
	if b.errs == nil {
		b.errs = make([]error, len(b.events))
	}
	b.errs[i] = err
}

// failRest fails the event with the index from, and those behind it that have no error yet.
func (b *batch) failRest(from int, err error) {
	for i := from; i < len(b.events); i++ {
		if b.errs == nil || b.errs[i] == nil {
			b.fail(i, err)
		}
	}
}

// run writes all events, in lots that are not too large. After a failure that is not one event's it stops,
// so that nothing overtakes.
func (b *batch) run(ctx context.Context) {
	b.until = time.Now().Add(b.h.cfg.RequestTimeout)
	for from := 0; from < len(b.events); {
		var lot []int
		to := from
		n := 0
		for to < len(b.events) && (to == from || n+size(b.events[to]) <= maxStatement) {
			n += size(b.events[to])
			lot = append(lot, to)
			to++
		}

		if failed, err := b.write(ctx, lot); err != nil {
			b.failRest(failed, err)
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

// unit returns the unit of order of an event, and false if it is in none.
func (b *batch) unit(ctx context.Context, e *delivery.Event) (aggregate, bool) {
	if delivery.CallOf(ctx).TotalOrder {
		return aggregate{id: "all"}, true
	}
	isOrdered := e.AggregateID != "" && !delivery.CallOf(ctx).Unordered
	return aggregate{e.AggregateType, e.AggregateID}, isOrdered
}

// free returns those of a lot that wait for no earlier event. It fails the others, and counts no attempt for them.
func (b *batch) free(ctx context.Context, lot []int) []int {
	if len(b.held) == 0 {
		return lot
	}

	free := make([]int, 0, len(lot))
	for _, i := range lot {
		a, isOrdered := b.unit(ctx, b.events[i])
		if isOrdered && b.held[a] {
			held := outcome.Failure{Text: "an earlier event of the aggregate has failed"}
			b.fail(i, delivery.Throttled(0, b.h.out.Line(held)))
			continue
		}

		free = append(free, i)
	}

	return free
}

// refuse records that the database has refused the row of an event.
func (b *batch) refuse(ctx context.Context, i int, err error) {
	b.fail(i, err)
	a, isOrdered := b.unit(ctx, b.events[i])
	if !isOrdered || delivery.IsPermanent(err) {
		return
	}
	if b.held == nil {
		b.held = make(map[aggregate]bool)
	}
	b.held[a] = true
}

// write writes the events with the given indexes: together, or in halves if the database refuses a row for its content,
// or for another transaction's sake. It refuses all of a statement together. The error is not
// about one event; those before failed are answered.
func (b *batch) write(ctx context.Context, lot []int) (failed int, err error) {
	lot = b.free(ctx, lot)
	if len(lot) == 0 {
		return 0, nil
	}

	tries := triesTogether
	if len(lot) == 1 {
		tries = triesAlone
	}

	conflict := false
	for ; tries > 0; tries-- {
		err = b.insert(ctx, lot)
		conflict = errors.Is(err, errConflict) && time.Now().Before(b.until)
		if !conflict {
			break
		}
	}

	isAboutRow := delivery.IsPermanent(err) || delivery.IsUnclear(err)
	alone := len(lot) == 1
	switch {
	case err == nil:
		return 0, nil
	case !isAboutRow && (!conflict || alone):
		return lot[0], err
	case alone:
		b.refuse(ctx, lot[0], err)
		return 0, nil
	}

	mid := (len(lot) + 1) / 2
	failed, err = b.write(ctx, lot[:mid])
	if err != nil {
		return failed, err
	}
	return b.write(ctx, lot[mid:])
}

// insert writes rows in one statement.
func (b *batch) insert(ctx context.Context, lot []int) error {
	within, cancel := outcome.Within(ctx, "request_timeout", b.h.cfg.RequestTimeout)
	defer cancel()

	conn, err := b.l.ready(within)
	if err != nil {
		return b.h.classify(ctx, within, err)
	}

	r := b.rowsOf(lot)
	tag, err := conn.Exec(within, b.h.insert, pgx.QueryExecModeExec, b.h.cfg.Source,
		r.dedupeID, r.eventID, r.eventType, r.aggregateType, r.aggregateID,
		r.payload, r.payloadBytes, r.contentType, r.headers, r.createdAt)

	if err == nil && tag.RowsAffected() < int64(len(lot)) {
		err = b.compare(within, conn, lot, r)
	}

	if err != nil {
		b.l.leave(within, err)
		return b.h.classify(ctx, within, err)
	}

	return nil
}

// compare fails the events whose key another event has: it would be lost without a word.
func (b *batch) compare(ctx context.Context, conn *pgx.Conn, lot []int, r rows) error {
	found, err := conn.Query(ctx, b.h.others, pgx.QueryExecModeExec, b.h.cfg.Source, r.dedupeID, r.createdAt)
	if err != nil {
		return err
	}

	others, err := pgx.CollectRows(found, pgx.RowTo[string])
	for _, id := range others {
		for i, own := range r.dedupeID {
			if own == id {
				b.fail(lot[i], delivery.Permanent(fmt.Errorf("postgres: another event with the id %s of source %s is in %s: "+
					"two outboxes have this source, or its ids have begun anew (set another source, and replay the event)",
					id, b.h.cfg.Source, b.h.cfg.name())))
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

func (b *batch) rowsOf(lot []int) rows {
	var r rows
	for _, i := range lot {
		e := b.events[i]
		r.dedupeID = append(r.dedupeID, e.DedupeID())
		r.eventID = append(r.eventID, e.ID)
		r.eventType = append(r.eventType, e.Type)
		r.aggregateType = append(r.aggregateType, e.AggregateType)
		r.aggregateID = append(r.aggregateID, e.AggregateID)

		text, raw := payloadOf(e)
		r.payload = append(r.payload, text)
		r.payloadBytes = append(r.payloadBytes, raw)
		r.contentType = append(r.contentType, e.ContentType)
		r.headers = append(r.headers, headersOf(e))
		r.createdAt = append(r.createdAt, e.CreatedAt)
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
