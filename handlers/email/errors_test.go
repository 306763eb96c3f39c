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

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/secret"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestClassify runs each row against a real server. The name of a row is the
// real error behind it.
func TestClassify(t *testing.T) {
	t.Parallel()
	auth := smtpsink.Options{Username: "u", Password: "p4ssw0rd"}
	for _, row := range []struct {
		name   string
		sink   smtpsink.Options
		fault  smtpsink.Fault
		config func(*Config)
		class  string
		text   string
	}{
		// Connecting: the server's fault, whatever it says.
		{name: "421 instead of a greeting", fault: smtpsink.Fault{Stage: smtpsink.Connect, Code: 421}, class: "unavailable", text: "connecting: 127.0.0.1:"},
		{name: "554 instead of a greeting", fault: smtpsink.Fault{Stage: smtpsink.Connect, Code: 554}, class: "unavailable", text: "554 5.0.0 scripted"},
		{name: "EOF instead of a greeting", fault: smtpsink.Fault{Stage: smtpsink.Connect, Drop: true}, class: "unavailable", text: "EOF"},
		{name: "no greeting within connect_timeout", fault: smtpsink.Fault{Stage: smtpsink.Connect, Hang: true}, class: "unavailable", text: "connect_timeout of 300ms is over"},
		{name: "EHLO and HELO answered 550", fault: smtpsink.Fault{Stage: smtpsink.Ehlo, Code: 550, Times: 2}, class: "unavailable", text: "550"},
		{name: "EHLO answered 451 and HELO too", fault: smtpsink.Fault{Stage: smtpsink.Ehlo, Code: 451, Times: 2}, class: "unavailable", text: "451"},
		{name: "STARTTLS not offered though mandatory", sink: smtpsink.Options{TLS: smtpsink.NoTLS}, config: func(c *Config) { c.TLS = TLSMandatory }, class: "unavailable", text: "does not support STARTTLS (set tls: implicit"},
		{name: "STARTTLS answered 454", fault: smtpsink.Fault{Stage: smtpsink.STLS, Code: 454}, config: func(c *Config) { c.TLS = TLSMandatory }, class: "unavailable", text: "454"},
		{name: "certificate of an unknown authority", config: func(c *Config) { c.TLS = TLSMandatory }, class: "unavailable", text: "name the authority's certificate with ca_file"},
		{name: "TLS expected, greeting got", config: func(c *Config) { c.TLS = TLSImplicit }, class: "unavailable", text: "tls: first record does not look like a TLS handshake"},
		{name: "AUTH not offered", config: func(c *Config) { c.Username, c.Password = "u", secret.New("p4ssw0rd") }, class: "unavailable", text: "does not support SMTP AUTH"},
		{name: "AUTH answered 535", sink: auth, config: func(c *Config) { c.Username, c.Password = "u", secret.New("wr0ng!") }, class: "unavailable", text: "AUTH: 535"},
		{name: "AUTH answered 454", sink: auth, fault: smtpsink.Fault{Stage: smtpsink.Auth, Code: 454}, config: func(c *Config) { c.Username, c.Password = "u", secret.New("p4ssw0rd") }, class: "unavailable", text: "454"},
		{name: "AUTH repeats the password", sink: auth, fault: smtpsink.Fault{Stage: smtpsink.Auth, Code: 535, Text: "no: p4ssw0rd AHUAcDRzc3cwcmQ="}, config: func(c *Config) { c.Username, c.Password = "u", secret.New("p4ssw0rd") }, class: "unavailable", text: "no: [redacted] [redacted]"},
		// MAIL: the sender is ours.
		{name: "MAIL answered 530, password wanted", sink: auth, class: "unavailable", text: "530"},
		{name: "MAIL answered 550", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 550}, class: "unavailable", text: "giving the sender: 550"},
		{name: "MAIL answered 452", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 452}, class: "unavailable", text: "452"},
		{name: "MAIL answered 550 to a sender made of the event", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 550}, config: func(c *Config) { c.From = "{{ .Payload.email }}" }, class: "retry", text: "550"},
		{name: "MAIL never answered within send_timeout", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Hang: true}, class: "unavailable", text: "send_timeout of 300ms is over"},
		{name: "EOF at MAIL", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Drop: true}, class: "unavailable", text: "giving the sender: EOF"},
		// RCPT: the event's, unless it is about the session.
		{name: "RCPT answered 550", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Text: "5.1.1 no such user\nreally"}, class: "permanent", text: "giving the recipients: 550 5.1.1 no such user really"},
		{name: "RCPT answered 451", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 451}, class: "retry", text: "451"},
		{name: "RCPT answered 421", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 421}, class: "unavailable", text: "421"},
		{name: "RCPT answered 530", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 530}, class: "unavailable", text: "530"},
		{name: "RCPT answered 503", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 503}, class: "unavailable", text: "503"},
		{name: "EOF at RCPT", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Drop: true}, class: "unavailable", text: "EOF"},
		{name: "first RCPT answered 550, connection closed", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Drop: true}, config: func(c *Config) { c.To = List{"a@example.com", "b@example.com"} }, class: "permanent", text: "550"},
		{name: "first RCPT answered 451, connection closed", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 451, Drop: true}, config: func(c *Config) { c.To = List{"a@example.com", "b@example.com"} }, class: "retry", text: "451"},
		// DATA and the mail itself.
		{name: "DATA answered 554", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 554}, class: "permanent", text: "writing the mail: 554"},
		{name: "DATA answered 451", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 451}, class: "retry", text: "451"},
		{name: "DATA answered 421", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 421}, class: "unavailable", text: "421"},
		{name: "EOF at DATA", fault: smtpsink.Fault{Stage: smtpsink.Data, Drop: true}, class: "unavailable", text: "EOF"},
		{name: "mail answered 552", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 552, Text: "too big\n" + strings.Repeat("x", 1000)}, class: "permanent", text: "552 too big 5.0.0 xxx"},
		{name: "mail answered 451", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 451}, class: "retry", text: "451"},
		{name: "mail answered 421", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 421}, class: "unavailable", text: "421"},
		// Nobody knows.
		{name: "EOF after the final dot", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true}, class: "retry", text: "EOF: maybe sent"},
		{name: "no answer to the final dot within send_timeout", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Hang: true}, class: "retry", text: "send_timeout of 300ms is over: maybe sent"},
		{name: "EOF after the final dot, accepted", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true}, config: func(c *Config) { c.MaybeSent = MaybeSentAccept }, class: "delivered"},
		{name: "mail answered 451, accept does not matter", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 451}, config: func(c *Config) { c.MaybeSent = MaybeSentAccept }, class: "retry"},
		{name: "EOF at RCPT, accept does not matter", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Drop: true}, config: func(c *Config) { c.MaybeSent = MaybeSentAccept }, class: "unavailable"},
		// The mail is out.
		{name: "RSET answered 451 after the mail", fault: smtpsink.Fault{Stage: smtpsink.Rset, Code: 451}, class: "delivered"},
		{name: "EOF at RSET after the mail", fault: smtpsink.Fault{Stage: smtpsink.Rset, Drop: true}, class: "delivered"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := startSink(t, row.sink)
			if row.fault.Stage != "" {
				s.Fail(row.fault)
			}
			cfg := config(s)
			if strings.Contains(row.name, "within") {
				cfg.ConnectTimeout, cfg.SendTimeout = 300*time.Millisecond, 300*time.Millisecond
			}
			if row.config != nil {
				row.config(&cfg)
			}
			h := newHandler(t, cfg)
			err := h.Deliver(testContext(t), event(ada))
			if got := class(err); got != row.class {
				t.Fatalf("%s, want %s: %v", got, row.class, err)
			}
			if err == nil {
				return
			}
			text := err.Error()
			if !strings.Contains(text, row.text) || len(text) > maxReply+200 || strings.ContainsAny(text, "\r\n") {
				t.Errorf("got %q, want %q", text, row.text)
			}
			for _, hidden := range []string{"Dear", "p4ssw0rd", "AHUAcDRzc3cwcmQ=", "wr0ng!"} {
				for e := err; e != nil; e = errors.Unwrap(e) {
					if strings.Contains(e.Error(), hidden) {
						t.Errorf("%q is in %q", hidden, e)
					}
				}
			}
			// Whatever it was, the next mail goes through on what the pool has kept.
			s.Heal()
			if row.class == "permanent" || row.class == "retry" {
				if err := h.Deliver(testContext(t), event(ada)); err != nil {
					t.Errorf("the next one: %v", err)
				}
			}
		})
	}
}

