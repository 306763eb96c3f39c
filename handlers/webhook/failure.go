package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/exhaust"
	"github.com/notifyd/notifyd/internal/secret"
)

const (
	// maxText bounds the part of an answer in an error.
	maxText = 300
	// minHidden keeps a setting of a few letters from being cut out of every word.
	minHidden = 6
)

// failure is a request that was not answered with 2xx. Its text holds the host and
// no more of the URL: paths and queries may hold tokens.
type failure struct {
	observation
	host string
	text string
	wait time.Duration // the pause that the server asked for, zero if none
	err  error         // for errors.Is; nil if it could hold a secret
}

// Error returns one line.
func (f *failure) Error() string {
	if f.host == "" {
		return "webhook: " + f.text
	}
	return "webhook: " + f.host + ": " + f.text
}

// Unwrap returns the network's error.
func (f *failure) Unwrap() error { return f.err }

// trip follows a request. Its hooks are called from several goroutines, also for
// connections that other requests use in the end, and also after the request.
type trip struct {
	reached atomic.Uint32 // the furthest stage
	byteIn  atomic.Bool   // a byte of the answer has come
	idle    atomic.Int64  // how long the connection was idle before, in ns
}

func (t *trip) reach(s stage) {
	for {
		was := t.reached.Load()
		if was >= uint32(s) || t.reached.CompareAndSwap(was, uint32(s)) {
			return
		}
	}
}

func (t *trip) stage() stage { return max(stage(t.reached.Load()), stageConnect) } //nolint:gosec // it holds stages

func (t *trip) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		TLSHandshakeStart: func() { t.reach(stageTLS) },
		GotConn: func(info httptrace.GotConnInfo) {
			t.reach(stageSend)
			if info.WasIdle {
				t.idle.Store(int64(max(info.IdleTime, 1)))
			}
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				t.reach(stageWait)
			}
		},
		GotFirstResponseByte: func() { t.byteIn.Store(true) },
	}
}

// stale reports whether err may come of a connection that the server had closed
// while it was idle, before the server saw any of the request.
func (t *trip) stale(err error, after time.Duration) bool {
	idle := time.Duration(t.idle.Load())
	return idle > 0 && idle >= after && !t.byteIn.Load() && !isTimeout(err)
}

// lost describes why there is no answer. ctx is that of the request.
func (h *Handler) lost(ctx context.Context, u *url.URL, t *trip, err error) *failure {
	f := &failure{observation: h.observe(t.stage()), host: u.Host}
	var op *net.OpError
	if errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") && f.at < stageSend {
		f.at = stageConnect
		f.proxy = op.Op == "proxyconnect"
	}
	if refusal, ok := errors.AsType[*proxyError](err); ok {
		f.at = stageConnect
		f.proxy = refusal.code == http.StatusProxyAuthRequired
	}
	if blocked, ok := errors.AsType[*blockedError](err); ok {
		f.at, f.err = stageBlocked, blocked
		f.text = blocked.Error()
		return f
	}
	f.text = f.at.doing() + ": " + h.reason(ctx, f.at, err)
	f.text = shorten(h.hide(f.text, u)) + cure(err)
	if f.at == stageWait {
		f.text += " (maybe delivered: it will be sent again with the same webhook-id)"
	}
	if f.err = exhaust.Cause(err); shows(err) {
		f.err = err
	}
	return f
}

// observe begins an observation.
func (h *Handler) observe(at stage) observation {
	return observation{at: at, dynamic: h.target.dynamic, constant: h.target.constant != nil}
}

// reason names the timeout that is over, or returns the error's text.
func (h *Handler) reason(ctx context.Context, at stage, err error) string {
	if ctx.Err() != nil {
		return context.Cause(ctx).Error()
	}
	if !isTimeout(err) {
		return err.Error()
	}
	switch at {
	case stageConnect:
		return fmt.Sprintf("connect_timeout of %v is over: %v", h.cfg.ConnectTimeout, err)
	case stageTLS:
		return fmt.Sprintf("tls_timeout of %v is over", h.cfg.TLSTimeout)
	case stageWait:
		return fmt.Sprintf("response_timeout of %v is over", h.cfg.ResponseTimeout)
	default:
		return err.Error()
	}
}

// doing describes a stage.
func (s stage) doing() string {
	switch s {
	case stageConnect:
		return "connecting"
	case stageTLS:
		return "TLS handshake"
	case stageSend:
		return "writing the request"
	case stageWait:
		return "the request is written, but the answer to it"
	default:
		return "stage " + strconv.Itoa(int(s))
	}
}

// cure returns what an operator can do, or "".
func cure(err error) string {
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var refusal *proxyError
	switch {
	case errors.As(err, &certificate):
		return " (check tls.server_name, or name the authority's certificate with tls.ca_file)"
	case errors.As(err, &record):
		return " (the server does not speak TLS there: is it http:// and not https://?)"
	case errors.As(err, &refusal) && refusal.code == http.StatusProxyAuthRequired:
		return " (check user and password in proxy_url)"
	default:
		return ""
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// shows reports whether err is of a type that holds no part of a request.
func shows(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &op) || errors.As(err, &dns) || errors.As(err, &certificate) || errors.Is(err, errClosed)
}

// redactor knows the secrets of a configuration, which a server may repeat.
func redactor(cfg Config, constant *url.URL) *secret.Redactor {
	all := []string{cfg.BearerToken.Reveal(), cfg.Password.Reveal()}
	if cfg.Username != "" {
		all = append(all, basic(cfg.Username, cfg.Password))
	}
	for _, s := range cfg.SigningSecrets {
		all = append(all, s.Reveal(), strings.TrimPrefix(s.Reveal(), secretPrefix))
	}
	if proxy, err := parseProxy(cfg.ProxyURL); err == nil && proxy != nil && proxy.User != nil {
		password, _ := proxy.User.Password()
		all = append(all, password, basic(proxy.User.Username(), handlers.NewSecret(password)))
	}
	perhaps := func(s string) { // it may be a secret, such as an X-Api-Key, or an ordinary word
		if len(s) >= minHidden {
			all = append(all, s)
		}
	}
	for _, text := range cfg.Headers {
		if !strings.Contains(text, "{{") {
			perhaps(text)
		}
	}
	if constant != nil {
		for _, values := range constant.Query() {
			for _, v := range values {
				perhaps(v)
			}
		}
	}
	return secret.NewRedactor(all...)
}

// hide takes secrets out of a text, and the path and query of the URL, which servers
// often repeat.
func (h *Handler) hide(text string, u *url.URL) string {
	if uri := u.RequestURI(); len(uri) >= minHidden {
		text = strings.ReplaceAll(text, uri, "[url]")
	}
	for _, part := range []string{u.RawQuery, u.EscapedPath(), u.Path} {
		if len(part) >= minHidden {
			text = strings.ReplaceAll(text, part, "[url]")
		}
	}
	return h.redact.Redact(text)
}

// shorten makes one short line of a text.
func shorten(text string) string {
	text = strings.ToValidUTF8(text, "�")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "..."
}
