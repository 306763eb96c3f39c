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

// OfStatus returns the class of a status that is not a success. own reports that the URL is not the same for every event.
func OfStatus(code int, own bool) Class {
	class, _ := statuses().Find(own, code)
	switch {
	case class != Unknown:
		return class
	case code < 400: // we follow no redirects, and speak no other protocol
		return Unavailable
	case code < 500:
		return Unclear // 400 among them: a gateway's answer to a wrong certificate, or a receiver's to this event
	default:
		return UnclearRetry // 500: the receiver tripped, perhaps over this event
	}
}

// CureOfStatus returns the remedy for a status, or "".
func CureOfStatus(code int) string {
	_, cure := statuses().Find(false, code)
	return cure
}

// statuses is the table of statuses that are not a success. They separate refusals of this event from refusals of
// every event. Own is the class where the URL is not the same for every event. Other statuses are unclear: a gateway, a
// proxy or a wrong deployment answers every event with them. See [OfStatus].
func statuses() Table[int] {
	return Table[int]{
		{ // our credentials
			Codes: []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusMisdirectedRequest, http.StatusUpgradeRequired},
			Class: Unavailable,
		},
		{Codes: []int{http.StatusProxyAuthRequired}, Class: Unauthorized, Cure: "check user and password in proxy_url"},
		{Codes: []int{http.StatusTooManyRequests}, Class: Throttled},

		{ // our URL, our method
			Codes: []int{http.StatusNotFound, http.StatusMethodNotAllowed},
			Class: Unavailable, Own: Unclear,
		},
		{
			Codes: []int{http.StatusPaymentRequired},
			Class: Unavailable, Own: Unclear, Cure: "look at the account at the receiver: it wants payment",
		},

		{ // the receiver has read the event, and will not take it
			Codes: []int{http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity},
			Class: Permanent,
		},
		{ // cured by time, perhaps
			Codes: []int{http.StatusConflict, http.StatusLocked, http.StatusFailedDependency, http.StatusTooEarly},
			Class: Retry,
		},
		{Codes: []int{http.StatusRequestTimeout}, Class: UnclearRetry},

		{
			Codes: []int{
				http.StatusNotImplemented, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
				http.StatusHTTPVersionNotSupported, http.StatusInsufficientStorage, http.StatusNetworkAuthenticationRequired,
			},
			Class: Unavailable,
		},
		{ // of Cloudflare, for an origin that it cannot reach
			Codes: []int{520, 521, 522, 523, 524, 525, 526, 527, 528, 529, 530},
			Class: Unavailable,
		},
	}
}
