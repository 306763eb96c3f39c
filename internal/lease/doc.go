// Package lease decides which relay holds which shard of a stream. A shard is a position: of a destination's shard, or
// of the search for events without a route.
//
// A destination may have several shards: positions with the parts 0, 1, and so on. All have the same layout in
// outbox_positions.layout, a text that identifies the number of shards and the routes. Each relay announces the layouts
// of its configuration in outbox_members.layouts, one for each wanted destination.
//
// # Rows
//
// Each relay renews its row of outbox_members every [renewEvery], on a connection reserved for short statements. The
// row is the lease on all of its shards. A shard belongs to the relay in outbox_positions.owner, as long as that relay
// is a member.
//
// outbox_members and outbox_server are UNLOGGED: a crash or a failover empties them. Every lease ends with the server
// life in which it began, and relays discard the ids in memory. outbox_server also has the server's start time, for
// servers whose unlogged tables survive (Aurora): there only the crash of one server process goes unnoticed.
//
// # Rules
//
//   - Valid: a relay starts a delivery only within [Term] less [margin] of the moment at which it sent its last successful
//     renewal, by the monotonic and by the wall clock.
//   - Expired: a relay removes another one that it has seen without a renewal for a whole term, by its own monotonic clock, on
//     one session. The DELETE names the renewal that it saw, so it removes nothing if the other relay has renewed meanwhile.
//   - Startup: in its first read of the members a relay also removes members whose session has ended and whose term has expired
//     by the database clock.
//   - A crash removes all members. A relay takes another's shard one term after the new life began, because the owner may not
//     have noticed the crash. It takes its own shards at once.
//   - A relay whose renewal finds no row has lost everything: it ends all its shards, joins again, and takes shards with new
//     epochs.
//   - Take: only a shard without an owner, or whose owner is not a member, at the epoch that was read. It raises the epoch, and
//     commits synchronously. Positions are read before members, so an owner that is missing from the members has left them after
//     it took the shard.
//   - Layout: a relay takes only shards with its own layout. While any member wants the destination with the layout in force,
//     relays with another layout wait. So all shards have the same routes, and each event has one shard.
//   - Arrange: one member may write its own layout when no member wants the one in force, and all shards of the destination are
//     free by the rule of Take. Of the members that want the destination, the one with the lowest number does it. The write
//     raises the epochs of all shards and clears their owners, in one transaction that checks the members again. If a relay dies
//     in the middle, its arrangement leaves a layout that no relay has, and the next one completes it.
//   - Spread: members with the same wants differ by 1 at most, in their total number of shards and in their shards of each
//     destination.
//   - Behind a pooler in transaction mode a relay has no session (pid is 0), and only its row proves that it lives. Each of its
//     transactions checks the server life. It joins only while the mode is a stream, and the mode does not change while a member
//     renews.
//   - Every write of a position has its epoch in the condition, and runs on a connection to the server life in which the shard
//     was taken.
//
// # Proof
//
// Assume that relay A starts a delivery for a shard at time s, and relay B takes the shard. A sent its last successful
// renewal at r, s < r + Term - margin. If A released the shard, its deliveries had ended before. If the server has
// crashed, B waited for a term after the crash, and r was before it; the crash did not take back A's take. Otherwise
// some relay C removed A after it saw one renewal unchanged for a term. If that renewal was older than r, the row had
// changed, and the DELETE matched nothing. So C first saw the renewal of r after r, removed A after r + Term > s, and B
// takes after that.
//
// The same holds for an arrangement between A and B. Its writer finds the shards free by the same rule as B, so nothing
// is running for any shard of the destination when the aggregates move from shard to shard.
//
// Clocks of different machines are never compared, with one exception: the first read of a relay. Assume that the clock
// of the database jumps ahead just before a relay starts, while another relay has lost its session. Then the first may
// remove the second, which is still alive. Both deliver for a moment, until the second renews. The epochs protect the
// position, so events come twice, and none is lost.
//
//	holder.go  joins, renews, takes and releases shards: the loop
//	term.go    decides how long a lease is valid
//	share.go   plans which relay has which shard: a pure function of what all relays see
//	table.go   the SQL
//	outage.go  logs once that the database is away, and once that it is back
package lease
