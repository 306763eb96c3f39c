package stream

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// tenure is the keeper's state during one session. Only the goroutine of Run uses it.
type tenure struct {
	k       *Keeper
	session session
	proof   *proof

	held     map[place]*heldUnit
	free     map[int32]time.Time // since when a unit has been seen free
	slow     map[int32]time.Time // until when a member is left out
	ripe     *time.Timer         // when the next held unit may begin
	stopping bool
}

// heldUnit is a unit whose lock is held.
type heldUnit struct {
	Position
	state heldState
	ripe  time.Time // while it waits: when it may begin
}

type heldState int

const (
	waiting heldState = iota // the previous owner's deliveries may still be running
	working
	leaving // Lost is running
)

func newTenure(k *Keeper, s session) *tenure {
	t := &tenure{
		k: k, session: s, proof: &proof{},
		held: make(map[place]*heldUnit), free: make(map[int32]time.Time), slow: make(map[int32]time.Time),
		ripe: time.NewTimer(0),
	}
	t.ripe.Stop()
	return t
}

// end stops all working units: the session is gone, or no unit is held.
func (t *tenure) end() {
	t.proof.end()
	t.ripe.Stop()
	for at, h := range t.held {
		if h.state == working {
			t.k.lose(at)
		}
	}
}

// run returns when the session is lost, or nil when ctx has ended and all units are given away.
func (t *tenure) run(ctx context.Context) error {
	prove := time.NewTicker(proveEvery)
	defer prove.Stop()
	look := time.NewTimer(0)
	defer look.Stop()
	done := ctx.Done()
	for !t.stopping || len(t.held) > 0 {
		var err error
		select {
		case <-done:
			done = nil
			err = t.stop(ctx)
		case <-prove.C:
			err = t.prove(ctx)
		case <-look.C:
			look.Reset(jittered(shareEvery))
			err = t.look(ctx)
		case <-t.k.looks:
			if t.k.renew.Load() == t.proof {
				return errElsewhere
			}
			err = t.look(ctx)
		case <-t.ripe.C:
			t.begin()
		case at := <-t.k.left:
			err = t.handOver(ctx, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errElsewhere is the reason to give up a session that is alive.
var errElsewhere = errors.New("connections lead to another server than the one on which the session lives")

// ask queries the session; the answer proves that it is alive.
func (t *tenure) ask(f func() error) error {
	sent := time.Now()
	if err := f(); err != nil {
		return err
	}
	t.proof.answered(sent)
	return nil
}

// prove makes the session prove that it is alive. Units that could not begin before may begin then.
func (t *tenure) prove(ctx context.Context) error {
	if err := t.ask(func() error { return t.session.prove(ctx) }); err != nil {
		return err
	}
	t.begin()
	return nil
}

// look takes and gives units according to the fair share.
func (t *tenure) look(ctx context.Context) error {
	if t.stopping {
		return nil
	}
	var seen seen
	err := t.ask(func() (err error) {
		seen, err = t.session.look(ctx, t.would())
		return err
	})
	if err != nil {
		return err
	}
	t.k.report(nil)
	t.leaveOutSlow(seen.picture)
	if err := t.dropFenced(ctx, seen.rows); err != nil {
		return err
	}
	for _, h := range t.held {
		if h.state == leaving {
			delete(seen.owners, h.Unit) // as good as gone: no other unit must go in its place
		}
	}
	take, give := seen.shares()
	for _, h := range slices.Collect(maps.Values(t.held)) {
		if slices.Contains(give, h.Unit) {
			if err := t.give(ctx, h); err != nil {
				return err
			}
		}
	}
	for _, unit := range take {
		if t.busy(unit, seen.rows) {
			continue
		}
		if err := t.take(ctx, unit); err != nil {
			return err
		}
	}
	return nil
}

// would returns the places that this relay wants. Units that it is giving away are among them: if
// its share has grown meanwhile, it takes them again.
func (t *tenure) would() []place {
	var would []place
	for _, at := range t.k.places() {
		if !t.k.leaving[at] || t.held[at] != nil {
			would = append(would, at)
		}
	}
	return would
}

// busy reports whether the place of a unit belongs to another unit already: its row was recreated.
func (t *tenure) busy(unit int32, rows map[place]row) bool {
	for at, r := range rows {
		if r.unit == unit {
			return t.held[at] != nil || t.k.leaving[at]
		}
	}
	return true
}

// leaveOutSlow removes members from the picture that do not take their units: they are frozen, or
// cut off, and would be assigned the same units again and again.
func (t *tenure) leaveOutSlow(p picture) {
	now := time.Now()
	maps.DeleteFunc(t.slow, func(_ int32, until time.Time) bool { return now.After(until) })
	leaveOut := func() {
		maps.DeleteFunc(p.wants, func(member int32, _ []int32) bool { return member != p.me && !t.slow[member].IsZero() })
	}
	leaveOut()
	plan := p.plan()
	free := make(map[int32]time.Time)
	for _, unit := range p.free() {
		since, known := t.free[unit]
		if !known {
			since = now
		}
		if now.Sub(since) >= staleAfter && plan[unit] != p.me {
			t.slow[plan[unit]] = now.Add(slowFor)
			since = now // another one gets the same time
		}
		free[unit] = since
	}
	t.free = free
	leaveOut()
}

// dropFenced gives away units whose position was overwritten: moved by hand, or forgotten. They are
// taken again with the current position.
func (t *tenure) dropFenced(ctx context.Context, rows map[place]row) error {
	for at, h := range maps.Clone(t.held) {
		if r, found := rows[at]; found && r.unit == h.Unit && r.epoch == h.Epoch {
			continue
		}
		if err := t.give(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// take tries to get a unit.
func (t *tenure) take(ctx context.Context, unit int32) error {
	var got *taken
	err := t.ask(func() (err error) {
		got, err = t.session.take(ctx, unit)
		return err
	})
	if err != nil || got == nil {
		return err
	}
	delete(t.free, unit)
	h := &heldUnit{Position: got.Position}
	h.proof = t.proof
	at := h.place()
	t.held[at] = h
	if doubt, known := t.k.doubt[at]; known && got.mine {
		// No other relay has owned it since, but it has not begun here either.
		h.Clean, h.ripe = false, doubt
	} else if !got.Clean {
		h.ripe = time.Now().Add(sureFor)
		t.k.doubt[at] = h.ripe
	}
	t.k.log.InfoContext(ctx, "took a unit over", "destination", unitName(h.Destination), "part", h.Part, "unit", h.Unit, "epoch", h.Epoch,
		"clean", h.Clean, "head", h.Head)
	t.begin()
	return nil
}

// begin reports the units that may begin, and schedules itself for the others. A relay that froze
// while it took a unit may have lost it meanwhile.
func (t *tenure) begin() {
	if !t.proof.sure() {
		return
	}
	var next time.Time
	for at, h := range t.held {
		switch {
		case h.state != waiting:
		case h.ripe.After(time.Now()):
			if next.IsZero() || h.ripe.Before(next) {
				next = h.ripe
			}
		default:
			h.state = working
			delete(t.k.doubt, at)
			t.k.options.Gained(h.Position)
		}
	}
	if !next.IsZero() {
		t.ripe.Reset(time.Until(next))
	}
}

// give gives a unit away: at once if it has not begun, else when it has stopped.
func (t *tenure) give(ctx context.Context, h *heldUnit) error {
	switch h.state {
	case working:
		h.state = leaving
		t.k.lose(h.place())
	case waiting:
		// The next owner has to wait as well.
		return t.release(ctx, h, uncleanly)
	case leaving:
	}
	return nil
}

// handOver releases a unit that has stopped.
func (t *tenure) handOver(ctx context.Context, at place) error {
	delete(t.k.leaving, at)
	if h := t.held[at]; h != nil && h.state == leaving {
		return t.release(ctx, h, cleanly)
	}
	t.k.Look() // it was lost with another session, and may now be taken again
	return nil
}

// release releases a unit, and notifies the other relays. This relay looks, too: a unit that no
// other relay takes, it takes again.
func (t *tenure) release(ctx context.Context, h *heldUnit, how departure) error {
	delete(t.held, h.place())
	err := t.ask(func() error { return t.session.release(ctx, h.Position, how) })
	if err != nil {
		return err
	}
	t.k.log.InfoContext(ctx, "released a unit", "destination", unitName(h.Destination), "part", h.Part, "unit", h.Unit, "epoch", h.Epoch)
	t.k.Look()
	return nil
}

// stop ends the membership, and gives all units away.
func (t *tenure) stop(ctx context.Context) error {
	t.stopping = true
	err := t.ask(func() error {
		_, err := t.session.look(ctx, nil)
		return err
	})
	if err != nil {
		return err
	}
	for _, h := range slices.Collect(maps.Values(t.held)) {
		if err := t.give(ctx, h); err != nil {
			return err
		}
	}
	return nil
}
