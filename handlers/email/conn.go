package email

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	gomail "github.com/wneessen/go-mail"
	"github.com/wneessen/go-mail/smtp"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// conn is one connection to the server. It is used by one goroutine at a time.
type conn struct {
	client  *gomail.Client
	smtp    *smtp.Client
	socket  *socket
	replies replies
	out     *outcome.Destination
	born    time.Time
	sent    int         // mails tried
	timer   *time.Timer // closes it when idle; guarded by pool.mu
}

// closeWhenDone closes the socket when ctx is done. The function that it returns
// ends the watch and reports whether the socket is still open.
func (c *conn) closeWhenDone(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, c.socket.close)
}

// quit says goodbye and closes. It must not be called amid a mail: go-mail would end
// the mail with a dot, and the server would send half of it.
func (c *conn) quit() {
	if c.socket.Conn.SetDeadline(time.Now().Add(quitTimeout)) == nil {
		_ = c.smtp.Quit() // a courtesy
	}
	c.socket.close()
}

// socket is the TCP connection below go-mail and TLS.
type socket struct {
	net.Conn
	broken atomic.Bool // whether a write has failed
	heard  int         // bytes read for this mail
}

// maxHeard bounds the replies of a server while one connection is opened, or one
// mail is sent. Real servers send a few kilobytes; net/textproto would keep an endless
// reply in memory.
const maxHeard = 1 << 20

// Read fails for a server whose reply does not end.
func (s *socket) Read(p []byte) (int, error) {
	if s.heard > maxHeard {
		return 0, fmt.Errorf("the server's replies have more than %d bytes", maxHeard)
	}
	n, err := s.Conn.Read(p)
	s.heard += n
	return n, err
}

// Write records a failure: go-mail drops the error of the last write of a mail,
// which decides whether the server can have seen the whole mail.
func (s *socket) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	if err != nil {
		s.broken.Store(true)
	}
	return n, err
}

// SetDeadline does nothing. go-mail sets one deadline for everything, which
// would end an idle connection and ignores ctx; closeWhenDone takes its place.
func (*socket) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing, like SetDeadline.
func (*socket) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing, like SetDeadline.
func (*socket) SetWriteDeadline(time.Time) error { return nil }

func (s *socket) close() { _ = s.Close() } // nothing is left to lose

// replies records refusals of the server. go-mail calls it for every unexpected
// reply; it changes none.
type replies struct {
	mu  sync.Mutex
	all []refusal
}

type refusal struct {
	command string // in lower case: "rcpt"
	reply   *textproto.Error
}

// HandleError implements go-mail's ResponseErrorHandler.
func (r *replies) HandleError(_, command string, _ *textproto.Conn, err error) error {
	if reply, ok := errors.AsType[*textproto.Error](err); ok {
		r.mu.Lock()
		r.all = append(r.all, refusal{command, reply})
		r.mu.Unlock()
	}
	return err
}

func (r *replies) forget() {
	r.mu.Lock()
	r.all = nil
	r.mu.Unlock()
}

// worst returns the reply to a command that decides: one that refuses for good, else one that refuses for now, else one
// that wants fewer mails, else 421. Of those alike, one that is certainly about its recipient decides. A server that
// refuses a few recipients and then hangs up or slows down must not look down or busy: the event would be tried forever.
func (r *replies) worst(command string) *textproto.Error {
	r.mu.Lock()
	defer r.mu.Unlock()

	var worst *textproto.Error
	for _, f := range r.all {
		if f.command == command && (worst == nil || weight(f.reply) > weight(worst)) {
			worst = f.reply
		}
	}
	return worst
}

// weight ranks the replies that several recipients of a mail got.
func weight(r *textproto.Error) int {
	if r.Code == codeClosing {
		return 0
	}

	order := []outcome.Class{
		outcome.Throttled,
		outcome.Unavailable,
		outcome.UnclearRetry,
		outcome.Retry,
		outcome.Unclear,
		outcome.Permanent,
	}
	return 1 + slices.Index(order, classOfReply(stageRecipient, r.Code, parseStatus(r.Msg)))
}

func portText(port int) string { return strconv.Itoa(port) }
