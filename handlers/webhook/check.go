package webhook

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"

	"github.com/notifyd/notifyd/delivery"
)

// Check connects to the server, or to the proxy on the way to it, and sends no
// request. Where events choose the host there is nothing to check. It implements
// delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	u := h.checked()
	if u.Host == "" {
		return nil
	}

	if !h.begin() {
		return h.out.Closed()
	}
	defer h.end()

	var t trip
	rctx, cancel := context.WithTimeout(httptrace.WithClientTrace(ctx, t.hooks()), h.cfg.RequestTimeout)
	defer cancel()

	if err := h.greet(rctx, u); err != nil {
		return h.lost(rctx, u, &t, err).mark()
	}

	return nil
}

// checked returns the URL that is checked; its host is empty where events choose the host.
func (h *Handler) checked() *url.URL {
	if h.target.Constant != nil {
		return h.target.Constant
	}
	return h.target.Base()
}

// via returns the URL that a request to u connects to: u, or the proxy on the way.
func (h *Handler) via(u *url.URL) (*url.URL, error) {
	if h.transport.Current().Proxy == nil {
		return u, nil
	}
	proxy, err := h.transport.Current().Proxy(&http.Request{URL: u})
	if proxy == nil {
		proxy = u
	}
	return proxy, err
}

// greet makes a connection like the transport's, and ends it.
func (h *Handler) greet(ctx context.Context, u *url.URL) error {
	at, err := h.via(u)
	if err != nil {
		return err
	}

	port := at.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[at.Scheme]
	}

	conn, err := h.transport.Current().DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), port))
	if err != nil {
		return err
	}

	defer conn.Close() //nolint:errcheck // nothing was sent

	if at != u || u.Scheme != "https" {
		return nil
	}

	security := h.transport.Current().TLSClientConfig.Clone()
	if security == nil {
		security = &tls.Config{MinVersion: tls.VersionTLS12}
	}

	if security.ServerName == "" {
		security.ServerName = u.Hostname()
	}

	ctx, cancel := context.WithTimeout(ctx, h.cfg.TLSTimeout)
	defer cancel()
	return tls.Client(conn, security).HandshakeContext(ctx)
}

// DescribeCheck implements delivery.CheckDescriber.
func (h *Handler) DescribeCheck() (tested, untested string) {
	u := h.checked()
	if u.Host == "" {
		return "", "the hosts, which depend on the event"
	}

	untested = "the path and the credentials: a webhook has no request without effect"
	switch at, err := h.via(u); {
	case err != nil:
		return "", untested
	case at != u:
		return "the TCP connection to the proxy", "the way from the proxy on, " + untested
	case u.Scheme == "https":
		return "the TCP and TLS connection", untested
	default:
		return "the TCP connection", untested
	}
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
)
