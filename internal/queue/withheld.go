package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

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
	outcome *Settlement // nil: not known, the event is delivered again
	at      time.Time   // when it is claimed again
	pauses  *backoff.ExponentialBackOff
	err     error
}

// forgetAfter is how long after its time a row is forgotten that no claim has found: another relay has settled it.
const forgetAfter = 10 * time.Minute

// reportWithheld is the name of the refused rows in reports.
const reportWithheld = "outcomes of single events"

// except returns the events that are not to be claimed now, and removes them from ids.
func (h *withheldRows) except(ids []int64) (rest, except []int64) {
	if h.n.Load() == 0 {
		return ids, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	waits := make(map[int64]bool)
	for r, row := range h.rows {
		if now.Before(row.at) {
			waits[r.EventID] = true
			except = append(except, r.EventID)
		}
	}
	for _, id := range ids {
		if !waits[id] {
			rest = append(rest, id)
		}
	}
	return rest, except
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

// settled records the result of a settlement of some works: the refused rows wait. It returns an error if too many wait,
// and reports whether nothing was accepted, twice in a row: then the reason may be one of all rows.
func (h *withheldRows) settled(ctx context.Context, work []Work, s *Settlement, refused []Refused) (alone bool, err error) {
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
	for i := range work {
		if waits[work[i].ref()] == nil {
			delete(h.rows, work[i].ref())
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
		h.addLocked(ctx, r, s, err)
	}
	if changed {
		h.changedLocked()
	}
	switch accepted := len(s.rows()) - len(refused); {
	case accepted > 0:
		h.alone.Store(0)
	case isNew:
		h.alone.Add(1)
	}
	return isNew && h.alone.Load() > 1, nil
}

// addLocked records that the outcome of a row was refused.
func (h *withheldRows) addLocked(ctx context.Context, r deliveries.Ref, s *Settlement, err error) {
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
	row.at = time.Now().Add(row.pauses.NextBackOff())
	if row.outcome = s.of([]deliveries.Ref{r}); row.outcome.runs() {
		row.outcome = nil
	}
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
