package email

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"strconv"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/exhaust"
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

// codeClosing is the server's "service not available, closing".
const codeClosing = 421

// codeLoginFirst is the server's "authentication required", and its "must issue a
// STARTTLS command first".
const codeLoginFirst = 530

// classify marks err with the party at fault. Nothing else decides that.
func classify(err error, at stage) error {
	if err == nil {
		return nil
	}
	code, limited, login := 0, false, false
	if f, ok := errors.AsType[*failure](err); ok {
		code, limited, login = f.code, isLimit(f.code, f.status), f.login
	}
	switch {
	case at == stageMessage:
		return delivery.Permanent(err)
	case login:
		return delivery.Unauthorized(err)
	case at == stageConnect:
		return delivery.Unavailable(err)
	case at == stageEnd && code == 0:
		return fmt.Errorf("%w: maybe sent: it may arrive twice (set maybe_sent: accept to risk that it does not arrive)", err)
	case limited:
		return delivery.Throttled(0, err)
	case code == 0, code == codeClosing, isOurs(code), at == stageSender:
		return delivery.Unavailable(err)
	case code/100 == 5 && at != stageOwnSender:
		return delivery.Permanent(err)
	default:
		return err
	}
}

// isOurs reports whether a reply at any stage is about the session and not about the
// mail: command or sequence refused, password required.
func isOurs(code int) bool {
	switch code {
	case 502, 503, 530, 534, 535, 538:
		return true
	default:
		return false
	}
}

// failure is a delivery that failed once there was a server to talk to.
type failure struct {
	at      stage
	code    int    // of the reply, 0 if there was none
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

// connectFailure describes why there is no connection.
func connectFailure(ctx context.Context, addr string, err error) *failure {
	f := &failure{at: stageConnect, text: err.Error(), err: exhaust.Cause(err)}
	var reply *textproto.Error
	switch {
	case errors.As(err, &reply):
		f.code, f.text = reply.Code, strconv.Itoa(reply.Code)+" "+reply.Msg
		if strings.Contains(err.Error(), "AUTH") {
			f.text = "AUTH: " + f.text
			f.login = f.code != codeClosing
		}
	case ctx.Err() != nil:
		f.err = context.Cause(ctx)
		f.text = f.err.Error()
	case isNetwork(err):
		f.err = err
	}
	f.text = addr + ": " + f.text + connectCure(err, f.code)
	return f
}

// connectCure returns what an operator can do, or "".
func connectCure(err error, code int) string {
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &cert):
		return " (check server_name, or name the authority's certificate with ca_file)"
	case strings.Contains(err.Error(), "does not support STARTTLS"):
		return " (this port has no encryption: set port: 587 if the server has it there, or tls: none for a server of your own network)"
	case code == codeLoginFirst:
		return loginCure(err.Error())
	case code == 535, code == 534:
		return " (check password, then username: many providers require an app password)"
	case strings.Contains(err.Error(), "does not support SMTP AUTH type"):
		return " (set auth: auto, which takes what the server offers)"
	case errors.Is(err, gomail.ErrNoSupportedAuthDiscovered), strings.Contains(err.Error(), "does not support SMTP AUTH"):
		return " (this port takes no login: take username and password out, or set the port for logins, often 587)"
	default:
		return ""
	}
}

// loginCure is the cure of a 530: encryption or a login must come first.
func loginCure(reply string) string {
	if strings.Contains(strings.ToUpper(reply), "TLS") {
		return " (the server requires encryption: set tls: mandatory)"
	}
	return " (the server requires a login: set username and password)"
}

func isNetwork(err error) bool {
	var op *net.OpError
	var cert *tls.CertificateVerificationError
	return errors.As(err, &op) || errors.As(err, &cert)
}

// failed finds out how far a mail came. go-mail's error has no Unwrap and knows the
// code of the last refused recipient only, so the recorded replies come first.
func (c *conn) failed(err error) *failure {
	f := &failure{at: stageSender, text: "no reply"}
	var send *gomail.SendError
	if !errors.As(err, &send) {
		f.text = err.Error()
		return f
	}
	command := ""
	switch send.Reason {
	case gomail.ErrSMTPMailFrom:
		command = "mail"
	case gomail.ErrSMTPRcptTo:
		f.at, command = stageRecipient, "rcpt"
	case gomail.ErrSMTPData:
		f.at, command = stageData, "data"
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
		f.code, f.text = reply.Code, strconv.Itoa(reply.Code)+" "+reply.Msg
		f.status = parseStatus(reply.Msg)
		if f.code == codeLoginFirst {
			f.text += loginCure(reply.Msg)
		}
		return f
	}
	f.text = sendText(send)
	if f.at == stageEnd {
		f.code = send.ErrorCode()
		if said, ok := strings.CutPrefix(f.text, strconv.Itoa(f.code)+" "); ok {
			f.status = parseStatus(said)
		}
	}
	return f
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
