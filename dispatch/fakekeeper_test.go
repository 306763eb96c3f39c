package dispatch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// fakeKeeper looks after leases like store.Keeper.
type fakeKeeper struct {
	db    *fakeDB
	owner int64
	lease time.Duration
}

// enter makes the round trip that every method begins with.
func (k *fakeKeeper) enter(ctx context.Context, op string) (faultKind, error) {
	sleep(ctx, k.db.roundTrip)
	if ctx.Err() != nil {
		return noFault, context.Cause(ctx)
	}
	kind := k.db.fault(k.owner, op)
	if kind == lostBefore || kind == refused {
		return kind, errLost
	}
	if kind == hung {
		sleep(ctx, hangs)
	}
	return kind, nil
}

func (k *fakeKeeper) held(e Entry) *fakeRow {
	row := k.db.rows[e.Ref]
	if row == nil || row.State != EntryRunning || row.owner != k.owner || row.Token != e.Token {
		return nil
	}
	return row
}

func (k *fakeKeeper) Finish(ctx context.Context, done, put []Entry) (fenced int, err error) {
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
		if e.State == EntryRunning {
			db.breakLocked("the answer of %v leaves it running", e.Ref)
		}
		key := row.Key
		row.Entry, row.due, row.owner, row.Token = e, time.Now().Add(e.Delay), 0, 0
		row.Key = key
		db.finishLocked(e.EventID)
	}
	db.fenced += fenced
	db.checkLocked()
	if kind == lostAfter {
		return 0, errLost
	}
	return fenced, nil
}

func (k *fakeKeeper) Renew(ctx context.Context, tokens []int64) error {
	if _, err := k.enter(ctx, "renew"); err != nil {
		return err
	}
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	for _, row := range k.db.rows {
		for _, token := range tokens {
			if row.State == EntryRunning && row.owner == k.owner && row.Token == token {
				row.until = time.Now().Add(k.lease)
			}
		}
	}
	return nil
}

// TakeOver asks each time which leases are live, not on a new session only: what is
// taken back too early is then delivered twice, where the plan has no fault for it.
func (k *fakeKeeper) TakeOver(ctx context.Context, mine func() Tokens) (n int, err error) {
	live := mine()
	if _, err := k.enter(ctx, "takeover"); err != nil {
		return 0, err
	}
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	for _, row := range k.db.rows {
		lost := row.owner == k.owner && row.Token <= live.Last && !slices.Contains(live.Live, row.Token)
		if row.State == EntryRunning && (lost || time.Now().After(row.until) || row.owner != k.owner && !k.db.alive[row.owner]) {
			row.State, row.due, row.owner, row.Token = EntryRetry, time.Now(), 0, 0
			row.Class = cmp.Or(row.Class, "ours")
			n++
		}
	}
	return n, nil
}

func (k *fakeKeeper) Reroute(ctx context.Context, match func(string) bool) (n int, err error) {
	if _, err := k.enter(ctx, "reroute"); err != nil {
		return 0, err
	}
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	types := make(map[string]bool)
	for _, row := range k.db.rows {
		if row.State == EntryUnrouted && match(row.EventType) {
			row.State, row.due = EntryRetry, time.Now()
			types[row.EventType] = true
		}
	}
	return len(types), nil
}

func (k *fakeKeeper) Stored(ctx context.Context, blocking []string, slots []int32, f func(StoredLine)) error {
	if _, err := k.enter(ctx, "stored"); err != nil {
		return err
	}
	var heads []StoredLine
	k.db.set(func() {
		for _, r := range k.db.rows {
			if rows := k.db.line(r.Destination, r.Key, blocking); r.Key != "" && len(rows) > 0 && rows[0] == r && inSlots(strings.TrimPrefix(r.Key, "t/"), slots) {
				heads = append(heads, StoredLine{Ref: r.Ref, Key: r.Key, State: r.State})
			}
		}
	})
	for _, h := range heads {
		f(h)
	}
	return nil
}

// inSlots reports whether the aggregate is in one of the slots. Keys are
// single letters, which makes the slot of each.
func inSlots(key string, slots []int32) bool {
	return key == "" || slots == nil || slices.Contains(slots, int32(key[0]%Slots))
}

// fakeSlots is the connection that holds a relay's slots. As the database, it takes
// a relay for alone only if no other shows life, whatever slots that has lost.
type fakeSlots struct {
	db      *fakeDB
	owner   int64
	member  bool
	session uint64
}

func (k *fakeSlots) Share(ctx context.Context, first bool) (SlotShare, error) {
	sleep(ctx, k.db.roundTrip)
	if ctx.Err() != nil {
		return SlotShare{}, ctx.Err()
	}
	switch k.db.fault(k.owner, "share") {
	case noFault:
	case hung:
		sleep(ctx, hangs)
	default:
		k.close()
		return SlotShare{}, errLost
	}
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	if !k.member {
		k.member = true
		k.session++
		k.db.members++
	}
	fair := (Slots + k.db.members - 1) / k.db.members
	share := SlotShare{Session: k.session, Alone: first && k.db.members == 1 && k.db.idle(k.owner)}
	for i := range k.db.slots {
		if k.db.slots[i] == k {
			share.Held = append(share.Held, int32(i))
		}
	}
	for i := range k.db.slots {
		if k.db.slots[i] == nil && len(share.Held) < fair {
			k.db.slots[i] = k
			share.Held = append(share.Held, int32(i))
		}
	}
	slices.Sort(share.Held)
	share.Excess = max(0, len(share.Held)-fair)
	return share, nil
}

// idle reports whether no other relay shows life, and no event of an aggregate waits.
func (db *fakeDB) idle(owner int64) bool {
	for other := range db.alive {
		if other != owner {
			return false
		}
	}
	for _, e := range db.events {
		if e.visible && e.key != "" && e.state == "fresh" {
			return false
		}
	}
	for _, row := range db.rows {
		if row.Key != "" && row.State != EntryDead {
			return false
		}
	}
	return true
}

func (k *fakeSlots) Release(ctx context.Context, slots []int32) error {
	sleep(ctx, k.db.roundTrip)
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	for _, slot := range slots {
		if k.db.slots[slot] != k {
			return errors.New("not held")
		}
		k.db.slots[slot] = nil
	}
	return nil
}

func (k *fakeSlots) close() {
	k.db.mu.Lock()
	defer k.db.mu.Unlock()
	if k.member {
		k.member = false
		k.db.members--
	}
	for i := range k.db.slots {
		if k.db.slots[i] == k {
			k.db.slots[i] = nil
		}
	}
}
