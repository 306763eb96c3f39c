package email

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
	"github.com/notifyd/notifyd/internal/tmpl"
)

func mustText(t *testing.T, text string) *tmpl.Template {
	t.Helper()
	tpl, err := tmpl.Text.Parse("text", text)
	if err != nil {
		t.Fatal(err)
	}
	return tpl
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	h := deliverytest.Open(t, New, config(s))
	for range 5 {
		deliverOne(t, h, s, event(ada))
	}
	if n := s.Accepted(); n != 1 {
		t.Errorf("%d connections for 5 mails", n)
	}
}

// TestRefusalsOfASession: a mail that a used session refuses has one try on a new one, which then decides, and
// stays in use if the mail is at fault. It does so also where DATA was refused and go-mail leaves the
// transaction open.
func TestRefusalsOfASession(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	h := deliverytest.Open(t, New, config(s))
	sessions := 1
	deliverOne(t, h, s, event(ada))
	for _, c := range []struct {
		stage   smtpsink.Stage
		text    string
		isMails bool // the mail is at fault, and not the server, perhaps
	}{
		{smtpsink.MailCmd, "", false},
		{smtpsink.Rcpt, "5.1.1 no such user", true},
		{smtpsink.Rcpt, "5.7.1 blocked", false},
		{smtpsink.Data, "5.6.0 what is this", true},
		{smtpsink.DataEnd, "5.6.0 what is this", true},
		{smtpsink.DataEnd, "5.7.26 unauthenticated", false},
	} {
		s.Fail(smtpsink.Fault{Stage: c.stage, Code: 550, Text: c.text})
		deliverOne(t, h, s, event(ada))
		sessions++
		s.Fail(smtpsink.Fault{Stage: c.stage, Code: 550, Text: c.text, Times: 2})
		if err := h.Deliver(testenv.Within(t, patience), event(ada)); err == nil {
			t.Errorf("%s %s: delivered", c.stage, c.text)
		}
		sessions++
		deliverOne(t, h, s, event(ada))
		if !c.isMails { // the next mail probes on a new session
			sessions++
		}
		if n := s.Accepted(); n != sessions {
			t.Fatalf("%s %s: %d sessions, want %d", c.stage, c.text, n, sessions)
		}
	}
	if err := s.WaitOpen(testenv.Within(t, patience), 1); err != nil {
		t.Error(err)
	}
}

// TestConnectionsHaveAnAge: a connection that is always in use ends all the same.
func TestConnectionsHaveAnAge(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.MaxConnectionAge = time.Nanosecond
	h := deliverytest.Open(t, New, cfg)
	for range 3 {
		deliverOne(t, h, s, event(ada))
	}
	if n := s.Accepted(); n != 3 {
		t.Errorf("%d connections for 3 mails", n)
	}
}

func TestDeadReusedConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	h := deliverytest.Open(t, New, config(s))
	deliverOne(t, h, s, event(ada))
	// The server restarts: it has closed the idle connection.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	deliverOne(t, h, s, event(ada))
	// It says good-bye to an idle one.
	s.Fail(smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 421, Text: "4.4.2 idle for too long"})
	deliverOne(t, h, s, event(ada))
	if n := s.Accepted(); n != 3 {
		t.Errorf("%d connections", n)
	}
	// But only once: a server that closes a new one too is down.
	s.Fail(smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 421, Times: smtpsink.Always})
	if err := h.Deliver(testenv.Within(t, patience), event(ada)); deliverytest.Class(err) != "unavailable" {
		t.Errorf("got %v", err)
	}
	if n := s.Accepted(); n != 4 {
		t.Errorf("%d connections", n)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.Connections = 3
	h := deliverytest.Open(t, New, cfg)
	s.Fail(smtpsink.Fault{Stage: smtpsink.DataEnd, Delay: 20 * time.Millisecond, Times: 3})
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			if err := h.Deliver(testenv.Within(t, patience), event(ada)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.Accepted(); n > 3 {
		t.Errorf("%d connections", n)
	}
	if n := len(s.Mails()); n != 30 {
		t.Errorf("%d mails", n)
	}
}

func TestWaitingForAConnectionObeysCtx(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.Connections = 1
	h := deliverytest.Open(t, New, cfg)
	s.Fail(smtpsink.Fault{Stage: smtpsink.Rcpt, Hang: true})
	first, cancelFirst := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Deliver(first, event(ada)) }()
	if err := s.WaitHanging(testenv.Within(t, patience), 1); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("no time")
	second, cancel := context.WithCancelCause(t.Context())
	go cancel(cause)
	if err := h.Deliver(second, event(ada)); !errors.Is(err, cause) || deliverytest.Class(err) != "retry" {
		t.Errorf("got %v", err)
	}
	// Close ends the wait, and does not wait itself.
	third := make(chan error, 1)
	go func() { third <- h.Deliver(t.Context(), event(ada)) }()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if err := <-third; deliverytest.Class(err) != "unavailable" {
		t.Errorf("got %v", err)
	}
	cancelFirst(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if err := s.WaitOpen(testenv.Within(t, patience), 0); err != nil {
		t.Error(err)
	}
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	h := deliverytest.Open(t, New, config(s))
	h.pool.idle = 10 * time.Millisecond
	deliverOne(t, h, s, event(ada))
	if err := s.WaitOpen(testenv.Within(t, patience), 0); err != nil {
		t.Fatal(err)
	}
	deliverOne(t, h, s, event(ada))
}

func TestConnectionCarriesSoManyMails(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.MaxConnectionMails = 2
	h := deliverytest.Open(t, New, cfg)
	for range 5 {
		deliverOne(t, h, s, event(ada))
	}
	if n := s.Accepted(); n != 3 {
		t.Errorf("%d connections for 5 mails", n)
	}
	if err := s.WaitOpen(testenv.Within(t, patience), 1); err != nil {
		t.Error(err)
	}
}

// TestIdleLongerThanAnyTimeout: go-mail's deadline counts from the last mail,
// so that with it a connection idle for longer than that looks dead.
func TestIdleLongerThanAnyTimeout(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.ConnectTimeout, cfg.SendTimeout = 3*time.Second, 3*time.Second
	h := deliverytest.Open(t, New, cfg)
	deliverOne(t, h, s, event(ada))
	timer := time.NewTimer(4 * time.Second)
	defer timer.Stop()
	<-timer.C
	deliverOne(t, h, s, event(ada))
	if n := s.Accepted(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestCloseDoesNotWaitForASilentServer: the good-bye has a limit.
func TestCloseDoesNotWaitForASilentServer(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal(l.Addr())
	}
	cfg := config(testenv.Mail(t, smtpsink.Options{}))
	cfg.Port, cfg.ConnectTimeout = addr.Port, 200*time.Millisecond
	h := deliverytest.Open(t, New, cfg)
	// It accepts TCP, in the kernel at that, and never greets.
	if err := h.Deliver(testenv.Within(t, patience), event(ada)); deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "connect_timeout of 200ms") {
		t.Errorf("got %v", err)
	}
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	s := testenv.Mail(t, smtpsink.Options{})
	h2 := deliverytest.Open(t, New, config(s))
	deliverOne(t, h2, s, event(ada))
	h2.pool.conns[0].socket.Conn = &splitConn{Conn: h2.pool.conns[0].socket.Conn, to: ours}
	closed := make(chan error, 1)
	go func() { closed <- h2.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("Close waits for a server that does not read")
	}
	_ = ours.Close()
}

// splitConn writes into a pipe without a reader.
type splitConn struct {
	net.Conn
	to net.Conn
}

func (c *splitConn) Write(p []byte) (int, error) { return c.to.Write(p) }

func (c *splitConn) SetDeadline(t time.Time) error {
	return errors.Join(c.Conn.SetDeadline(t), c.to.SetDeadline(t))
}

func TestTLSAndAuth(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		sink smtpsink.TLS
		tls  string
		auth string
		tlsd bool
	}{
		{"STARTTLS, auto", smtpsink.StartTLS, TLSMandatory, AuthAuto, true},
		{"STARTTLS, plain", smtpsink.StartTLS, TLSMandatory, AuthPlain, true},
		{"STARTTLS, login", smtpsink.StartTLS, TLSMandatory, AuthLogin, true},
		{"opportunistic, offered", smtpsink.StartTLS, TLSOpportunistic, AuthAuto, true},
		{"opportunistic, not offered", smtpsink.NoTLS, TLSOpportunistic, AuthAuto, false},
		{"implicit, auto", smtpsink.ImplicitTLS, TLSImplicit, AuthAuto, true},
		{"implicit, login", smtpsink.ImplicitTLS, TLSImplicit, AuthLogin, true},
		{"none on the loopback", smtpsink.NoTLS, TLSNone, AuthAuto, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := testenv.Mail(t, smtpsink.Options{TLS: row.sink, Username: "u", Password: "p4ssw0rd"})
			dir := t.TempDir()
			writeFile(t, dir, "ca.pem", s.CertPEM())
			cfg := config(s)
			cfg.TLS, cfg.Auth, cfg.Username, cfg.Password = row.tls, row.auth, "u", handlers.NewSecret("p4ssw0rd")
			if row.tls != TLSNone {
				cfg.CAFile = "ca.pem"
			}
			h := deliverytest.Open(t, New, cfg, handlers.WithBaseDir(dir))
			for range 2 {
				if m, _ := deliverOne(t, h, s, event(ada)); m.TLS != row.tlsd || m.User != "u" {
					t.Errorf("got TLS %v, user %q", m.TLS, m.User)
				}
			}
		})
	}
}

// TestFailedLoginsLeakNoConnections: go-mail forgets a connection whose EHLO,
// STARTTLS or AUTH failed, and leaves it open.
func TestFailedLoginsLeakNoConnections(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	s.Fail(
		smtpsink.Fault{Stage: smtpsink.Ehlo, Code: 550, Times: 2},
		smtpsink.Fault{Stage: smtpsink.STLS, Code: 454},
	)
	cfg := config(s)
	cfg.TLS = TLSMandatory // and the certificate is not trusted
	h := deliverytest.Open(t, New, cfg)
	for range 3 {
		if err := h.Deliver(testenv.Within(t, patience), event(ada)); deliverytest.Class(err) != "unavailable" {
			t.Errorf("got %v", err)
		}
	}
	if err := s.WaitOpen(testenv.Within(t, patience), 0); err != nil || s.Accepted() != 3 {
		t.Errorf("%d of %d connections are open: %v", s.Open(), s.Accepted(), err)
	}
}
