package outcome

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/exhaust"
	"github.com/notifyd/notifyd/internal/secret"
)

// ErrClosed is the cause of every failure of a closed destination.
var ErrClosed = errors.New("the destination is closed")

// Error is an error of one line with nothing in it that must not be seen.
type Error struct {
	Text  string
	Cause error // for errors.Is and As, nil if it could hold a secret
}

// Error returns the line.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// contentError is a fault of an event.
type contentError struct{ error }

func (e *contentError) Unwrap() error { return e.error }

// Content marks err as the reason why an event cannot be encoded. It is about the event alone, and holds no secret.
func Content(err error) error { return &contentError{err} }

// IsContent reports whether [Content] has marked an error in err's chain.
func IsContent(err error) bool {
	_, ok := errors.AsType[*contentError](err)
	return ok
}

// Destination describes the failures of one destination.
type Destination struct {
	// Name begins each text.
	Name string
	// Secrets takes secrets out of texts from outside: a *secret.Redactor. nil leaves texts as they are.
	Secrets interface{ Redact(text string) string }
	// TLS names the settings that cure a failed handshake.
	TLS TLS
	// Safe are errors of the destination itself. They may be the cause of an [Error].
	Safe []error
}

// New returns the Destination of a name, with the TLS settings below "tls". plain is the cure for a server that does not
// speak TLS; secrets are texts that a server, or a library, may repeat.
func New(name, plain string, secrets ...string) *Destination {
	return &Destination{Name: name, Secrets: secret.NewRedactor(secrets...), TLS: TLS{Prefix: "tls.", Plain: plain}}
}

// Failure is a failure that a [Destination] describes.
type Failure struct {
	Err error
	// Text is the description; "" means the text of Err.
	Text string
	// Cure tells an operator the remedy. If it is "", the cure of a failed handshake is used.
	Cure string
	// Code is the server's code in Err's chain, which holds no secret; nil for none.
	Code error
}

// Clean makes a text from outside fit for an error: one short line without secrets.
func (d *Destination) Clean(text string) string {
	return oneline.Of(d.redact(text), oneline.MaxReply)
}

func (d *Destination) redact(text string) string {
	if d.Secrets == nil {
		return text
	}
	return d.Secrets.Redact(text)
}

// Line returns the error for a failure: the name of the destination, then the line of [Destination.Describe].
func (d *Destination) Line(f Failure) *Error {
	text, cause := d.Describe(f)
	return &Error{Text: d.Name + ": " + text, Cause: cause}
}

// Describe returns one line with the cure of a failure, and the cause that may be shown: a part of the chain without secrets, or
// nil.
func (d *Destination) Describe(f Failure) (text string, cause error) {
	if f.Text == "" && f.Err != nil {
		f.Text = f.Err.Error()
	}

	// net/http repeats the address of a proxy with its password. Its error has no code, as a server's has.
	if f.Err != nil && f.Code == nil && strings.Contains(f.Err.Error(), "invalid proxy address") {
		f.Text = "HTTP_PROXY or HTTPS_PROXY is not a URL"
	}

	if f.Cure == "" {
		f.Cure = d.TLS.Cure(f.Err)
	}

	text = d.Clean(f.Text)
	if f.Cure != "" {
		text += " (" + f.Cure + ")"
	}

	cause = d.cause(f)
	if cause != nil && d.redact(cause.Error()) != cause.Error() {
		cause = nil
	}

	return text, cause
}

func (d *Destination) cause(f Failure) error {
	if content, ok := errors.AsType[*contentError](f.Err); ok {
		return content
	}

	if f.Code != nil {
		return f.Code
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](f.Err); ok {
		return cert
	}
	if op, ok := errors.AsType[*net.OpError](f.Err); ok {
		return op
	}
	if dns, ok := errors.AsType[*net.DNSError](f.Err); ok {
		return dns
	}

	for _, safe := range append(slices.Clip(d.Safe), ErrClosed) {
		if errors.Is(f.Err, safe) {
			return safe
		}
	}

	return exhaust.Cause(f.Err)
}

// Refuse returns the error for an event that cannot be encoded.
func (d *Destination) Refuse(err error) error {
	return delivery.Permanent(fmt.Errorf("%s: %w", d.Name, err))
}

// Closed returns the error of a delivery after Close. No attempt counts: the event is not at fault.
func (d *Destination) Closed() error {
	return delivery.Unavailable(&Error{Text: d.Name + ": " + ErrClosed.Error(), Cause: ErrClosed})
}

// Ended returns the error of a delivery whose context is done. doing names the interrupted step; it may be "".
func (d *Destination) Ended(ctx context.Context, doing string) error {
	if doing != "" {
		doing += ": "
	}
	return fmt.Errorf("%s: %s%w", d.Name, doing, context.Cause(ctx))
}

// NoAnswer returns the error of a request without an answer: [Destination.Ended] if ctx, which is the delivery's, is
// done, and otherwise a fault of the destination. within is the context of the request. maybe, such as "maybe sent",
// warns that the request may have arrived, and is "" if it has not.
func (d *Destination) NoAnswer(ctx, within context.Context, maybe string, err error) error {
	if ctx.Err() != nil {
		return d.Ended(ctx, maybe)
	}

	if maybe != "" {
		maybe += ": "
	}
	if within.Err() != nil {
		return delivery.Unavailable(fmt.Errorf("%s: %sno answer: %w", d.Name, maybe, context.Cause(within)))
	}

	err = WithoutURL(err)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" || d.TLS.Cure(err) != "" {
		maybe = "" // there was no connection
	}

	line := d.Line(Failure{Err: err, Text: maybe + err.Error()})
	if delivery.IsUnauthorized(err) {
		return delivery.Unauthorized(line)
	}

	return delivery.Unavailable(line)
}

// WithoutURL unwraps the errors of net/http that repeat the URL.
func WithoutURL(err error) error {
	for {
		u, ok := errors.AsType[*url.Error](err)
		if !ok {
			return err
		}
		err = u.Err
	}
}

// Within returns a context for one request, whose cause after d names the setting that bounds it.
func Within(ctx context.Context, setting string, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%s of %v is over", setting, d))
}
