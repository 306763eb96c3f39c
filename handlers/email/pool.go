package email

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"sync"
	"time"

	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/token"
)

const (
	// idleTimeout is how long a connection waits for the next mail. Servers close it
	// after a minute or more, and some count open connections.
	idleTimeout = 30 * time.Second
	// refusedFor is how long a refused login answers for later deliveries. A relay waits for longer.
	refusedFor = 5 * time.Second
	// quitTimeout bounds the goodbye, which is a courtesy.
	quitTimeout = time.Second
)

// pool holds connections to one server: at most as many as it has slots, idle
// ones included.
type pool struct {
	cfg   Config
	helo  string // the name of the greeting
	out   *outcome.Destination
	cas   *x509.CertPool
	token *token.Source // of auth: xoauth2
	idle  time.Duration
	slots chan struct{}
	done  chan struct{}  // closed by close
	quits sync.WaitGroup // goodbyes under way

	mu      sync.Mutex
	refused failure // the last refused login, of the time at; none if at is zero
	at      time.Time
	conns   []*conn // idle, the one used last at the end
	shut    bool
}

func newPool(cfg Config, cas *x509.CertPool, baseDir string) *pool {
	return &pool{
		cfg: cfg, helo: greetingOf(cfg, machineName()), out: destination(cfg), cas: cas, idle: idleTimeout,
		token: token.New(token.Settings{File: cfg.TokenFile, Base: baseDir, Command: cfg.TokenCommand, Lifetime: cfg.TokenLifetime}),
		slots: make(chan struct{}, cfg.Connections), done: make(chan struct{}),
	}
}

// acquire waits for a slot. release gives it back.
func (p *pool) acquire(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	closed := p.out.Closed()

	select {
	case <-p.done:
		return closed
	default:
	}

	select {
	case p.slots <- struct{}{}:
		return nil
	case <-p.done:
		return closed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *pool) release() { <-p.slots }

// reuse takes an idle connection, or returns nil.
func (p *pool) reuse() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns) - 1
	if n < 0 {
		return nil
	}
	c := p.conns[n]
	p.conns = p.conns[:n]
	c.timer.Stop()
	return c
}

// putBack makes c idle, or closes it if it has carried enough.
func (p *pool) putBack(c *conn) {
	p.mu.Lock()
	rest := p.cfg.MaxConnectionAge - time.Since(c.born)
	keep := !p.shut && c.sent < p.cfg.MaxConnectionMails && rest > 0
	if keep {
		c.timer = time.AfterFunc(min(p.idle, rest), func() { p.expire(c) })
		p.conns = append(p.conns, c)
	}
	p.mu.Unlock()
	if !keep {
		c.quit()
	}
}

// expire closes c if it is still idle.
func (p *pool) expire(c *conn) {
	p.mu.Lock()
	i := slices.Index(p.conns, c)
	if i >= 0 {
		p.conns = slices.Delete(p.conns, i, i+1)
		p.quits.Add(1)
	}
	p.mu.Unlock()
	if i >= 0 {
		c.quit()
		p.quits.Done()
	}
}

// close closes the idle connections, and makes acquire fail.
func (p *pool) close() {
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	if !p.shut {
		p.shut = true
		close(p.done)
	}
	p.mu.Unlock()

	for _, c := range conns {
		c.timer.Stop()
		p.quits.Go(c.quit)
	}

	p.quits.Wait() // each takes quitTimeout at most
}

// dial opens a connection, up to and including AUTH.
func (p *pool) dial(ctx context.Context) (*conn, *failure) {
	dctx, cancel := outcome.Within(ctx, "connect_timeout", p.cfg.ConnectTimeout)
	defer cancel()

	cfg := p.cfg
	out := p.out
	if cfg.Auth == AuthXOAUTH2 {
		text, err := p.token.Get(dctx)
		if err != nil {
			return nil, &failure{at: stageConnect, text: err.Error(), err: err}
		}
		cfg.Password = handlers.NewSecret(text)
		out = destination(cfg)
	}

	c := &conn{born: time.Now(), out: out}
	var stop func() bool
	dialer := func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c.socket = &socket{Conn: raw}
		// go-mail obeys ctx while it dials and at no time later.
		stop = c.closeWhenDone(dctx)
		if p.cfg.TLS != TLSImplicit {
			return c.socket, nil
		}
		encrypted := tls.Client(c.socket, p.tls())
		return encrypted, encrypted.HandshakeContext(ctx)
	}

	addr := net.JoinHostPort(p.cfg.Host, portText(p.cfg.Port))
	client, err := p.client(cfg, dialer, &c.replies)
	if err == nil {
		c.client = client
		c.smtp, err = client.DialToSMTPClientWithContext(dctx)
	}

	if stop != nil && !stop() && err == nil {
		err = context.Cause(dctx)
	}

	if err != nil {
		if c.socket != nil {
			c.socket.close() // go-mail leaves it open if EHLO, STARTTLS or AUTH fails
		}
		f := connectFailure(dctx, out, addr, err)
		if f.login {
			p.mu.Lock()
			p.refused = *f // a copy: the caller still writes to f
			p.at = time.Now()
			p.mu.Unlock()
		}
		return nil, f
	}

	return c, nil
}