func TestClassifyNil(t *testing.T) {
	t.Parallel()
	if err := classify(nil, stageConnect); err != nil {
		t.Error(err)
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	s := startSink(t, smtpsink.Options{})
	h := newHandler(t, config(s)) // makes no connection
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	err := h.Deliver(testContext(t), event(ada))
	if class(err) != "unavailable" || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("got %v", err)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	deliverOne(t, h, s, event(ada))
}

// TestCancelled cancels at every stage at which a server can let us wait.
func TestCancelled(t *testing.T) {
	t.Parallel()
	cause := errors.New("shutting down")
	for _, stage := range []smtpsink.Stage{
		smtpsink.Connect, smtpsink.Ehlo, smtpsink.MailCmd, smtpsink.Rcpt, smtpsink.Data, smtpsink.DataEnd,
	} {
		t.Run(string(stage), func(t *testing.T) {
			t.Parallel()
			s := startSink(t, smtpsink.Options{})
			s.Fail(smtpsink.Fault{Stage: stage, Hang: true})
			h := newHandler(t, config(s))
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() { done <- h.Deliver(ctx, event(ada)) }()
			if err := s.WaitHanging(testContext(t), 1); err != nil {
				t.Fatal(err)
			}
			cancel(cause)
			select {
			case err := <-done:
				if !errors.Is(err, cause) || class(err) != "retry" {
					t.Errorf("%s: %v", class(err), err)
				}
				if stage == smtpsink.DataEnd && !strings.Contains(err.Error(), "maybe sent") {
					t.Errorf("got %v", err)
				}
			case <-testContext(t).Done():
				t.Fatal("Deliver did not return")
			}
			if err := s.WaitOpen(testContext(t), 0); err != nil {
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
	s := startSink(t, smtpsink.Options{})
	s.Fail(smtpsink.Fault{Stage: smtpsink.Rset, Code: 451})
	h := newHandler(t, config(s))
	msg, err := h.build(event(ada))
	if err != nil {
		t.Fatal(err)
	}
	client, err := gomail.NewClient(s.Host(), gomail.WithPort(s.Port()), gomail.WithTLSPolicy(gomail.NoTLS))
	if err != nil {
		t.Fatal(err)
	}
	err = client.DialAndSendWithContext(testContext(t), msg)
	var send *gomail.SendError
	if !errors.As(err, &send) || send.Reason != gomail.ErrSMTPReset || !msg.IsDelivered() || len(s.Mails()) != 1 {
		t.Errorf("go-mail has changed: %v, delivered: %v", err, msg.IsDelivered())
	}
}

// TestGoMailIsTempKnowsNoNetwork pins why IsTemp is not asked.
func TestGoMailIsTempKnowsNoNetwork(t *testing.T) {
	t.Parallel()
	s := startSink(t, smtpsink.Options{})
	s.Fail(smtpsink.Fault{Stage: smtpsink.MailCmd, Drop: true})
	h := newHandler(t, config(s))
	msg, err := h.build(event(ada))
	if err != nil {
		t.Fatal(err)
	}
	c, f := h.pool.dial(testContext(t))
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
	s := startSink(t, smtpsink.Options{})
	h := newHandler(t, config(s))
	msg, err := h.build(event(ada))
	if err != nil {
		t.Fatal(err)
	}
	c, f := h.pool.dial(testContext(t))
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
	if f := c.failed(err); f.at != stageData || class(classify(f, f.at)) != "unavailable" {
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
		_ = c.Conn.Close()
		return 0, syscall.EPIPE
	}
	c.cut = strings.HasPrefix(string(p), c.after)
	return c.Conn.Write(p)
}

// TestHalfAMailIsNotSent cancels amid a large mail: a QUIT there would end the
// mail with a dot, and the server would deliver the half that it has.
func TestHalfAMailIsNotSent(t *testing.T) {
	t.Parallel()
	s := startSink(t, smtpsink.Options{})
	h := newHandler(t, config(s))
	big := *event(ada)
	h.tmpl.text = mustText(t, strings.Repeat("a line of text\n", 50_000))
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
	if err := s.WaitOpen(testContext(t), 0); err != nil {
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
		_, _ = c.Conn.Read(make([]byte, 1)) // the server says nothing: this ends with the connection
	}
	return c.Conn.Write(p)
}

func TestClosedHandlerRefuses(t *testing.T) {
	t.Parallel()
	s := startSink(t, smtpsink.Options{})
	h := newHandler(t, config(s))
	deliverOne(t, h, s, event(ada))
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.WaitOpen(testContext(t), 0); err != nil {
		t.Error(err)
	}
	if err := h.Deliver(testContext(t), event(ada)); !dispatch.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
}
