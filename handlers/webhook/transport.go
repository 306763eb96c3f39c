package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/field"
)

const (
	// idleTimeout is below the idle timeout of most servers, a minute and more, so
	// that the handler mostly closes first.
	idleTimeout = 30 * time.Second
	// maxIdle bounds the idle connections, to all hosts and to one.
	maxIdle = 100
	// pingAfter and pingTimeout find a dead HTTP/2 connection, which all requests
	// share: TCP alone takes a quarter of an hour.
	pingAfter   = 10 * time.Second
	pingTimeout = 10 * time.Second
	// maxResponseHeader is the size in bytes of the header of an answer.
	maxResponseHeader = 64 << 10
)

// newTransport returns the transport of a handler, whose connections are in n.
func newTransport(cfg Config, security *tls.Config, n *network) (*http.Transport, error) {
	allowed, err := parseNetworks(cfg.AllowAddresses)
	if err != nil {
		return nil, err
	}

	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout}
	proxy, err := proxyOf(cfg)
	if err != nil {
		return nil, err
	}

	if cfg.Addresses == AddressesPublic { // then there is no proxy
		dialer.ControlContext = newGuard(allowed).control
	}

	return &http.Transport{
		Proxy:                  proxy,
		OnProxyConnectResponse: proxyAnswer,
		DialContext: func(ctx context.Context, kind, address string) (net.Conn, error) {
			return n.dial(ctx, dialer, kind, address)
		},
		TLSClientConfig:        security,
		TLSHandshakeTimeout:    cfg.TLSTimeout,
		ResponseHeaderTimeout:  cfg.ResponseTimeout,
		ForceAttemptHTTP2:      true, // a dialer of one's own turns it off
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		DisableCompression:     true, // answers are read for an error's text only
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
	}, nil
}

// proxyOf returns the function that chooses a proxy, nil for none.
func proxyOf(cfg Config) (func(*http.Request) (*url.URL, error), error) {
	if cfg.ProxyURL.Reveal() == ProxyNone {
		return nil, nil //nolint:nilnil // nil is how net/http spells "no proxy"
	}

	u, err := parseProxy(cfg.ProxyURL)
	if err != nil {
		return nil, err
	}

	if u != nil {
		return http.ProxyURL(u), nil
	}

	if cfg.Addresses != AddressesPublic {
		return http.ProxyFromEnvironment, nil
	}

	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		if os.Getenv(name) != "" {
			return nil, field.Errorf("proxy_url", "the environment variable %s names a proxy: %s", name, proxyBlinds)
		}
	}

	return nil, nil //nolint:nilnil // as above
}

// proxyError is the refusal of a proxy to connect to the host.
type proxyError struct{ code int }

// Error names the status.
func (e *proxyError) Error() string {
	return fmt.Sprintf("the proxy answered %d %s", e.code, http.StatusText(e.code))
}

func proxyAnswer(_ context.Context, _ *url.URL, _ *http.Request, res *http.Response) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	return &proxyError{res.StatusCode}
}

// network holds the connections of a handler, established and being established.
// net/http continues to connect for a request that is over, and does not report the
// end.
type network struct {
	mu     sync.Mutex
	closed bool
	next   int
	ends   map[int]func() // each ends one
}

// add keeps end until remove is called. It reports false if the network is closed.
func (n *network) add(end func()) (remove func(), ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, false
	}

	if n.ends == nil {
		n.ends = make(map[int]func())
	}

	key := n.next
	n.next++
	n.ends[key] = end

	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.ends, key)
	}, true
}

// close ends all connections and allows no new ones.
func (n *network) close() {
	n.mu.Lock()
	n.closed = true
	ends := n.ends
	n.ends = nil
	n.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

func (n *network) dial(ctx context.Context, dialer *net.Dialer, kind, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	made, ok := n.add(cancel)
	if !ok {
		return nil, outcome.ErrClosed
	}
	defer made()

	conn, err := dialer.DialContext(ctx, kind, address)
	if err != nil {
		return nil, err
	}

	remove, ok := n.add(func() { _ = conn.Close() })
	if !ok {
		_ = conn.Close()
		return nil, outcome.ErrClosed
	}

	return &tracked{Conn: conn, remove: sync.OnceFunc(remove)}, nil
}

// tracked is a connection that leaves its network when it is closed.
type tracked struct {
	net.Conn
	remove func()
}

// Close closes the connection.
func (c *tracked) Close() error {
	c.remove()
	return c.Conn.Close()
}

// authorizationOf returns the value of the header Authorization, "" for none.
func authorizationOf(cfg Config) string {
	if !cfg.BearerToken.IsZero() {
		return "Bearer " + cfg.BearerToken.Reveal()
	}
	if cfg.Username == "" {
		return ""
	}
	return "Basic " + basic(cfg.Username, cfg.Password)
}

func basic(username string, password handlers.Secret) string {
	req := http.Request{Header: make(http.Header)}
	req.SetBasicAuth(username, password.Reveal())
	return req.Header.Get("Authorization")[len("Basic "):]
}
