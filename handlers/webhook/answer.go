package webhook

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// maxAnswer is how much of an answer's body is read for an error's text.
	maxAnswer = 4 << 10
	// maxDrain is how much more of the body is read so that the connection can be used
	// again; beyond that a new connection costs less.
	maxDrain = 64 << 10
	// drainTimeout bounds that reading: the status is known, and the worker has
	// other deliveries.
	drainTimeout = 500 * time.Millisecond
	// maxRetryAfter bounds the pause that a server may ask for.
	maxRetryAfter = time.Hour
)

// answer returns the failure that an answer means, nil for 2xx, and closes its body.
// cancel ends the request.
func (h *Handler) answer(resp *http.Response, u *url.URL, cancel context.CancelFunc) *failure {
	stop := time.AfterFunc(drainTimeout, cancel)
	defer stop.Stop()
	defer func() { _ = resp.Body.Close() }() // nothing was written
	f := &failure{observation: h.observe(stageAnswer), host: u.Host}
	f.code = resp.StatusCode
	f.proxy = f.code == http.StatusProxyAuthRequired
	var text []byte
	// An error of reading does not matter: the status is known.
	if classify(f.observation) != delivered {
		text, _ = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	if classify(f.observation) == delivered {
		return nil
	}
	if wait, ok := retryAfter(resp.Header.Get("Retry-After"), time.Now()); ok {
		f.wait = wait
	}
	f.text = strconv.Itoa(f.code) + " " + http.StatusText(f.code)
	if f.code/100 == 3 {
		f.text += " (redirects are not followed: write the final address into url)"
	}
	if body := h.firstLine(text, u); body != "" {
		f.text += ": " + body
	}
	return f
}

// firstLine makes one line of the beginning of a body.
func (h *Handler) firstLine(text []byte, u *url.URL) string {
	s := h.hide(string(text), u)
	if len(text) == maxAnswer && h.redact.Longest() > 0 {
		// A secret may have been cut in two.
		s = s[:max(len(s)-h.redact.Longest(), 0)]
	}
	return shorten(s)
}

// retryAfter parses the header of that name: seconds, or a date
// (RFC 9110, 10.2.3). A time that is past is a pause of zero.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), true
}
