package store

import (
	"encoding/binary"
	"fmt"
	"time"
	"unicode/utf8"
)

// Object ids of the array elements below, from pg_type.dat.
const (
	oidInt8 = 20
	oidInt4 = 23
	oidText = 25
)

// Formats of the extended protocol.
const (
	formatText   int16 = 0
	formatBinary int16 = 1
)

// int8Param encodes v for a bigint parameter.
func int8Param(v int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(v)) //nolint:gosec // the bits are what is meant
}

// int4Param encodes v for an integer parameter.
func int4Param(v int32) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(v)) //nolint:gosec // the bits are what is meant
}

// appendInt8Array encodes ids as a binary bigint[] (array_send in PostgreSQL's
// arrayfuncs.c): dimensions, has-nulls flag, element type, length, lower bound,
// and per element its size and value.
func appendInt8Array(b []byte, ids []int64) []byte {
	b = appendArrayHeader(b, oidInt8, len(ids))
	for _, id := range ids {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(id)) //nolint:gosec // the bits are what is meant
	}
	return b
}

// textArray encodes list as a binary text[].
func textArray(list []string) []byte {
	b := appendArrayHeader(nil, oidText, len(list))
	for _, s := range list {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s))) //nolint:gosec // names of types and destinations
		b = append(b, s...)
	}
	return b
}

func appendArrayHeader(b []byte, oid uint32, n int) []byte {
	if n == 0 {
		b = binary.BigEndian.AppendUint32(b, 0) // an empty array has no dimensions
		b = binary.BigEndian.AppendUint32(b, 0)
		return binary.BigEndian.AppendUint32(b, oid)
	}
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, oid)
	b = binary.BigEndian.AppendUint32(b, uint32(n)) //nolint:gosec // bounded by the claim's limit
	return binary.BigEndian.AppendUint32(b, 1)
}

func decodeInt8(raw []byte) (int64, error) {
	if len(raw) != 8 {
		return 0, fmt.Errorf("bigint of %d bytes", len(raw))
	}
	return int64(binary.BigEndian.Uint64(raw)), nil //nolint:gosec // the bits are what is meant
}

// postgresEpoch is 2000-01-01 UTC in microseconds since 1970, the zero of
// PostgreSQL's binary timestamps.
const postgresEpoch = 946684800 * 1_000_000

func decodeTime(raw []byte) (time.Time, error) {
	us, err := decodeInt8(raw)
	if err != nil {
		return time.Time{}, err
	}
	return time.UnixMicro(us + postgresEpoch).UTC(), nil
}

// maxErrorBytes is how much of an error's text is kept in last_error: enough
// for a server's answer with some context, little enough to list many.
const maxErrorBytes = 1000

// errorText makes s fit for a text column: shortened, UTF-8, no zero bytes.
func errorText(s string) string {
	if len(s) > maxErrorBytes {
		s = s[:maxErrorBytes] + "..."
	}
	clean := make([]rune, 0, len(s))
	for _, r := range s {
		if r != 0 && r != utf8.RuneError {
			clean = append(clean, r)
		}
	}
	return string(clean)
}
