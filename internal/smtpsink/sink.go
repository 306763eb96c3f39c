// Package smtpsink is a mail server that keeps its mails, for tests and for the
// demo. It runs inside the process, speaks STARTTLS, TLS and AUTH, and can be
// made to fail at any point of a transaction.
//
// The SMTP itself is emersion/go-smtp. Faults for which that library has no hook
// (a refused DATA, a failing RSET, a connection that is never greeted) are made
// one layer below, on the lines that the client sends: see lineConn.
package smtpsink

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
)

// TLS is how connections are encrypted.
type TLS int

const (
	// StartTLS offers STARTTLS and accepts mail without it too.
	StartTLS TLS = iota
	// NoTLS offers no encryption.
	NoTLS
	// ImplicitTLS expects a TLS handshake before the first byte of SMTP.
	ImplicitTLS
)

// Options of a [Sink]. The zero value listens on a free port of 127.0.0.1,
// offers STARTTLS, and requires no password.
type Options struct {
	// Listen opens the listener: on an empty address at first, and on the last one at a
	// [Sink.Restart]. Nil takes any free port of 127.0.0.1, which another process may
	// take while the sink is closed: a test with a restart uses freeport.At.
	Listen func(ctx context.Context, addr string) (net.Listener, error)
	// TLS is how connections are encrypted.
	TLS TLS
	// Username and Password, if set, must be given by AUTH PLAIN or LOGIN
	// before a mail is accepted.
	Username, Password string
	// Token, if set, returns the token that AUTH XOAUTH2 of Username must have at this moment, in place of a password.
	Token func() string
	// NoSMTPUTF8 does not offer SMTPUTF8: addresses are ASCII.
	NoSMTPUTF8 bool
	// Faults are like those of [Sink.Fail], from the first connection on.
	Faults []Fault
}

// Sink is a running server. All methods are safe for concurrent use.
type Sink struct {
	opts Options
	cert tls.Certificate
	pem  []byte

	mu       sync.Mutex
	addr     string
	server   *smtp.Server
	listener net.Listener
	stopped  chan struct{} // closed when the server is
	served   chan struct{} // closed when Serve has returned
	conns    map[*lineConn]struct{}
	accepted int
	logins   int
	hanging  int
	mails    []Mail
	faults   []Fault
	failed   int           // faults that have happened
	changed  chan struct{} // closed and replaced at every change that Wait methods wait for
}

// stopTimeout bounds Close: every connection is closed first, so that only a few
// goroutines are left to end.
const stopTimeout = 5 * time.Second

