package pubsub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/exhaust"
	"github.com/notifyd/notifyd/internal/secret"
)

// fault is the party at fault by a code.
type fault uint8

const (
	faultUnknown     fault = iota // tried again with backoff
	faultMessage                  // the message, or one of those in the request
	faultDestination              // the topic, our permissions, or Pub/Sub
	faultThrottled                // a quota
)

// faultOf sorts the codes of Pub/Sub, which are those of gRPC. See
// https://cloud.google.com/pubsub/docs/reference/error-codes.
func faultOf(code string) (f fault, cure string) {
	switch code {
	case "INVALID_ARGUMENT", "OUT_OF_RANGE":
		return faultMessage, ""
	case "NOT_FOUND":
		return faultDestination, "create the topic, or check project and topic"
	case "PERMISSION_DENIED":
		return faultDestination, "grant roles/pubsub.publisher on the topic, and check that the API is enabled"
	case "UNAUTHENTICATED":
		return faultDestination, "check the credentials"
	case "FAILED_PRECONDITION":
		return faultDestination, "look at the topic: its key, its regions, its ingestion"
	case "RESOURCE_EXHAUSTED":
		return faultThrottled, ""
	case "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED", "UNKNOWN", "DATA_LOSS":
		return faultDestination, ""
	case "UNIMPLEMENTED":
		return faultDestination, "check endpoint"
	default:
		return faultUnknown, ""
	}
}

// refusal is an answer that refuses a request for its messages, as far as is known: none
// of them was taken. All other errors are marked.
type refusal struct {
	what fault
	text string
}

// Error returns one line.
func (r *refusal) Error() string { return "pubsub: " + r.text }

func isRefusal(err error) bool {
	_, ok := errors.AsType[*refusal](err)
	return ok
}

// mark is for the refusal of one message alone.
func mark(err error) error {
	if r, ok := errors.AsType[*refusal](err); ok && r.what == faultMessage {
		return delivery.Permanent(err)
	}
	return err
}

// refused classifies an answer that is not a success. An answer without a code that is known
// is classified by its status.
func refused(resp *http.Response, body []byte, token string) error {
	var said struct {
		Error struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"error"`
	}
	readable := json.Unmarshal(body, &said) == nil && said.Error.Status != ""
	what, cure := faultOf(said.Error.Status)
	status := resp.StatusCode
	line := oneline.Of(said.Error.Status, oneline.MaxReply)
	switch {
	case readable && what != faultUnknown:
	case status == http.StatusTooManyRequests:
		what = faultThrottled
	case status == http.StatusRequestEntityTooLarge:
		what = faultMessage
	case !readable || status/100 != 4:
		what = faultDestination
	}
	if !readable {
		line = fmt.Sprintf("HTTP %d %s, with an answer that is not from Pub/Sub", status, http.StatusText(status))
		cure = "check endpoint, and proxies"
	}
	if text := clean(said.Error.Message, token); text != "" {
		line += ": " + text
	}
	if cure != "" {
		line += " (" + cure + ")"
	}
	switch what {
	case faultDestination:
		return delivery.Unavailable(errors.New("pubsub: " + line))
	case faultThrottled:
		return delivery.Throttled(retryAfter(resp.Header.Get("Retry-After")), errors.New("pubsub: "+line))
	default:
		return &refusal{what, line}
	}
}

// retryAfter reads the header, which holds seconds; without it the pause is zero.
func retryAfter(value string) time.Duration {
	seconds, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// classify returns the error of a request without an answer. ctx is that of the delivery
// and rctx that of the request; sent says that the messages were on their way.
func (*Handler) classify(ctx, rctx context.Context, sent bool, err error) error {
	maybe := ""
	if sent {
		maybe = "maybe sent: "
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("pubsub: %s%w", maybe, context.Cause(ctx))
	case rctx.Err() != nil:
		return delivery.Unavailable(fmt.Errorf("pubsub: %sno answer: %w", maybe, context.Cause(rctx)))
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return delivery.Unavailable(&oneline.Error{Text: "pubsub: " + clean(op.Error(), ""), Cause: op})
	}
	line := &oneline.Error{Text: "pubsub: " + maybe + clean(err.Error(), ""), Cause: exhaust.Cause(err)}
	if delivery.IsUnauthorized(err) {
		return delivery.Unauthorized(line)
	}
	return delivery.Unavailable(line)
}

// clean makes a text from outside fit for an error.
func clean(text, token string) string {
	return oneline.Reply(text, secret.NewRedactor(token))
}
