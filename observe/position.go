package observe

import (
	"fmt"
	"strconv"
	"time"
)

// ManyRanges is the number of open ranges of a position above which a relay does not write them all each time, but every
// 1 to 5 seconds: a crash repeats the deliveries since.
const ManyRanges = 4096

// Position is the position of a destination of a stream, and the relay that owns it.
type Position struct {
	// Destination is the shard's destination; empty for the unrouted scanner, which finds event types without a route.
	// Shard is the number of the shard, from 0, and Shards the count of shards: 1 unless the destination is configured
	// with more.
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
	// Ranges is in how many ranges the open ids lie. If there are more than ManyRanges, OpenTransaction describes the
	// oldest transaction that has ids of events: empty without one.
	Ranges          int64  `json:"ranges"`
	OpenTransaction string `json:"open_transaction,omitempty"`
	// Unhanded reports that the destination waits for events whose types had no route before it had one. The unrouted
	// scanner hands them over once it has read as far as the destination.
	Unhanded bool `json:"unhanded,omitempty"`
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
	// Session describes the relay that owns the shard; nil if no relay delivers it.
	Session *ShardSession `json:"session,omitempty"`
	// Replay is the running replay of the destination, which its first shard sends; nil without a replay.
	Replay *Replay `json:"replay,omitempty"`
	// OtherRelays counts the relays that wait for the destination because their configuration has another number of
	// shards, or other routes, than the configuration of the delivering relays. It is 0 for a destination with one
	// shard: each owner applies its own configuration.
	OtherRelays int `json:"other_relays,omitempty"`
	// Oldest is the event that has waited longest to be read or acknowledged, among the events that
	// were read; nil if none waits. Stored deliveries are not part of it.
	Oldest *Waiting `json:"oldest,omitempty"`
}

// Name returns the destination, as [PositionName] has it, with the shard if there are several: "mail, shard 0 of 4".
func (p *Position) Name() string {
	if p.Destination != "" && p.Shards > 1 {
		return fmt.Sprintf("%s, shard %d of %d", p.Destination, p.Shard, p.Shards)
	}
	return PositionName(p.Destination)
}

// PositionName returns the destination whose position it is, or "(unrouted scanner)" for the empty name.
func PositionName(destination string) string {
	if destination == "" {
		return "(unrouted scanner)"
	}
	return destination
}

// ShardSession is the session by which the owner of a shard of a stream renews its lease. Fields that the querying role may not see
// are empty.
type ShardSession struct {
	PID         int32  `json:"pid"`
	Application string `json:"application_name"`
	Client      string `json:"client_addr,omitempty"`
}

// String returns the process id, or "pooled" if the server process is unknown behind a pooler.
func (s *ShardSession) String() string {
	if s.PID == 0 {
		return "pooled"
	}
	return strconv.Itoa(int(s.PID))
}

// RangesText says what many open ranges of a position mean, for people. place names the position.
func (p *Position) RangesText(place string) string {
	text := fmt.Sprintf("The position of %s has %d open ranges of ids: they are written every 1 to 5 seconds, "+
		"and a crash of its relay repeats the deliveries since", place, p.Ranges)
	if p.OpenTransaction != "" {
		text += ". The oldest transaction with ids of events is " + p.OpenTransaction
	}
	return text + "."
}

// RangesCure is what to do about many open ranges.
func (p *Position) RangesCure() string {
	if p.OpenTransaction != "" {
		return "end that transaction: ids that were rolled back beside it stay open until it has ended"
	}
	return "let the slow deliveries of " + p.Name() + " end"
}
