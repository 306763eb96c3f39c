package mqtt

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/eclipse/paho.golang/packets"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

var (
	// errLost: the connection ended before the acknowledgement came.
	errLost       = errors.New("the connection was lost")
	errSilent     = errors.New("the broker did not answer a ping")
	errAckTimeout = errors.New("no acknowledgement within ack_timeout")
	errTooLarge   = errors.New("larger than the maximum packet size")
	errVersion    = errors.New("the broker does not speak MQTT 5")
	errForeign    = errors.New("the server does not speak MQTT")
	errNoAnswer   = errors.New("the server ended the connection before it answered")
	errNoQoS      = errors.New("the broker takes QoS 0 only, which has no acknowledgement")
	errNoRetain   = errors.New("the broker keeps no retained messages")
	// errReplaced ends a connection without users.
	errReplaced = errors.New("the connection was replaced")
	// errAgain: an event on a connection that the broker has ended over another one. Some brokers end a connection each
	// time they refuse a message.
	errAgain = errors.New("the broker ended the connection over another message")
)

// stage is what a broker refuses.
type stage string

const (
	connecting    stage = "connecting was refused"
	publishing    stage = "the message was refused"
	disconnecting stage = "the broker ended the connection"
)

// reason is a reason code of MQTT 5: see section 2.4 of the specification.
type reason byte

func (r reason) isRefusal() bool {
	const first = 0x80
	return r >= first
}

// String returns the name and the number of a reason.
func (r reason) String() string {
	return fmt.Sprintf("%s (0x%02X)", cmp.Or(names()[r], "unknown reason"), byte(r))
}

// The reason codes that the tables have.
const (
	unspecified       reason = 0x80
	malformed         reason = 0x81
	protocolError     reason = 0x82
	implementation    reason = 0x83
	wrongVersion      reason = 0x84
	clientIDInvalid   reason = 0x85
	badLogin          reason = 0x86
	notAuthorized     reason = 0x87
	serverUnavailable reason = 0x88
	serverBusy        reason = 0x89
	banned            reason = 0x8a
	shuttingDown      reason = 0x8b
	badMethod         reason = 0x8c
	keepAliveTimeout  reason = 0x8d
	takenOver         reason = 0x8e
	topicInvalid      reason = 0x90
	identifierInUse   reason = 0x91
	receiveMaximum    reason = 0x93
	packetTooLarge    reason = 0x95
	rateTooHigh       reason = 0x96
	quotaExceeded     reason = 0x97
	administrative    reason = 0x98
	payloadInvalid    reason = 0x99
	retainUnsupported reason = 0x9a
	qosUnsupported    reason = 0x9b
	useAnother        reason = 0x9c
	moved             reason = 0x9d
	connectionRate    reason = 0x9f
)

// names are the names in the specification.
func names() map[reason]string {
	return map[reason]string{
		unspecified: "unspecified error", malformed: "malformed packet", protocolError: "protocol error",
		implementation: "implementation specific error", wrongVersion: "unsupported protocol version",
		clientIDInvalid: "client identifier not valid", badLogin: "bad user name or password",
		notAuthorized: "not authorized", serverUnavailable: "server unavailable", serverBusy: "server busy", banned: "banned",
		shuttingDown: "server shutting down", badMethod: "bad authentication method",
		keepAliveTimeout: "keep alive timeout", takenOver: "session taken over", topicInvalid: "topic name invalid",
		identifierInUse: "packet identifier in use", receiveMaximum: "receive maximum exceeded",
		packetTooLarge: "packet too large", rateTooHigh: "message rate too high", quotaExceeded: "quota exceeded",
		administrative: "administrative action", payloadInvalid: "payload format invalid",
		retainUnsupported: "retain not supported", qosUnsupported: "QoS not supported", useAnother: "use another server",
		moved: "server moved", connectionRate: "connection rate exceeded",
	}
}

// reasonError is a refusal by a broker.
type reasonError struct {
	stage  stage
	reason reason
	text   string // of the broker; it may repeat a topic
	alone  bool   // the message was the only one under way
}

func refusal(at stage, code byte, p *packets.Properties) *reasonError {
	return &reasonError{stage: at, reason: reason(code), text: p.ReasonString}
}

func (e *reasonError) Error() string {
	text := string(e.stage) + ": " + e.reason.String()
	if e.text != "" {
		text += ": " + e.text
	}
	return text
}

func (e *reasonError) Unwrap() error { return codeError{e.reason} }

// codeError is a reason without the broker's text.
type codeError struct{ reason reason }

func (e codeError) Error() string { return e.reason.String() }

const loginCure = "check username and password"

// connectCodes is the table of refused connections, for a broker that ends one too. A code that is not in it is a fault
// of the broker.
func connectCodes() outcome.Table[reason] {
	const busyCure = "the broker is busy or restarts"
	return outcome.Table[reason]{
		{Codes: []reason{badLogin, notAuthorized, badMethod}, Class: outcome.Unauthorized, Cure: loginCure + ", and the rights of the client id"},
		{Codes: []reason{banned}, Class: outcome.Unauthorized, Cure: "the broker has banned this client"},
		{Codes: []reason{clientIDInvalid}, Class: outcome.Unavailable, Cure: "check client_id: the broker does not take it"},
		{Codes: []reason{wrongVersion}, Class: outcome.Unavailable, Cure: versionCure},
		{Codes: []reason{serverUnavailable, serverBusy, shuttingDown, connectionRate}, Class: outcome.Unavailable, Cure: busyCure},
		{Codes: []reason{rateTooHigh, quotaExceeded}, Class: outcome.Throttled, Cure: quotaCure},
		{Codes: []reason{takenOver}, Class: outcome.Unavailable, Cure: "another client has connected with the id of this connection"},
		{Codes: []reason{useAnother, moved}, Class: outcome.Unavailable, Cure: "check servers: the broker names another one"},
		{Codes: []reason{retainUnsupported}, Class: outcome.Unavailable, Cure: retainCure},
		{Codes: []reason{qosUnsupported}, Class: outcome.Unavailable, Cure: qosCure},
	}
}

