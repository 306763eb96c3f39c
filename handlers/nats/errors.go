package nats

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/exhaust"
	"github.com/notifyd/notifyd/internal/secret"
)

// Error codes of JetStream for which its client has no names. They are those of
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
	// errLost says that the connection ended before the acknowledgement came.
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

// isContent reports whether an event is refused for its content.
func isContent(err error) bool {
	var content *contentError
	code := apiCode(err)
	return code == jetstream.JSErrCodeStreamMessageExceedsMaximum || code == codeHeaderTooLarge || errors.As(err, &content) || errors.Is(err, natsgo.ErrMaxPayload) || errors.Is(err, natsgo.ErrBadSubject) ||
		errors.Is(err, natsgo.ErrBadHeaderMsg)
}

// isOwn reports whether an error is about the subject: a subject made of the event
// makes the error the event's alone.
func isOwn(err error) bool {
	switch {
	case errors.Is(err, errNoStream), refusedSubject(err) != "", apiCode(err) == codeNotMatch:
		return true
	case apiCode(err) == codeStoreFailed:
		// One code for all limits. This one counts the messages of a subject.
		return strings.Contains(err.Error(), "per subject")
	default:
		return false
	}
}

// classify marks answer, which describes err, with the party at fault. Nothing else
// decides that. own says that the subject was made of the event.
func classify(answer, err error, own bool) error {
	switch {
	case err == nil:
		return nil
	case isContent(err):
		return delivery.Permanent(answer)
	case own && isOwn(err):
		return answer
	case isLogin(err):
		return delivery.Unauthorized(answer)
	default:
		return delivery.Unavailable(answer)
	}
}

// isLogin reports whether a server has refused the credentials.
func isLogin(err error) bool {
	return errors.Is(err, natsgo.ErrAuthorization) || errors.Is(err, natsgo.ErrAuthExpired) || errors.Is(err, natsgo.ErrAuthRevoked) ||
		errors.Is(err, natsgo.ErrAccountAuthExpired)
}

// describe returns the failure and its cure.
func (h *Handler) describe(err error) error {
	text, safe := err.Error(), true
	if subject := refusedSubject(err); subject != "" && h.encoder.fixed == "" {
		// A name made of a payload does not belong into logs.
		text, safe = "permissions violation for publish", false
	}
	if isReply(err) && h.encoder.fixed != "" {
		text = "subject " + h.encoder.fixed + ": " + text
	}
	clean := secret.NewRedactor(h.cfg.Password.Reveal(), h.cfg.Token.Reveal(), h.cfg.NKeySeed.Reveal()).Redact(text)
	safe = safe && clean == text
	text = strings.ReplaceAll(oneline.Of(clean, oneline.MaxReply), "nats: ", "")
	f := &oneline.Error{Text: "nats: " + text + h.cure(err)}
	if safe {
		f.Cause = harmless(err)
	}
	return f
}

// harmless returns the part of an error's chain that is known to hold no secret.
func harmless(err error) error {
	var content *contentError
	var js jetstream.JetStreamError
	var network *net.OpError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &content):
		return content
	case errors.As(err, &js):
		return js
	case errors.As(err, &cert):
		return cert
	case errors.As(err, &network):
		return network
	case errors.Is(err, errLost):
		return errLost
	case errors.Is(err, natsgo.ErrMaxPayload), errors.Is(err, errNoStream), errors.Is(err, errClosed), errors.Is(err, errFlushTimeout):
		return err
	default:
		return exhaust.Cause(err)
	}
}

// cure returns what an operator can do, or "".
func (h *Handler) cure(err error) string {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case apiCode(err) != 0:
		return apiCure(apiCode(err))
	case errors.Is(err, natsgo.ErrMaxPayload):
		return " (raise max_payload of the server)"
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, errNoStream):
		return " (create a stream that has the subject, or enable JetStream; or set mode: core)"
	case errors.Is(err, natsgo.ErrPermissionViolation):
		return " (allow the user to publish there, and to subscribe to _INBOX.>)"
	case isLogin(err):
		return " (check username and password, token, credentials_file or nkey_seed)"
	case errors.Is(err, natsgo.ErrSecureConnWanted):
		return " (the server has no TLS: take tls out, or write nats://)"
	case errors.Is(err, natsgo.ErrSecureConnRequired):
		return " (set tls: {})"
	case errors.As(err, &cert):
		return " (check tls.server_name, or name the authority's certificate with tls.ca_file)"
	case errors.As(err, &record):
		return " (the port does not speak TLS: check servers, or take tls out)"
	case errors.Is(err, jetstream.ErrAsyncPublishTimeout):
		return fmt.Sprintf(" (no acknowledgement within ack_timeout of %v; the stream recognises a copy by its id)", h.cfg.AckTimeout)
	default:
		return ""
	}
}

// apiCure is cure for the codes of JetStream.
func apiCure(code jetstream.ErrorCode) string {
	switch code {
	case jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return " (raise max_msg_size of the stream)"
	case codeStoreFailed:
		return " (the stream is full and discards new messages: raise its limits, or set discard: old)"
	case codeAccountResources, codeInsufficientResources, codeStorageExceeded, codeMemoryExceeded:
		return " (there is no room: raise the limits of the account or the server for JetStream)"
	case codeNotMatch:
		return " (another stream takes the subject: check stream and subject)"
	case codeSealed:
		return " (the stream is sealed and takes nothing more)"
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return " (enable JetStream for the account, or set mode: core)"
	default:
		return ""
	}
}
