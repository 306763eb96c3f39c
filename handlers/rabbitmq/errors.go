package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/exhaust"
	"github.com/notifyd/notifyd/internal/secret"
)

// stage is where a delivery failed.
type stage uint8

const (
	stageMessage  stage = iota + 1 // building the message, before anything was sent
	stageConnect                   // TCP, TLS, authentication, vhost
	stageDeclare                   // the declarations, on a new connection
	stageBlocked                   // the broker has an alarm and takes nothing
	stageLost                      // the connection or the channel ended before the answer
	stageConfirm                   // no answer in time
	stageNack                      // the broker refused to keep the message
	stageReturned                  // no queue took it
	stageRefused                   // the broker closed the channel because of this message
	stageBehind                    // not sent, or to be sent again, behind an earlier one
	stageClosed                    // the handler is closed
)

func (s stage) String() string {
	switch s {
	case stageMessage:
		return "building the message"
	case stageConnect:
		return "connecting"
	case stageDeclare:
		return "declaring"
	case stageBlocked:
		return "the broker has blocked publishers"
	case stageLost:
		return "the connection was lost before the message was confirmed"
	case stageConfirm:
		return "waiting for the confirmation"
	case stageNack:
		return "the broker did not take the message"
	case stageReturned:
		return "no queue took the message"
	case stageRefused:
		return "the broker refused the message"
	case stageBehind:
		return "an earlier event of the same aggregate failed"
	case stageClosed:
		return "the handler is closed"
	default:
		return fmt.Sprintf("stage(%d)", uint8(s))
	}
}

// The reply codes with a cure of their own. See
// https://www.rabbitmq.com/amqp-0-9-1-reference#constants.
const (
	codeTooLarge     = amqp.ContentTooLarge    // 311
	codeAccess       = amqp.AccessRefused      // 403
	codeNotFound     = amqp.NotFound           // 404
	codePrecondition = amqp.PreconditionFailed // 406
	codeNotAllowed   = amqp.NotAllowed         // 530
)

// failure is a delivery that failed.
type failure struct {
	at   stage
	code int    // the broker's reply code, 0 if there was none
	text string // one line, with the cure
	err  error  // for errors.Is; nil if it could hold a secret
	own  bool   // the exchange, or the queue, that it is about depends on the event
	ours bool   // the context of the delivery was done
}

// Error returns one line.
func (f *failure) Error() string {
	if f.text == "" {
		return "rabbitmq: " + f.at.String()
	}
	return fmt.Sprintf("rabbitmq: %s: %s", f.at, f.text)
}

// isLogin reports whether the broker has refused the login.
func (f *failure) isLogin() bool { return f.at == stageConnect && f.code == codeAccess }

// Unwrap returns the network's error, or the cause of the timeout.
func (f *failure) Unwrap() error { return f.err }

// classify marks f with the party at fault. Nothing else decides that.
// docs/destinations/rabbitmq.md has the table.
func classify(f *failure) error {
	if f.ours {
		return f
	}
	switch f.at {
	case stageMessage:
		return delivery.Permanent(f)
	case stageReturned:
		if f.own {
			return f
		}
	case stageRefused:
		switch f.code {
		case codePrecondition, codeTooLarge:
			return delivery.Permanent(f)
		case codeNotFound, codeAccess:
			if f.own {
				return f
			}
		}
	case stageConnect:
		if f.isLogin() {
			return delivery.Unauthorized(f)
		}
	default: // the place
	}
	return delivery.Unavailable(f)
}

// aboutMessage reports whether the broker may have closed a channel because of one
// message, which is then worth finding.
func aboutMessage(code int, own bool) bool {
	switch code {
	case codePrecondition, codeTooLarge:
		return true
	case codeNotFound, codeAccess:
		return own
	default:
		return false
	}
}

// ended is the failure of something that took until ctx was done.
func ended(ctx context.Context, at stage) *failure {
	cause := context.Cause(ctx)
	return &failure{at: at, text: cause.Error(), err: cause}
}

// connectFailure describes why there is no connection. ctx is that of the try.
func (t target) connectFailure(ctx context.Context, at stage, err error) *failure {
	f := &failure{at: at, text: err.Error(), err: exhaust.Cause(err)}
	var reply *amqp.Error
	var cert *tls.CertificateVerificationError
	switch {
	case ctx.Err() != nil:
		f.err = context.Cause(ctx)
		f.text = f.err.Error()
	case errors.As(err, &reply):
		f.code, f.text = reply.Code, fmt.Sprintf("%d %s", reply.Code, reply.Reason)
	case errors.As(err, &cert):
		f.err = err
		f.text += " (check tls.server_name, or name the authority's certificate with tls.ca_file)"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.err = err
		f.text += " (check host and port, and whether the broker runs)"
	}
	f.text = t.addr() + ": " + t.clean(f.text) + connectCure(at, f.code)
	return f
}

// connectCure returns what an operator can do, or "".
func connectCure(at stage, code int) string {
	switch {
	case at == stageDeclare && code == codePrecondition:
		return " (it exists with other properties: make them the same in declare, or take it out of declare)"
	case at == stageDeclare && code == codeAccess:
		return " (give the user the right to configure, or take it out of declare)"
	case code == codeAccess:
		return " (check username, password and auth)"
	case code == codeNotAllowed:
		return " (check vhost, and that the user may use it)"
	default:
		return ""
	}
}

// clean makes a broker's text fit for an error: one short line without the password,
// which the broker may repeat.
func (t target) clean(text string) string {
	if t.password != guest {
		text = secret.NewRedactor(t.password).Redact(text)
	}
	return oneline.Of(text, oneline.MaxReply)
}
