package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
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

// result is the receiver's answer for one event: an element of the body of a 207.
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
func (r result) wait() time.Duration {
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
