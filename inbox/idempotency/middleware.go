package idempotency

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
)

// middleware is the handler that New returns.
type middleware struct {
	Options

	next http.Handler
	down *atomic.Bool // the store did not answer the last time
}

// ServeHTTP implements http.Handler.
func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(m.Methods, r.Method) {
		m.next.ServeHTTP(w, r)
		return
	}

	key, err := keyOf(r.Header)
	if errors.Is(err, errNoKey) && !m.Required(r) {
		m.next.ServeHTTP(w, r)
		return
	}
	if err != nil {
		m.Refuse(w, r, noKey(err))
		return
	}

	scope, ok := m.Scope(r)
	if !ok {
		m.Refuse(w, r, Problem{
			Status: http.StatusUnauthorized,
			Title:  "Idempotency-Key without a sender",
			Detail: "The request must identify its sender.",
		})
		return
	}

	body, r, err := m.body(w, r)
	if err != nil {
		return
	}

	c := Claim{Key: digest([]byte(scope), []byte(key)), Token: rand.Text(), Fingerprint: fingerprint(r, body)}
	m.claim(w, r, c)
}

// body reads the request's body. It answers its errors itself.
func (m *middleware) body(w http.ResponseWriter, r *http.Request) ([]byte, *http.Request, error) {
	body, again, err := readBody(w, r, m.MaxRequest)
	if err == nil {
		return body, again, nil
	}

	p := Problem{Status: http.StatusBadRequest, Title: "The request's body cannot be read"}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		p = Problem{Status: http.StatusRequestEntityTooLarge, Title: "The request's body is too large"}
	} else if errors.Is(err, errParsed) {
		m.Log.ErrorContext(r.Context(), "idempotency: middleware in the wrong place", "error", err)
		p = Problem{Status: http.StatusInternalServerError, Title: "The request's body cannot be compared"}
	}

	m.Refuse(w, r, p)
	return nil, nil, err
}

// claim takes the key, or answers according to its state.
func (m *middleware) claim(w http.ResponseWriter, r *http.Request, c Claim) {
	l := newLock(m, c)
	entry, err := l.begin(r.Context())
	m.noteStore(r.Context(), err)

	switch {
	case err != nil && m.FailOpen:
		m.next.ServeHTTP(w, r)
	case err != nil:
		m.Refuse(w, r, unavailable("Nothing was done. Send the same request again.", defaultRetry))
	case entry.State == Taken:
		m.run(w, r, l)
	case entry.Fingerprint != c.Fingerprint:
		m.Refuse(w, r, otherRequest())
	case entry.State == InProgress:
		m.Refuse(w, r, inProgress(defaultRetry))
	default:
		m.replay(w, r, entry.Answer)
	}
}

// noteStore logs once when the store stops answering, and once when it answers
// again.
func (m *middleware) noteStore(ctx context.Context, err error) {
	if down := err != nil; m.down.Swap(down) != down {
		if down {
			m.Log.ErrorContext(ctx, "idempotency: store does not answer", "error", err, "fail_open", m.FailOpen)
		} else {
			m.Log.InfoContext(ctx, "idempotency: store answers again")
		}
	}
}

func (m *middleware) replay(w http.ResponseWriter, r *http.Request, stored []byte) {
	a, err := decode(stored)

	switch {
	case err != nil:
		m.Log.ErrorContext(r.Context(), "idempotency: replay", "error", err)
		m.Refuse(w, r, unavailable("The request is done, and its answer cannot be read.", 0))
	case a.Large:
		w.Header().Set(ReplayedHeader, "true")
		m.Refuse(w, r, notKept())
	default:
		maps.Copy(w.Header(), a.Header)
		w.Header().Set(ReplayedHeader, "true")
		a.write(w, r.Method)
	}
}

// run calls the handler while it holds the key, and then settles the key.
func (m *middleware) run(w http.ResponseWriter, r *http.Request, l *lock) {
	// The client may go away; a handler that has begun completes.
	detached := context.WithoutCancel(r.Context())
	ctx, cancel := context.WithTimeoutCause(detached, m.HandlerTimeout, errTimeout)
	defer cancel()
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)

	stop := l.keep(detached, interrupt)
	rec := newRecorder(w, r.Method, m.MaxAnswer)
	defer context.AfterFunc(ctx, rec.cut)()

	ended := false
	defer func() {
		stop()
		if !ended { // it panics, or ends its goroutine
			rec.close(nil)
			m.release(detached, l)
		}
	}()

	m.next.ServeHTTP(rec, r.WithContext(ctx))
	ended = true

	interrupted := context.Cause(ctx)
	stop()
	m.settle(w, r.WithContext(detached), l, rec.close(interrupted))
}

// settle stores the answer or frees the key, and only then answers.
func (m *middleware) settle(w http.ResponseWriter, r *http.Request, l *lock, o outcome) {
	switch {
	case o.interrupted != nil && !o.explicit:
		// net/http would answer 200 for a handler that has given up.
		m.release(r.Context(), l)
		m.Refuse(w, r, unavailable("The request was interrupted. Send it again.", defaultRetry))
		return
	case !o.whole, !m.Final(o.Status), o.interrupted != nil && o.Status >= http.StatusBadRequest:
		m.release(r.Context(), l)
	default:
		err := m.finish(r.Context(), l, &o.answer)
		switch {
		case o.sent:
		case errors.Is(err, ErrLost):
			// Another process has run the request, and its answer counts.
			m.Refuse(w, r, inProgress(defaultRetry))
			return
		case o.Large:
			m.Refuse(w, r, notKept())
			return
		}
	}

	if o.sent {
		if !o.whole {
			panic(http.ErrAbortHandler) // the client must not take it as complete
		}
		return
	}

	replace(w.Header(), o.Header)
	if !o.whole {
		w.WriteHeader(o.Status) // with the length that the handler has declared
		_, _ = w.Write(o.body)
		panic(http.ErrAbortHandler)
	}

	o.write(w, r.Method)
}

// finish stores an answer. A failure of the store is logged. The client gets the
// answer all the same, because it is true, and because a client without an answer
// would repeat the request and the work.
func (m *middleware) finish(ctx context.Context, l *lock, a *answer) error {
	stored := &answer{Status: a.Status, Header: chosen(a.Header, m.Headers), Large: a.Large, body: a.body}
	if n := a.Header.Get("Content-Length"); n != "" && len(a.body) == 0 {
		stored.Header.Set("Content-Length", n) // of a HEAD
	}
	text, err := stored.encode()
	if err == nil {
		err = l.settle(ctx, Change{Action: Finish, For: m.Keep, Answer: text})
	}
	if err != nil {
		m.Log.ErrorContext(ctx, "idempotency: answer not stored", "error", err, "key", l.claim.Key, "status", a.Status)
	}
	return err
}

func (m *middleware) release(ctx context.Context, l *lock) {
	if err := l.settle(ctx, Change{Action: Release}); err != nil && !errors.Is(err, ErrLost) {
		m.Log.WarnContext(ctx, "idempotency: key not released before its lease ends", "error", err, "key", l.claim.Key)
	}
}
