package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Error codes of JetStream for which its client has no names. The source is
// https://github.com/nats-io/nats-server/blob/main/server/errors.json.
const (
	codeAccountResources      jetstream.ErrorCode = 10002
	codeInsufficientResources jetstream.ErrorCode = 10023
	codeStorageExceeded       jetstream.ErrorCode = 10047
	codeMemoryExceeded        jetstream.ErrorCode = 10028
	codeNotMatch              jetstream.ErrorCode = 10060 // the expected stream
	codeStoreFailed           jetstream.ErrorCode = 10077 // a limit with discard: new
	codeHeaderTooLarge        jetstream.ErrorCode = 10097
	codeSealed                jetstream.ErrorCode = 10109
)

var (
	// errNoStream: it is certain that no stream takes the subject of an event.
	errNoStream = errors.New("no stream takes the subject that was made of this event")
	// errLost: the connection ended before the acknowledgement came.
	errLost         = errors.New("the connection was lost")
	errFlushTimeout = errors.New("no answer within ack_timeout")
)

// apiCode returns the code of an error of JetStream, 0 for any other
// error.
func apiCode(err error) jetstream.ErrorCode {
	var js jetstream.JetStreamError
	if errors.As(err, &js) && js.APIError() != nil {
		return js.APIError().ErrorCode
	}
	return 0
}

// isReply reports whether a server has answered.
func isReply(err error) bool {
	return apiCode(err) != 0 || refusedSubject(err) != "" ||
		errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, errNoStream)
}

// perSubject stands for the limit of a subject's messages. JetStream has one code, codeStoreFailed, for all
// limits.
const perSubject jetstream.ErrorCode = 1

// codes is the table of JetStream's codes. Own is for a subject made of the event: the template, or the account, may be wrong
// for every event. A code that is not in it is a fault of the server.
func codes() outcome.Table[jetstream.ErrorCode] {
	return outcome.Table[jetstream.ErrorCode]{
		{
			Codes: []jetstream.ErrorCode{jetstream.JSErrCodeStreamMessageExceedsMaximum},
			Class: outcome.Permanent,
			Cure:  "raise max_msg_size of the stream",
		},
		{Codes: []jetstream.ErrorCode{codeHeaderTooLarge}, Class: outcome.Permanent},
		{
			Codes: []jetstream.ErrorCode{codeNotMatch},
			Class: outcome.Unavailable,
			Own:   outcome.UnclearRetry,
			Cure:  "another stream takes the subject: check stream and subject",
		},
		{Codes: []jetstream.ErrorCode{perSubject}, Class: outcome.Unavailable, Own: outcome.UnclearRetry, Cure: fullCure},
		{Codes: []jetstream.ErrorCode{codeStoreFailed}, Class: outcome.Unavailable, Cure: fullCure},
		{
			Codes: []jetstream.ErrorCode{codeAccountResources, codeInsufficientResources, codeStorageExceeded, codeMemoryExceeded},
			Class: outcome.Unavailable, Cure: "there is no room: raise the limits of the account or the server for JetStream",
		},
		{Codes: []jetstream.ErrorCode{codeSealed}, Class: outcome.Unavailable, Cure: "the stream is sealed and takes nothing more"},
		{
			Codes: []jetstream.ErrorCode{jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount},
			Class: outcome.Unavailable, Cure: "enable JetStream for the account, or set mode: core",
		},
	}
}

const fullCure = "the stream is full and discards new messages: raise its limits, or set discard: old"

// causes is the table of the client's errors.
func (h *Handler) causes() outcome.Table[error] {
	const noStream = "create a stream that has the subject, or enable JetStream; or set mode: core"
	return outcome.Table[error]{
		{Codes: []error{natsgo.ErrMaxPayload}, Class: outcome.Permanent, Cure: "raise max_payload of the server"},
		{Codes: []error{natsgo.ErrBadSubject, natsgo.ErrBadHeaderMsg}, Class: outcome.Permanent},
		{Codes: []error{errNoStream}, Class: outcome.Unavailable, Own: outcome.UnclearRetry, Cure: noStream},
		{Codes: []error{jetstream.ErrNoStreamResponse}, Class: outcome.Unavailable, Cure: noStream},
		{
			Codes: []error{natsgo.ErrAuthorization, natsgo.ErrAuthExpired, natsgo.ErrAuthRevoked, natsgo.ErrAccountAuthExpired},
			Class: outcome.Unauthorized, Cure: "check username and password, token, credentials_file or nkey_seed",
		},
		{
			Codes: []error{natsgo.ErrSecureConnWanted},
			Class: outcome.Unavailable,
			Cure:  "the server has no TLS: take tls out, or write nats://",
		},
		{Codes: []error{natsgo.ErrSecureConnRequired}, Class: outcome.Unavailable, Cure: "set tls: {}"},
		{
			Codes: []error{jetstream.ErrAsyncPublishTimeout}, Class: outcome.Unavailable,
			Cure: fmt.Sprintf("no acknowledgement within ack_timeout of %v; the stream recognises a copy by its id", h.cfg.AckTimeout),
		},
	}
}

// lookUp returns the party at fault and the cure.
func (h *Handler) lookUp(err error) (class outcome.Class, cure string) {
	own := h.encoder.fixed == ""
	code := apiCode(err)

	switch {
	case code == codeStoreFailed && strings.Contains(err.Error(), "per subject"):
		code = perSubject
	case errors.Is(err, natsgo.ErrPermissionViolation):
		class = outcome.Unavailable
		cure = "allow the user to publish there, and to subscribe to _INBOX.>"
		if own && refusedSubject(err) != "" { // the forbidden subject may be the one for the answer to a request
			class = outcome.UnclearRetry
		}
		return class, cure
	}

	if code != 0 {
		class, cure = codes().Find(own, code)
	} else {
		class, cure = outcome.Match(h.causes(), own, err)
	}

	return cmp.Or(class, outcome.Unavailable), cure
}

// answer returns the error of DeliverBatch for a failure.
func (h *Handler) answer(ctx context.Context, err error) error {
	class, cure := h.lookUp(err)

	if ctx.Err() != nil && class != outcome.Permanent && !isReply(err) {
		return h.out.Ended(ctx, "")
	}

	f := outcome.Failure{Err: err, Text: err.Error(), Cure: cure}
	if js, ok := errors.AsType[jetstream.JetStreamError](err); ok {
		f.Code = js
	}

	if refusedSubject(err) != "" && h.encoder.fixed == "" {
		// A name made of a payload does not belong into logs.
		f.Text = "permissions violation for publish"
		f.Err = nil
	}

	if isReply(err) && h.encoder.fixed != "" {
		f.Text = "subject " + h.encoder.fixed + ": " + f.Text
	}

	f.Text = strings.ReplaceAll(f.Text, "nats: ", "")
	return class.Mark(0, h.out.Line(f))
}
