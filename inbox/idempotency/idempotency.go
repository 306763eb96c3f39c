// Package idempotency is net/http middleware for the header Idempotency-Key: a
// client that repeats a request, because the answer was lost, gets the answer of
// the first one, and the handler runs once.
//
// The header follows the IETF draft draft-ietf-httpapi-idempotency-key-header.
//
//	the key is            the middleware answers
//	new                   with the handler's answer, and stores it
//	done                  with the stored answer and the header Idempotency-Replayed: true
//	in progress           409 with Retry-After
//	of another request    422: method, URI or body differ
//	missing or malformed  400
//
// An answer leaves only after it is stored, so that clients never see two answers
// of one key. The keys are in PostgreSQL, see [NewPostgres], or in Redis, see [NewRedis].
// This package imports the standard library only.
//
// # Guarantees and limits
//
// At most one handler runs for a key at any time, as long as it returns when its
// context ends: a handler holds the key for a lease that is renewed while it runs,
// and its context is cancelled before the lease can run out unrenewed. The keys of
// a process that dies are released when their leases end. How far its handler had
// come is unknown, and a repeated request runs the handler again. So a handler
// that must never do its work twice does it in one transaction, with a unique
// constraint on some value of the request.
package idempotency

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

// ReplayedHeader is set to "true" in a replayed answer.
const ReplayedHeader = "Idempotency-Replayed"

// The defaults of [Options].
const (
	DefaultLease          = 30 * time.Second
	DefaultKeep           = 24 * time.Hour
	DefaultHandlerTimeout = 5 * time.Minute
	DefaultStoreTimeout   = 5 * time.Second
	DefaultMaxRequest     = 1 << 20
	DefaultMaxAnswer      = 1 << 20
)

// The limits of [Options].
const (
	minLease     = time.Second
	defaultRetry = time.Second
)

// Options of the middleware. Store and Scope are required.
type Options struct {
	// Store keeps the keys. The caller closes its client or pool.
	Store Store
	// Scope returns the owner of the key, the tenant or the user: two scopes never
	// see each other's answers. Derive it from the authenticated identity and not
	// from a claim of the client. false is answered with 401. [Everyone] is the
	// scope of a service with one client.
	Scope func(*http.Request) (scope string, ok bool)
	// Methods are the methods that the middleware handles; others pass untouched.
	// The default is POST and PATCH.
	Methods []string
	// Required reports whether a request without a key is refused with 400; else it
	// passes untouched. nil: all are refused.
	Required func(*http.Request) bool
	// Final reports whether an answer with this status is stored. After any other
	// the key is free, and the same request runs the handler again. nil is
	// [FinalStatus].
	Final func(status int) bool
	// Headers are the headers of an answer that are stored and replayed. nil is
	// [StoredHeaders]; Set-Cookie is not among them, because sessions do not belong
	// in a store.
	Headers []string
	// Lease is how long a process that has died holds a key, 1s at least; 0 is
	// [DefaultLease]. A running handler renews it at every third, so Lease does not
	// bound how long a handler may run.
	Lease time.Duration
	// Keep is how long an answer is replayed; 0 is [DefaultKeep]. It must be longer
	// than clients keep retrying.
	Keep time.Duration
	// HandlerTimeout is when the handler's context ends; 0 is
	// [DefaultHandlerTimeout]. That context does not end when the client goes away:
	// the handler completes, and the client gets the answer when it repeats the
	// request.
	HandlerTimeout time.Duration
	// StoreTimeout bounds the calls of the store before the handler, and those after
	// it; 0 is [DefaultStoreTimeout].
	StoreTimeout time.Duration
	// FailOpen runs the handler without any protection while the store does not
	// answer. The default is to answer 503.
	FailOpen bool
	// MaxRequest bounds a request's body, which is held in memory, in bytes; a
	// longer one is answered with 413. 0 is [DefaultMaxRequest].
	MaxRequest int64
	// MaxAnswer bounds an answer's body that is held in memory and stored, in bytes;
	// 0 is [DefaultMaxAnswer]. A longer one goes to the client as it is written, and
	// a repeated request gets 410. The handler does not run again.
	MaxAnswer int
	// Refuse writes the middleware's own answers. nil writes application/problem+json.
	Refuse func(http.ResponseWriter, *http.Request, Problem)
	// Log gets the failures of the store; nil discards them.
	Log *slog.Logger
}

// Everyone is the scope of a service with one client. All keys belong to that client.
func Everyone(*http.Request) (scope string, ok bool) { return "", true }

// FinalStatus is the default of Options.Final: success, redirects, and mistakes
// of the request itself. Not final are 5xx, and statuses that may soon change:
// 401, 403, 408, 425 and 429.
func FinalStatus(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= http.StatusOK && status < http.StatusInternalServerError
}

// StoredHeaders returns the default of Options.Headers, to be appended to.
func StoredHeaders() []string {
	return []string{
		"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location", "Content-Type",
		"Etag", "Last-Modified", "Link", "Location", "Retry-After",
	}
}

// New returns the middleware. All mistakes in the options are returned together.
//
// Put it inside authentication and compression, and outside handlers that parse
// forms. The handler's http.ResponseWriter holds the answer back, so it can
// neither be flushed nor hijacked; informational answers (1xx) and trailers are
// dropped.
func New(o Options) (func(http.Handler) http.Handler, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	return func(next http.Handler) http.Handler {
		return &middleware{Options: o, next: next, down: new(atomic.Bool)}
	}, nil
}

func (o Options) withDefaults() Options {
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Required == nil {
		o.Required = func(*http.Request) bool { return true }
	}
	if o.Final == nil {
		o.Final = FinalStatus
	}
	if o.Headers == nil {
		o.Headers = StoredHeaders()
	}
	if o.Refuse == nil {
		o.Refuse = refuse
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}

	o.Lease = orDefault(o.Lease, DefaultLease)
	o.Keep = orDefault(o.Keep, DefaultKeep)
	o.HandlerTimeout = orDefault(o.HandlerTimeout, DefaultHandlerTimeout)
	o.StoreTimeout = orDefault(o.StoreTimeout, DefaultStoreTimeout)
	o.MaxRequest = orDefault(o.MaxRequest, DefaultMaxRequest)
	o.MaxAnswer = orDefault(o.MaxAnswer, DefaultMaxAnswer)

	return o
}

func orDefault[T comparable](value, standard T) T {
	var zero T
	if value == zero {
		return standard
	}
	return value
}

func (o Options) check() error {
	var errs []error
	if o.Store == nil {
		errs = append(errs, errors.New("a Store is required"))
	}
	if o.Scope == nil {
		errs = append(errs, errors.New("a Scope is required: idempotency.Everyone if there is one client only"))
	}
	if o.Lease < minLease {
		errs = append(errs, fmt.Errorf("the Lease is %s: %s at least", o.Lease, minLease))
	}

	for name, d := range map[string]time.Duration{"Keep": o.Keep, "HandlerTimeout": o.HandlerTimeout, "StoreTimeout": o.StoreTimeout} {
		if d < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s is %s: 1ms at least", name, d))
		}
	}
	if o.MaxRequest < 0 || o.MaxAnswer < 0 {
		errs = append(errs, errors.New("MaxRequest and MaxAnswer cannot be negative"))
	}
	if slices.Contains(o.Methods, "") {
		errs = append(errs, errors.New("a method is empty"))
	}

	return errors.Join(errs...)
}
