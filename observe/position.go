package observe

import "time"

// Position is how far a destination of a stream has come, as the tables and the locks
// of its unit tell.
type Position struct {
	// Destination is the unit's destination, empty for the router, which looks for event
	// types without a route. Part is 0 but where a destination is read in parts.
	Destination string `json:"destination"`
	Part        int    `json:"part"`
	// Unit is the number of its lock.
	Unit int32 `json:"unit"`
	// Head is the highest id that was read. All up to it is acknowledged, stored for
	// another try, or open, and Open is how many ids that are: in flight, or of
	// transactions that are open, or rolled back and not known to be yet.
	Head int64 `json:"head"`
	Open int64 `json:"open"`
	// Lag is how many ids have yet to be dealt with: those above Head, and Open. Ids that
	// no event can have, between two partitions, are not among them; those of transactions
	// that were rolled back, and of events that go to other destinations, are until
	// they are read.
	Lag int64 `json:"lag"`
	// Lowest is the id up to which all is dealt with; what is above it stays in the table.
	Lowest int64 `json:"lowest"`
	// HoldsBack says that no position is lower, and that there is something above it:
	// nothing above Lowest can be purged before it moves.
	HoldsBack bool `json:"holds_back_retention"`
	// Delivered counts what the destination has acknowledged so far, and UpdatedAt is
	// when the position was last written.
	Delivered int64     `json:"delivered"`
	UpdatedAt time.Time `json:"updated_at"`
	// Owner is the relay that has or had it, by its number; nil if it was handed over.
	Owner *int64 `json:"owner,omitempty"`
	// Session is the one that holds the unit; nil if nobody delivers it.
	Session *UnitSession `json:"session,omitempty"`
	// Oldest is the event that has waited longest to be read or acknowledged, as far as
	// the events that were looked at tell; nil if none waits. What is stored for another
	// try is not among them.
	Oldest *Waiting `json:"oldest,omitempty"`
}

// UnitSession is a session that holds a unit of a stream. What the asking role may not
// see of it is empty.
type UnitSession struct {
	PID         int32  `json:"pid"`
	Application string `json:"application_name"`
	Client      string `json:"client_addr,omitempty"`
}
