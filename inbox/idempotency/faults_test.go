package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/inbox/idempotency"
)

var errDead = errors.New("connection reset by peer")

// faulty is a store whose connections die. before and after are nil for calls that work.
type faulty struct {
	*idempotency.Memory

	mu sync.Mutex
	// before and after return the error of a call with this action (0 for Begin)
	// before it takes effect, or afterwards.
	before, after func(action idempotency.Action) error
	calls         map[idempotency.Action]int
}

func newFaulty() *faulty {
	return &faulty{Memory: idempotency.NewMemory(), calls: map[idempotency.Action]int{}}
}

func (f *faulty) set(before, after func(idempotency.Action) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

func (f *faulty) fault(which func() func(idempotency.Action) error, a idempotency.Action) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fail := which(); fail != nil {
		return fail(a)
	}
	return nil
}

func (f *faulty) around(a idempotency.Action, call func() error) error {
	f.mu.Lock()
	f.calls[a]++
	f.mu.Unlock()
	if err := f.fault(func() func(idempotency.Action) error { return f.before }, a); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	return f.fault(func() func(idempotency.Action) error { return f.after }, a)
}

func (f *faulty) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (e idempotency.Entry, err error) {
	err = f.around(0, func() error {
		e, err = f.Memory.Begin(ctx, c, lease)
		return err
	})
	return e, err
}

func (f *faulty) Settle(ctx context.Context, c idempotency.Claim, change idempotency.Change) error {
	return f.around(change.Action, func() error { return f.Memory.Settle(ctx, c, change) })
}

// always fails every call with one of the actions.
func always(err error, actions ...idempotency.Action) func(idempotency.Action) error {
	return func(a idempotency.Action) error {
		if slices.Contains(actions, a) {
			return err
		}
		return nil
	}
}

// times fails the first n calls with each action.
func times(n int) func(idempotency.Action) error {
	failed := map[idempotency.Action]int{}
	return func(a idempotency.Action) error {
		if failed[a]++; failed[a] <= n {
			return errDead
		}
		return nil
	}
}

const begins = idempotency.Action(0)

// TestDeadConnections: several dead connections in a row change nothing, wherever they die.
func TestDeadConnections(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 7} {
		for _, after := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := newFaulty()
				runs := 0
				h := wrap(t, idempotency.Options{Store: s}, func(w http.ResponseWriter, _ *http.Request) {
					runs++
					if runs == 1 {
						w.WriteHeader(http.StatusBadGateway) // to be released
						return
					}
					_, _ = fmt.Fprint(w, "run ", runs)
				})
				for i, want := range []int{http.StatusBadGateway, http.StatusOK, http.StatusOK} {
					if after {
						s.set(nil, times(n))
					} else {
						s.set(times(n), nil)
					}
					rec, _ := do(h, request("k", ""))
					got{rec}.wants(t, fmt.Sprint(n, " dead, after: ", after), want, "", i == 2)
				}
				if runs != 2 {
					t.Errorf("%d runs", runs)
				}
			})
		}
	}
}

// TestStoreDown: requests fail by default, or pass with FailOpen, and the outage
// is logged once.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		for _, down := range []error{errDead, fmt.Errorf("%w: no table", idempotency.ErrUnusable)} {
			synctest.Test(t, func(t *testing.T) {
				s := newFaulty()
				var log bytes.Buffer
				runs := 0
				h := wrap(t, idempotency.Options{Store: s, FailOpen: open, Log: slog.New(slog.NewTextHandler(&log, nil))}, func(w http.ResponseWriter, _ *http.Request) {
					runs++
					_, _ = fmt.Fprint(w, "run ", runs)
				})
				s.set(always(down, begins), nil)
				start := time.Now()
				for i := range 2 {
					rec, _ := do(h, request("k", ""))
					if open {
						got{rec}.wants(t, "open", http.StatusOK, fmt.Sprint("run ", i+1), false)
					} else {
						got{rec}.wants(t, "closed", http.StatusServiceUnavailable, "", false)
					}
				}
				if took := time.Since(start); took > 2*idempotency.DefaultStoreTimeout || errors.Is(down, idempotency.ErrUnusable) && took > 0 {
					t.Errorf("it took %s", took)
				}
				s.set(nil, nil)
				rec, _ := do(h, request("k", ""))
				got{rec}.wants(t, "up again", http.StatusOK, "", false)
				if open != (runs == 3) || !open && runs != 1 {
					t.Errorf("open %v: %d runs", open, runs)
				}
				if strings.Count(log.String(), "does not answer") != 1 || strings.Count(log.String(), "answers again") != 1 {
					t.Errorf("log:\n%s", &log)
				}
			})
		}
	}
}

// TestStoreHangs: no call takes longer than StoreTimeout allows.
func TestStoreHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := wrap(t, idempotency.Options{Store: hanging{}, StoreTimeout: 3 * time.Second}, func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })
		start := time.Now()
		rec, _ := do(h, request("k", ""))
		got{rec}.wants(t, "hanging", http.StatusServiceUnavailable, "", false)
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

type hanging struct{}

func (hanging) Begin(ctx context.Context, _ idempotency.Claim, _ time.Duration) (idempotency.Entry, error) {
	<-ctx.Done()
	return idempotency.Entry{}, ctx.Err()
}

