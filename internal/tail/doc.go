// Package tail reads outbox_events in the order of the ids, and passes no event over. It knows no
// destination.
//
// A [Reader] has a head, the highest id that it has seen, and gaps: ids up to the head that nobody has
// seen. Ids are assigned by a sequence, and committed in any order, so a gap may be an event that is not
// committed yet, or one that was rolled back and never comes.
//
//  1. One statement reads the rows in the gaps and those above the head, in the order of ids, with one
//     limit over both. A missing id between two rows, or between the old head and the first row, becomes
//     a gap. The head is the highest id that came.
//  2. Where the next read does not fill gaps, the relay looks into pg_locks, for ROW EXCLUSIVE on the
//     sequence. Those who hold it at a look that began after the gap was seen are its witnesses. Each
//     later look leaves those that hold it still.
//  3. When none is left, the gap is clear. A read that begins after that look has ended shows what has
//     come of it; what it does not show is dead.
//
// # Proof that nothing is passed over
//
// nextval takes that lock for the top-level transaction before it draws, and only the end of the
// transaction releases it: not ROLLBACK TO, not PREPARE. Say g is a gap below a visible h. The sequence
// gives out one id at a time, upwards (CACHE 1, INCREMENT 1), so g was drawn before h, and its drawer had
// the lock before that. The look began after h was seen; so the drawer holds the lock at the look, or has
// ended. If it holds it, it is a witness. When it is seen no more, it has ended, and a commit is visible
// before its locks are released. A statement that begins then sees the row, or there is none. No clock
// takes part, and no unrelated transaction.
//
// Nothing waits: a gap holds up neither the head nor anything above it. Its event is delivered when it
// commits, and only an event that was committed later than y may come after a y above it. That is the
// order that is promised.
//
// What the proof needs, and where it would break:
//
//   - One statement, one snapshot. With two, x in a gap and y above the head could be committed between
//     them, and y would come alone.
//   - The horizon. A read that was cut off, by its limit or its bytes, says nothing of what lies above its
//     last row. Gaps up there stay.
//   - The lock of the table would not do. A session that has drawn and not yet inserted holds none.
//     TestWhichLock loses events with it, and with look and rows in one statement.
//   - Prepared transactions have no pid. PREPARE may rename a witness, so where one has gone, any that is
//     prepared stands in for it.
//   - Readers that follow. What one reader has seen, in one snapshot after the other, another may take over, gaps included: they
//     have not been seen by either, and get witnesses by a look that begins after that.
//   - Witnesses are memory. Their names end with the life of the server (pg_postmaster_start_time); then,
//     and at a take-over, a new look makes them anew.
//   - Moving locks. pg_locks reads the fast-path slots first, and a lock moves only from there to the main
//     table: it may be seen twice, not missed.
//   - A partition that was detached hides ids that are not dead. So a read by which ids would die runs in
//     a transaction that holds ACCESS SHARE on the table, which keeps DETACH away, and whose snapshot, taken
//     after that, also finds the ids that lie in no partition (outbox_away). Their gaps stay. DETACH ...
//     CONCURRENTLY does not wait for the lock; a snapshot from before its first step still reads the
//     partition. What retention drops is noted in outbox_mode.dropped in the same transaction, and may die.
//   - Cached ids. A session that has ids in advance holds no lock. So each look reads the sequence's
//     parameters, too, and fails where they are odd: no gap ends then. ALTER SEQUENCE waits for those who
//     have drawn, and gives the sequence another file, at which sessions forget what they have in advance:
//     after the cure the proof holds again. outboxsql.CheckIDs, at each start and once a second, finds what
//     can be seen otherwise: a standby, a subscription, CACHE, ids of the writer's own.
//   - Chosen ids. The read stops at the last assigned id, which it reads from the sequence (outbox_last_id) after
//     its snapshot, and only if a row comes: an id above the sequence makes no gap.
//
// # Cost
//
// A look is one statement for all readers, every 50 ms at most, and never more than a twentieth of the time;
// for a gap whose writer stays open, every second. Gaps are ranges: a bulk insert that was rolled back is
// one, and so is the jump to the next day's ids. A read with gaps is an index lookup per gap. Of event types
// in [Query.Skip] the statement returns the id and no more.
//
// # Files
//
// Read them in this order:
//
//	reader.go   heads, gaps and reads: what a caller uses
//	pass.go     one read: the statement and its result
//	gaps.go     invisible ids: their witnesses, and when they are dead
//	witness.go  finds the holders of the lock of the sequence
//	ranges.go   sets of ids, as int8multirange has them
//	watermark.go  the ids that a reader has passed
package tail
