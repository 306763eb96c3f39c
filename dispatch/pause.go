package dispatch

import (
	"fmt"
	"time"
)

// Pause keeps this relay from claiming for a destination until Resume is called: running calls of
// the handler end as usual, waiting deliveries are given back, and the destination's events wait in
// the table without a counted attempt. It is not stored, and does not affect other relays. Pausing
// twice is pausing once. The error wraps ErrDestination if there is no destination with that name.
func (d *Dispatcher) Pause(name string) error {
	lanes, err := d.lanesNamed(name)
	if err == nil {
		d.setPaused(lanes, true)
	}
	return err
}

// Resume ends a pause. It does nothing if the destination is not paused. The error wraps
// ErrDestination if there is no destination with that name.
func (d *Dispatcher) Resume(name string) error {
	lanes, err := d.lanesNamed(name)
	if err == nil {
		d.setPaused(lanes, false)
	}
	return err
}

// SetPaused pauses these destinations, and resumes all others.
func (d *Dispatcher) SetPaused(names map[string]bool) {
	for _, l := range d.firsts() {
		d.setPaused(d.byName[l.dest.Name], names[l.dest.Name])
	}
}

// setPaused pauses or resumes the lanes of a destination, and logs one line if that changes anything.
func (d *Dispatcher) setPaused(lanes []*lane, paused bool) {
	set := (*lane).resume
	if paused {
		set = (*lane).pause
	}
	changed := false
	for _, l := range lanes {
		changed = set(l) || changed
	}
	switch {
	case changed && paused:
		d.log.Info("destination is paused; its events wait, no attempt is counted", "destination", lanes[0].dest.Name)
	case changed:
		d.log.Info("destination is resumed", "destination", lanes[0].dest.Name)
	}
}

func (d *Dispatcher) lanesNamed(name string) ([]*lane, error) {
	lanes := d.byName[name]
	if lanes == nil {
		return nil, fmt.Errorf("%w %q: there is no destination of that name", ErrDestination, name)
	}
	return lanes, nil
}

// restingLocked reports whether the lane begins no new delivery.
func (l *lane) restingLocked() bool {
	return l.paused || l.health.Rests() || l.crew.stuck > 0 && l.crew.staffLocked() <= 0 || l.agg != nil && l.agg.Withdrawn()
}

// pause reports whether the lane was running before.
func (l *lane) pause() bool {
	l.mu.Lock()
	was := l.paused
	l.paused = true
	if !was {
		l.answerKept(l.emptyLocked())
	}
	l.mu.Unlock()
	return !was
}

// resume reports whether the lane was paused before.
func (l *lane) resume() bool {
	l.mu.Lock()
	was := l.paused
	l.paused = false
	call := func() {}
	if was {
		l.refuseLocked(time.Now()) // the pause may have hidden waiting events from an engine that looked for them, and the lack of room from a timer
		call = l.wakeLocked()
	}
	l.mu.Unlock()
	call()
	return was
}
