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

// compression is more than any method of PostgreSQL achieves.
const compression = 256

// EventBytes is an SQL expression for the size of an event's payload and headers; limit 0 is no
// limit. It is NULL where the stored size shows that they have at most limit bytes: only the others
// are decompressed, if they fulfil the condition, which begins with AND unless it is empty. That is
// expensive, so a statement uses the expression once, in a subquery that is not flattened. With [Bare] and
// [Escaped] it reads nothing.
func EventBytes(limit int, condition string) string {
	if limit < 0 {
		return `NULL::bigint`
	}
	return fmt.Sprintf(`CASE WHEN coalesce(pg_column_size(payload), pg_column_size(payload_bytes)) + coalesce(pg_column_size(headers), 0) > %d%s
	THEN coalesce(octet_length(payload::text), octet_length(payload_bytes))::bigint + coalesce(octet_length(headers::text), 0) END`, bound(limit)/compression, condition)
}

func bound(limit int) int64 {
	if limit == 0 {
		return math.MaxInt64
	}
	return int64(limit)
}

// Unread is an SQL expression for a column of such a subquery that is read from events of at most
// limit bytes alone. The subquery has [EventBytes] as the column bytes.
func Unread(column string, limit int) string {
	if limit < 0 {
		return `NULL`
	}
	return fmt.Sprintf(`CASE WHEN bytes > %d THEN NULL ELSE %s END`, bound(limit), column)
}

// TooLarge returns the error of an event that was not read, and nil if it was read: raw is its
// [EventBytes].
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
