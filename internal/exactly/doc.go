// Package exactly wraps the position of a destination that keeps a copy of it in its own transactions, and so gets each
// event exactly once. The position in the database follows the copy, and does not decide alone:
// docs/design/exactly-once.md has the proof.
//
// Before events are handed over, the shard writes a checkpoint, a number, and waits until it is on disk. The
// destination's copy relies on no later state of the database. So a database without the checkpoint has lost ids that
// the destination has. A database with the checkpoint has all of them. Each owner begins with a random checkpoint: two
// copies of a database never have the same one.
//
//	exactly.go  decides where a shard begins, by both positions; writes checkpoints
//	copy.go     the copy that the destination stores
package exactly
