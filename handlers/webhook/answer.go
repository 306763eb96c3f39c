package webhook

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
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
)

// answer returns the failure that an answer means, nil for 2xx, and closes its body.
// cancel ends the request.
func (h *Handler) answer(resp *http.Response, d *draft, cancel context.CancelFunc) *failure {
	stop := time.AfterFunc(drainTimeout, cancel)
	defer stop.Stop()
	defer func() { _ = resp.Body.Close() }() // nothing was written
	o := h.observe(stageAnswer)
	o.code = resp.StatusCode
	o.proxy = o.code == http.StatusProxyAuthRequired
	o.batch = d.batch > 0
	var body []byte
	if !isDelivered(o.code) {
		// An error of reading does not matter: the status is known.
		body, _ = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	if isDelivered(o.code) {
		return nil
	}
	_, cure := statuses().Find(false, o.code)
	switch {
	case o.code/100 == 3:
		cure = "redirects are not followed: write the final address into url"
	case o.batch && o.code == http.StatusUnsupportedMediaType:
		cure = "the receiver takes no such batches: set another batch_format, or take it out"
	}
	text := outcome.Status(o.code)
	if said := h.beginning(body, d.url); said != "" {
		text += ": " + said
	}
	f := h.failed(o, d.url.Host, outcome.Failure{Text: text, Cure: cure})
	f.wait, _ = outcome.RetryAfter(resp.Header, time.Now())
	return f
}

// beginning returns the beginning of a body without the secrets.
func (h *Handler) beginning(body []byte, u *url.URL) string {
	s := h.hide(string(body), u)
	if len(body) == maxAnswer && h.redact.Longest() > 0 {
		// A secret may have been cut in two.
		s = s[:max(len(s)-h.redact.Longest(), 0)]
	}
	return s
}
