// Package replay sends a range of events again that a destination has received, beside what is live. A replay is a row of
// outbox_replays. Only the owner of the destination's first shard moves it, in the transaction of its position.
//
// A replay is a position with a last id: package tail reads it, package flight counts what is under way, and a crash repeats what was
// not written. It is no shard with a lease and a lane of its own, for two reasons:
//
//   - The destination must not get more calls at once than its concurrency allows, so both use one lane, on one relay:
//     TestReplayKeepsConcurrency.
//   - What a replay has failed goes on after its end. So the rows would change hands between two owners that know one aggregate.
//
// Its events have an order of their own: the key of their aggregate has a prefix, so that a live event and a replayed one never wait
// for each other. What fails is a row like any other, with that key, and the shard delivers it.
//
// A replay reads only what the live position has passed for good: the request left out what was open then. Only a position that was
// set back meanwhile is behind it, and then the replay waits. Live events go first. A replay fills half of the lane at most, reads
// in small pages, and rests between them.
//
// Its files:
//
//	sender.go  finds the replay of a shard, reads it, hands it over, counts it, ends it
//	range.go   what is sent, and how far that is; the statements
//	pace.go    keeps it to a rate
package replay
