package wire

import (
	"bytes"
	"strings"
)

// headerTrace is the header of W3C Trace Context.
const headerTrace = "traceparent"

// Traced adds the trace captured at the insert to an event's headers, unless the writer set one. An
// invalid trace is dropped here: the column's default checks only the form, and an insert may set
// the column itself.
func Traced(headers map[string]string, captured []byte) map[string]string {
	if !isTraceparent(captured) {
		return headers
	}

	for name := range headers {
		if strings.EqualFold(name, headerTrace) {
			return headers
		}
	}

	if headers == nil {
		headers = make(map[string]string, 1)
	}

	headers[headerTrace] = string(captured)
	return headers
}

// isTraceparent reports whether raw is a traceparent of W3C Trace Context: version, trace, span and
// flags in lower case hexadecimal digits, none of them invalid.
func isTraceparent(raw []byte) bool {
	const size, trace, span, flags = 55, 3, 36, 53
	if len(raw) != size {
		return false
	}

	for i, c := range raw {
		isDash := i == trace-1 || i == span-1 || i == flags-1
		isDigit := '0' <= c && c <= '9'
		isHex := isDigit || 'a' <= c && c <= 'f'
		if isDash != (c == '-') || !isDash && !isHex {
			return false
		}
	}

	zero := func(part []byte) bool { return len(bytes.Trim(part, "0")) == 0 }
	return string(raw[:2]) != "ff" && !zero(raw[trace:span-1]) && !zero(raw[span:flags-1])
}
