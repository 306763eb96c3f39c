package dispatch

import (
	"context"
	"slices"
	"time"
)

// Slots is how many slots the aggregates are divided into.
const Slots = 64

const (
	// slotsEvery is how often a relay looks whether its share of the slots is
	// fair, and shows that it still has them.
	slotsEvery = 300 * time.Millisecond
	// slotsLast is how long a relay that cannot show it goes on with the slots.
	slotsLast = time.Second
	// slotsGrace is how long a relay that got slots waits before it uses them:
	// whoever had them may not know yet that they are gone.
	slotsGrace = 1300 * time.Millisecond
)

const (
	// A relay that replaces another, as a reload does, starts a moment before the
	// other's connection is gone. It looks a few times before it takes the other
	// for one that stays.
	lookAloneTries = 5
	lookAloneEvery = 40 * time.Millisecond
)

// SlotShare is what a relay has of the slots.
type SlotShare struct {
	// Held are the slots, in ascending order.
	Held []int32
	// Excess is how many of them others should have.
	Excess int
	// Session changes when the connection was lost, and all slots with it.
	Session uint64
	// Alone says that no other relay is there: neither one that takes part nor
	// one that may have lost its slots a moment ago. False unless that was asked.
	Alone bool
}

// SlotKeeper divides the slots between the relays of a table. Each slot is held
// by one relay, until that lets it go or its connection is lost.
type SlotKeeper interface {
	// Share takes free slots up to a fair share, and returns what is held. Whether
	// the relay is alone is looked at for the first share only: beside a backlog
	// that costs more than all the rest.
	Share(ctx context.Context, first bool) (SlotShare, error)
	// Release lets slots go.
	Release(ctx context.Context, slots []int32) error
}

// slotHolder keeps the scheduler's slots and those of the database the same.
type slotHolder struct {
	d       *Dispatcher
	keeper  SlotKeeper
	session uint64
	used    []int32             // what the scheduler works with
	since   map[int32]time.Time // when the others were got
}

// begin gets the first slots, before anything is claimed.
func (h *slotHolder) begin(ctx context.Context) {
	pause := reconnectPauses()
	for tries := 1; ctx.Err() == nil; tries++ {
		share, err := h.keeper.Share(ctx, true)
		if err == nil && !share.Alone && tries < lookAloneTries {
			sleep(ctx, lookAloneEvery)
			continue
		}
		if err == nil {
			h.session, h.since = share.Session, make(map[int32]time.Time)
			if share.Alone {
				h.used = share.Held
			}
			h.note(share, time.Now())
			h.d.sched.useSlots(h.used, time.Now().Add(slotsLast))
			return
		}
		if ctx.Err() == nil { // else it is we who ended it
			h.d.health.report(err)
		}
		sleep(ctx, pause.NextBackOff())
	}
}

// note remembers when slots were got.
func (h *slotHolder) note(share SlotShare, now time.Time) {
	for slot := range h.since {
		if !slices.Contains(share.Held, slot) {
			delete(h.since, slot)
		}
	}
	for _, slot := range share.Held {
		if _, known := h.since[slot]; !known {
			h.since[slot] = now
		}
	}
}

// run keeps the share until ctx ends.
func (h *slotHolder) run(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(ctx, h.pause(time.Now()))
		if ctx.Err() != nil {
			return
		}
		asked := time.Now()
		share, err := h.keeper.Share(ctx, false)
		if err != nil {
			continue // the scheduler stops using the slots by itself
		}
		if err := h.follow(ctx, share, asked); err != nil && ctx.Err() == nil {
			h.d.health.report(err)
		}
	}
}

// pause is how long to wait until the next look: not longer than until the first of
// the slots that were got may be used.
func (h *slotHolder) pause(now time.Time) time.Duration {
	pause := slotsEvery
	for slot, got := range h.since {
		if left := got.Add(slotsGrace).Sub(now); left > 0 && !slices.Contains(h.used, slot) {
			pause = min(pause, left)
		}
	}
	return pause
}

