package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/order"
)

// Key identifies an aggregate; zero means none. It is a hash, so that a million blocked aggregates take little
// memory. Its 128 bits make collisions negligible.
type Key = order.Key

// Keys hashes the names of aggregates. The zero value is not ready: use NewKeys. It is safe for concurrent use.
type Keys struct{ high, low maphash.Seed }

// NewKeys returns a Keys with a random seed.
func NewKeys() Keys { return Keys{maphash.MakeSeed(), maphash.MakeSeed()} }

// Of returns the key of an event's aggregate, zero without an aggregate. Of reuses the buffer scratch, and returns
// it.
func (k Keys) Of(scratch []byte, e *delivery.Event) (Key, []byte) {
	scratch = appendKey(scratch[:0], e)
	if len(scratch) == 0 {
		return Key{}, scratch
	}
	return order.NewKey(maphash.Bytes(k.high, scratch), maphash.Bytes(k.low, scratch)), scratch
}

// Named returns the key of the aggregate with the given name, in the form of OrderingKey.
func (k Keys) Named(name string) Key {
	return order.NewKey(maphash.String(k.high, name), maphash.String(k.low, name))
}

// OrderingKey returns the name of an event's aggregate, as stored in outbox_deliveries.ordering_key; empty without an
// aggregate.
func OrderingKey(e *delivery.Event) string { return string(appendKey(nil, e)) }

const (
	// maxKeyBytes holds a key well below the size limit of an index entry.
	maxKeyBytes = 200
	// keptBytes is the length of the prefix that remains of a longer key.
	keptBytes = 128
)

// appendKey appends the name of the event's aggregate, if any. Two aggregates may share a key if a name contains a
// slash; each then waits for the other, which does no harm.
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
		for end > start && !utf8.RuneStart(b[end]) { // names in SQL_ASCII may be no text
			end--
		}

		b = append(b[:end], '#')
		b = hex.AppendEncode(b, sum[:])
	}

	return b
}
