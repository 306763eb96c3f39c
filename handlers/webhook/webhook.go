// Package webhook delivers events as HTTP requests, signed as Standard Webhooks
// (https://www.standardwebhooks.com) asks: a request per event, or several events in one.
//
// An event is delivered once the server has answered with a status of 2xx. The
// header webhook-id is the same for every attempt, so that a receiver can drop
// repeated requests.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/httpconn"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/target"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/secret"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// defaultStaleAfter is the shortest idle time after which a lost connection counts as
// closed by the server while idle, and not as a crash over the request. Servers keep
// idle connections for some seconds at least.
const defaultStaleAfter = time.Second

// Handler sends requests. It implements [delivery.Handler] and io.Closer, and is
// safe for concurrent use.
type Handler struct {
	cfg           Config
	target        *target.URL
	encoder       *message.Encoder
	headers       map[string]*tmpl.Template
	eventHeaders  map[string]string // see sentHeaders
	needsData     bool
	signers       []*standardwebhooks.Webhook
	authorization string
	redact        *secret.Redactor // see hide
	out           *outcome.Destination

	transport  *httpconn.Transport
	network    *network
	places     *places
	staleAfter time.Duration

	mu      sync.Mutex
	running int
	closed  bool
}

// New returns a handler for cfg, with a request per event: it refuses a BatchFormat, which is for [NewBatch]. It reads the files that cfg names, and makes no
// connection: a relay starts also while a receiver is down. The error joins
// every mistake, each a [*handlers.FieldError]. The caller closes the handler.
func New(cfg Config, options ...handlers.Option) (*Handler, error) {
	if cfg.BatchFormat != "" {
		return nil, field.Errorf("batch_format", "needs a handler of batches: make it with webhook.NewBatch")
	}
	return open(cfg, options)
}

func open(cfg Config, options []handlers.Option) (*Handler, error) {
	o := handlers.Apply(options)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	security, err := tlsconf.Load(&cfg.TLS, o.BaseDir)
	if err != nil {
		return nil, err
	}

	cfg = cfg.WithDefaults()
	h := &Handler{
		cfg:           cfg,
		eventHeaders:  cfg.sentHeaders(),
		authorization: authorizationOf(cfg),
		network:       &network{},
		places:        newPlaces(cfg.HostRateLimit, cfg.HostConcurrency),
		staleAfter:    defaultStaleAfter,
	}

	var errs [5]error
	h.target, errs[0] = parseTarget(cfg)
	h.headers, errs[1] = cfg.headerTemplates()
	h.signers, errs[2] = parseSecrets(cfg.SigningSecrets)
	h.encoder, errs[3] = message.New(cfg.Message, message.HTTP())
	transport, err := newTransport(cfg, security, h.network)
	errs[4] = err

	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}

	h.transport = httpconn.New(transport, cfg.MaxConnectionAge)
	h.needsData = h.target.Constant == nil || h.encoder.Renders() || len(h.headers) > 0
	h.redact = redactor(cfg, h.target.Constant)

	h.out = outcome.New("webhook", "is it http:// and not https://?")
	h.out.Secrets = h.redact
	return h, nil
}

// Deliver sends the request for e. What an error means:
//
//   - [delivery.Permanent]: the request cannot be made from this event, or the
//     server answers 413 or 422, or the event names a host at an address that may
//     not be connected to.
//   - [delivery.Unclear]: another 4xx, 404 where the URL is made of the event, 500
//     or the like: this event is at fault, or a gateway or a wrong deployment.
//   - [delivery.Unavailable]: the server cannot be reached, times out, drops the
//     connection, redirects, refuses our credentials, or answers 402, 404 or 405
//     (where the URL is the same for every event), 502, 503 or 504.
//   - [delivery.Throttled]: the server answers 429, or host_rate_limit and
//     host_concurrency leave no turn in time. A 503 is an outage, whatever its
//     Retry-After says: nothing is sent before that is over.
//   - [delivery.RetryAfter]: the server asked for that pause.
//   - any other: the server answered 409, 423, 424 or 425.
//   - ctx's cause, if ctx was done first.
//
// Where the event chooses the host, Unavailable, Throttled and Unclear become "any other",
// and 410 becomes Permanent: the events for other hosts must not wait.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	if !h.begin() {
		return h.out.Closed()
	}
	defer h.end()

	d, err := h.draft(e)
	if err != nil {
		return h.failed(h.observe(stageDraft), "", outcome.Failure{Err: err}).mark()
	}

	leave, err := h.places.enter(ctx, d.url.Host, h.latest(ctx))
	if err != nil {
		return h.noTurn(d, err)
	}
	defer leave()

	ctx = httpconn.ForEvents(ctx, e)
	f := h.send(ctx, d)
	if f != nil && ctx.Err() != nil && f.code == 0 {
		return h.out.Ended(ctx, d.url.Host+": "+f.at.doing())
	}

	err = h.verdict(d, f)
	h.transport.Learn(ctx, err)
	return err
}