// refusedSince returns the refusal of a login since then, or shortly before: servers count each login, and
// deliveries have waited for their turn meanwhile, or begin before the relay knows.
func (p *pool) refusedSince(began time.Time) *failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() || began.Sub(p.at) > refusedFor {
		return nil
	}
	f := p.refused
	return &f
}

// client makes a go-mail client for one connection. It is not shared: dialling
// writes to the client under a lock for readers, and a sender holds that lock
// twice.
func (p *pool) client(cfg Config, dial gomail.DialContextFunc, r *replies) (*gomail.Client, error) {
	opts := []gomail.Option{
		gomail.WithPort(cfg.Port),
		gomail.WithHELO(p.helo),
		gomail.WithTimeout(cfg.ConnectTimeout),
		gomail.WithTLSConfig(p.tls()),
		gomail.WithDialContextFunc(dial),
		// go-mail would ask NOOP before each mail, NOOP and RSET after it. A
		// dead connection shows at MAIL as well, and DATA ends a transaction.
		gomail.WithoutNoop(),
		gomail.WithoutRset(),
	}

	switch cfg.TLS {
	case TLSImplicit:
		opts = append(opts, gomail.WithSSL())
	case TLSOpportunistic:
		opts = append(opts, gomail.WithTLSPolicy(gomail.TLSOpportunistic))
	case TLSNone:
		opts = append(opts, gomail.WithTLSPolicy(gomail.NoTLS))
	default:
		opts = append(opts, gomail.WithTLSPolicy(gomail.TLSMandatory))
	}

	if cfg.Username != "" {
		opts = append(opts, gomail.WithUsername(cfg.Username), gomail.WithPassword(cfg.Password.Reveal()), p.auth())
	}

	client, err := gomail.NewClient(cfg.Host, opts...)
	if err != nil {
		return nil, err
	}

	client.ErrorHandlerRegistry.SetDefaultHandler(r)
	return client, nil
}

// auth chooses the mechanism. go-mail's own choice prefers NTLM, and does not know that
// the pool's dialler encrypted the connection.
func (p *pool) auth() gomail.Option {
	plain := gomail.SMTPAuthPlain
	login := gomail.SMTPAuthLogin
	if p.cfg.TLS == TLSNone { // Validate allows that on the loopback only
		plain = gomail.SMTPAuthPlainNoEnc
		login = gomail.SMTPAuthLoginNoEnc
	}

	switch p.cfg.Auth {
	case AuthPlain:
		return gomail.WithSMTPAuth(plain)
	case AuthLogin:
		return gomail.WithSMTPAuth(login)
	case AuthCRAMMD5:
		return gomail.WithSMTPAuth(gomail.SMTPAuthCramMD5)
	case AuthSCRAMSHA1:
		return gomail.WithSMTPAuth(gomail.SMTPAuthSCRAMSHA1)
	case AuthSCRAMSHA256:
		return gomail.WithSMTPAuth(gomail.SMTPAuthSCRAMSHA256)
	case AuthXOAUTH2:
		return gomail.WithSMTPAuth(gomail.SMTPAuthXOAUTH2)
	default:
		return gomail.WithOpportunisticSMTPAuth(gomail.SMTPAuthSCRAMSHA256, gomail.SMTPAuthSCRAMSHA1,
			plain, login, gomail.SMTPAuthCramMD5)
	}
}

func (p *pool) tls() *tls.Config {
	return &tls.Config{ServerName: cmp.Or(p.cfg.ServerName, p.cfg.Host), RootCAs: p.cas, MinVersion: tls.VersionTLS12}
}
