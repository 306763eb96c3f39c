package observe

import (
	"errors"
	"time"
)

// Health says whether a relay works, without what it has done.
type Health struct {
	// DatabaseDown reports that the database does not answer. Neither that nor a destination that is down is a hang: the
	// relay waits.
	DatabaseDown bool
	// DatabaseCure is what a person can do where it answers that it admits no session, as to a wrong password; empty
	// otherwise.
	DatabaseCure string
	// Hangs are the kinds of work that are due and do not move, although nothing holds them back. The longest hang comes first;
	// nil if there is none.
	Hangs []Hang
}

// Hang is work of a relay that should go on and does not.
type Hang struct {
	// Part is the part of the relay that the work is for: a destination, "shard of mail", "leases", "database", or "audit".
	Part string
	// Reason is a sentence without a full stop: what does not go on, and for how long.
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
	if h.DatabaseDown {
		return errors.Join(errors.New(DatabaseTrouble(h.DatabaseCure)), hung(h.Hangs, false))
	}
	return hung(h.Hangs, false)
}

// DatabaseTrouble says in words that the database does not answer, or with a cure, that it refuses the relay.
func DatabaseTrouble(cure string) string {
	if cure == "" {
		return "the database does not answer"
	}
	return "the database refuses the relay: " + cure
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