// Close closes the connections once no Deliver is under way; calls under way
// finish. Closing again does nothing; a later Deliver fails.
func (h *Handler) Close() error {
	h.mu.Lock()
	h.closed = true
	last := h.running == 0
	h.mu.Unlock()
	if last {
		h.disconnect()
	}
	return nil
}

func (h *Handler) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.running++
	return true
}

func (h *Handler) end() {
	h.mu.Lock()
	h.running--
	last := h.closed && h.running == 0
	h.mu.Unlock()
	if last {
		h.disconnect()
	}
}

func (h *Handler) disconnect() {
	h.transport.CloseIdleConnections()
	h.network.close()
}

// latest returns until when a request may wait for its turn: after that, too little
// of ctx's time is left for the request. It is zero for no limit.
func (h *Handler) latest(ctx context.Context) time.Time {
	end, ok := ctx.Deadline()
	if !ok {
		return time.Time{}
	}
	return end.Add(-h.cfg.RequestTimeout)
}

// noTurn returns the error of a request that got no turn.
func (h *Handler) noTurn(d *draft, err error) error {
	busy, ok := errors.AsType[*busyError](err)
	if !ok {
		return fmt.Errorf("webhook: %s: waiting for a turn: %w", d.url.Host, err)
	}
	o := h.observe(stageTurn)
	o.shut = busy.shut
	f := h.failed(o, d.url.Host, outcome.Failure{Text: busy.text})
	f.wait = busy.wait
	return f.mark()
}

// send makes one attempt, and a second one where the first one met a connection that
// the server had closed while it was idle: net/http sends a POST again only if it is
// certain that none of it was written. A copy has the same webhook-id.
func (h *Handler) send(ctx context.Context, d *draft) *failure {
	f, again := h.attempt(ctx, d)
	if again {
		f, _ = h.attempt(ctx, d)
	}
	return f
}

func (h *Handler) attempt(ctx context.Context, d *draft) (f *failure, again bool) {
	rctx, cancel := outcome.Within(ctx, "request_timeout", h.cfg.RequestTimeout)
	defer cancel()

	var t trip
	req, err := h.request(httptrace.WithClientTrace(rctx, t.hooks()), d)
	if err != nil {
		text := h.hide(err.Error(), d.url)
		return h.failed(h.observe(stageDraft), d.url.Host, outcome.Failure{Text: text}), false
	}

	// The transport alone: a client would follow redirects, and put the whole URL
	// into its errors.
	resp, err := h.transport.RoundTrip(req) //nolint:bodyclose // answer closes it
	if err != nil {
		return h.lost(rctx, d.url, &t, err), rctx.Err() == nil && t.stale(err, h.staleAfter)
	}

	if d.batch > 0 && resp.StatusCode == http.StatusMultiStatus {
		return h.multiStatus(rctx, resp, d), false
	}

	return h.answer(resp, d, cancel), false
}

// verdict returns the error of Deliver for a failure.
func (h *Handler) verdict(d *draft, f *failure) error {
	if f == nil {
		return nil
	}

	class := classify(f.observation)
	down := class == outcome.Unavailable || class == outcome.Unauthorized
	isBusy := f.code == http.StatusTooManyRequests || f.code == http.StatusServiceUnavailable
	mayRest := down || isBusy

	// A throttled lane waits already. Where events choose their hosts, only this host waits.
	if mayRest && f.wait > 0 && class != outcome.Throttled {
		h.places.shut(d.url.Host, f.wait) // the pause is for all requests to the host
	}

	return f.mark()
}
