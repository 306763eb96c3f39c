package smtpsink_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/smtp"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds a test that waits for something that must happen.
const patience = 10 * time.Second

const body = "From: a@example.com\r\nTo: b@example.com\r\nSubject: =?UTF-8?q?Gr=C3=BC=C3=9Fe?=\r\n" +
	"Message-ID: <1@example.com>\r\nContent-Type: text/plain\r\n\r\nhello\r\n..dot\r\n"

func roots(t *testing.T, s *smtpsink.Sink) *tls.Config {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(s.CertPEM()) {
		t.Fatal("the certificate is not PEM")
	}
	return &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
}

func send(c *smtp.Client) error {
	if err := c.Mail("a@example.com"); err != nil {
		return err
	}
	if err := c.Rcpt("b@example.com"); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, body); err != nil {
		return err
	}
	return w.Close()
}

func dial(t *testing.T, s *smtpsink.Sink) *smtp.Client {
	t.Helper()
	c, err := smtp.Dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestKeepsAMail(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	c := dial(t, s)
	if err := c.StartTLS(roots(t, s)); err != nil {
		t.Fatal(err)
	}
	if err := send(c); err != nil {
		t.Fatal(err)
	}
	mails, err := s.Wait(testenv.Within(t, patience), 1)
	if err != nil {
		t.Fatal(err)
	}
	m := mails[0]
	if m.From != "a@example.com" || !slices.Equal(m.To, []string{"b@example.com"}) || !m.TLS || string(m.Data) != body {
		t.Errorf("got %+v", m)
	}
	p, err := m.Parse()
	if err != nil || p.Subject != "Grüße" || p.Text != "hello\n..dot" || p.MessageID != "<1@example.com>" {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestParseMultipart(t *testing.T) {
	t.Parallel()
	raw := strings.ReplaceAll(`Content-Type: multipart/alternative; boundary=b

--b
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: quoted-printable

a=3Db
--b
Content-Type: text/html
Content-Transfer-Encoding: base64

PGI+
--b--
`, "\n", "\r\n")
	p, err := smtpsink.Mail{Data: []byte(raw)}.Parse()
	if err != nil || p.Text != "a=b" || p.HTML != "<b>" || !slices.Equal(p.Parts, []string{"text/plain", "text/html"}) {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, bad := range []string{"", "x", "Content-Type: ;\r\n\r\n", "Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: ;\r\n\r\nx\r\n--b--\r\n"} {
		if _, err := (smtpsink.Mail{Data: []byte(bad)}).Parse(); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestImplicitTLSAndAuth(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.ImplicitTLS, Username: "u", Password: "p"})
	conn, err := (&tls.Dialer{Config: roots(t, s)}).DialContext(testenv.Within(t, patience), "tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	c, err := smtp.NewClient(conn, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := send(c); replyCode(err) != 530 {
		t.Errorf("without a password: %v", err)
	}
	if err := c.Auth(smtp.PlainAuth("", "u", "p", "127.0.0.1")); err != nil {
		t.Fatal(err)
	}
	if err := send(c); err != nil {
		t.Fatal(err)
	}
	if m := s.Mails(); len(m) != 1 || m[0].User != "u" {
		t.Errorf("got %+v", m)
	}
	if ok, _ := c.Extension("STARTTLS"); ok {
		t.Error("STARTTLS is offered inside TLS")
	}
}

func replyCode(err error) int {
	if te, ok := errors.AsType[*textproto.Error](err); ok {
		return te.Code
	}
	return 0
}

func TestRestartKeepsPortMailsAndCertificate(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	c := dial(t, s)
	if err := send(c); err != nil {
		t.Fatal(err)
	}
	addr, cert := s.Addr(), s.CertPEM()
	if err := s.Restart(); err == nil {
		t.Error("restarted while it was running")
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := c.Noop(); err == nil {
		t.Error("the connection outlived Close")
	}
	if _, err := smtp.Dial(addr); err == nil {
		t.Error("still listening")
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if s.Addr() != addr || string(s.CertPEM()) != string(cert) {
		t.Error("another address or certificate")
	}
	if err := send(dial(t, s)); err != nil {
		t.Error(err)
	}
	if mails, err := s.Wait(testenv.Within(t, patience), 2); err != nil || len(mails) != 2 {
		t.Errorf("%d mails, %v", len(mails), err)
	}
	short, cancel := context.WithCancelCause(testenv.Within(t, patience))
	cause := errors.New("enough")
	cancel(cause)
	if _, err := s.Wait(short, 3); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}
