package outcome

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter bounds the pause that a server may ask for.
const MaxRetryAfter = time.Hour

// Status describes a status of HTTP: "HTTP 503 Service Unavailable".
func Status(code int) string {
	return strings.TrimSpace(fmt.Sprintf("HTTP %d %s", code, http.StatusText(code)))
}

// Stranger describes an answer of HTTP that the named server does not give: there is a proxy, or another server.
func Stranger(code int, server string) (text, cure string) {
	return Status(code) + ", with an answer that is not from " + server, "check endpoint, and proxies"
}

// RetryAfter returns the pause of the header Retry-After, at most [MaxRetryAfter]: it holds seconds or a date (RFC 9110,
// 10.2.3). A date that is past is a pause of zero. It reports false if the header holds neither.
func RetryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(MaxRetryAfter/time.Second))) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter), true
}
