package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/order"
)

// Key identifies an aggregate; zero means none. It is a hash, so that a million blocked aggregates
// take little memory, and long enough that no two aggregates ever have the same one.
type Key = order.Key

// Keys hashes the names of aggregates. The zero value is not ready: use NewKeys. It is safe for
// concurrent use.
type Keys struct{ high, low maphash.Seed }

// NewKeys returns a Keys with a seed of its own.
func NewKeys() Keys { return Keys{maphash.MakeSeed(), maphash.MakeSeed()} }

// Of returns the key of an event's aggregate, zero if the event has none. scratch is a buffer to
// reuse, and is returned.
func (k Keys) Of(scratch []byte, e *delivery.Event) (Key, []byte) {
	scratch = appendKey(scratch[:0], e)
	if len(scratch) == 0 {
		return Key{}, scratch
	}
	return order.NewKey(maphash.Bytes(k.high, scratch), maphash.Bytes(k.low, scratch)), scratch
}

// Named returns the key of the aggregate with the given name, as OrderingKey returns it.
func (k Keys) Named(name string) Key {
	return order.NewKey(maphash.String(k.high, name), maphash.String(k.low, name))
}

// OrderingKey returns the name of an event's aggregate, as outbox_deliveries.ordering_key has it;
// empty if the event has none.
func OrderingKey(e *delivery.Event) string { return string(appendKey(nil, e)) }

const (
	// maxKeyBytes keeps a key well within the size of an index entry.
	maxKeyBytes = 200
	// keptBytes is the length of the part that is kept of a longer key.
	keptBytes = 128
)

// appendKey appends the name for which order is kept: the aggregate of an event, or nothing. Two
// aggregates may have one key where a name contains a slash; each then waits for the other, which
// does no harm.
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
