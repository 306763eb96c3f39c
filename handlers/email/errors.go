package email

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/textproto"
	"strconv"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// stage is how far a delivery had come when it failed.
type stage uint8

const (
	stageMessage   stage = iota // building the mail, before anything was sent
	stageConnect                // TCP, greeting, EHLO, STARTTLS, AUTH
	stageSender                 // MAIL, with a sender that is the same for every event
	stageOwnSender              // MAIL, with a sender made of the event
	stageRecipient              // RCPT
	stageData                   // DATA, up to the final dot
	stageEnd                    // the final dot is written
)

func (s stage) String() string {
	switch s {
	case stageMessage:
		return "building the mail"
	case stageConnect:
		return "connecting"
	case stageSender, stageOwnSender:
		return "giving the sender"
	case stageRecipient:
		return "giving the recipients"
	case stageData:
		return "writing the mail"
	case stageEnd:
		return "the mail is written, but the answer to it"
	default:
		return fmt.Sprintf("stage(%d)", uint8(s))
	}
}

// The server's "service not available, closing", and its "authentication required" or "must issue a STARTTLS command
// first".
const (
	codeClosing    = 421
	codeLoginFirst = 530
)

const passwordCure = "check password, then username: many providers require an app password"

// codes is the table of replies that are about the session and not about the mail, at any stage: closing, command or
// sequence refused, password required.
func codes() outcome.Table[int] {
	return outcome.Table[int]{
		{Codes: []int{codeClosing, 502, 503, codeLoginFirst, 538}, Class: outcome.Unavailable},
		{Codes: []int{534, 535}, Class: outcome.Unavailable, Cure: passwordCure},
	}
}

// isOurs reports whether a reply is about the session, and the session
// continues.
func isOurs(code int) bool {
	class, _ := codes().Find(false, code)
	return class != outcome.Unknown && code != codeClosing
}

// class returns the party at fault. No other function decides this. at is the stage of the failure, with a
// separate stage for a sender made of the event.
func (f *failure) class(at stage) outcome.Class {
	switch {
	case at == stageMessage:
		return outcome.Permanent
	case f.login:
		return outcome.Unauthorized
	case at == stageConnect:
		return outcome.Unavailable
	case f.maybeSent():
		return outcome.UnclearRetry // the mail may bring the server down, or the server loses every connection
	case f.code == 0:
		return outcome.Unavailable
	default:
		return classOfReply(at, f.code, f.status)
	}
}

// classOfReply returns the class of a reply to a command of a mail. A reply is about the event only if it names the
// recipient or the mail as its subject: a greeting, a block list or a sender that the server refuses looks like a refused
// recipient otherwise, for every event.
func classOfReply(at stage, code int, s status) outcome.Class {
	if isLimit(code, s) {
		return outcome.Throttled
	}
	if class, _ := codes().Find(false, code); class != outcome.Unknown {
		return class
	}

	aboutEvent := isAboutEvent(at, code, s)
	forGood := code/100 == 5
	forNow := code/100 == 4
	isOfSystem := s.class == 4 && s.subject == 3
	isMailSystem := forNow && isOfSystem && !aboutEvent

	switch {
	case at == stageSender, isMailSystem:
		return outcome.Unavailable
	case at == stageOwnSender:
		return outcome.UnclearRetry // a sender made of the event may be wrong for this event alone
	case aboutEvent && forGood:
		return outcome.Permanent
	case aboutEvent:
		return outcome.Retry
	case forGood:
		return outcome.Unclear
	default:
		return outcome.UnclearRetry
	}
}

// maybeSent reports whether the whole mail was written, and the answer to it did not come.
func (f *failure) maybeSent() bool { return f.at == stageEnd && f.code == 0 }

// classify marks f with its class.
func classify(f *failure, at stage) error {
	if f.maybeSent() {
		return f.class(at).Mark(0, fmt.Errorf("%w: maybe sent: it may arrive twice (set maybe_sent: accept to risk "+
			"that it does not arrive)", f))
	}
	return f.class(at).Mark(0, f)
}

// failure is a delivery that failed once there was a server to talk to.
type failure struct {
	at      stage
	code    int    // of the reply, 0 without a reply
	status  status // of the reply to a command of a mail
	text    string // one line: the reply, or the error in its place
	err     error  // for errors.Is; nil if it could hold a secret
	login   bool   // the server has refused the login
	session bool   // the session may be at fault: it has carried mails before
}

// Error returns one line.
func (f *failure) Error() string { return fmt.Sprintf("email: %s: %s", f.at, f.text) }

// maybeSession reports whether a new session may have another result: the server has refused a command,
// or hung up before it could have taken the mail. A lost connection amid the data is not among them: the mail
// itself may be the cause.
func (f *failure) maybeSession() bool {
	return f.code != 0 || f.at == stageSender || f.at == stageRecipient
}

// Unwrap returns the network's error, or the cause of the timeout.
func (f *failure) Unwrap() error { return f.err }

