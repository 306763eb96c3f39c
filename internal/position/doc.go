// Package position loads and writes the row of a shard's position, and checks it against the sequence that assigns the
// ids. Only the shard's owner uses the row.
//
//	position.go  loads and writes the row, within bounds; stops the relay if the sequence assigns passed ids again
//	interval.go  has the intervals of the writes, and lists everything that depends on a write
//	former.go    positions of the shards at each change of their number
package position
