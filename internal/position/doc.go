// Package position has the row of a shard's position: it is loaded and written by the shard's owner alone, and checked
// against the sequence that assigns the ids.
//
//	position.go  loads and writes the row, within bounds; ends the relay if the sequence gives out ids again that were passed
//	former.go    how far the shards had come when their number changed
package position