const (
	versionCure = "only MQTT 5 tells why a broker refuses a message: use a broker that has it"
	quotaCure   = "a limit of the broker is reached: raise it, or set rate_limit"
	retainCure  = "set retain: false, or let the broker keep retained messages"
	qosCure     = "let the broker take QoS 1"
	topicCure   = "check topic, and the rights of the user"
)

// publishCodes is the table of refused messages. Own is for a topic made of the event: the template may be wrong for every
// event. The codes behind the first two rules are about one message; a code that is not in the table may be.
func publishCodes() outcome.Table[reason] {
	return outcome.Table[reason]{
		{Codes: []reason{quotaExceeded, rateTooHigh}, Class: outcome.Throttled, Cure: quotaCure},
		{Codes: []reason{identifierInUse, receiveMaximum}, Class: outcome.Unavailable},
		{Codes: []reason{notAuthorized}, Class: outcome.Unavailable, Own: outcome.UnclearRetry, Cure: "allow the user to publish to the topic"},
		{Codes: []reason{topicInvalid}, Class: outcome.Unavailable, Own: outcome.Unclear, Cure: topicCure},
		{Codes: []reason{packetTooLarge}, Class: outcome.Permanent, Cure: tooLargeCure},
		{Codes: []reason{payloadInvalid}, Class: outcome.Permanent, Cure: "the broker checks payloads: correct the payload, or format"},
		{Codes: []reason{retainUnsupported}, Class: outcome.Unavailable, Cure: retainCure},
		{Codes: []reason{qosUnsupported}, Class: outcome.Unavailable, Cure: qosCure},
	}
}

const tooLargeCure = "raise the broker's maximum packet size"

// causes is the table of the other failures.
func (h *Handler) causes() outcome.Table[error] {
	return outcome.Table[error]{
		{Codes: []error{errTooLarge}, Class: outcome.Permanent, Cure: tooLargeCure},
		{Codes: []error{errVersion}, Class: outcome.Unavailable, Cure: versionCure},
		{Codes: []error{errForeign, errNoAnswer}, Class: outcome.Unavailable, Cure: "check the port in servers, and whether it has TLS: mqtts://"},
		{Codes: []error{errNoQoS}, Class: outcome.Unavailable, Cure: qosCure},
		{Codes: []error{errNoRetain}, Class: outcome.Unavailable, Cure: retainCure},
		{
			Codes: []error{errAckTimeout}, Class: outcome.Unavailable,
			Cure: fmt.Sprintf("ack_timeout is %v; subscribers may get the event twice", h.cfg.AckTimeout),
		},
	}
}

// isAboutPacket reports whether the broker has ended the connection over one of the packets that it was sent.
func isAboutPacket(err error) bool {
	e, ok := errors.AsType[*reasonError](err)
	if !ok || e.stage != disconnecting {
		return false
	}
	switch e.reason {
	case unspecified, malformed, protocolError, implementation, topicInvalid, packetTooLarge, payloadInvalid:
		return true
	default:
		return false
	}
}

// isAlone reports whether the broker has ended the connection over this message, which was the only one under way.
func isAlone(err error) bool {
	e, ok := errors.AsType[*reasonError](err)
	return ok && e.alone
}

// notSent returns the error of an event that was not sent because the destination is down.
func notSent(down error) error {
	if isAboutPacket(down) {
		return errAgain
	}
	return down
}

// lookUp returns the party at fault and the cure.
func (h *Handler) lookUp(err error) (class outcome.Class, cure string) {
	own := h.encoder.fixed == ""
	e, isRefusal := errors.AsType[*reasonError](err)

	switch {
	case isAboutPacket(err) && !isAlone(err): // another message may be at fault
		return outcome.Unavailable, ""
	case isRefusal && (e.stage == publishing || isAboutPacket(err)):
		class, cure = publishCodes().Find(own, e.reason)
		return cmp.Or(class, outcome.UnclearRetry), cure
	case isRefusal:
		class, cure = connectCodes().Find(own, e.reason)
	default:
		class, cure = outcome.Match(h.causes(), own, err)
	}
	return cmp.Or(class, outcome.Unavailable), cure
}

// answer returns the error of DeliverBatch for a failure.
func (h *Handler) answer(ctx context.Context, err error) error {
	if errors.Is(err, outcome.ErrClosed) {
		return h.out.Closed()
	}

	class, cure := h.lookUp(err)
	e, isRefusal := errors.AsType[*reasonError](err)
	if ctx.Err() != nil && class != outcome.Permanent && !isRefusal {
		return h.out.Ended(ctx, "")
	}

	f := outcome.Failure{Err: err, Text: err.Error(), Cure: cure}
	if isRefusal {
		f.Code = codeError{e.reason}
		if h.encoder.fixed == "" && e.stage != connecting {
			f.Text = string(e.stage) + ": " + e.reason.String() // a topic made of a payload does not belong into logs
		}
	}
	return class.Mark(0, h.out.Line(f))
}
