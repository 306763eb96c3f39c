package observe

import (
	"errors"
	"time"
)

// Health describes whether a relay works. It has no counters.
type Health struct {
	// DatabaseDown reports that the database does not answer. Neither that nor a destination that is down is a hang: the
	// relay waits.
	DatabaseDown bool
	// DatabaseDownSince is when that began; zero while it answers.
	DatabaseDownSince time.Time
	// DatabaseCure is what a person can do where it answers that it admits no session, as to a wrong password; empty
	// otherwise.
	DatabaseCure string
	// Stopped is set once Run has returned, with its error if there was one.
	Stopped error
	// Hangs are the kinds of work that are due and do not move, although nothing holds them back, with the longest hang
	// first; nil while all work moves.
	Hangs []Hang
}

// Hang is work of a relay that is due and does not move.
type Hang struct {
	// Part is the part of the relay that the work is for: a destination, "shard of mail", "leases", "database", or "audit".
	Part string
	// Reason names the stuck work and the time since it last moved, as a sentence without a full stop.
	Reason string
	// For is for how long it has hung, in time in which the process ran.
	For time.Duration
	// Restart says that a restart of the relay is likely to end the hang. Otherwise the cause is outside the relay, such as a row
	// that another session has locked.
	Restart bool
	// Lost says that the hang has lasted for so long that only a restart is likely to help.
	Lost bool
}

// Ready returns nil if the relay works, and otherwise the reason why it does not.
func (h *Health) Ready() error {
	var down error
	switch {
	case h.Stopped != nil: // the state of the database was read before
		return h.Stopped
	case h.DatabaseDown:
		down = errors.New(DatabaseTrouble(h.DatabaseCure, h.DatabaseDownSince))
	}
	return errors.Join(down, hung(h.Hangs, false))
}

// DatabaseTrouble says in words that the database does not answer, or with a cure, that it refuses the relay, and since
// when; a zero time is unknown.
func DatabaseTrouble(cure string, since time.Time) string {
	when := ""
	if !since.IsZero() {
		when = " since " + since.UTC().Format("2006-01-02 15:04:05Z")
	}
	if cure == "" {
		return "the database does not answer" + when
	}

	return "the database refuses the relay" + when + ": " + cure
}

// Live returns nil unless only a restart is likely to help, and otherwise the reason.
func (h *Health) Live() error { return hung(h.Hangs, true) }

// hung joins the reasons of hangs, of those that are lost or of all.
func hung(all []Hang, lost bool) error {
	var errs []error
	for _, h := range all {
		if h.Lost || !lost {
			errs = append(errs, errors.New(h.Reason))
		}
	}
	return errors.Join(errs...)
}
