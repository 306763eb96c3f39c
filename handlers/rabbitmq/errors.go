package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
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
	stageDelay                     // returned by an exchange that may have kept it
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
	case stageDelay:
		return "it is unknown whether the exchange delays messages"
	case stageClosed:
		return outcome.ErrClosed.Error()
	default:
		return fmt.Sprintf("stage(%d)", uint8(s))
	}
}

// place is a stage with the reply code of the broker, 0 for none.
type place struct {
	at   stage
	code int
}

// places is the table of failures. Own is for an exchange, or a queue, that depends on the event: the template, the bindings
// or the rights of the user may be wrong for every event. A place that is not in it is a fault of the broker. docs/destinations/rabbitmq.md has the table, and
// https://www.rabbitmq.com/amqp-0-9-1-reference#constants the codes.
func places() outcome.Table[place] {
	return outcome.Table[place]{
		{Codes: []place{{at: stageMessage}}, Class: outcome.Permanent},
		{Codes: []place{{at: stageReturned}}, Class: outcome.Unavailable, Own: outcome.UnclearRetry},
		{Codes: []place{{at: stageBehind}}, Class: outcome.Throttled},

		{Codes: []place{{stageRefused, amqp.ContentTooLarge}}, Class: outcome.Permanent},
		{Codes: []place{{stageRefused, amqp.PreconditionFailed}}, Class: outcome.Unclear},
		{
			Codes: []place{{stageRefused, amqp.NotFound}, {stageRefused, amqp.AccessRefused}},
			Class: outcome.Unavailable,
			Own:   outcome.UnclearRetry,
		},

		{Codes: []place{{stageConnect, amqp.AccessRefused}}, Class: outcome.Unauthorized, Cure: "check username, password and auth"},
		{
			Codes: []place{{stageConnect, amqp.NotAllowed}, {stageDeclare, amqp.NotAllowed}},
			Class: outcome.Unavailable,
			Cure:  "check vhost, and that the user may use it",
		},

		{
			Codes: []place{{stageDeclare, amqp.PreconditionFailed}},
			Class: outcome.Unavailable, Cure: "it exists with other properties: make them the same in declare, or take it out of declare",
		},
		{
			Codes: []place{{stageDeclare, amqp.AccessRefused}},
			Class: outcome.Unavailable,
			Cure:  "give the user the right to configure, or take it out of declare",
		},
	}
}

// failure is a delivery that failed.
type failure struct {
	at   stage
	code int    // the broker's reply code, 0 without a reply
	text string // one line, with the cure
	err  error  // for errors.Is; nil if it could hold a secret
	own  bool   // the exchange, or the queue, that it is about depends on the event
	ours bool   // the context of the delivery was done
	// counts makes the failure an attempt: the settings say so.
	counts bool
}

// Error returns one line.
func (f *failure) Error() string {
	if f.text == "" {
		return "rabbitmq: " + f.at.String()
	}
	return fmt.Sprintf("rabbitmq: %s: %s", f.at, f.text)
}

// class returns the party at fault. No other function decides this.
func (f *failure) class() outcome.Class {
	if f.ours || f.counts {
		return outcome.Retry
	}
	class, _ := places().Find(f.own, place{f.at, f.code}, place{at: f.at})
	return cmp.Or(class, outcome.Unavailable)
}

// isLogin reports whether the broker has refused the login.
func (f *failure) isLogin() bool { return f.class() == outcome.Unauthorized }

// Unwrap returns the network's error, or the cause of the timeout.
func (f *failure) Unwrap() error {
	if f.at == stageClosed {
		return outcome.ErrClosed
	}
	return f.err
}

// classify marks f with its class.
func classify(f *failure) error { return f.class().Mark(0, f) }

// aboutMessage reports whether the broker may have closed a channel because of one
// message, which is then worth finding.
func aboutMessage(code int, own bool) bool {
	return (&failure{at: stageRefused, code: code, own: own}).class().MayBeEvents()
}

// ended is the failure of something that took until ctx was done.
func ended(ctx context.Context, at stage) *failure {
	cause := context.Cause(ctx)
	return &failure{at: at, text: cause.Error(), err: cause}
}

// connectFailure describes why the connection failed. ctx is the context of
// the attempt.
func (t target) connectFailure(ctx context.Context, at stage, err error) *failure {
	if ctx.Err() != nil {
		f := ended(ctx, at)
		f.text = t.addr() + ": " + f.text
		return f
	}

	f := &failure{at: at}
	described := outcome.Failure{Err: err, Text: err.Error()}
	if reply, ok := errors.AsType[*amqp.Error](err); ok {
		f.code = reply.Code
		described.Text = fmt.Sprintf("%d %s", reply.Code, reply.Reason)
		_, described.Cure = places().Find(false, place{at, f.code})
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		described.Cure = "check host and port, and whether the broker runs"
	}

	described.Text = t.addr() + ": " + described.Text
	f.text, f.err = t.destination().Describe(described)
	return f
}

// destination describes failures. The broker may repeat the password.
func (t target) destination() *outcome.Destination {
	password := t.password
	if password == guest {
		password = ""
	}
	return outcome.New("rabbitmq", "check the port, or take tls out", password)
}

// clean makes a broker's text fit for an error.
func (t target) clean(text string) string { return t.destination().Clean(text) }
