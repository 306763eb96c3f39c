package email

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestClassify runs each row against a real server. The name of a row is the
// real error behind it.
func TestClassify(t *testing.T) {
	t.Parallel()
	for _, row := range faults() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := testenv.Mail(t, row.sink)
			if row.fault.Stage != "" {
				s.Fail(row.fault)
			}
			cfg := config(s)
			if strings.Contains(row.name, "within") {
				cfg.ConnectTimeout, cfg.SendTimeout = 3*time.Second, 3*time.Second
			}
			if row.config != nil {
				row.config(&cfg)
			}
			h := deliverytest.Open(t, New, cfg)
			err := h.Deliver(testenv.Within(t, patience), event(ada))
			if got := deliverytest.Class(err); got != row.class {
				t.Fatalf("%s, want %s: %v", got, row.class, err)
			}
			if err == nil {
				return
			}
			text := err.Error()
			if !strings.Contains(text, row.text) || len(text) > oneline.MaxReply+200 || strings.ContainsAny(text, "\r\n") {
				t.Errorf("got %q, want %q", text, row.text)
			}
			for _, hidden := range []string{"Dear", "p4ssw0rd", "AHUAcDRzc3cwcmQ=", "wr0ng!"} {
				for e := err; e != nil; e = errors.Unwrap(e) {
					if strings.Contains(e.Error(), hidden) {
						t.Errorf("%q is in %q", hidden, e)
					}
				}
			}
			// The next mail goes through on a connection of the pool, after any of them.
			s.Heal()
			if row.class != "unavailable" && row.class != "delivered" {
				if err := h.Deliver(testenv.Within(t, patience), event(ada)); err != nil {
					t.Errorf("the next one: %v", err)
				}
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	h := deliverytest.Open(t, New, config(s)) // makes no connection
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	err := h.Deliver(testenv.Within(t, patience), event(ada))
	if deliverytest.Class(err) != "unavailable" || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("got %v", err)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	deliverOne(t, h, s, event(ada))
}

// TestCancelled cancels at every stage at which a server can keep a client waiting.
func TestCancelled(t *testing.T) {
	t.Parallel()
	cause := errors.New("shutting down")
	for _, stage := range []smtpsink.Stage{
		smtpsink.Connect, smtpsink.Ehlo, smtpsink.MailCmd, smtpsink.Rcpt, smtpsink.Data, smtpsink.DataEnd,
	} {
		t.Run(string(stage), func(t *testing.T) {
			t.Parallel()
			s := testenv.Mail(t, smtpsink.Options{})
			s.Fail(smtpsink.Fault{Stage: stage, Hang: true})
			h := deliverytest.Open(t, New, config(s))
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() { done <- h.Deliver(ctx, event(ada)) }()
			if err := s.WaitHanging(testenv.Within(t, patience), 1); err != nil {
				t.Fatal(err)
			}
			cancel(cause)
			select {
			case err := <-done:
				if !errors.Is(err, cause) || deliverytest.Class(err) != "retry" {
					t.Errorf("%s: %v", deliverytest.Class(err), err)
				}
				if stage == smtpsink.DataEnd && !strings.Contains(err.Error(), "maybe sent") {
					t.Errorf("got %v", err)
				}
			case <-testenv.Within(t, patience).Done():
				t.Fatal("Deliver did not return")
			}
			if err := s.WaitOpen(testenv.Within(t, patience), 0); err != nil {
				t.Errorf("the connection was leaked: %v", err)
			}
			if err := h.Deliver(ctx, event(ada)); !errors.Is(err, cause) {
				t.Errorf("cancelled before: %v", err)
			}
		})
	}
}

// TestGoMailResetAfterDelivery pins the trap that IsDelivered is there for: a
// mail that was accepted comes back as an error.
func TestGoMailResetAfterDelivery(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	s.Fail(smtpsink.Fault{Stage: smtpsink.Rset, Code: 451})
	h := deliverytest.Open(t, New, config(s))
	msg, err := h.build(event(ada))
	if err != nil {
		t.Fatal(err)
	}
	client, err := gomail.NewClient(s.Host(), gomail.WithPort(s.Port()), gomail.WithTLSPolicy(gomail.NoTLS))
	if err != nil {
		t.Fatal(err)
	}
	err = client.DialAndSendWithContext(testenv.Within(t, patience), msg)
	var send *gomail.SendError
	if !errors.As(err, &send) || send.Reason != gomail.ErrSMTPReset || !msg.IsDelivered() || len(s.Mails()) != 1 {
		t.Errorf("go-mail has changed: %v, delivered: %v", err, msg.IsDelivered())
	}
}

// TestGoMailIsTempKnowsNoNetwork pins why IsTemp is not asked.
func TestGoMailIsTempKnowsNoNetwork(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	s.Fail(smtpsink.Fault{Stage: smtpsink.MailCmd, Drop: true})
	h := deliverytest.Open(t, New, config(s))
	msg, err := h.build(event(ada))
	if err != nil {
		t.Fatal(err)
	}
	c, f := h.pool.dial(testenv.Within(t, patience))
	if f != nil {
		t.Fatal(f)
	}
	defer c.socket.close()
	err = c.client.SendWithSMTPClient(c.smtp, msg)
	var send *gomail.SendError
	if !errors.As(err, &send) || send.IsTemp() || send.ErrorCode() != 0 || errors.Is(err, io.EOF) {
		t.Errorf("go-mail has changed: %v", err)
	}
}

// TestLostWhileWriting loses the connection while the mail is being written.
// go-mail reports that as a failed answer to the final dot, as if the server
// could have the mail.
func TestLostWhileWriting(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	h := deliverytest.Open(t, New, config(s))
	msg, err := h.build(event(ada))
	if err != nil {
		t.Fatal(err)
	}
	c, f := h.pool.dial(testenv.Within(t, patience))
	if f != nil {
		t.Fatal(f)
	}
	defer c.socket.close()
	c.socket.Conn = &cutConn{Conn: c.socket.Conn, after: "DATA"}
	err = c.client.SendWithSMTPClient(c.smtp, msg)
	var send *gomail.SendError
	if !errors.As(err, &send) || send.Reason != gomail.ErrSMTPDataClose {
		t.Errorf("go-mail has changed: %v", err)
	}
	if f := c.failed(err); f.at != stageData || deliverytest.Class(classify(f, f.at)) != "unavailable" {
		t.Errorf("%v: %v", f.at, f)
	}
}

// cutConn breaks at the write that follows a command.
type cutConn struct {
	net.Conn
	after string
	cut   bool
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.cut {
		_ = c.Close()
		return 0, syscall.EPIPE
	}
	c.cut = strings.HasPrefix(string(p), c.after)
	return c.Conn.Write(p)
}

// TestHalfAMailIsNotSent cancels amid a large mail: a QUIT there would end the
// mail with a dot, and the server would deliver the half that it has.
func TestHalfAMailIsNotSent(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	h := deliverytest.Open(t, New, config(s))
	big := *event(ada)
	h.tmpl.pages.standard.text = mustText(t, strings.Repeat("a line of text\n", 50_000))
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	msg, err := h.build(&big)
	if err != nil {
		t.Fatal(err)
	}
	c, f := h.pool.dial(ctx)
	if f != nil {
		t.Fatal(f)
	}
	c.socket.Conn = &hookConn{Conn: c.socket.Conn, writes: 20, hook: func() { cancel(cause) }}
	if f := h.send(ctx, c, msg); f == nil || f.at != stageData && f.at != stageEnd {
		t.Fatalf("got %v", f)
	}
	if err := s.WaitOpen(testenv.Within(t, patience), 0); err != nil {
		t.Error(err)
	}
	if n := len(s.Mails()); n != 0 {
		t.Errorf("%d halves of mails sent", n)
	}
}

// hookConn calls hook once after some writes, and waits until the connection
// has been closed.
type hookConn struct {
	net.Conn
	writes int
	hook   func()
}

func (c *hookConn) Write(p []byte) (int, error) {
	if c.writes--; c.writes == 0 {
		c.hook()
		_, _ = c.Read(make([]byte, 1)) // the server says nothing: this ends with the connection
	}
	return c.Conn.Write(p)
}

func TestClosedHandlerRefuses(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	h := deliverytest.Open(t, New, config(s))
	deliverOne(t, h, s, event(ada))
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.WaitOpen(testenv.Within(t, patience), 0); err != nil {
		t.Error(err)
	}
	if err := h.Deliver(testenv.Within(t, patience), event(ada)); !delivery.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
}
