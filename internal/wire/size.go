package wire

import (
	"fmt"
	"math"
)

// Size returns the bytes of a row's values.
func Size(row [][]byte) (n int) {
	for _, value := range row {
		n += len(value)
	}
	return n
}

// compression is a ratio that no compression method of PostgreSQL reaches.
const compression = 256

// EventBytes returns an SQL expression for the size of an event's payload and headers, in bytes. A limit of 0 means no
// limit. condition begins with AND, or is empty.
//
// The expression is NULL where the stored size proves that the event has at most limit bytes. PostgreSQL decompresses
// only the other events, and of those only the ones that meet the condition. Decompression is expensive, so a statement
// uses the expression once, in a subquery that is not flattened. With the limits [Bare] and [Escaped] the expression
// reads nothing.
func EventBytes(limit int, condition string) string {
	if limit < 0 {
		return `NULL::bigint`
	}

	return fmt.Sprintf(`CASE WHEN coalesce(pg_column_size(payload), pg_column_size(payload_bytes))
		+ coalesce(pg_column_size(headers), 0) > %d%s
	THEN coalesce(octet_length(payload::text), octet_length(payload_bytes))::bigint
		+ coalesce(octet_length(headers::text), 0) END`, bound(limit)/compression, condition)
}

func bound(limit int) int64 {
	if limit == 0 {
		return math.MaxInt64
	}
	return int64(limit)
}

// Unread returns an SQL expression for a column of the subquery of [EventBytes]. It is NULL for events of more than limit
// bytes. The subquery has [EventBytes] as the column bytes.
func Unread(column string, limit int) string {
	if limit < 0 {
		return `NULL`
	}
	return fmt.Sprintf(`CASE WHEN bytes > %d THEN NULL ELSE %s END`, bound(limit), column)
}

// TooLarge returns the error of an event that was too large to be read, or nil. raw is the value of [EventBytes].
func TooLarge(raw []byte, limit int) error {
	if raw == nil {
		return nil
	}

	n, err := DecodeInt8(raw)
	if err != nil || n <= bound(limit) {
		return err
	}

	return &LargeError{Bytes: n, Limit: limit}
}

// LargeError reports an event that is too large to be read.
type LargeError struct {
	Bytes int64 // of payload and headers
	Limit int
}

// Error implements error.
func (e *LargeError) Error() string {
	return fmt.Sprintf("event of %d bytes was not read: max_event_bytes is %d", e.Bytes, e.Limit)
}
