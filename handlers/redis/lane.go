package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/handlers/internal/idle"
)

// poolSize is the pool size of a lane's client, which uses one connection at a
// time. Once its failures reach the size of the pool, go-redis begins to dial in
// the background once a second. No lane lives long enough to have that many
// failures.
const poolSize = 8

// clusterRedirects is how many times a Cluster may redirect a command to another node.
const clusterRedirects = 3

// lane is a client for one batch at a time. go-redis itself does not look at a
// context while it waits for an answer, so the lane knows its connections and
// closes them.
type lane struct {
	client  goredis.UniversalClient
	cluster bool
	broken  bool // not to be used again; of the batch that has the lane
	record  *idle.Record
	cfg     Config
	tls     *tls.Config
	ctx     context.Context //nolint:containedctx // ends background dials of the library
	cancel  context.CancelFunc

	mu    sync.Mutex
	conns map[*conn]struct{}
	dead  bool
}

func newLane(ctx context.Context, h *Handler) *lane {
	l := &lane{
		cfg:     h.cfg,
		tls:     h.tls,
		cluster: h.cfg.Cluster,
		record:  idle.NewRecord(),
		conns:   make(map[*conn]struct{}),
	}

	// The lane outlives the delivery that needed it first.
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))

	l.client = goredis.NewUniversalClient(&goredis.UniversalOptions{
		Addrs:            h.at.addresses,
		MasterName:       h.cfg.SentinelMaster,
		SentinelUsername: h.cfg.SentinelUsername,
		SentinelPassword: h.cfg.SentinelPassword.Reveal(),
		IsClusterMode:    h.cfg.Cluster,
		Username:         h.at.username,
		Password:         h.at.password.Reveal(),
		DB:               h.at.database,
		// With the third version servers send messages that no command has asked for.
		Protocol: 2,
		// A name and a version for CLIENT LIST would need the right to set them.
		DisableIdentity: true,
		Dialer:          l.dial,
		// The outbox tries again, and knows that it does.
		MaxRetries:       -1,
		DialerRetries:    1,
		MaxRedirects:     clusterRedirects,
		DialTimeout:      2 * h.cfg.ConnectTimeout, // connect_timeout ends first, and is named in its error
		WriteTimeout:     h.cfg.WriteTimeout,
		ReadTimeout:      h.cfg.ReadTimeout + h.cfg.waitTimeout(),
		PoolSize:         poolSize,
		ConnMaxLifetime:  h.age,
		PipelinePoolSize: -1,
	})

	return l
}

// dial connects, and remembers the connection.
func (l *lane) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.cfg.ConnectTimeout, errConnectTimeout)
	defer cancel()

	stop := context.AfterFunc(l.ctx, cancel) //nolint:contextcheck // either context ends it
	defer stop()

	raw, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, dialError(ctx, addr, err)
	}

	c := &conn{Conn: raw, raw: raw, lane: l}
	if l.tls != nil {
		conf := l.tls.Clone()
		if conf.ServerName == "" {
			conf.ServerName, _, err = net.SplitHostPort(addr)
			if err != nil {
				_ = raw.Close() // not used yet
				return nil, err
			}
		}

		encrypted := tls.Client(raw, conf)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			_ = raw.Close() // it is the handshake that has failed
			return nil, handshakeError(dialError(ctx, addr, err))
		}
		c.Conn = encrypted
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	if l.dead {
		_ = raw.Close() // not used yet
		return nil, net.ErrClosed
	}

	l.conns[c] = struct{}{}
	return c, nil
}

var errConnectTimeout = errors.New("connect_timeout is over")

// dialError adds the address, which the library leaves out.
func dialError(ctx context.Context, addr string, err error) error {
	if errors.Is(context.Cause(ctx), errConnectTimeout) {
		err = errConnectTimeout
	}
	return fmt.Errorf("connect to %s: %w", addr, err)
}

// handshakeError names a cause that does not show: a server without TLS waits for
// the end of a line that never comes.
func handshakeError(err error) error {
	if errors.Is(err, errConnectTimeout) {
		return fmt.Errorf("%w (does the port speak TLS?)", err)
	}
	return err
}

// abort ends all activity in the lane.
func (l *lane) abort() {
	l.cancel()
	l.mu.Lock()
	l.dead = true
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for c := range conns {
		_ = c.raw.Close() // its user gets the error
	}
}

// close ends the lane and its goroutines.
func (l *lane) close() {
	l.abort()
	_ = l.client.Close() // there is nothing left that could fail
}

// conn is a connection that its lane knows.
type conn struct {
	net.Conn

	raw  net.Conn
	lane *lane
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.lane.mu.Lock()
	delete(c.lane.conns, c)
	c.lane.mu.Unlock()
	return c.Conn.Close()
}

// SyscallConn gives go-redis the raw connection, to check before each use
// of an idle connection whether the server has closed it. With TLS the
// close shows on the connection below.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	sc, ok := c.raw.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return sc.SyscallConn()
}
