package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/backoff"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/withheld"
)

// withheldRows has the claimed rows whose settlement the database refuses, while it accepts others. Such a row is claimed
// again after a pause, and not delivered again: the next settlement gets its outcome from here.
type withheldRows struct {
	log    *slog.Logger
	report func(part string, err error)

	n     atomic.Int32 // number of rows: nearly always 0
	alone atomic.Int32 // settlements since the last row that was accepted

	mu   sync.Mutex
	rows map[deliveries.Ref]*withheldRow
}

// withheldRow is a row whose settlement was refused.
type withheldRow struct {
	outcome *Settlement // empty while deliveries of the row run
	at      time.Time   // when it is claimed again; not while deliveries run
	pauses  backoff.Pauses
	err     error

	// Set while deliveries of the row run. Their leases are not written.
	work         *Work
	rest         *unfinished
	acknowledged []deliveries.Ref
}

// runs reports whether deliveries of the row run.
func (row *withheldRow) runs() bool { return row.rest != nil }

// forgetAfter is how long after its time a row is forgotten that no claim has found: another relay has settled it.
const forgetAfter = 10 * time.Minute

// reportWithheld is the name of the refused rows in reports.
const reportWithheld = "outcomes of single events"

// except returns the events that are not to be claimed now.
func (h *withheldRows) except() (events []int64) {
	if h.n.Load() == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()

	now := time.Now()
	for r, row := range h.rows {
		if row.runs() || now.Before(row.at) {
			events = append(events, r.EventID)
		}
	}
	return events
}

// due reports whether a row is to be claimed now. It forgets rows that no claim has found.
func (h *withheldRows) due() (is bool) {
	if h.n.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()

	now := time.Now()
	for r, row := range h.rows {
		switch late := now.Sub(row.at); {
		case row.runs():
		case late > forgetAfter:
			delete(h.rows, r)
			h.changedLocked()
		case late > 0:
			is = true
		}
	}

	return is
}

// outcome returns the outcome of a claimed row, nil if it is to be delivered.
func (h *withheldRows) outcome(r deliveries.Ref) *Settlement {
	if h.n.Load() == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if row := h.rows[r]; row != nil {
		return row.outcome
	}
	return nil
}

// settled records the result of a claim's settlement: the refused rows wait. It returns an error if too many wait, and
// reports whether nothing was accepted, twice in a row: then the reason may be one of all rows.
func (h *withheldRows) settled(ctx context.Context, c *claim, s *Settlement, refused []Refused) (alone bool, err error) {
	if h.n.Load() == 0 && len(refused) == 0 && h.alone.Load() == 0 {
		return false, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()

	waits := make(map[deliveries.Ref]error, len(refused))
	for _, r := range refused {
		waits[r.Item] = r.Err
	}

	before := len(h.rows)
	all := s.rows()
	for _, r := range all {
		if row := h.rows[r]; row != nil && waits[r] == nil {
			row.leased(nil)
			delete(h.rows, r)
		}
	}

	changed := len(refused) > 0 || len(h.rows) < before
	isNew := false

	for r, err := range waits {
		if h.rows[r] == nil {
			isNew = true
			if len(h.rows) >= withheld.Max {
				return false, fmt.Errorf("%w: %w", withheld.ErrTooMany, err)
			}
		}
		h.addLocked(ctx, c, r, s, err)
	}

	if changed {
		h.changedLocked()
	}

	switch accepted := len(all) - len(refused); {
	case accepted > 0:
		h.alone.Store(0)
	case isNew:
		h.alone.Add(1)
	}

	return isNew && h.alone.Load() > 1, nil
}

// keep records the outcomes of a claim that was refused as a whole, as far as they fit and are not written by
// [Settlement.lost].
func (h *withheldRows) keep(ctx context.Context, c *claim, s *Settlement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	written := s.lost().rows()
	for _, r := range s.rows() {
		if !slices.Contains(written, r) && len(h.rows) < withheld.Max {
			h.addLocked(ctx, c, r, s, errTaken)
		}
	}
	h.changedLocked()
}

// addLocked records that the outcome of a row was refused. The leases of deliveries that run are not written.
func (h *withheldRows) addLocked(ctx context.Context, c *claim, r deliveries.Ref, s *Settlement, err error) {
	row := h.rows[r]
	if row == nil {
		row = &withheldRow{pauses: withheld.Pauses(), err: errTaken}
		h.rows[r] = row
	}

	isRefusal := !errors.Is(err, errTaken)
	if isRefusal && errors.Is(row.err, errTaken) {
		withheld.Log(ctx, h.log, r.EventID, r.Destination, err)
	}
	if isRefusal {
		row.err = err
	}

	row.at = time.Now().Add(row.pauses.Next())

	row.outcome = s.of([]deliveries.Ref{r})
	if !row.outcome.runs() {
		return
	}

	i := slices.IndexFunc(c.work, func(w Work) bool { return w.ref() == r })
	row.work = &c.work[i]
	row.rest = c.unfinished[i]
	row.acknowledged = row.outcome.Acknowledged
	row.outcome = &Settlement{}
	row.leased(row)
}

// leased makes the deliveries that run answer to a row, or to their leases if it is nil.
func (row *withheldRow) leased(to *withheldRow) {
	if row.rest == nil {
		return
	}
	for _, l := range row.rest.leased {
		l.row = to
	}
}

// answered records the late answer of a delivery of a withheld row. The last one completes the outcome of the row.
func (h *withheldRows) answered(l *lease, e deliveries.Entry, v dispatch.Verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if l.answered {
		return
	}
	l.answered = true

	row := l.row
	switch {
	case !v.Settles():
		row.rest.put = append(row.rest.put, e)
	case v == dispatch.VerdictDelivered && row.work.Event.Replay > 0:
		row.acknowledged = append(row.acknowledged, e.Ref)
	}

	if slices.ContainsFunc(row.rest.leased, func(l *lease) bool { return !l.answered }) {
		return
	}

	row.outcome = &Settlement{Acknowledged: row.acknowledged} // a claim may still have the empty one
	row.outcome.add(row.work, row.rest)
	row.work = nil
	row.rest = nil
	row.acknowledged = nil
}

// changedLocked updates the report after a change of the rows.
func (h *withheldRows) changedLocked() {
	h.n.Store(int32(len(h.rows))) //nolint:gosec // at most withheld.Max
	for r, row := range h.rows {
		if !errors.Is(row.err, errTaken) {
			h.report(reportWithheld, &withheld.Error{Event: r.EventID, N: len(h.rows), Err: row.err})
			return
		}
	}
	h.report(reportWithheld, nil)
}
