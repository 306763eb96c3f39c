package smtpsink_test

import (
	"bufio"
	"errors"
	"net"
	"net/smtp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, stage := range []smtpsink.Stage{
		smtpsink.MailCmd, smtpsink.Rcpt, smtpsink.Data, smtpsink.DataEnd, smtpsink.Rset, smtpsink.Noop,
	} {
		t.Run(string(stage), func(t *testing.T) {
			t.Parallel()
			s := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
			c := dial(t, s)
			s.Fail(smtpsink.Fault{Stage: stage, Code: 451, Text: "one\ntwo", Times: 2})
			try := func() error { return errors.Join(c.Noop(), send(c), c.Reset()) }
			for range 2 {
				if err := try(); replyCode(err) != 451 || !strings.Contains(err.Error(), "one") {
					t.Errorf("got %v", err)
				}
			}
			if err := try(); err != nil {
				t.Errorf("after the fault: %v", err)
			}
			// A drop in place of the reply. At the end of the data the mail is kept all the same.
			before := len(s.Mails())
			s.Fail(smtpsink.Fault{Stage: stage, Drop: true})
			if err := try(); err == nil {
				t.Error("a dropped connection returned no error")
			}
			kept := len(s.Mails()) - before
			if want := stage == smtpsink.DataEnd || stage == smtpsink.Rset; (kept == 1) != want {
				t.Errorf("%d mails kept", kept)
			}
			if err := s.WaitOpen(testenv.Within(t, patience), 0); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConnectAndHelloFaults(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{Faults: []smtpsink.Fault{
		{Stage: smtpsink.Connect, Code: 421, Text: "busy"},
		{Stage: smtpsink.Connect, Drop: true},
		{Stage: smtpsink.Ehlo, Code: 502, Times: 2},
	}})
	if _, err := smtp.Dial(s.Addr()); replyCode(err) != 421 {
		t.Errorf("got %v", err)
	}
	if _, err := smtp.Dial(s.Addr()); err == nil {
		t.Error("a dropped connection returned no error")
	}
	if err := dial(t, s).Hello("x"); replyCode(err) != 502 {
		t.Errorf("got %v", err)
	}
	c := dial(t, s)
	s.Fail(smtpsink.Fault{Stage: smtpsink.STLS, Code: 454})
	if err := c.StartTLS(roots(t, s)); replyCode(err) != 454 {
		t.Errorf("got %v", err)
	}
	if got := s.Accepted(); got != 4 {
		t.Errorf("%d connections", got)
	}
}

func TestMatchPicksARecipient(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	s.Fail(smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Match: "b@example", Times: smtpsink.Always})
	c := dial(t, s)
	if err := errors.Join(c.Mail("a@example.com"), c.Rcpt("c@example.com")); err != nil {
		t.Error(err)
	}
	if err := c.Rcpt("b@example.com"); replyCode(err) != 550 {
		t.Errorf("got %v", err)
	}
	s.Heal()
	if err := c.Rcpt("b@example.com"); err != nil {
		t.Error(err)
	}
}

func TestDelayAndHang(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{Faults: []smtpsink.Fault{
		{Stage: smtpsink.Connect, Delay: 20 * time.Millisecond},
		{Stage: smtpsink.Connect, Hang: true, Times: smtpsink.Always},
	}})
	from := time.Now()
	c := dial(t, s)
	if d := time.Since(from); d < 20*time.Millisecond {
		t.Errorf("greeted after %v", d)
	}
	if err := send(c); err != nil {
		t.Error(err)
	}
	// The client gives up: the sink notices.
	hung, err := (&net.Dialer{}).DialContext(testenv.Within(t, patience), "tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitOpen(testenv.Within(t, patience), 2); err != nil {
		t.Error(err)
	}
	_ = hung.Close()
	if err := s.WaitOpen(testenv.Within(t, patience), 1); err != nil {
		t.Error(err)
	}
	// The sink closes: the client notices.
	hung, err = (&net.Dialer{}).DialContext(testenv.Within(t, patience), "tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hung.Close() }()
	if err := s.WaitAccepted(testenv.Within(t, patience), 3); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := bufio.NewReader(hung).ReadByte(); err == nil {
		t.Error("still open")
	}
}
