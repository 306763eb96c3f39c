package webhook

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
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

	text := outcome.Status(o.code)
	if said := h.beginning(body, d.url); said != "" {
		text += ": " + said
	}

	f := h.failed(o, d.url.Host, outcome.Failure{Text: text, Cure: cureOf(o, string(body))})
	f.wait, _ = outcome.RetryAfter(resp.Header, time.Now())
	return f
}

// cureOf returns the operator's remedy for an answer, or "". The text decides about the remedy only.
func cureOf(o observation, said string) string {
	saysTLS := o.code == http.StatusBadRequest && strings.Contains(said, "HTTPS")
	saysCertificate := o.code == http.StatusBadRequest && strings.Contains(said, "SSL certificate")

	switch {
	case o.code/100 == 3:
		return "redirects are not followed: write the final address into url"
	case o.batch && o.code == http.StatusUnsupportedMediaType:
		return "the receiver takes no such batches: set another batch_format, or take it out"
	case saysTLS:
		return "write https:// into url"
	case saysCertificate:
		return "set tls.cert_file and tls.key_file to a certificate that the receiver takes"
	default:
		cure := outcome.CureOfStatus(o.code)
		return cure
	}
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

// multiStatus reads the results of a batch into d, and closes the body. It returns a failure if they cannot be read, which
// is a failure of all events of the request. ctx is the context of the request.
func (h *Handler) multiStatus(ctx context.Context, resp *http.Response, d *draft) *failure {
	defer func() { _ = resp.Body.Close() }() // nothing was written

	most := leastResults + d.batch*eachResult
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	if err != nil {
		o := h.observe(stageWait) // some events may have arrived
		text := h.hide("207 Multi-Status, but its results: "+h.reason(ctx, stageAnswer, err), d.url)
		return h.failed(o, d.url.Host, outcome.Failure{Err: err, Text: text})
	}

	d.named, err = parseResults(body, most)
	if err != nil {
		o := h.observe(stageAnswer)
		o.code = resp.StatusCode
		return h.failed(o, d.url.Host, outcome.Failure{
			Text: h.hide("207 Multi-Status, but its body holds no results: "+err.Error(), d.url),
			Cure: `answer with a JSON array of {"id": "...", "status": 200}`,
		})
	}

	return nil
}

// resultError returns the error that a request with the event alone would have for this status; nil for 2xx.
func (h *Handler) resultError(u *url.URL, r result) error {
	if isDelivered(r.Status) {
		return nil
	}

	o := h.observe(stageAnswer)
	o.code = r.Status
	cure := outcome.CureOfStatus(r.Status)

	text := "207 Multi-Status with " + outcome.Status(r.Status)
	if said := h.hide(r.Error, u); said != "" {
		text += ": " + said
	}

	f := h.failed(o, u.Host, outcome.Failure{Text: text, Cure: cure})
	f.wait = r.wait()
	return f.mark()
}

// unnamed returns the error for an event that a 207 does not name. It may have arrived.
func (h *Handler) unnamed(u *url.URL) error {
	o := h.observe(stageAnswer)
	o.code = http.StatusMultiStatus
	return h.failed(o, u.Host, outcome.Failure{
		Text: "207 Multi-Status without a result for this event (maybe delivered: it will be sent again)",
		Cure: "name each id of the request",
	}).mark()
}
