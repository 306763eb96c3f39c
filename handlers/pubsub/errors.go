package pubsub

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// codes is the table of Pub/Sub's codes, which are gRPC's codes. See
// https://cloud.google.com/pubsub/docs/reference/error-codes.
func codes() outcome.Table[string] {
	return outcome.Table[string]{
		// A schema that was attached to the topic, or a setting of it, may refuse every message.
		{
			Codes: []string{"INVALID_ARGUMENT", "OUT_OF_RANGE"},
			Class: outcome.Unclear,
			Cure:  "look at the event, and at the topic: its schema, its limits",
		},
		{Codes: []string{"NOT_FOUND"}, Class: outcome.Unavailable, Cure: "create the topic, or check project and topic"},
		{
			Codes: []string{"PERMISSION_DENIED"},
			Class: outcome.Unavailable,
			Cure:  "grant roles/pubsub.publisher on the topic, and check that the API is enabled",
		},
		// The token is the cause; the next request has another one.
		{Codes: []string{"UNAUTHENTICATED"}, Class: outcome.Unavailable, Cure: "check the credentials"},
		{
			Codes: []string{"FAILED_PRECONDITION"},
			Class: outcome.Unavailable,
			Cure:  "look at the topic: its key, its regions, its ingestion",
		},
		{Codes: []string{"RESOURCE_EXHAUSTED"}, Class: outcome.Throttled},
		{Codes: []string{"UNIMPLEMENTED"}, Class: outcome.Unavailable, Cure: "check endpoint"},
		{
			Codes: []string{"UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED", "UNKNOWN", "DATA_LOSS"},
			Class: outcome.Unavailable,
		},
	}
}

// statuses is the table for answers without a code that is known. Unknown codes with another status of the client may be
// about the message, or about all.
func statuses() outcome.Table[int] {
	return outcome.Table[int]{
		{Codes: []int{http.StatusTooManyRequests}, Class: outcome.Throttled},
		{Codes: []int{http.StatusRequestEntityTooLarge}, Class: outcome.Permanent},
	}
}

// destination describes failures. A server's text may contain secrets.
func destination(secrets ...string) *outcome.Destination {
	return outcome.New("pubsub", "check endpoint, and proxies", secrets...)
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
	if !readable {
		// Another server has answered: the fields decoded before the mistake mean nothing.
		said.Error.Status = ""
		said.Error.Message = ""
	}

	class, cure := codes().Find(false, said.Error.Status)
	if class == outcome.Unknown {
		class, _ = statuses().Find(false, resp.StatusCode)
	}

	mayBeEvents := readable && resp.StatusCode/100 == 4
	switch {
	case class == outcome.Unknown && mayBeEvents:
		class = outcome.UnclearRetry
	case class == outcome.Unknown:
		class = outcome.Unavailable
	}

	text := said.Error.Status
	if !readable {
		text, cure = outcome.Stranger(resp.StatusCode, "Pub/Sub")
	}
	if said.Error.Message != "" {
		text += ": " + said.Error.Message
	}

	line := destination(token).Line(outcome.Failure{Text: text, Cure: cure})
	if class.MayBeEvents() {
		return &outcome.RefusalError{Class: class, Err: line}
	}

	wait, _ := outcome.RetryAfter(resp.Header, time.Now())
	return class.Mark(wait, line)
}