// Start starts a server. The caller closes it.
func Start(opts Options) (*Sink, error) {
	cert, pem, err := selfSigned()
	if err != nil {
		return nil, fmt.Errorf("smtpsink: %w", err)
	}

	s := &Sink{
		opts:    opts,
		cert:    cert,
		pem:     pem,
		conns:   make(map[*lineConn]struct{}),
		changed: make(chan struct{}),
		faults:  slices.Clone(opts.Faults),
	}
	l, err := s.listen("")
	if err != nil {
		return nil, fmt.Errorf("smtpsink: %w", err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.serve(l)
	return s, nil
}

// listen listens on an address; empty is one of 127.0.0.1.
func (s *Sink) listen(addr string) (net.Listener, error) {
	ctx := context.Background() //nolint:forbidigo // the listener outlives every ctx
	if s.opts.Listen != nil {
		return s.opts.Listen(ctx, addr)
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", cmp.Or(addr, "127.0.0.1:0"))
}

// Restart starts a closed server again, on the same port and with the same
// certificate. The mails and the faults that are left are kept.
func (s *Sink) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return errors.New("smtpsink: the server is running")
	}

	l, err := s.listen(s.addr)
	if err != nil {
		return fmt.Errorf("smtpsink: %w", err)
	}
	s.serve(l)
	return nil
}

// serve serves the connections of l. It is called with mu held.
func (s *Sink) serve(l net.Listener) {
	s.addr = l.Addr().String()
	s.listener = l
	s.stopped = make(chan struct{})
	s.served = make(chan struct{})

	s.server = smtp.NewServer(smtp.BackendFunc(newSession))
	s.server.Domain = "sink.example"
	s.server.AllowInsecureAuth = true // lineConn does the TLS, go-smtp sees none
	s.server.ErrorLog = log.New(io.Discard, "", 0)
	s.server.EnableSMTPUTF8 = !s.opts.NoSMTPUTF8

	go func(server *smtp.Server, served chan struct{}) {
		defer close(served)
		_ = server.Serve(&listener{Listener: l, sink: s}) // fails when it is closed, and only then
	}(s.server, s.served)
}

// Close stops the server, closes every connection, and waits until its
// goroutines have ended, a few seconds at most. Mails are kept. Closing twice
// does nothing.
func (s *Sink) Close() error {
	s.mu.Lock()
	server := s.server
	served := s.served
	s.server = nil
	if server == nil {
		s.mu.Unlock()
		return nil
	}

	close(s.stopped)
	err := s.listener.Close()

	open := make([]*lineConn, 0, len(s.conns))
	for c := range s.conns {
		open = append(open, c)
	}
	s.mu.Unlock()

	for _, c := range open {
		_ = c.Close()
	}

	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout) //nolint:forbidigo // bounds the teardown
	defer cancel()

	<-served
	if serr := server.Shutdown(ctx); serr != nil && !errors.Is(serr, net.ErrClosed) {
		return fmt.Errorf("smtpsink: %w", serr)
	}
	return err
}

// Addr returns host:port. It stays the same over a [Sink.Restart].
func (s *Sink) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Host and Port are the two halves of Addr.
func (s *Sink) Host() string {
	host, _, _ := net.SplitHostPort(s.Addr())
	return host
}

// Port returns the port that the server listens on.
func (s *Sink) Port() int {
	a, err := net.ResolveTCPAddr("tcp", s.Addr())
	if err != nil {
		return 0
	}
	return a.Port
}

// CertPEM returns the server's certificate, which is its own authority, in PEM.
// It is valid for localhost and for the loopback addresses.
func (s *Sink) CertPEM() []byte { return slices.Clone(s.pem) }

// Accepted returns how many connections there have been.
func (s *Sink) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// Logins returns how many AUTH commands there have been.
func (s *Sink) Logins() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins
}

func (s *Sink) login() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logins++
	s.announce()
}

// WaitLogins waits until there have been at least n AUTH commands.
func (s *Sink) WaitLogins(ctx context.Context, n int) error {
	return s.until(ctx, func() bool { return s.logins >= n })
}

// Open returns how many connections are open now.
func (s *Sink) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Mails returns the mails accepted so far, in the order of their last byte.
func (s *Sink) Mails() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mails)
}

// Wait waits until there are at least n mails and returns them all. If ctx is
// done before, it returns the mails so far and the cause.
func (s *Sink) Wait(ctx context.Context, n int) ([]Mail, error) {
	err := s.until(ctx, func() bool { return len(s.mails) >= n })
	return s.Mails(), err
}

// WaitOpen waits until exactly n connections are open.
func (s *Sink) WaitOpen(ctx context.Context, n int) error {
	return s.until(ctx, func() bool { return len(s.conns) == n })
}

// WaitAccepted waits until there have been at least n connections.
func (s *Sink) WaitAccepted(ctx context.Context, n int) error {
	return s.until(ctx, func() bool { return s.accepted >= n })
}

// WaitHanging waits until n connections are held up by a [Fault] with Hang.
func (s *Sink) WaitHanging(ctx context.Context, n int) error {
	return s.until(ctx, func() bool { return s.hanging == n })
}

// until waits for done, which is called with mu held.
func (s *Sink) until(ctx context.Context, done func() bool) error {
	for {
		s.mu.Lock()
		ok := done()
		changed := s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// announce wakes the waiters. It is called with mu held.
func (s *Sink) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Sink) record(m Mail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mails = append(s.mails, m)
	s.announce()
}
