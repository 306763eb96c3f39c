// Package exactly wraps the position of a destination that keeps a copy of it in its own transactions, and so gets each event
// exactly once. The position in the database follows the copy, and does not decide alone: DESIGN.md has the proof.
//
// Before events are handed over, the shard writes a seal, a number, and waits until it is on disk. What the
// destination stores relies on no later state of the database. So a database without the seal has
// lost something that the destination knows, and one with it has lost nothing of that. Each owner begins
// with a random seal: of two copies of a database, none has the seals of the other.
//
//	exactly.go  where a shard begins: which of the two positions counts; the seals
//	copy.go     what the destination stores
package exactly