func (hanging) Settle(ctx context.Context, _ idempotency.Claim, _ idempotency.Change) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestNotStored: the client gets the true answer, and the key is held until its lease ends.
func TestNotStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty()
		s.set(always(errDead, idempotency.Finish), nil)
		h := wrap(t, idempotency.Options{Store: s}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
		rec, _ := do(h, request("k", ""))
		got{rec}.wants(t, "first", http.StatusCreated, "", false)
		rec, _ = do(h, request("k", ""))
		got{rec}.wants(t, "a copy", http.StatusConflict, "", false)
		time.Sleep(idempotency.DefaultLease) //nolint:forbidigo // of the bubble's clock
		s.set(nil, nil)
		rec, _ = do(h, request("k", ""))
		got{rec}.wants(t, "after the lease", http.StatusCreated, "", false)
	})
}

// TestRenewed: a key is held for as long as its handler runs, although two of
// three renewals fail.
func TestRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty()
		n := 0
		s.set(func(a idempotency.Action) error {
			if a != idempotency.Renew {
				return nil
			}
			if n++; n%3 != 0 {
				return errDead
			}
			return nil
		}, nil)
		h := wrap(t, idempotency.Options{Store: s, HandlerTimeout: time.Hour}, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				t.Errorf("interrupted: %v", context.Cause(r.Context()))
			case <-time.After(20 * idempotency.DefaultLease):
			}
			_, _ = fmt.Fprint(w, "done")
		})
		first := make(chan *httptest.ResponseRecorder)
		go func() {
			rec, _ := do(h, request("k", ""))
			first <- rec
		}()
		synctest.Wait()
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-tick.C:
				rec, _ := do(h, request("k", ""))
				if rec.Code == http.StatusOK {
					continue // the first is about to end
				}
				got{rec}.wants(t, "a copy", http.StatusConflict, "", false)
				continue
			case rec := <-first:
				tick.Stop()
				got{rec}.wants(t, "first", http.StatusOK, "done", false)
			}
			break
		}
		rec, _ := do(h, request("k", ""))
		got{rec}.wants(t, "afterwards", http.StatusOK, "done", true)
		if s.calls[idempotency.Renew] < 60 {
			t.Errorf("%d renewals", s.calls[idempotency.Renew])
		}
	})
}

// TestInterrupted: if a key cannot be held, its handler is interrupted before
// another request can take the key, and the handler's answer is judged by its
// completeness.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, after func(http.ResponseWriter) // the interruption
		status        int
		again         int // the answer to a second request, whose handler answers 202
	}{
		"gives up without an answer": {nil, nil, 503, 202},
		"gives up with an error":     {nil, func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) }, 400, 202},
		"has done it":                {nil, func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) }, 201, 201},
		"has begun its answer":       {func(w http.ResponseWriter) { _, _ = fmt.Fprint(w, "[1,") }, nil, 410, 410},
		"has answered completely": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "2")
			_, _ = fmt.Fprint(w, "[]")
		}, nil, 200, 200},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newFaulty()
			s.set(always(errDead, idempotency.Renew), nil)
			start := time.Now()
			runs := 0
			h := wrap(t, idempotency.Options{Store: s}, func(w http.ResponseWriter, r *http.Request) {
				if runs++; runs > 1 {
					w.WriteHeader(http.StatusAccepted)
					return
				}
				if c.before != nil {
					c.before(w)
				}
				<-r.Context().Done()
				if cause := context.Cause(r.Context()); !errors.Is(cause, idempotency.ErrInterrupted) || !errors.Is(cause, errDead) {
					t.Errorf("%s: %v", name, cause)
				}
				if took := time.Since(start); took >= idempotency.DefaultLease {
					t.Errorf("%s: interrupted after %s", name, took)
				}
				synctest.Wait()
				if c.after != nil {
					c.after(w)
				}
			})
			rec, _ := do(h, request("k", ""))
			got{rec}.wants(t, name, c.status, "", false)
			s.set(nil, nil)
			rec, _ = do(h, request("k", ""))
			got{rec}.wants(t, name+", again", c.again, "", runs == 1)
		})
	}
}

// TestHandlerTimeout ends a handler, but not its hold on the key.
func TestHandlerTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		h := wrap(t, idempotency.Options{HandlerTimeout: time.Minute}, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			if took := time.Since(start); took != time.Minute {
				t.Errorf("it took %s", took)
			}
			time.Sleep(2 * idempotency.DefaultLease) //nolint:forbidigo // it ignores its context
		})
		go func() {
			time.Sleep(time.Minute + idempotency.DefaultLease + time.Second) //nolint:forbidigo // of the bubble's clock
			rec, _ := do(h, request("k", ""))
			got{rec}.wants(t, "a copy", http.StatusConflict, "", false)
		}()
		rec, _ := do(h, request("k", ""))
		got{rec}.wants(t, "timed out", http.StatusServiceUnavailable, "", false)
	})
}

// TestLateOwner: a handler ignores its context and ends after another process has
// answered. There is one answer.
func TestLateOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty()
		s.set(always(errDead, idempotency.Renew), nil)
		var runs atomic.Int64
		h := wrap(t, idempotency.Options{Store: s}, func(w http.ResponseWriter, _ *http.Request) {
			run := runs.Add(1)
			if run == 1 {
				time.Sleep(2 * idempotency.DefaultLease) //nolint:forbidigo // it ignores its context
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprint(w, "run ", run)
		})
		first := make(chan *httptest.ResponseRecorder)
		go func() {
			rec, _ := do(h, request("k", ""))
			first <- rec
		}()
		time.Sleep(idempotency.DefaultLease + time.Second) //nolint:forbidigo // of the bubble's clock
		rec, _ := do(h, request("k", ""))
		got{rec}.wants(t, "the second", http.StatusCreated, "run 2", false)
		got{<-first}.wants(t, "the first", http.StatusConflict, "", false)
		rec, _ = do(h, request("k", ""))
		got{rec}.wants(t, "afterwards", http.StatusCreated, "run 2", true)
	})
}