// follow takes up what has been got, and lets go of what others should have.
func (h *slotHolder) follow(ctx context.Context, share SlotShare, asked time.Time) error {
	if h.d.sched.doubtedSince(asked) {
		return nil // the answer may be older than the doubt
	}
	if share.Session != h.session {
		h.session, h.used = share.Session, nil
		clear(h.since)
	}
	h.note(share, time.Now())
	var use []int32
	for _, slot := range share.Held {
		if slices.Contains(h.used, slot) || time.Since(h.since[slot]) >= slotsGrace {
			use = append(use, slot)
		}
	}
	var release []int32
	if share.Excess > 0 {
		release = share.Held[len(share.Held)-min(share.Excess, len(share.Held)):]
		use = slices.DeleteFunc(use, func(slot int32) bool { return slices.Contains(release, slot) })
	}
	same := len(release) == 0 && slices.Equal(use, h.used)
	until := asked.Add(slotsLast)
	if same && h.d.sched.keepSlots(until) {
		return nil
	}
	// Nothing of a slot may be under way when it changes hands.
	if !h.d.sched.quiesce(ctx) {
		return nil
	}
	defer h.d.sched.resume()
	if !same {
		return h.change(ctx, use, release)
	}
	// The relay did not know for a while that it still had them. Nobody else had:
	// the session is the same, and what is known of lines is true.
	for _, l := range h.d.lanes {
		l.restart()
	}
	h.d.sched.useSlots(use, until)
	return nil
}

// change takes up other slots than before. Fresh events must not go past rows that
// nobody knows of: no slot is used until the lines have been read, and as that may
// take a while, until the slots are known to be there after it.
func (h *slotHolder) change(ctx context.Context, use, release []int32) error {
	h.used = nil
	h.d.sched.useSlots(nil, time.Now())
	if len(release) > 0 {
		if err := h.keeper.Release(ctx, release); err != nil {
			return err
		}
	}
	for _, l := range h.d.lanes {
		l.restart()
		l.forget()
	}
	if err := h.d.readLines(ctx, use); err != nil {
		return err
	}
	asked := time.Now()
	share, err := h.keeper.Share(ctx, false)
	if err != nil || share.Session != h.session {
		return err
	}
	h.note(share, time.Now())
	h.used = use
	h.d.sched.useSlots(use, asked.Add(slotsLast))
	return nil
}

// restart drops what is known of what was passed over.
func (l *lane) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behind, l.refused, l.sweeping = inOrder, inOrder, false
}

// forget drops what is known of lines. Only deliveries that go on under a lease
// are left.
func (l *lane) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks, l.later = nil, nil
	for key, ln := range l.lines {
		ln.place, ln.looking, ln.again, ln.missed = -1, false, false, nil
		if len(ln.jobs) == 0 && ln.writing == 0 {
			delete(l.lines, key)
		}
	}
}

// useSlots begins to work with the given slots, from the beginning.
func (s *scheduler) useSlots(slots []int32, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots, s.slotsUntil, s.divided = slots, until, true
	if slots == nil {
		s.slots = []int32{}
	}
	clear(s.lagged)
	s.regainLocked()
	s.cond.Broadcast()
}

// keepSlots goes on with the slots. It returns false if they had run out: then
// others may have had them.
func (s *scheduler) keepSlots(until time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lapsed {
		return false
	}
	s.slotsUntil = until
	return true
}

// doubtSlotsLocked takes word that a connection was lost, and perhaps the one
// that the slots depend on: until it is known to be there, others may have them.
func (s *scheduler) doubtSlotsLocked() {
	if s.divided {
		s.lapsed, s.doubted = true, time.Now()
	}
}

// doubtedSince reports whether the slots came into doubt after the given time.
func (s *scheduler) doubtedSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lapsed && !s.doubted.Before(t)
}

// slotsLocked returns what a query is to be limited to: nil where the relay has
// all slots.
func (s *scheduler) slotsLocked(now time.Time) []int32 {
	switch {
	case !s.divided:
		return nil
	case now.After(s.slotsUntil) || s.lapsed:
		s.lapsed = true
		return []int32{}
	case len(s.slots) == Slots:
		return nil
	}
	return s.slots
}

// quiesce keeps everybody from claiming, and waits until nothing is claimed. It
// returns false if ctx ends first.
func (s *scheduler) quiesce(ctx context.Context) bool {
	stop := context.AfterFunc(ctx, s.poke)
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet = true
	for s.atWork > 0 && ctx.Err() == nil && !s.stopped {
		s.cond.Wait()
	}
	if ctx.Err() != nil || s.stopped {
		s.quiet = false
		s.cond.Broadcast()
		return false
	}
	s.lapsed = false
	return true
}

// resume ends the quiet.
func (s *scheduler) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet = false
	s.cond.Broadcast()
}

// ended takes word that nothing of a claim is under way any more.
func (s *scheduler) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atWork--
	if s.quiet {
		s.cond.Broadcast()
	}
}
