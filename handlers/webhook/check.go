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
	u := &url.URL{Scheme: h.target.scheme, Host: h.target.host}
	if h.target.constant != nil {
		u = h.target.constant
	}
	if u.Host == "" {
		return nil
	}
	if !h.begin() {
		return errClosed
	}
	defer h.end()
	var t trip
	rctx, cancel := context.WithTimeout(httptrace.WithClientTrace(ctx, t.hooks()), h.cfg.RequestTimeout)
	defer cancel()
	if err := h.greet(rctx, u); err != nil {
		f := h.lost(rctx, u, &t, err)
		return classify(f.observation).mark(f)
	}
	return nil
}

// greet makes a connection as the transport would, and ends it.
func (h *Handler) greet(ctx context.Context, u *url.URL) error {
	at := u
	if h.transport.Proxy != nil {
		proxy, err := h.transport.Proxy(&http.Request{URL: u})
		if err != nil {
			return err
		}
		if proxy != nil {
			at = proxy
		}
	}
	port := at.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[at.Scheme]
	}
	conn, err := h.transport.DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), port))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing was sent
	if at != u || u.Scheme != "https" {
		return nil
	}
	security := h.transport.TLSClientConfig.Clone()
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

var _ delivery.Checker = (*Handler)(nil)
