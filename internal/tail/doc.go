// Package tail reads outbox_events in the order of the ids, and misses no event. It does not know destinations.
//
// A [Reader] has a head, the highest id that it has seen, and gaps: ids up to the head that it has not seen. A sequence
// assigns ids, and transactions commit in any order. So a gap is either an event that is not committed yet, or one that
// was rolled back and never comes.
//
//  1. One statement reads the rows in the gaps and the rows above the head, in the order of ids, with one limit over both. A
//     missing id between two rows, or between the old head and the first row, becomes a gap. The highest received id is the
//     new head.
//  2. If the next read does not fill the gaps, the relay scans pg_locks for ROW EXCLUSIVE on the sequence. The first scan that
//     began after the gap was found lists the gap's open writers. Each later scan keeps those that still hold the lock.
//  3. When no writer is left, the gap is clear. A read that begins after that scan has ended finds the committed events of the
//     gap. The ids that it does not find are dead.
//  4. While all writers of a gap stay open, and two scans have found each of them, reads leave the gap out. One read after the
//     scan has found the events of all other writers. Each later statement tests whether a writer has ended. If one has, the
//     read is repeated, and none leaves anything out before the next scan.
//
// A scan first reads an assigned id, one of the last, so it lists the writers of all ids up to there. Gaps that a later read finds
// among these ids need no scan of their own: the rolled-back inserts of a backlog are dead at the next read.
//
// Reads also leave out ids above the head, up to the assigned id of a scan, while the writers of that scan stay open.
//
// # Proof that no event is missed
//
// nextval takes that lock for the top-level transaction before it draws, and only the end of the transaction releases
// it: not ROLLBACK TO, not PREPARE. Assume that g is a gap at or below an id h that was visible, or assigned, before the
// scan read pg_locks. The sequence assigns one id at a time, upwards (CACHE 1, INCREMENT 1). So g was drawn before h, by a
// writer that already had the lock. During the scan this writer holds the lock, or has ended. If it holds the lock, the
// scan lists it. When a scan no longer lists it, it has ended, and a commit is visible before its locks are released. A
// statement that begins then sees the row, or the row does not exist. The proof uses no clock and no unrelated
// transaction.
//
// Assume that a statement leaves g out. The last scan that changed the list of g's writers ended before a read R began, and
// R covered g. Each unlisted writer had ended before R, so R found its events. The other events of g belong to listed
// writers. A snapshot shows a row only if the top-level transaction of the row is not in progress in the snapshot. The
// statement tests its own snapshot for the transaction ids of all these writers. If one of them has ended, the reader discards
// the answer, and reads again with all gaps. So leaving g out changes neither the time nor the order in which events are read.
//
// Gaps that are left out for the same writers share one list afterwards (gaps.join). A read has covered each gap after the
// last change of its former list, and each scan would change both lists alike.
//
// No read waits: a gap delays neither the head nor anything above it. Its event is read when it commits. An event x may
// be read after an event y with a higher id only if x was committed after y. A shard with a total order delivers nothing
// above [Reader.FirstGap]; other shards deliver events as they are read.
//
// What the proof needs, and where it would break:
//
//   - One statement, one snapshot. With two, x in a gap and y above the head could be committed between them, and y would come
//     alone.
//   - The horizon. A read that was truncated, by its limit or its bytes, proves nothing about ids above its last row. Gaps up
//     there stay.
//   - The lock of the sequence, not of the table. A session that has drawn and not yet inserted does not lock the table.
//     TestWhichLock loses events with that lock, and with scan and rows in one statement.
//   - Prepared transactions have no pid. PREPARE may rename a writer, so if one has gone, any prepared one replaces it.
//   - Transaction ids. A writer locks its id, and PREPARE keeps the id. A writer without an id has not written yet: the gaps of its
//     group are read. Subtransactions have higher ids, and a snapshot lists only top-level transactions. So the id of a
//     subtransaction would be safe in place of its parent's: the reader would leave nothing out.
//   - Ids that return. A person may insert an id into a gap that is left out, or attach a partition that has it. So a read
//     covers all gaps every 10 s, or less often if such reads are slow.
//   - Readers that follow. A reader may take over the ids that another reader has seen, in one snapshot after the other, gaps included.
//     Neither reader has seen these ids, and a scan that begins afterwards lists their writers.
//   - Writers are kept in memory. Their names end with the server life (pg_postmaster_start_time). Then, and at a take-over, a
//     new scan lists them again.
//   - One server life for a reader and its scans. A crash may lose assigned ids above the visible ones, and the sequence
//     assigns them again. So a scan of one server life is never used in another. The crash of a backend leaves
//     pg_postmaster_start_time as it is: only the life of the lease (outbox_server) ends with it.
//   - A sequence that is never set back. If it is, the next scan notices it; until then, new ids may be mistaken for
//     rolled-back ones.
//   - Moving locks. pg_locks reads the fast-path slots first, and a lock moves only from there to the main table: a scan may
//     see it twice, but does not miss it.
//   - A detached partition hides ids that are not dead. So a read that may declare ids dead runs in a transaction that holds
//     ACCESS SHARE on the table, which blocks DETACH. Its snapshot, taken after the lock, also finds the ids that lie in no
//     partition (outbox_away). Their gaps stay. It asks each time whether there are partitions: relays read while a table is
//     partitioned. DETACH ... CONCURRENTLY does not wait for the lock, but a snapshot from before
//     its first step still reads the partition. Retention records the ids that it drops in outbox_mode.dropped, in the same
//     transaction, and these may die.
//   - A rewritten partition. pg_repack writes all rows of a partition as its own transaction, and so do some forms of ALTER
//     TABLE: a snapshot from before its end lacks rows. So that read locks all partitions before it takes its snapshot, and
//     waits for the end. A read in no transaction takes its snapshot after its locks.
//   - Cached ids. A session that has ids in advance holds no lock. So each scan also reads the sequence's parameters, and fails
//     if they are odd: no gap ends then. ALTER SEQUENCE waits for sessions that have drawn, and gives the sequence another file,
//     at which sessions discard their ids in advance. After the cure the proof holds again. pgschema.CheckIDs, at each start and
//     once a second, finds the visible violations: a standby, a subscription, CACHE, ids that a writer chose.
//   - Rows that are hidden from the role. A policy of row level security hides committed rows, and the read would declare their ids
//     dead. Each session of a relay sets row_security = off, so PostgreSQL refuses such a read.
//   - Chosen ids. The read stops at the last assigned id. It reads that id from the sequence (outbox_last_id) after its snapshot,
//     and only if there is a row: an id above the sequence makes no gap.
//
// # Cost
//
// A scan is two statements for all readers, every 50 ms at most, and never more than a twentieth of the time. For a gap
// whose writer stays open, it runs every second. Gaps are ranges: a bulk insert that was rolled back is one, and so is
// the jump to the next day's ids. A scan joins groups that wait for the same writers, so there are few
// more groups than sets of open writers. A read with gaps is an index lookup per gap that is not left out. It walks over
// uncommitted events in a gap, and above the head, until the second scan and the read after it. Of event types in [Query.Skip] the
// statement returns only the id.
//
// # Files
//
// Read them in this order:
//
//	reader.go     reads rows in id order and tracks the head
//	fetch.go      runs one read: the statement and its result
//	gaps.go       tracks invisible ids, their open writers, and when they are dead
//	writers.go    finds open writers: the holders of the sequence's lock
package tail