// connectFailure describes why the connection failed.
func connectFailure(ctx context.Context, out *outcome.Destination, addr string, err error) *failure {
	f := &failure{at: stageConnect}
	described := outcome.Failure{Err: err, Text: addr + ": " + err.Error(), Cure: connectCure(err)}

	if reply, ok := errors.AsType[*textproto.Error](err); ok {
		f.code = reply.Code
		said := strconv.Itoa(reply.Code) + " " + reply.Msg
		if strings.Contains(err.Error(), "AUTH") {
			said = "AUTH: " + said
			f.login = f.code != codeClosing
		}
		described.Text = addr + ": " + said
		described.Cure = replyCure(f.code, reply.Msg)
		if described.Cure == "" && !f.login {
			described.Cure = refusalCure(f.code, parseStatus(reply.Msg), reply.Msg)
		}
	} else if ctx.Err() != nil {
		f.err = context.Cause(ctx)
		f.text = addr + ": " + f.err.Error()
		return f
	}

	f.text, f.err = out.Describe(described)
	return f
}

// connectCure returns an operator's remedy for an error without a code, or "".
func connectCure(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "does not support STARTTLS"):
		return "this port has no encryption: set port: 587 if the server has it there, or tls: none for a server of your own network"
	case errors.Is(err, gomail.ErrXOauth2AuthNotSupported):
		return "this server takes no tokens: set a password, and auth: auto"
	case strings.Contains(text, "does not support SMTP AUTH type"):
		return "set auth: auto, which takes what the server offers"
	case errors.Is(err, gomail.ErrNoSupportedAuthDiscovered), strings.Contains(text, "does not support SMTP AUTH"):
		return "this port takes no login: take username and password out, or set the port for logins, often 587"
	default:
		return ""
	}
}

// replyCure returns an operator's remedy for a reply, or "".
func replyCure(code int, said string) string {
	switch _, cure := codes().Find(false, code); {
	case code != codeLoginFirst:
		return cure
	case strings.Contains(strings.ToUpper(said), "TLS"):
		return "the server requires encryption: set tls: mandatory"
	default:
		return "the server requires a login: set username and password"
	}
}

// destination describes failures. A server may repeat the password.
func destination(cfg Config) *outcome.Destination {
	var secrets []string
	if password := cfg.Password.Reveal(); password != "" {
		plain := "\x00" + cfg.Username + "\x00" + password
		oauth := "user=" + cfg.Username + "\x01auth=Bearer " + password + "\x01\x01"
		secrets = []string{password}
		for _, text := range []string{password, plain, oauth} {
			secrets = append(secrets, base64.StdEncoding.EncodeToString([]byte(text)))
		}
	}

	d := outcome.New("email", "check port, or set tls: mandatory or none", secrets...)
	d.TLS.Prefix = ""
	return d
}

// failed finds out how far a mail came. go-mail's error has no Unwrap and knows the
// code of the last refused recipient only, so the recorded replies come first.
func (c *conn) failed(err error) *failure {
	f := &failure{at: stageSender, text: "no reply"}
	var send *gomail.SendError
	if !errors.As(err, &send) {
		f.text = c.out.Clean(err.Error())
		return f
	}

	command := ""
	switch send.Reason {
	case gomail.ErrSMTPMailFrom:
		command = "mail"
	case gomail.ErrSMTPRcptTo:
		f.at = stageRecipient
		command = "rcpt"
	case gomail.ErrSMTPData:
		f.at = stageData
		command = "data"
	case gomail.ErrWriteContent:
		f.at = stageData
	case gomail.ErrSMTPDataClose:
		f.at = stageEnd
		if c.socket.broken.Load() {
			// go-mail does not report that the last bytes were not written.
			f.at = stageData
		}
	case gomail.ErrGetSender, gomail.ErrGetRcpts, gomail.ErrNoUnencoded:
		f.at = stageMessage
	case gomail.ErrConnCheck, gomail.ErrSMTPReset, gomail.ErrAmbiguous:
		// The connection was gone before. The other two cannot come here: the mail is
		// sent by the time of a RSET, and there is one mail at a time.
	}

	if reply := c.replies.worst(command); reply != nil {
		f.code = reply.Code
		f.status = parseStatus(reply.Msg)
		f.text = c.said(reply.Code, reply.Msg)
		return f
	}

	f.text = c.out.Clean(sendText(send))
	if f.at == stageEnd {
		f.code = send.ErrorCode()
		if said, ok := strings.CutPrefix(f.text, strconv.Itoa(f.code)+" "); ok {
			f.status = parseStatus(said)
			f.text = c.said(f.code, said)
		}
	}

	return f
}

// said describes a reply to a command of a mail.
func (c *conn) said(code int, text string) string {
	cure := cmp.Or(replyCure(code, text), refusalCure(code, parseStatus(text), text))
	line, _ := c.out.Describe(outcome.Failure{Text: strconv.Itoa(code) + " " + text, Cure: cure})
	return line
}

// sendText takes go-mail's prefix off a SendError.
func sendText(send *gomail.SendError) string {
	text := strings.TrimPrefix(send.Error(), send.Reason.String()+": ")
	text, _, _ = strings.Cut(text, ", affected ")
	// net/textproto quotes replies.
	if i := strings.IndexByte(text, '"'); i >= 0 {
		if quoted, err := strconv.QuotedPrefix(text[i:]); err == nil {
			if reply, err := strconv.Unquote(quoted); err == nil {
				text = text[:i] + reply
			}
		}
	}
	return text
}
