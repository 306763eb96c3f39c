package order

// Key identifies an aggregate; zero means none. It is a hash, so that a million blocked aggregates take little
// memory. Its 128 bits make collisions negligible.
type Key struct{ high, low uint64 }

// NewKey returns the key with the given halves of a hash of 128 bits.
func NewKey(high, low uint64) Key { return Key{high, low} }
