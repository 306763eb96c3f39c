// Package replay sends a range of events again that a destination has received, next to live events. A replay is a row
// of outbox_replays. Only the owner of the destination's first shard changes it, in the transaction of its position.
//
// A replay is a position with a last id: package tail reads it, package flight tracks its events in memory, and a crash
// repeats the unwritten part. It does not have its own lease and lane, for two reasons:
//
//   - The destination must not get more calls at once than its concurrency allows, so both use one lane, on one relay:
//     TestReplayKeepsConcurrency.
//   - Failed events of a replay outlive it. With two owners, such rows would move between owners that both know the aggregate.
//
// Its events have their own order: the key of their aggregate has a prefix, so a live event and a replayed one never
// wait for each other. A failed event becomes a row with that key, and the shard delivers the row.
//
// A replay reads only ids that the live position has passed for good: the request left out the ids that were open then.
// If the position was set back meanwhile, the replay waits. Live events go first. A replay fills half of the lane at
// most, reads in small pages, and rests between them.
//
// Its files:
//
//	sender.go  finds the replay of a shard, reads it, delivers its events and counts them
//	range.go   the range that is sent, its progress, and the statements
//	pace.go    limits a replay to a rate
package replay
