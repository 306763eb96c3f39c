package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds a test that waits for something that must happen.
const patience = 2 * time.Minute

// none keeps a proxy that the machine of the test may have out of it.
var none = handlers.NewSecret(ProxyNone)

const ada = `{"email":"ada@example.com","name":"Ada \"A\"","total":  19.90,"null":null}`

func event(payload string) *delivery.Event {
	e := deliverytest.Event("hook", 42, payload)
	e.Headers["traceparent"] = "00-4bf9-00f0-01"
	return e
}

// received is a request as it arrived.
type received struct {
	*http.Request
	body []byte
}

// receiver is a real HTTP server that remembers its requests.
type receiver struct {
	answer http.HandlerFunc // nil: 204; it is called once the request is recorded, and can read the body again
	cert   *tls.Certificate // nil for plain HTTP

	mu   sync.Mutex
	got  []received
	addr string
	srv  *http.Server
	done chan struct{}
}

func startReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	return r
}

// startTLSReceiver returns the file with its authority too. It speaks HTTP/2.
func startTLSReceiver(t *testing.T, answer http.HandlerFunc) (*receiver, string) {
	t.Helper()
	// httptest has a certificate for 127.0.0.1 and example.com.
	borrowed := httptest.NewTLSServer(nil)
	defer borrowed.Close()
	r := &receiver{answer: answer, cert: &borrowed.TLS.Certificates[0]}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: borrowed.Certificate().Raw})
	if err := os.WriteFile(ca, data, 0o600); err != nil {
		t.Fatal(err)
	}
	r.start(t)
	t.Cleanup(func() { r.stop(t) })
	return r, ca
}

// start listens, again at the same address if it did before.
func (r *receiver) start(tb testing.TB) {
	tb.Helper()
	open := freeport.Listen
	if r.addr != "" {
		open = func(ctx context.Context) (net.Listener, error) { return freeport.Reopen(ctx, r.addr) }
	}
	l, err := open(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	r.addr = l.Addr().String()
	r.srv = &http.Server{Handler: r, ErrorLog: testenv.Quiet()}
	r.done = make(chan struct{})
	go func() {
		defer close(r.done)
		if r.cert == nil {
			_ = r.srv.Serve(l)
			return
		}
		r.srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*r.cert}}
		_ = r.srv.ServeTLS(l, "", "")
	}()
}

// stop closes all connections, whatever they are doing.
func (r *receiver) stop(tb testing.TB) {
	tb.Helper()
	if err := r.srv.Close(); err != nil {
		tb.Error(err)
	}
	<-r.done
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the connection was lost
	}
	r.mu.Lock()
	r.got = append(r.got, received{req, body})
	r.mu.Unlock()
	if r.answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	r.answer(w, req)
}

func (r *receiver) all() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.got...)
}

// one returns the only request there is.
func (r *receiver) one(t *testing.T) received {
	t.Helper()
	got := r.all()
	if len(got) != 1 {
		t.Fatalf("%d requests, want 1", len(got))
	}
	return got[0]
}

// ids returns the ids of the events that were not rejected, in the order of
// arrival.
func (r *receiver) ids() []int64 {
	var ids []int64
	for _, req := range r.all() {
		if id, err := strconv.ParseInt(req.Header.Get("notifyd-id"), 10, 64); err == nil && req.Header.Get("notifyd-type") != "rejected" {
			ids = append(ids, id)
		}
	}
	return ids
}

// message returns what has arrived of an event.
func (r *receiver) message(_ testing.TB, id int64) (body []byte, contentType string) {
	for _, req := range r.all() {
		if req.Header.Get("notifyd-id") == strconv.FormatInt(id, 10) {
			body, contentType = req.body, req.Header.Get("Content-Type")
		}
	}
	return body, contentType
}

func (r *receiver) url() string {
	if r.cert != nil {
		return "https://" + r.addr
	}
	return "http://" + r.addr
}

// deliver makes a handler and delivers one event.
func deliver(tb testing.TB, cfg Config, e *delivery.Event) error {
	tb.Helper()
	return deliverytest.Open(tb, New, cfg).Deliver(testenv.Within(tb, patience), e)
}

// verdictOn names the dispatcher's class of err.
func verdictOn(err error) string {
	var after interface{ RetryAfter() time.Duration }
	switch {
	case err == nil:
		return "delivered"
	case delivery.IsUnclear(err):
		return "unclear, " + verdictOn(delivery.Proven(err))
	case delivery.IsPermanent(err):
		return "permanent"
	case delivery.IsUnavailable(err):
		return "unavailable"
	case delivery.IsThrottled(err) && errors.As(err, &after):
		if after.RetryAfter() == 0 {
			return "throttled"
		}
		return "throttled for " + after.RetryAfter().String()
	case errors.As(err, &after):
		return "after " + after.RetryAfter().String()
	default:
		return "retry"
	}
}

// statusOf answers with a status and headers, name and value in turn.
func statusOf(code int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

func secretOf(s string) handlers.Secret { return handlers.NewSecret(s) }
