package webhook

import (
	"context"
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
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/secret"
)

// minHidden keeps a setting of a few letters from being cut out of every word.
const minHidden = 6

// failure is a request that was not answered with 2xx. Its text holds the host,
// and nothing else of the URL: paths and queries may hold tokens.
type failure struct {
	observation
	line *outcome.Error
	wait time.Duration // the pause that the server asked for, zero if none
}

// Error returns one line.
func (f *failure) Error() string { return f.line.Error() }

// Unwrap returns the network's error.
func (f *failure) Unwrap() error { return f.line.Cause }

// mark returns the error of Deliver.
func (f *failure) mark() error { return classify(f.observation).Mark(f.wait, f) }

// aboutOne reports whether one event of a batch may have caused an answer. A receiver that asks for a pause gets no
// further request about the events.
func (f *failure) aboutOne() bool {
	if f.at != stageAnswer {
		return false
	}
	switch classify(f.observation) {
	case outcome.Permanent, outcome.Unclear:
		return true
	case outcome.Retry, outcome.UnclearRetry:
		return f.wait == 0
	default:
		return false
	}
}

// failed describes a failure at a host.
func (h *Handler) failed(o observation, host string, what outcome.Failure) *failure {
	if what.Text == "" {
		what.Text = what.Err.Error()
	}
	if host != "" {
		what.Text = host + ": " + what.Text
	}
	return &failure{observation: o, line: h.out.Line(what)}
}

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
	wasIdle := idle > 0 && idle >= after
	return wasIdle && !t.byteIn.Load() && !isTimeout(err)
}

// lost describes why no answer came. ctx is the context of the request.
func (h *Handler) lost(ctx context.Context, u *url.URL, t *trip, err error) *failure {
	o := h.observe(t.stage())
	if op, ok := errors.AsType[*net.OpError](err); ok && o.at < stageSend {
		if op.Op == "dial" || op.Op == "proxyconnect" {
			o.at = stageConnect
			o.proxy = op.Op == "proxyconnect"
		}
	}

	cure := ""
	if refusal, ok := errors.AsType[*proxyError](err); ok {
		o.at = stageConnect
		o.proxy = refusal.code == http.StatusProxyAuthRequired
		if o.proxy {
			o.code = refusal.code
			cure = outcome.CureOfStatus(o.code)
		}
	}

	if blocked, ok := errors.AsType[*blockedError](err); ok {
		o.at = stageBlocked
		return h.failed(o, u.Host, outcome.Failure{Err: blocked, Code: blocked})
	}

	text := h.hide(o.at.doing()+": "+h.reason(ctx, o.at, err), u)
	f := h.failed(o, u.Host, outcome.Failure{Err: err, Text: text, Cure: cure})

	if o.at == stageWait {
		f.line.Text += " (maybe delivered: it will be sent again with the same webhook-id)"
	}

	return f
}

// observe begins an observation.
func (h *Handler) observe(at stage) observation {
	return observation{at: at, dynamic: h.cfg.DynamicHost, constant: h.target.Constant != nil}
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

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
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
