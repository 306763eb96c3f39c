package queue

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/sleep"
)

// fakeLeases maintains leases like Maintenance.
type fakeLeases struct {
	db    *fakeDB
	owner int64
	lease time.Duration
}

// enter makes the round trip that every method begins with.
func (k *fakeLeases) enter(ctx context.Context, op string) (faultKind, error) {
	sleep.For(ctx, k.db.roundTrip)
	if ctx.Err() != nil {
		return noFault, context.Cause(ctx)
	}
	kind := k.db.fault(k.owner, op)
	switch kind {
	case lostBefore:
		return kind, errLost
	case refused:
		return kind, refusal{}
	default:
	}
	if kind == hung {
		sleep.For(ctx, hangs)
	}
	return kind, nil
}

// Claimers lists a session for each relay that is alive.
func (k *fakeLeases) Claimers(ctx context.Context) ([]int32, error) {
	if _, err := k.enter(ctx, "list claimers"); err != nil {
		return nil, err
	}
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	pids := []int32{}
	for owner := range k.db.alive {
		pids = append(pids, int32(owner))
	}
	return pids, nil
}

func (k *fakeLeases) held(e deliveries.Entry) *fakeRow {
	row := k.db.rows[e.Ref]
	if row == nil || row.State != deliveries.Running || row.owner != k.owner || row.Token != e.Token {
		return nil
	}
	return row
}

func (k *fakeLeases) Finish(ctx context.Context, done, put []deliveries.Entry) (fenced int, err error) {
	kind, err := k.enter(ctx, "finish")
	if err != nil {
		return 0, err
	}
	db := k.db
	db.mu.Lock()
	defer db.mu.Unlock()
	db.note("finish %+v %+v, fault %d", done, put, kind)
	for _, e := range done {
		if k.held(e) == nil {
			fenced++
			continue
		}
		delete(db.rows, e.Ref)
		db.settleLocked(e.Ref)
		db.finishLocked(e.EventID)
	}
	for _, e := range put {
		row := k.held(e)
		if row == nil {
			fenced++
			continue
		}
		if e.State == deliveries.Running {
			db.breakLocked("the answer of %v leaves it running", e.Ref)
		}
		row.Entry, row.due, row.owner, row.Token = e, time.Now().Add(e.Delay), 0, 0
		db.finishLocked(e.EventID)
	}
	db.fenced += fenced
	db.checkLocked()
	if kind == lostAfter {
		return 0, errLost
	}
	return fenced, nil
}

func (k *fakeLeases) Renew(ctx context.Context, tokens []int64) error {
	if _, err := k.enter(ctx, "renew"); err != nil {
		return err
	}
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	for _, row := range k.db.rows {
		for _, token := range tokens {
			if row.State == deliveries.Running && row.owner == k.owner && row.Token == token {
				row.until = time.Now().Add(k.lease)
			}
		}
	}
	return nil
}

// TakeOver calls mine each time, not only on a new session: a lease taken over too early then shows
// as a duplicate that no fault of the plan explains.
func (k *fakeLeases) TakeOver(ctx context.Context, mine func() deliveries.Tokens) (n int, err error) {
	live := mine()
	if _, err := k.enter(ctx, "takeover"); err != nil {
		return 0, err
	}
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	for _, row := range k.db.rows {
		lost := row.owner == k.owner && row.Token <= live.Last && !slices.Contains(live.Live, row.Token)
		if row.State == deliveries.Running && (lost || time.Now().After(row.until) || row.owner != k.owner && !k.db.alive[row.owner]) {
			row.State, row.due, row.owner, row.Token = deliveries.Retry, time.Now(), 0, 0
			row.Class = cmp.Or(row.Class, "relay")
			n++
		}
	}
	return n, nil
}

func (*fakeLeases) Unpark(context.Context) (int, error) { return 0, nil }

func (k *fakeLeases) Reroute(ctx context.Context, match func(string) bool) (n int, more bool, err error) {
	if _, err := k.enter(ctx, "reroute"); err != nil {
		return 0, false, err
	}
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	for _, row := range k.db.rows {
		if row.State == deliveries.Unrouted && match(row.EventType) {
			row.State, row.due = deliveries.Retry, time.Now()
			n++
		}
	}
	return n, false, nil
}
