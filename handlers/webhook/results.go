package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

const (
	// leastResults and eachResult bound the body of an answer of 207: a receiver must not fill the memory.
	leastResults = 64 << 10
	eachResult   = 512 // for each event of the request
	// leastStatus is the smallest number that is a status of HTTP.
	leastStatus = 100
)

// result is an element of the body of a 207: what the receiver answers for one event.
type result struct {
	// ID is the id of a CloudEvent, or the dedupe_id of a line.
	ID string `json:"id"`
	// Status is the status with which the receiver would answer a request with this event alone.
	Status int `json:"status"`
	// RetryAfter is in seconds, 0 for none.
	RetryAfter float64 `json:"retry_after"`
	// Error is the reason of a failure.
	Error string `json:"error"`
}

// wait returns the pause that the receiver asks for.
func (r *result) wait() time.Duration {
	if r.RetryAfter >= outcome.MaxRetryAfter.Seconds() {
		return outcome.MaxRetryAfter
	}
	return time.Duration(max(r.RetryAfter, 0) * float64(time.Second))
}

// results are the results of a 207, by id; nil without a 207.
type results map[string]result

// parseResults reads the body of a 207. If it names an event several times, a failure counts: the event is
// delivered only if no result contradicts that. Elements without an id or a status are ignored. Text that is not an
// array of results is an error, and so is text behind it, and a body of more than most bytes.
func parseResults(body []byte, most int) (results, error) {
	if len(body) > most {
		return nil, fmt.Errorf("it has more than %d bytes", most)
	}
	var all []result
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	if all == nil {
		return nil, errors.New("null is no array") // encoding/json takes it for one
	}
	named := make(results, len(all))
	for _, one := range all {
		if one.ID == "" || one.Status < leastStatus {
			continue
		}
		if before, ok := named[one.ID]; !ok || isDelivered(before.Status) {
			named[one.ID] = one
		}
	}
	return named, nil
}

// multiStatus reads the results of a batch into d, and closes the body. It returns a failure if they cannot be read, which
// is a failure of all events of the request. ctx is the context of the request.
func (h *Handler) multiStatus(ctx context.Context, resp *http.Response, d *draft) *failure {
	defer func() { _ = resp.Body.Close() }() // nothing was written
	most := leastResults + d.batch*eachResult
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	if err != nil {
		o := h.observe(stageWait) // some events may have arrived
		return h.failed(o, d.url.Host, outcome.Failure{Err: err, Text: h.hide("207 Multi-Status, but its results: "+h.reason(ctx, stageAnswer, err), d.url)})
	}
	if d.named, err = parseResults(body, most); err != nil {
		o := h.observe(stageAnswer)
		o.code = resp.StatusCode
		return h.failed(o, d.url.Host, outcome.Failure{
			Text: h.hide("207 Multi-Status, but its body holds no results: "+err.Error(), d.url),
			Cure: `answer with a JSON array of {"id": "...", "status": 200}`,
		})
	}
	return nil
}

// resultError returns the error for the result of an event: as that of a request with the event alone, nil for 2xx.
func (h *Handler) resultError(u *url.URL, r result) error {
	if isDelivered(r.Status) {
		return nil
	}
	o := h.observe(stageAnswer)
	o.code = r.Status
	_, cure := statuses().Find(false, r.Status)
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
