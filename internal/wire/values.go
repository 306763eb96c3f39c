package wire

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// DecodeInt8 reads a bigint.
func DecodeInt8(raw []byte) (int64, error) {
	if len(raw) != 8 {
		return 0, fmt.Errorf("bigint of %d bytes", len(raw))
	}
	return int64(binary.BigEndian.Uint64(raw)), nil //nolint:gosec // all 64 bits are kept
}

// postgresEpoch is 2000-01-01 UTC in microseconds since 1970, the zero of
// PostgreSQL's binary timestamps.
const postgresEpoch = 946684800 * 1_000_000

// The bounds of [DecodeTime], in microseconds since 1970: the years 1 to 9999, which every format of a time can
// represent. PostgreSQL's calendar is larger, and has infinity at its ends.
const (
	firstTime = -62135596800 * 1_000_000
	lastTime  = 253402300799 * 1_000_000
)

// DecodeTime reads a timestamptz. The time is in UTC, in the years 1 to 9999.
func DecodeTime(raw []byte) (time.Time, error) {
	us, err := DecodeInt8(raw)
	if err != nil {
		return time.Time{}, err
	}
	return time.UnixMicro(min(max(us, firstTime-postgresEpoch), lastTime-postgresEpoch) + postgresEpoch).UTC(), nil
}

// maxNames bounds the table of names. Event types and aggregate types are few; if they are not, sharing them is not worth
// the memory.
const maxNames = 4096

// Names converts recurring names to strings, and returns the same string for equal names. The zero
// value is ready for use. Only one goroutine may use it.
type Names struct{ known map[string]string }

// Intern returns raw as a string.
func (n *Names) Intern(raw []byte) string {
	if len(raw) == 0 {
		return ""
	}
	if name, ok := n.known[string(raw)]; ok { // the conversion does not allocate
		return name
	}

	name := string(raw)
	if n.known == nil {
		n.known = make(map[string]string)
	}
	if len(n.known) < maxNames {
		n.known[name] = name
	}

	return name
}

// Payload returns the payload of an event and its content type. The content type is interned, because all events of a
// type usually share one. An event has one of the first two columns: payload as text, or payload_bytes in binary format.
func (n *Names) Payload(text, bytes, contentType []byte) (payload []byte, kind string) {
	payload = text
	kind = delivery.ContentTypeJSON

	if bytes != nil {
		payload = bytes
		kind = delivery.ContentTypeBytes
	}

	if contentType != nil {
		kind = n.Intern(contentType)
	}

	return payload, kind
}
