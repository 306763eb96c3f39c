package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/replay"
	"github.com/notifyd/notifyd/internal/session"
)

// writes collects the outcomes of deliveries that were not simply delivered. The transaction that moves the position
// past them writes them, so a position never passes an event that is not safe elsewhere.
type writes struct {
	rows    []entry
	removed []int64
	acked   []int64 // the part of removed that was replayed by a person and acknowledged by the destination
	then    followUp
}

// followUp lists steps of the shard that follow a write.
type followUp uint8

const (
	// checksBuried: the write left a row as it is. A person has made it a dead letter during the attempt.
	checksBuried followUp = 1 << iota
	// searches: the report of a dead letter is removed. The next report of its row is due.
	searches
)

// entry is a row to write.
type entry struct {
	deliveries.Entry

	fresh     bool      // no row existed before
	replayed  bool      // the row belongs to a replay: its id is not open in the position
	available time.Time // if Own: when the row is due, or earlier, by the database's clock
}

func (w *writes) len() int { return len(w.rows) + len(w.removed) }

func (w *writes) empty() bool { return w.len() == 0 }

// remove records that a row is finished.
func (w *writes) remove(id int64) { w.removed = append(w.removed, id) }

// put adds a row.
func (w *writes) put(r entry) { w.rows = append(w.rows, r) }

// fresh returns the ids of new rows: they are open until the write. Those of a replay are open in its progress.
func (w *writes) fresh(replayed bool) (ids []int64) {
	for i := range w.rows {
		if r := &w.rows[i]; r.fresh && r.replayed == replayed {
			ids = append(ids, r.EventID)
		}
	}
	return ids
}

// join adds other outcomes.
func (w *writes) join(o writes) {
	w.rows = append(w.rows, o.rows...)
	w.removed = append(w.removed, o.removed...)
	w.acked = append(w.acked, o.acked...)
	w.then |= o.then
}

// events returns the events whose outcomes are in w, in order.
func (w *writes) events() (ids []int64) {
	for i := range w.rows {
		ids = append(ids, w.rows[i].EventID)
	}
	ids = append(ids, w.removed...)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// of returns the outcomes of some events, in order.
func (w *writes) of(events []int64) (part writes) {
	part.then = w.then &^ checksBuried
	is := func(id int64) bool {
		_, found := slices.BinarySearch(events, id)
		return found
	}
	for _, r := range w.rows {
		if is(r.EventID) {
			part.put(r)
		}
	}

	for _, id := range w.removed {
		if is(id) {
			part.remove(id)
		}
	}

	for _, id := range w.acked {
		if is(id) {
			part.acked = append(part.acked, id)
		}
	}

	return part
}

// snapshot is the content of one write of a position.
type snapshot struct {
	at     idset.Watermark
	replay replay.Progress
}

// isReported is true if w has a dead letter that another destination receives.
func (w *writes) isReported() bool {
	return slices.ContainsFunc(w.rows, func(r entry) bool { return r.ReportTo != "" })
}

// write writes all rows for a shard of a destination. Reports of dead letters are announced on the channel, because
// another relay may have the receiver.
func (w *writes) write(ctx context.Context, tx pgx.Tx, destination string, shard int, channel string) error {
	var batch pgx.Batch
	encoding := tx.Conn().PgConn().ParameterStatus("server_encoding")

	var fresh, old []deliveries.Entry
	for _, r := range w.rows {
		r.Destination = destination
		if r.fresh {
			fresh = append(fresh, r.Entry)
		} else {
			old = append(old, r.Entry)
		}
	}

	unchanged := false
	expect := func(q *pgx.QueuedQuery, rows int) {
		q.Exec(func(tag pgconn.CommandTag) error {
			unchanged = unchanged || tag.RowsAffected() < int64(rows)
			return nil
		})
	}

	if len(fresh) > 0 {
		// After a crash an event may be read that already has a row: the row stays as it is.
		expect(batch.Queue(deliveries.SQLPutNew, append(deliveries.Args(fresh, encoding, 0, 0), shard)...), len(fresh))
	}

	if len(old) > 0 {
		put := batch.Queue(deliveries.SQLPutKeyed, append(deliveries.Args(old, encoding, 0, 0), shard)...)
		put.Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() < int64(len(old)) {
				w.then |= checksBuried
				unchanged = true
			}
			return nil
		})
	}

	reported := slices.Concat(fresh, old)
	if args := deliveries.ReportArgs(reported); args != nil {
		expect(batch.Queue(deliveries.SQLReport, args...), deliveries.Reports(reported))
		batch.Queue(sqlAnnounce, channel)
	}

	if len(w.acked) > 0 {
		batch.Queue(deliveries.SQLAcknowledged, w.acked, slices.Repeat([]string{destination}, len(w.acked)))
	}
	if len(w.removed) > 0 {
		expect(batch.Queue(deliveries.SQLRemove, w.removed, slices.Repeat([]string{destination}, len(w.removed))), len(w.removed))
	}

	err := tx.SendBatch(ctx, &batch).Close()
	if err == nil && unchanged {
		err = checkIgnored(ctx, tx, destination, fresh, old, w.removed)
		if err == nil {
			err = deliveries.CheckReports(ctx, tx, reported)
		}
	}

	if err != nil {
		return fmt.Errorf("store deliveries of %q: %w", destination, err)
	}

	return nil
}

// sqlAnnounce makes all relays of the table search for due rows.
const sqlAnnounce = `SELECT pg_notify($1, '` + pgschema.WordDeliveries + `') WHERE ` + pgschema.MayNotify

// sqlIgnored counts the rows that the transaction has failed to write: new rows ($2) that are not there, rows ($3) that it
// has not changed although no person has made them dead letters, and rows to delete ($4) that are there. A new row, or a
// changed one, may be among those to delete: after a seek an event is read again while its earlier row is delivered.
const sqlIgnored = `SELECT
	(SELECT count(*) FROM unnest($2::bigint[]) AS p(id) WHERE p.id <> ALL($4::bigint[])
		AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = p.id AND d.destination = $1))
	+ (SELECT count(*) FROM unnest($3::bigint[]) AS p(id) WHERE p.id <> ALL($4::bigint[])
		AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = p.id AND d.destination = $1
			AND (d.state || '' = 'dead' OR d.xmin = pg_current_xact_id()::xid)))
	+ (SELECT count(*) FROM unnest($4::bigint[]) AS p(id)
		WHERE EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = p.id AND d.destination = $1))`

// checkIgnored returns an error if a trigger or a rule has ignored writes of the transaction.
func checkIgnored(ctx context.Context, tx pgx.Tx, destination string, fresh, old []deliveries.Entry, removed []int64) error {
	ids := func(all []deliveries.Entry) []int64 {
		some := make([]int64, len(all))
		for i := range all {
			some[i] = all[i].EventID
		}
		return some
	}

	var ignored int64
	err := tx.QueryRow(ctx, sqlIgnored, destination, ids(fresh), ids(old), append([]int64{}, removed...)).Scan(&ignored)
	if err != nil || ignored == 0 {
		return err
	}

	rows := int64(len(fresh) + len(old) + len(removed))
	return &session.IgnoredError{Statement: "put or remove", Rows: rows, Changed: rows - ignored}
}

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
