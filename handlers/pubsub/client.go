package pubsub

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

const (
	// connectTimeout bounds TCP, and TLS once more.
	connectTimeout = 10 * time.Second
	// idleTimeout is below the idle timeouts of Google's servers, four minutes,
	// and of NATs.
	idleTimeout = 60 * time.Second
	// maxAnswer bounds an answer: a thousand ids have some twenty bytes each.
	maxAnswer = 1 << 20
)

// newTransport speaks HTTP/1.1 only: each request has a separate connection, so none
// waits for the lost packet of another, and closing is exact.
func newTransport(conf *tls.Config) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSClientConfig:     conf,
		TLSHandshakeTimeout: connectTimeout,
		Protocols:           &protocols,
		DisableCompression:  true, // an answer is some ids
		MaxIdleConnsPerHost: 2 * maxRequests,
		IdleConnTimeout:     idleTimeout,
	}
}

// call makes one request about the topic, with its verb, and returns the body of an answer
// that is a success. It is never repeated here: the outbox tries again.
func (h *Handler) call(ctx context.Context, method, verb string, body []byte) ([]byte, error) {
	answer, err := h.request(ctx, method, verb, body)
	h.transport.Learn(ctx, err)
	return answer, err
}

func (h *Handler) request(ctx context.Context, method, verb string, body []byte) ([]byte, error) {
	switch {
	case h.closed.Load():
		return nil, h.out.Closed()
	case ctx.Err() != nil:
		return nil, h.out.Ended(ctx, "")
	}

	rctx, cancel := outcome.Within(ctx, "request_timeout", h.cfg.RequestTimeout)
	defer cancel()

	req, err := http.NewRequestWithContext(rctx, method, h.url+verb, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("pubsub: %w", err)
	}

	req.Header.Set("Content-Type", "application/json")

	token := ""
	if h.tokens != nil {
		token, err = h.tokens.authorize(rctx, req)
		if err != nil {
			return nil, h.out.NoAnswer(ctx, rctx, "", err)
		}
	}

	// The transport follows no redirects, which would take the token elsewhere.
	resp, err := h.transport.RoundTrip(req)
	if err != nil {
		return nil, h.out.NoAnswer(ctx, rctx, "maybe sent", err)
	}

	defer func() { _ = resp.Body.Close() }() // nothing was written
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, h.out.NoAnswer(ctx, rctx, "maybe sent", err)
	}

	if resp.StatusCode == http.StatusOK {
		return answer, nil
	}

	if resp.StatusCode == http.StatusUnauthorized && h.tokens != nil {
		h.tokens.forget(token)
	}

	return nil, refused(resp, answer, token)
}
