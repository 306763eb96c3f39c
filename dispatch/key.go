package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
)

// Key stands for an aggregate, or for none where it is zero. It is a hash, so
// that a million blocked aggregates take little memory, and long enough for two
// aggregates never to have the same one.
type Key struct{ High, Low uint64 }

// Keys makes keys. The zero value is not ready: use NewKeys. It is safe for
// several goroutines.
type Keys struct{ high, low maphash.Seed }

// NewKeys returns what makes keys of names. Each makes keys of its own.
func NewKeys() Keys { return Keys{maphash.MakeSeed(), maphash.MakeSeed()} }

// Of returns the key of the aggregate that an event is about, zero if it is
// about none. scratch is memory to be used again, and is returned.
func (k Keys) Of(scratch []byte, e *delivery.Event) (Key, []byte) {
	scratch = appendKey(scratch[:0], e)
	if len(scratch) == 0 {
		return Key{}, scratch
	}
	return Key{maphash.Bytes(k.high, scratch), maphash.Bytes(k.low, scratch)}, scratch
}

// Named returns the key of an aggregate by its name, as OrderingKey has it.
func (k Keys) Named(name string) Key {
	return Key{maphash.String(k.high, name), maphash.String(k.low, name)}
}

// OrderingKey returns the name of the aggregate that an event is about, as
// outbox_deliveries.ordering_key has it; empty if it is about none.
func OrderingKey(e *delivery.Event) string { return string(appendKey(nil, e)) }

const (
	// maxKeyBytes keeps a key well within an entry of the index by key.
	maxKeyBytes = 200
	// keptBytes of a longer one are kept.
	// the database makes the slot of.
	keptBytes = 128
)

// appendKey appends what order is kept for: the aggregate of an event, nothing
// if it has none. Two aggregates may have one key where a name contains a
// slash; they then wait for one another, which does no harm.
func appendKey(b []byte, e *delivery.Event) []byte {
	if e.AggregateID == "" {
		return b
	}
	start := len(b)
	b = append(b, e.AggregateType...)
	b = append(b, '/')
	b = append(b, e.AggregateID...)
	if len(b)-start > maxKeyBytes {
		sum := sha256.Sum256(b[start:])
		end := start + keptBytes
		for !utf8.RuneStart(b[end]) {
			end--
		}
		b = append(b[:end], '#')
		b = hex.AppendEncode(b, sum[:])
	}
	return b
}
