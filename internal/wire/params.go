// Package wire encodes parameters and decodes rows of PostgreSQL's protocol without the detour over
// driver values, for statements that read events by the hundred thousand.
package wire

import (
	"encoding/binary"
	"fmt"
)

// Object ids of the array elements below, from pg_type.dat.
const (
	oidInt8 = 20
	oidText = 25
)

// Formats of the extended protocol.
const (
	Text   int16 = 0
	Binary int16 = 1
)

// AllBinary requests binary format for all parameters or results.
func AllBinary() []int16 { return []int16{Binary} }

// Int8 encodes v for a bigint parameter.
func Int8(v int64) []byte { return AppendInt8(nil, v) }

// AppendInt8 appends [Int8] of v to b.
func AppendInt8(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v)) //nolint:gosec // all 64 bits are kept
}

// AppendInt8Array encodes ids as a binary bigint[] (array_send in PostgreSQL's
// arrayfuncs.c): dimensions, has-nulls flag, element type, length, lower bound,
// and per element its size and value.
func AppendInt8Array(b []byte, ids []int64) []byte {
	b = appendArrayHeader(b, oidInt8, len(ids))
	for _, id := range ids {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = AppendInt8(b, id)
	}
	return b
}

// TextArray encodes list as a binary text[].
func TextArray(list []string) []byte {
	b := appendArrayHeader(nil, oidText, len(list))
	for _, s := range list {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s))) //nolint:gosec // names of types and destinations
		b = append(b, s...)
	}
	return b
}

// Params encodes parameters of the types bigint, bigint[] and text[] in binary format.
func Params(args []any) [][]byte {
	params := make([][]byte, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case int64:
			params[i] = Int8(v)
		case []int64:
			params[i] = AppendInt8Array(nil, v)
		case []string:
			params[i] = TextArray(v)
		default:
			panic(fmt.Sprintf("parameter %d is a %T", i+1, arg))
		}
	}

	return params
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
	b = binary.BigEndian.AppendUint32(b, uint32(n)) //nolint:gosec // bounded by the limit of a statement

	return binary.BigEndian.AppendUint32(b, 1)
}
