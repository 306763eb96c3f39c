package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/replay"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// writes are the outcomes of deliveries that were not simply delivered. They are written in the
// transaction that moves the position past them, so that a position never passes an event that is
// not safe elsewhere.
type writes struct {
	rows    []entry
	removed []int64
	acked   []int64 // of removed, those that a person has replayed and the destination has acknowledged
	fresh   []int64 // ids of new rows: they are open until the write
}

// entry is a row to write.
type entry struct {
	deliveries.Entry

	fresh    bool // there was no row before
	replayed bool // it is of a replay: its id is not open in the position
}

func (w *writes) empty() bool { return len(w.rows)+len(w.removed) == 0 }

// remove records that a row is finished.
func (w *writes) remove(id int64) { w.removed = append(w.removed, id) }

// put adds a row.
func (w *writes) put(r entry) {
	w.rows = append(w.rows, r)
	if r.fresh && !r.replayed {
		w.fresh = append(w.fresh, r.EventID)
	}
}

// count is the content of one write of a position.
type count struct {
	head   int64
	open   tail.Ranges
	replay replay.Count
}

// save writes the position, and the outcomes with it. It is one transaction, which writes nothing
// if the unit is not ours any more. It does not end with ctx: an interrupted statement may reach
// the server after the last one of the unit, and take the position back.
func (u *unit) save(ctx context.Context, conn *session.Conn) error {
	limit := position.RoundTrip
	if at, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(at))
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, position.ErrSlow)
	defer cancel()
	if u.exact != nil {
		// What has failed by now is a row, and passed, and what fails later is neither: a successor
		// that found both would deliver it twice.
		u.collect()
	}
	return u.saveCount(ctx, conn, u.count())
}

// count begins a write. Events acknowledged from here on are for the next one: they were open when
// this one was counted.
func (u *unit) count() (c count) {
	u.ledger.dirty = false
	c.head, c.open = u.account(false)
	c.replay = u.replay.Count()
	return c
}

// saveCount writes the count. Deliveries continue meanwhile.
func (u *unit) saveCount(ctx context.Context, conn *session.Conn, c count) error {
	began := time.Now()
	// Rows delivered before the count must be removed with it. An event that has failed meanwhile
	// is both open and a row until the next write: the row counts.
	if u.exact == nil {
		u.collect()
	}
	delta := u.ledger.acknowledged - u.ledger.written
	w := &u.shelf.pending
	c.replay.Collected()
	if w.empty() && c.replay.Empty() {
		ok, err := u.pos.Save(ctx, conn, c.head, c.open, delta)
		return u.saved(ok, err, delta, began)
	}
	ok := false
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) (err error) {
		// First, because it locks the position against a successor.
		if ok, err = u.pos.Save(ctx, tx, c.head, c.open, delta); err != nil || !ok {
			return cmp.Or(err, position.ErrFenced)
		}
		if err = c.replay.Write(ctx, tx); err != nil {
			return err
		}
		return w.write(ctx, tx, u.name, u.order.shard)
	})
	if err == nil {
		u.replay.Counted(&c.replay)
		// Not before: a search for due rows finds only written ones.
		u.shelf.wrote()
	}
	return u.saved(ok, err, delta, began)
}

// owned writes other rows than the position, if the unit is still ours.
func (u *unit) owned(ctx context.Context, conn *session.Conn, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{}, func(tx pgx.Tx) error {
		head, open := u.account(true)
		// It locks the position against a successor.
		if ok, err := u.pos.Save(ctx, tx, head, open, 0); err != nil || !ok {
			return cmp.Or(err, position.ErrFenced)
		}
		return f(tx)
	})
}

// saved records the result of a write, and when it began.
func (u *unit) saved(ok bool, err error, delta int64, began time.Time) error {
	u.ledger.dirty = u.ledger.dirty || err != nil
	switch {
	case !ok && (err == nil || errors.Is(err, position.ErrFenced)):
		return position.ErrFenced
	case err != nil:
		return fmt.Errorf("write the position of %q: %w", u.name, err)
	}
	u.ledger.saved(delta, began)
	return nil
}

// write writes all of them for a shard of a destination.
func (w *writes) write(ctx context.Context, tx pgx.Tx, destination string, shard int) error {
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
	if len(fresh) > 0 {
		// If an event was read that already had a row, which takes a crash, the row stays as it is.
		batch.Queue(deliveries.SQLPutNew, append(deliveries.Args(fresh, encoding, 0, 0), shard)...)
	}
	if len(old) > 0 {
		batch.Queue(deliveries.SQLPutKeyed, append(deliveries.Args(old, encoding, 0, 0), shard)...)
	}
	if len(w.acked) > 0 {
		batch.Queue(deliveries.SQLAcknowledged, w.acked, slices.Repeat([]string{destination}, len(w.acked)))
	}
	if len(w.removed) > 0 {
		batch.Queue(deliveries.SQLRemove, w.removed, slices.Repeat([]string{destination}, len(w.removed)))
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store deliveries of %q: %w", destination, err)
	}
	return nil
}

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
