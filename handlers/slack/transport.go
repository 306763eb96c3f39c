package slack

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

const (
	// connectTimeout bounds TCP, and TLS once more.
	connectTimeout = 10 * time.Second
	// idleTimeout is below the idle timeouts of load balancers, so that the other
	// end does not close a connection while a message is being written to it.
	idleTimeout = 30 * time.Second
	// pingAfter and pingTimeout find a dead HTTP/2 connection, which requests that
	// time out do not.
	pingAfter, pingTimeout = 15 * time.Second, 10 * time.Second
	// maxKept is how much of a body is kept for the operator.
	maxKept = 1 << 10
	// maxBody bounds an answer. Slack repeats the message in it.
	maxBody = 4 << 20
)

func newTransport(conf *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSClientConfig:       conf,
		TLSHandshakeTimeout:   connectTimeout,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,
	}
}

// answer is the known outcome of posting one message.
type answer struct {
	status     int           // 0: no answer
	retryAfter time.Duration // 0: none was asked for
	code       string        // Slack's error code, or ""
	details    []string
	body       []byte // its first bytes
	ok         bool   // the message is posted

	sendError error       // why there was no answer
	bodyError error       // why the body is not whole
	readError error       // the library's error
	written   atomic.Bool // the whole request
}

// client returns an HTTP client for this one request. The library drops the
// bodies of errors, so they are kept here.
func (a *answer) client(base http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: &recorder{base, a},
		// A redirect would send the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type recorder struct {
	base   http.RoundTripper
	answer *answer
}

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	trace := &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
		if info.Err == nil {
			r.answer.written.Store(true)
		}
	}}

	resp, err := r.base.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if err != nil {
		r.answer.sendError = err
		return nil, err
	}

	r.answer.status = resp.StatusCode
	r.answer.retryAfter, _ = outcome.RetryAfter(resp.Header, time.Now())

	limited := io.LimitReader(resp.Body, maxBody)
	kept, err := io.ReadAll(io.LimitReader(limited, maxKept))
	r.answer.body = kept

	rest := io.MultiReader(strings.NewReader(string(kept)), limited)
	if err != nil {
		r.answer.bodyError = err
		rest = io.MultiReader(strings.NewReader(string(kept)), failed{err})
	}

	resp.Body = &body{rest, resp.Body}
	return resp, nil
}

// body is a body whose beginning was read.
type body struct {
	io.Reader
	io.Closer
}

type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }
