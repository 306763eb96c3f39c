package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/inbox/idempotency"
)

// wrap puts the middleware around a handler; it adds a Store and a Scope if o has none.
func wrap(tb testing.TB, o idempotency.Options, h http.HandlerFunc) http.Handler {
	tb.Helper()
	if o.Store == nil {
		o.Store = idempotency.NewMemory()
	}
	if o.Scope == nil {
		o.Scope = idempotency.Everyone
	}
	mw, err := idempotency.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return mw(h)
}

// request is a POST with a key, "" for none.
func request(key, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/orders?a=1", strings.NewReader(body))
	if key != "" {
		r.Header.Set(idempotency.Header, key)
	}
	return r
}

// do serves a request and survives a panic of the handler.
func do(h http.Handler, r *http.Request) (rec *httptest.ResponseRecorder, panicked any) {
	rec = httptest.NewRecorder()
	defer func() { panicked = recover() }()
	h.ServeHTTP(rec, r)
	return rec, nil
}

// got is the response to a client.
type got struct{ *httptest.ResponseRecorder }

// replayed reports whether an answer was replayed.
type replayed bool

func (rec got) wants(tb testing.TB, what string, status int, body string, again replayed) {
	tb.Helper()
	if rec.Code != status || body != "" && rec.Body.String() != body || (rec.Header().Get(idempotency.ReplayedHeader) == "true") != bool(again) {
		tb.Errorf("%s: %d %q, replayed %q: want %d %q, %v", what, rec.Code, rec.Body, rec.Header().Get(idempotency.ReplayedHeader), status, body, again)
	}
}

// TestReplay: all forms of a key name one request, whose handler runs once.
func TestReplay(t *testing.T) {
	t.Parallel()
	runs := 0
	h := wrap(t, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		runs++
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "lamp" || r.ContentLength != 4 {
			t.Errorf("the handler read %q of %d, %v", body, r.ContentLength, err)
		}
		w.Header().Set("Location", "/orders/1")
		w.Header().Set("Set-Cookie", "session=1")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("Etag", "too late")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.Copy(w, strings.NewReader("order "))
		_, _ = fmt.Fprint(w, runs)
	})
	for i, key := range []string{"k-1", `"k-1"`, " k-1\t", `"k-1"`} {
		rec := httptest.NewRecorder()
		rec.Header().Set("X-Outer", "kept")
		h.ServeHTTP(rec, request(key, "lamp"))
		got{rec}.wants(t, key, http.StatusCreated, "order 1", i > 0)
		header := rec.Result().Header
		if header.Get("Location") != "/orders/1" || header.Get("Content-Length") != "7" || header.Get("X-Outer") != "kept" ||
			header.Get("Content-Type") != "text/plain; charset=utf-8" || header.Get("Etag") != "" || (header.Get("Set-Cookie") != "") != (i == 0) {
			t.Errorf("%s: headers %v", key, header)
		}
	}
	other := request("k-1", "chair")
	rec, _ := do(h, other)
	got{rec}.wants(t, "another body", http.StatusUnprocessableEntity, "", false)
	other = request("k-1", "lamp")
	other.RequestURI, other.URL.RawQuery = "/orders?a=2", "a=2"
	rec, _ = do(h, other)
	got{rec}.wants(t, "another query", http.StatusUnprocessableEntity, "", false)
	other = request("k-1", "lamp")
	other.Method = http.MethodPatch
	rec, _ = do(h, other)
	got{rec}.wants(t, "another method", http.StatusUnprocessableEntity, "", false)
	if runs != 1 || rec.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d runs, %v", runs, rec.Header())
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	h := wrap(t, idempotency.Options{MaxRequest: 4, Scope: func(r *http.Request) (string, bool) {
		return r.Header.Get("User"), r.Header.Get("User") != "unknown"
	}}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.Method)
	})
	for name, c := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"no key":          {func(r *http.Request) { r.Header.Del(idempotency.Header) }, 400},
		"empty":           {func(r *http.Request) { r.Header.Set(idempotency.Header, "") }, 400},
		"empty, quoted":   {func(r *http.Request) { r.Header.Set(idempotency.Header, `""`) }, 400},
		"two":             {func(r *http.Request) { r.Header.Add(idempotency.Header, "k") }, 400},
		"long":            {func(r *http.Request) { r.Header.Set(idempotency.Header, strings.Repeat("x", 256)) }, 400},
		"as long as can":  {func(r *http.Request) { r.Header.Set(idempotency.Header, strings.Repeat("x", 255)) }, 200},
		"not ASCII":       {func(r *http.Request) { r.Header.Set(idempotency.Header, "é") }, 400},
		"blank":           {func(r *http.Request) { r.Header.Set(idempotency.Header, "a b") }, 400},
		"blank, quoted":   {func(r *http.Request) { r.Header.Set(idempotency.Header, `"a b"`) }, 200},
		"not closed":      {func(r *http.Request) { r.Header.Set(idempotency.Header, `"a`) }, 400},
		"parameter":       {func(r *http.Request) { r.Header.Set(idempotency.Header, `"a";b=1`) }, 400},
		"bad escape":      {func(r *http.Request) { r.Header.Set(idempotency.Header, `"a\b"`) }, 400},
		"unknown":         {func(r *http.Request) { r.Header.Set("User", "unknown") }, 401},
		"large":           {func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("12345")) }, 413},
		"cut off":         {func(r *http.Request) { r.Body = io.NopCloser(errorReader{}) }, 400},
		"parsed":          {func(r *http.Request) { _ = r.ParseForm() }, 500},
		"no body":         {func(r *http.Request) { r.Body = nil }, 200},
		"GET passes":      {func(r *http.Request) { r.Method = http.MethodGet; r.Header.Del(idempotency.Header) }, 200},
		"GET with passes": {func(r *http.Request) { r.Method = http.MethodGet }, 200},
	} {
		r := request("key of "+"x"+fmt.Sprint(len(name)), "")
		r.Header.Set(idempotency.Header, "key-"+strings.ReplaceAll(name, " ", "-"))
		c.change(r)
		if rec, _ := do(h, r); rec.Code != c.want {
			t.Errorf("%s: %d %s, want %d", name, rec.Code, rec.Body, c.want)
		}
	}
	// A key belongs to its user.
	for _, user := range []string{"ann", "bob"} {
		r := request("same", user)
		r.Header.Set("User", user)
		rec, _ := do(h, r)
		got{rec}.wants(t, user, http.StatusOK, "POST", false)
	}
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestNotRequired(t *testing.T) {
	t.Parallel()
	h := wrap(t, idempotency.Options{Required: func(*http.Request) bool { return false }}, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, string(body), err)
	})
	for range 2 {
		rec, _ := do(h, request("", "lamp"))
		got{rec}.wants(t, "without a key", http.StatusOK, "lamp<nil>", false)
	}
	rec, _ := do(h, request(`"`, "lamp"))
	got{rec}.wants(t, "with half a key", http.StatusBadRequest, "", false)
}

// TestMounts: two handlers below different prefixes are distinct.
func TestMounts(t *testing.T) {
	t.Parallel()
	h := wrap(t, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.URL.Path) })
	for prefix, want := range map[string]int{"/v1": http.StatusOK, "/v2": http.StatusOK} {
		r := request("key"+prefix[2:], "")
		r.URL.Path, r.RequestURI = prefix+"/orders", prefix+"/orders"
		if rec, _ := do(http.StripPrefix(prefix, h), r); rec.Code != want || rec.Body.String() != "/orders" {
			t.Errorf("%s: %d %s", prefix, rec.Code, rec.Body)
		}
	}
	r := request("key1", "")
	r.URL.Path, r.RequestURI = "/v2/orders", "/v2/orders"
	rec, _ := do(http.StripPrefix("/v2", h), r)
	got{rec}.wants(t, "the key of the other handler", http.StatusUnprocessableEntity, "", false)
}

// TestNotFinal: an answer that may soon change is not stored.
func TestNotFinal(t *testing.T) {
	t.Parallel()
	for status, stored := range map[int]bool{
		200: true, 201: true, 204: true, 302: true, 304: true, 400: true, 404: true, 409: true, 422: true,
		401: false, 403: false, 408: false, 425: false, 429: false, 500: false, 502: false, 503: false, 599: false,
	} {
		runs := 0
		h := wrap(t, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			runs++
			w.WriteHeader(status)
		})
		for i := range 2 {
			rec, _ := do(h, request("k", ""))
			got{rec}.wants(t, fmt.Sprint(status), status, "", replayed(stored && i == 1))
		}
		if (runs == 1) != stored {
			t.Errorf("%d: %d runs", status, runs)
		}
	}
}

// TestPanic: nothing is stored, and the key is free.
func TestPanic(t *testing.T) {
	t.Parallel()
	for _, value := range []any{"broken", http.ErrAbortHandler} {
		runs := 0
		h := wrap(t, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			if runs++; runs == 1 {
				panic(value)
			}
		})
		if rec, panicked := do(h, request("k", "")); panicked != value || rec.Body.Len() > 0 {
			t.Errorf("%v became %v", value, panicked)
		}
		rec, _ := do(h, request("k", ""))
		got{rec}.wants(t, "afterwards", http.StatusCreated, "", false)
	}
}

// TestInProgress: a copy of a running request gets 409, another request with its
// key is refused, and a client that goes away interrupts nothing.
func TestInProgress(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	h := wrap(t, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-goOn
		if r.Context().Err() != nil {
			t.Error("the handler was interrupted")
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, "done")
	})
	server := httptest.NewServer(h)
	defer server.Close()
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/orders?a=1", strings.NewReader("lamp"))
		if err != nil {
			gone <- err
			return
		}
		r.Header.Set(idempotency.Header, "k")
		resp, err := server.Client().Do(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		gone <- err
	}()
	<-begun
	rec, _ := do(h, request("k", "lamp"))
	got{rec}.wants(t, "a copy", http.StatusConflict, "", false)
	if rec.Header().Get("Retry-After") != "1" {
		t.Errorf("headers %v", rec.Header())
	}
	rec, _ = do(h, request("k", "chair"))
	got{rec}.wants(t, "another", http.StatusUnprocessableEntity, "", false)
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	close(goOn)
	for end := time.Now().Add(patience); ; {
		if rec, _ = do(h, request("k", "lamp")); rec.Code != http.StatusConflict || time.Now().After(end) {
			break
		}
	}
	got{rec}.wants(t, "the client comes back", http.StatusCreated, "done", true)
}

// patience bounds each wait of a test on a busy machine.
const patience = 2 * time.Minute

// TestWriter: the abilities and limits of the handler's writer.
func TestWriter(t *testing.T) {
	t.Parallel()
	late := make(chan http.ResponseWriter, 1)
	h := wrap(t, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		c := http.NewResponseController(w)
		if err := c.Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("flush: %v", err)
		}
		if _, _, err := c.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("hijack: %v", err)
		}
		if err := errors.Join(c.SetWriteDeadline(time.Now().Add(patience)), c.SetReadDeadline(time.Now().Add(patience))); err != nil {
			t.Error(err)
		}
		if n, err := io.Copy(w, strings.NewReader("copied")); n != 6 || err != nil {
			t.Errorf("copy: %d, %v", n, err)
		}
		late <- w
	})
	server := httptest.NewServer(h)
	defer server.Close()
	for i := range 2 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(idempotency.Header, "k")
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || string(body) != "copied" || resp.ContentLength != 6 || (resp.Header.Get(idempotency.ReplayedHeader) != "") != (i == 1) {
			t.Errorf("%s %q, %v", resp.Status, body, err)
		}
	}
	w := <-late
	if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrHandlerTimeout) {
		t.Errorf("after its end: %v", err)
	}
}

// TestBodies: the first answer and its replay are equal.
func TestBodies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method       string
		handler      http.HandlerFunc
		status       int
		body, length string
	}{
		"silence": {"POST", func(http.ResponseWriter, *http.Request) {}, 200, "", "0"},
		"no content": {"POST", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body where none is allowed: %v", err)
			}
		}, 204, "", ""},
		"declared": {"POST", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			_, _ = w.Write([]byte("ab"))
			if _, err := w.Write([]byte("c")); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("more than was declared: %v", err)
			}
		}, 200, "ab", "2"},
		"HEAD":          {"HEAD", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "7") }, 200, "", "7"},
		"HEAD, written": {"HEAD", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("abc")) }, 200, "", "3"},
	} {
		h := wrap(t, idempotency.Options{Methods: []string{"POST", "HEAD"}}, c.handler)
		for i := range 2 {
			r := request("k", "")
			r.Method = c.method
			rec, _ := do(h, r)
			got{rec}.wants(t, name, c.status, c.body, i == 1)
			if got := rec.Header().Get("Content-Length"); got != c.length || rec.Body.String() != c.body {
				t.Errorf("%s, %d: length %q, body %q", name, i, got, rec.Body)
			}
		}
	}
}

// TestLarge: an answer that is too large to be kept goes to the client, once.
func TestLarge(t *testing.T) {
	t.Parallel()
	runs := 0
	h := wrap(t, idempotency.Options{MaxAnswer: 10}, func(w http.ResponseWriter, _ *http.Request) {
		runs++
		for range 10 {
			_, _ = fmt.Fprint(w, "abc")
		}
	})
	rec, _ := do(h, request("k", ""))
	got{rec}.wants(t, "first", http.StatusOK, strings.Repeat("abc", 10), false)
	if rec.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("headers %v", rec.Header())
	}
	rec, _ = do(h, request("k", ""))
	got{rec}.wants(t, "again", http.StatusGone, "", true)
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

// TestCutShort: a handler that writes less than it has declared has failed, and
// the client must not take the answer as complete.
func TestCutShort(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{0, 1} {
		runs := 0
		h := wrap(t, idempotency.Options{MaxAnswer: limit}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			if runs++; runs == 1 {
				_, _ = w.Write([]byte("ab"))
				return
			}
			_, _ = w.Write([]byte("abcd"))
		})
		_, panicked := do(h, request("k", ""))
		if err, ok := panicked.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			t.Errorf("got %v", panicked)
		}
		rec, _ := do(h, request("k", ""))
		got{rec}.wants(t, "again", http.StatusOK, "abcd", false)
	}
}

// TestManyAtOnce: of many copies one runs, and all that get an answer get that of the one.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	h := wrap(t, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, runs.Add(1)) })
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if rec, _ := do(h, request("k", "")); rec.Code != http.StatusConflict && rec.Body.String() != "1" {
				t.Errorf("%d %s", rec.Code, rec.Body)
			}
		})
	}
	wg.Wait()
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	_, err := idempotency.New(idempotency.Options{Lease: 1, Keep: -1, MaxAnswer: -1, Methods: []string{""}})
	for _, want := range []string{"Store is required", "Scope is required", "Lease is 1ns", "Keep is -1ns", "MaxAnswer", "method is empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}
