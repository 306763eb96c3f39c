package observe

import (
	"fmt"
	"strconv"
	"time"
)

// Position is the position of a destination of a stream, and the relay that owns it.
type Position struct {
	// Destination is the shard's destination, empty for the router, which looks for event types
	// without a route. Shard is the number of the shard, from 0 on, and Shards how many there are: 1 unless the destination is
	// configured with more.
	Destination string `json:"destination"`
	Shard       int    `json:"shard"`
	Shards      int    `json:"shards"`
	// Number is the number of the row.
	Number int32 `json:"number"`
	// Head is the highest id that was read. All ids up to it are acknowledged, stored for another
	// attempt, or open. Open is the number of open ones: in flight, or of transactions that are
	// open, or rolled back without the relay knowing yet.
	Head int64 `json:"head"`
	Open int64 `json:"open"`
	// Lag is how many ids have not been handled yet: those above Head, and Open. Ids that no event
	// can have, between two partitions, do not count; those of transactions that were rolled back,
	// and of events for other destinations, count until they are read.
	Lag int64 `json:"lag"`
	// Lowest is the id up to which all events are handled; events above it stay in the table.
	Lowest int64 `json:"lowest"`
	// HoldsBack reports that no position and no replay is lower, and that there are ids above it: no event above
	// Lowest can be purged before it moves.
	HoldsBack bool `json:"holds_back_retention"`
	// Delivered counts the acknowledged deliveries so far, and UpdatedAt is when the position was
	// last written.
	Delivered int64     `json:"delivered"`
	UpdatedAt time.Time `json:"updated_at"`
	// Copied reports that the destination keeps a copy of the position (exactly_once), which is ahead of
	// this one after a crash, until a relay has taken the shard over.
	Copied bool `json:"copied,omitempty"`
	// Owner is the number of the relay that owns or last owned it; nil after a handover.
	Owner *int64 `json:"owner,omitempty"`
	// Session is that of the relay that owns the shard; nil if no relay delivers it.
	Session *ShardSession `json:"session,omitempty"`
	// Replay is the running replay of the destination, which its first shard sends; nil if there is none.
	Replay *Replay `json:"replay,omitempty"`
	// OtherRelays is how many relays wait for the destination, because they are configured with another number of shards or with
	// other routes than those that deliver to it. A destination with one shard has none: each owner brings its own configuration.
	OtherRelays int `json:"other_relays,omitempty"`
	// Oldest is the event that has waited longest to be read or acknowledged, among the events that
	// were read; nil if none waits. Stored deliveries are not part of it.
	Oldest *Waiting `json:"oldest,omitempty"`
}

// Name returns the destination, with the shard if there are several: "mail, shard 0 of 4". The router's is "(types without a route)".
func (p *Position) Name() string {
	switch {
	case p.Destination == "":
		return "(types without a route)"
	case p.Shards > 1:
		return fmt.Sprintf("%s, shard %d of %d", p.Destination, p.Shard, p.Shards)
	}
	return p.Destination
}

// ShardSession is the session by which the owner of a shard of a stream renews its lease. Fields that the querying role may not see
// are empty.
type ShardSession struct {
	PID         int32  `json:"pid"`
	Application string `json:"application_name"`
	Client      string `json:"client_addr,omitempty"`
}

// String returns the process id, or says that there is none behind a pooler.
func (s *ShardSession) String() string {
	if s.PID == 0 {
		return "pooled"
	}
	return strconv.Itoa(int(s.PID))
}
