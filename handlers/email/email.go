// Package email delivers events as mails over SMTP.
//
// An event is delivered once the server has answered 250 to the whole mail.
// The Message-ID is made of the event's id and the destination's name, so a
// mail that had to be sent again is recognised as the same one.
package email

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
)

// Handler sends mails. It implements [delivery.Handler] and io.Closer, and is
// safe for concurrent use; more than Config.Connections deliveries at once wait
// for each other.
type Handler struct {
	cfg  Config
	tmpl *templates
	pool *pool
	log  *slog.Logger
	// unanswered counts the mails since the last accepted one that the server may have taken without an answer.
	unanswered atomic.Int64
}

// maxUnanswered is how many mails in a row count as sent without an answer, with maybe_sent: accept.
const maxUnanswered = 5

// New returns a handler for cfg. It reads the files that cfg names, and makes
// no connection: a relay starts also while its mail server is down. The error
// joins every mistake, each a [*handlers.FieldError]. The caller closes the handler.
func New(cfg Config, options ...handlers.Option) (*Handler, error) {
	o := handlers.Apply(options)
	ts, _ := parseTemplates(cfg) // Validate reports the error
	trust, err := tlsconf.Read(handlers.TLS{CAFile: cfg.CAFile}, o.BaseDir)
	if err := errors.Join(cfg.Validate(), ts.pages.readFiles(cfg, o.BaseDir), err); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	return &Handler{cfg: cfg, tmpl: ts, pool: newPool(cfg, trust.RootCAs, o.BaseDir), log: o.Log}, nil
}

// Deliver sends the mail for e. What an error means:
//
//   - [delivery.Permanent]: the mail cannot be built from this event, the server
//     does not offer SMTPUTF8 and an address needs it, or the server refused a
//     recipient or the content for good (5xx with an enhanced status that says so).
//   - [delivery.Unclear]: the server refused a recipient or the mail for another or an
//     unknown reason, such as the greeting, its policy or a block list, or the connection
//     was lost after the whole mail was written.
//   - [delivery.Throttled]: a rate limit or a quota is used up, by the codes
//     that prove it: 454 alone, enhanced status x.4.5 and some that providers document.
//   - [delivery.Unavailable]: the server cannot be reached, times out, drops the
//     connection, answers 421, refuses the sender, or has a problem with its mail system (4.3.*).
//   - [delivery.Unauthorized]: the server refuses the login.
//   - any other: the server refused a recipient or the content for now (4xx).
//   - ctx's cause, if ctx was done first.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	msg, err := h.build(e)
	if err != nil {
		return h.pool.out.Refuse(err)
	}

	began := time.Now()
	if err := h.pool.acquire(ctx); err != nil {
		return err
	}
	defer h.pool.release()

	if f := h.pool.refusedSince(began); f != nil {
		return h.verdict(ctx, f)
	}

	f := h.attempt(ctx, msg)
	switch {
	case f == nil:
		h.unanswered.Store(0)
		return nil
	case f.maybeSent() && h.cfg.MaybeSent == MaybeSentAccept && h.unanswered.Add(1) <= maxUnanswered:
		h.log.WarnContext(ctx, "mail taken for sent without an answer", "event_id", e.ID, "event_type", e.Type, "err", f)
		return nil
	default:
		return h.verdict(ctx, f)
	}
}

// attempt sends the mail over an idle connection or a new one.
func (h *Handler) attempt(ctx context.Context, msg *gomail.Msg) *failure {
	if c := h.pool.reuse(); c != nil {
		f := h.send(ctx, c, msg)
		if f == nil || !f.session {
			return f
		}
		// A server may close a session at any time, and may refuse commands after a
		// certain number of mails. Only a new session shows which side the failure
		// belongs to.
	}

	c, f := h.pool.dial(ctx)
	if f != nil {
		return f
	}
	return h.send(ctx, c, msg)
}

