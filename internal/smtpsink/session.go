package smtpsink

import (
	"errors"
	"io"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// session is go-smtp's backend for one connection.
type session struct {
	conn *lineConn
	user string
	mail Mail
}

func newSession(c *smtp.Conn) (smtp.Session, error) {
	lc, ok := c.Conn().(*lineConn)
	if !ok {
		return nil, errors.New("not a connection of the sink")
	}
	return &session{conn: lc}, nil
}

// Reset forgets the mail that is being received.
func (s *session) Reset() { s.mail = Mail{} }

// Logout is the end of the session; there is nothing to free.
func (s *session) Logout() error { return nil }

// Mail starts a mail.
func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if s.conn.sink.opts.Username != "" && s.user == "" {
		return &smtp.SMTPError{Code: 530, EnhancedCode: smtp.EnhancedCode{5, 7, 0}, Message: "Authentication required"}
	}
	s.mail = Mail{From: from, TLS: s.conn.tls, User: s.user}
	return nil
}

// Rcpt adds a recipient.
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.mail.To = append(s.mail.To, to)
	return nil
}

// Data takes the mail, unless a fault at DataEnd refuses it.
func (s *session) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}

	m := s.mail
	m.Data = data
	m.ReceivedAt = time.Now()

	f, ok := s.conn.sink.take(DataEnd, string(data), s.conn.mails)
	if !ok || f.Code == 0 {
		s.conn.mails++
		s.conn.sink.record(m)
	}

	if !ok {
		return nil
	}

	if err := s.conn.pause(f); err != nil {
		_ = s.conn.Close()
		return err
	}

	if reply := f.reply(); reply != "" {
		if f.Drop || f.Code == 421 {
			_, _ = io.WriteString(s.conn.Conn, reply) // the client may be gone
			_ = s.conn.Close()
		}
		return &smtp.SMTPError{Code: f.Code, EnhancedCode: smtp.NoEnhancedCode, Message: f.text()}
	}

	if f.Drop {
		_ = s.conn.Close()
	}
	return nil
}

// AuthMechanisms lists PLAIN and LOGIN if the sink requires a password.
func (s *session) AuthMechanisms() []string {
	if s.conn.sink.opts.Username == "" {
		return nil
	}
	if s.conn.sink.opts.Token != nil {
		return []string{xoauth2}
	}
	return []string{sasl.Plain, sasl.Login}
}

// Auth starts an exchange.
func (s *session) Auth(mech string) (sasl.Server, error) {
	check := func(user, password string) error {
		o := s.conn.sink.opts
		if user != o.Username || password != o.Password {
			return smtp.ErrAuthFailed
		}
		s.user = user
		return nil
	}

	switch mech {
	case xoauth2:
		return tokenServer(func(text string) error {
			o := s.conn.sink.opts
			if o.Token == nil || text != "user="+o.Username+"\x01auth=Bearer "+o.Token()+"\x01\x01" {
				return smtp.ErrAuthFailed
			}
			s.user = o.Username
			return nil
		}), nil
	case sasl.Plain:
		return sasl.NewPlainServer(func(_, user, password string) error { return check(user, password) }), nil
	case sasl.Login:
		return &loginServer{check: check}, nil
	default:
		return nil, smtp.ErrAuthUnknownMechanism
	}
}

// xoauth2 is the mechanism of Google and Microsoft, which go-sasl does not have:
// https://developers.google.com/workspace/gmail/imap/xoauth2-protocol
const xoauth2 = "XOAUTH2"

// tokenServer is AUTH XOAUTH2. It checks the only response of the client.
type tokenServer func(response string) error

// Next implements sasl.Server.
func (t tokenServer) Next(response []byte) (challenge []byte, done bool, err error) {
	if response == nil {
		return nil, false, nil
	}
	return nil, true, t(string(response))
}

// loginServer is AUTH LOGIN, which go-sasl has for clients only.
type loginServer struct {
	check func(user, password string) error
	step  int
	user  string
}

// Next implements sasl.Server.
func (l *loginServer) Next(response []byte) (challenge []byte, done bool, err error) {
	if l.step == 0 && response != nil { // the name came with the command
		l.step++
	}
	l.step++

	switch l.step {
	case 1:
		return []byte("Username:"), false, nil
	case 2:
		l.user = string(response)
		return []byte("Password:"), false, nil
	default:
		return nil, true, l.check(l.user, string(response))
	}
}
