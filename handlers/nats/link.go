package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

const (
	// pingEvery and pingsOut find a dead connection while nothing is delivered.
	pingEvery = 20 * time.Second
	pingsOut  = 2
	// maxPending is above the number of messages that can be under way: batches bound
	// those already.
	maxPending = 1 << 20
)

// connectOptions are the same for every connection. The library prints nothing and
// does not connect again.
func connectOptions(cfg Config, baseDir string) ([]natsgo.Option, error) {
	all := []natsgo.Option{
		natsgo.Name(cfg.ClientName),
		natsgo.Timeout(cfg.ConnectTimeout),
		natsgo.NoReconnect(),
		natsgo.PingInterval(pingEvery),
		natsgo.MaxPingsOutstanding(pingsOut),
	}

	conf := cfg.TLS
	for _, s := range cfg.Servers {
		if conf == nil && strings.HasPrefix(s, "tls://") {
			conf = &handlers.TLS{}
		}
	}

	security, err := tlsconf.Load(conf, baseDir)
	if err != nil {
		return nil, err
	}

	if security != nil {
		all = append(all, natsgo.Secure(security))
	}

	login, err := loginOption(cfg, baseDir)
	if err != nil {
		return nil, err
	}

	if login != nil {
		all = append(all, login)
	}

	return all, nil
}

// loginOption returns the credentials; nil for none.
func loginOption(cfg Config, baseDir string) (natsgo.Option, error) {
	switch {
	case cfg.Username != "":
		return natsgo.UserInfo(cfg.Username, cfg.Password.Reveal()), nil
	case !cfg.Token.IsZero():
		return natsgo.Token(cfg.Token.Reveal()), nil
	case !cfg.NKeySeed.IsZero():
		key, err := userKey(cfg.NKeySeed.Reveal())
		if err != nil {
			return nil, field.Errorf("nkey_seed", "%w", err)
		}

		public, err := key.PublicKey()
		if err != nil {
			return nil, field.Errorf("nkey_seed", "%w", err)
		}

		return natsgo.Nkey(public, key.Sign), nil
	case cfg.CredentialsFile != "":
		path := cfg.CredentialsFile
		if !filepath.IsAbs(path) {
			path = filepath.Join(baseDir, path)
		}

		text, err := os.ReadFile(path)
		if err != nil {
			return nil, field.Errorf("credentials_file", "cannot be read: %w", err)
		}

		if _, err := nkeys.ParseDecoratedNKey(text); err != nil {
			return nil, field.Errorf("credentials_file", "holds no user's seed: give the file that nsc has written")
		}

		return natsgo.UserCredentials(path), nil
	default:
		return nil, nil //nolint:nilnil // there is no such option
	}
}

// link is a connection.
type link struct {
	conn   *natsgo.Conn
	stream jetstream.JetStream
	gone   chan struct{} // closed when the connection is
	born   time.Time
	record *idle.Record
	users  sync.WaitGroup // batches; a new one begins only while the handler has the link

	mu      sync.Mutex
	refused map[string]error // by subject: publishing is not allowed
	changed chan struct{}    // closed and replaced when refused grows
}

// dial connects to the first server that accepts the connection.
func (h *Handler) dial(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	stop := context.AfterFunc(h.closing, func() { cancel(outcome.ErrClosed) }) //nolint:contextcheck // either context ends it
	defer stop()

	l := &link{
		born:    time.Now(),
		record:  idle.NewRecord(),
		gone:    make(chan struct{}),
		refused: make(map[string]error),
		changed: make(chan struct{}),
	}

	d := &dialer{ctx: ctx, timeout: h.cfg.ConnectTimeout}
	options := append([]natsgo.Option{
		natsgo.SetCustomDialer(d),
		natsgo.ClosedHandler(func(*natsgo.Conn) { close(l.gone) }),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) { l.heard(err) }),
	}, h.options...)

	conn, err := natsgo.Connect(strings.Join(h.cfg.Servers, ","), options...)
	d.release()
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("connect to %s: %w", hosts(h.cfg.Servers), moreThan(err, d.last))
	}

	l.conn = conn
	l.stream, err = jetstream.New(conn,
		jetstream.WithPublishAsyncMaxPending(maxPending), jetstream.WithPublishAsyncTimeout(h.cfg.AckTimeout))
	if err != nil {
		l.close()
		return nil, err
	}

	return l, nil
}

// moreThan returns the error of the last attempt to dial if the library reports
// only the absence of servers.
func moreThan(err, dial error) error {
	if errors.Is(err, natsgo.ErrNoServers) && dial != nil {
		return dial
	}
	return err
}

// hosts lists the hosts of the servers, without the rest of their URLs.
func hosts(servers []string) string {
	var all []string
	for _, s := range servers {
		if u, err := url.Parse(s); err == nil {
			all = append(all, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultPort)))
		}
	}
	return strings.Join(all, ", ")
}

// close ends the connection and all that waits for it.
func (l *link) close() { l.conn.Close() }

func (l *link) isClosed() bool {
	select {
	case <-l.gone:
		return true
	default:
		return l.conn.IsClosed()
	}
}

// heard takes the server's asynchronous errors.
func (l *link) heard(err error) {
	subject := refusedSubject(err)
	if subject == "" {
		return // an error that ends the connection shows there
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused[subject] = err
	close(l.changed)
	l.changed = make(chan struct{})
}

// publishRefused matches a server's refusal of a subject. The text is all that the
// server sends.
var publishRefused = regexp.MustCompile(`(?i)permissions violation for publish to "([^"]+)"`)

// refusedSubject returns the subject that a server forbids to publish to,
// "" for any other error.
func refusedSubject(err error) string {
	if !errors.Is(err, natsgo.ErrPermissionViolation) {
		return ""
	}
	if match := publishRefused.FindStringSubmatch(err.Error()); match != nil {
		return match[1]
	}
	return ""
}

// refusal returns whether a subject was refused, and a channel that is closed at the
// next refusal.
func (l *link) refusal(subject string) (changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed, l.refused[subject]
}

// forget has a subject tried once more.
func (l *link) forget(subject string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.refused, subject)
}

// ask runs a request to JetStream, and ends it when the server refuses its subject: such
// a request has no answer.
func (l *link) ask(ctx context.Context, subject string, request func(context.Context) error) error {
	l.forget(subject)
	ctx, cancel := context.WithCancelCause(ctx)
	answer := make(chan error, 1)
	go func() { answer <- request(ctx) }()

	for {
		changed, refused := l.refusal(subject)
		if refused != nil {
			cancel(refused)
			if err := <-answer; err == nil {
				return nil
			}
			return refused
		}

		select {
		case err := <-answer:
			cancel(nil)
			return err
		case <-changed:
		}
	}
}

// dialer lets a context end a connection attempt of the library.
type dialer struct {
	ctx     context.Context //nolint:containedctx // the library passes no context
	timeout time.Duration
	stops   []func() bool
	last    error
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(d.ctx, d.timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		d.last = err
		return nil, err
	}
	d.stops = append(d.stops, context.AfterFunc(d.ctx, func() { _ = conn.Close() }))
	return conn, nil
}

// release leaves the connections to the library.
func (d *dialer) release() {
	for _, stop := range d.stops {
		stop()
	}
}