// Preview returns the mail for e as it would be sent, with its headers. The
// boundary between the parts of a mail is made up anew each time.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	msg, err := h.build(e)
	if err != nil {
		return "", h.pool.out.Refuse(err)
	}
	var mail strings.Builder
	if _, err := msg.WriteTo(&mail); err != nil {
		return "", h.pool.out.Refuse(err)
	}
	return strings.ReplaceAll(mail.String(), "\r\n", "\n"), nil
}

// Close closes the idle connections, politely and for a second at most. A
// Deliver that is under way finishes and closes its own. Closing again does
// nothing; a later Deliver fails.
func (h *Handler) Close() error {
	h.pool.close()
	return nil
}

// send sends one mail and gives the connection back or closes it.
func (h *Handler) send(ctx context.Context, c *conn, msg *gomail.Msg) *failure {
	sctx, cancel := outcome.Within(ctx, "send_timeout", h.cfg.SendTimeout)
	defer cancel()

	if ok, _ := c.smtp.Extension("SMTPUTF8"); !ok && needsUTF8(msg) {
		h.pool.putBack(c)
		return &failure{at: stageMessage, text: "the server does not offer SMTPUTF8, which an address with letters " +
			"outside of ASCII before the @ needs"}
	}

	stop := c.closeWhenDone(sctx)
	c.sent++
	c.socket.heard = 0
	c.replies.forget()

	err := c.client.SendWithSMTPClient(c.smtp, msg)

	// IsDelivered, not err: go-mail also returns an error for a failure after
	// the mail was accepted, such as a failed RSET.
	if msg.IsDelivered() {
		if stop() && err == nil {
			h.pool.putBack(c)
		} else {
			c.socket.close()
		}
		return nil
	}

	f := c.failed(err)
	f.session = c.sent > 1 && f.maybeSession() && sctx.Err() == nil
	if f.code == 0 && sctx.Err() != nil {
		f.err = context.Cause(sctx)
		f.text = f.err.Error()
	}

	// go-mail leaves the transaction open where DATA was refused. Where the server has not
	// answered, only closing is safe: a QUIT would end the mail that was being written with a dot.
	canGoOn := f.code != 0 && f.code != codeClosing
	switch inStep := canGoOn && c.smtp.Reset() == nil && stop(); {
	case !inStep:
		stop()
		c.socket.close()
	case f.session || f.class(f.at) != outcome.Retry && f.class(f.at) != outcome.Permanent:
		c.quit() // so that the next mail begins a session
	default:
		h.pool.putBack(c)
	}

	return f
}

// needsUTF8 reports whether an address of the mail needs SMTPUTF8 (RFC 6531). A name does not, and a
// domain is ASCII already.
func needsUTF8(msg *gomail.Msg) bool {
	fields := []gomail.AddrHeader{
		gomail.HeaderFrom,
		gomail.HeaderTo,
		gomail.HeaderCc,
		gomail.HeaderBcc,
		gomail.HeaderReplyTo,
	}

	for _, name := range fields {
		for _, a := range msg.GetAddrHeader(name) {
			if !isASCII(a.Address) {
				return true
			}
		}
	}
	return false
}

// verdict returns the error of Deliver for a failure.
func (h *Handler) verdict(ctx context.Context, f *failure) error {
	if f.code == 0 && ctx.Err() != nil {
		what := f.at.String()
		if f.maybeSent() {
			what += ": maybe sent"
		}
		return h.pool.out.Ended(ctx, what)
	}

	if f.maybeSent() && h.cfg.MaybeSent == MaybeSentAccept {
		return delivery.Unavailable(fmt.Errorf("%w: maybe sent: more than %d mails in a row had no answer, so "+
			"maybe_sent: accept takes none for sent until the server accepts one", f, maxUnanswered))
	}

	at := f.at
	if _, constant := h.tmpl.from.Constant(); at == stageSender && !constant {
		// A sender made of the event can be wrong for this event alone.
		at = stageOwnSender
	}
	return classify(f, at)
}
