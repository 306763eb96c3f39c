package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/replay"
	"github.com/notifyd/notifyd/internal/tail"
)

// writes collects the outcomes of deliveries that were not simply delivered. The transaction that moves the position
// past them writes them, so a position never passes an event that is not safe elsewhere.
type writes struct {
	rows    []entry
	removed []int64
	acked   []int64 // the part of removed that was replayed by a person and acknowledged by the destination
	fresh   []int64 // ids of new rows: open until the write
}

// entry is a row to write.
type entry struct {
	deliveries.Entry

	fresh    bool // no row existed before
	replayed bool // the row belongs to a replay: its id is not open in the position
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

// snapshot is the content of one write of a position.
type snapshot struct {
	head   int64
	open   tail.Ranges
	replay replay.Progress
}

// write writes all rows for a shard of a destination.
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
		// After a crash an event may be read that already has a row: the row stays as it is.
		batch.Queue(deliveries.SQLPutNew, append(deliveries.Args(fresh, encoding, 0, 0), shard)...)
	}
	if len(old) > 0 {
		batch.Queue(deliveries.SQLPutKeyed, append(deliveries.Args(old, encoding, 0, 0), shard)...)
	}
	if args := deliveries.ReportArgs(append(fresh, old...)); args != nil {
		batch.Queue(deliveries.SQLReport, args...)
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
