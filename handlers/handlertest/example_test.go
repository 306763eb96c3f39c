package handlertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/handlertest"
)

// Warehouse hands events to the warehouse's HTTP interface.
type Warehouse struct {
	url, token string
	client     *http.Client
	closed     atomic.Bool
}

// NewWarehouse makes no connection: a relay starts while the warehouse is down.
func NewWarehouse(url, token string) *Warehouse {
	return &Warehouse{url: url, token: token, client: &http.Client{Transport: &http.Transport{}}}
}

// Deliver returns nil when the warehouse has answered with 2xx.
func (w *Warehouse) Deliver(ctx context.Context, e *delivery.Event) error {
	if w.closed.Load() {
		return delivery.Unavailable(errors.New("warehouse: the handler is closed"))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(e.Payload))
	if err != nil {
		return fmt.Errorf("warehouse: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Header.Set("Event-Id", e.DedupeID())
	resp, err := w.client.Do(req)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("warehouse: %w", context.Cause(ctx))
	case err != nil:
		return delivery.Unavailable(fmt.Errorf("warehouse: %w", err))
	}
	defer func() { _ = resp.Body.Close() }() // nothing in it matters
	return classify(resp)
}

// classify says whose fault an answer is.
func classify(resp *http.Response) error {
	err := fmt.Errorf("warehouse: %s", resp.Status)
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code == http.StatusTooManyRequests:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 is good enough
		return delivery.Throttled(time.Duration(seconds)*time.Second, err)
	case code == http.StatusUnauthorized, code == http.StatusServiceUnavailable:
		return delivery.Unavailable(err)
	case code == http.StatusUnprocessableEntity:
		return delivery.Permanent(err) // the warehouse has read this order, and will not take it
	case code/100 == 5:
		return delivery.Unclear(err) // this order is at fault, or all of the warehouse
	default:
		return delivery.Unclear(delivery.Permanent(err)) // a gateway's 400 or 404 for all orders, perhaps
	}
}

// Close ends the idle connections.
func (w *Warehouse) Close() error {
	w.closed.Store(true)
	w.client.CloseIdleConnections()
	return nil
}

// testWarehouse is called TestWarehouse in a package of its own.
func testWarehouse(t *testing.T) {
	server := startWarehouse(t)
	proxy := handlertest.StartProxy(t, server.Listener.Addr().String())
	url := "http://" + proxy.Addr()
	deliver := func(tb testing.TB, token, payload string) error {
		w := NewWarehouse(url, token)
		defer func() { _ = w.Close() }()
		return w.Deliver(tb.Context(), order(1, payload))
	}
	handlertest.Run(t, handlertest.Destination{
		Open:     func(testing.TB) delivery.Handler { return NewWarehouse(url, token) },
		Received: func(testing.TB) []int64 { return server.received() },
		Event:    func(id int64) *delivery.Event { return order(id, `{"quantity": 1}`) },
		Rejected: func(id int64) *delivery.Event { return order(id, `{"quantity": 0}`) },
		Network:  proxy,
		Secrets:  []string{token},
		Cases: []handlertest.Case{{
			Name: "an empty order", Class: delivery.ClassEvent, Permanent: true, Text: "422",
			Provoke: func(tb testing.TB) error { return deliver(tb, token, `{"quantity": 0}`) },
		}, {
			Name: "too many orders", Class: delivery.ClassDestination, Throttled: true, RetryAfter: 30 * time.Second,
			Provoke: func(tb testing.TB) error { return deliver(tb, token, `{"quantity": 99}`) },
		}, {
			Name: "a wrong token", Class: delivery.ClassDestination, Text: "401",
			Provoke: func(tb testing.TB) error { return deliver(tb, "a stranger's", `{"quantity": 1}`) },
		}, {
			Name: "no JSON", Class: delivery.ClassEvent, Unclear: true, Permanent: true, Text: "400",
			Provoke: func(tb testing.TB) error { return deliver(tb, token, `quantity 1`) },
		}},
	})
}

// warehouse is a server that remembers which orders it has received.
type warehouse struct {
	*httptest.Server
	mu  sync.Mutex
	ids []int64
}

const token = "the token of the shop"

func startWarehouse(tb testing.TB) *warehouse {
	w := &warehouse{}
	w.Server = httptest.NewServer(http.HandlerFunc(w.serve))
	tb.Cleanup(w.Close)
	return w
}

func (w *warehouse) serve(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	id, _ := strconv.ParseInt(r.Header.Get("Event-Id"), 10, 64)
	switch {
	case err != nil, !json.Valid(body):
		rw.WriteHeader(http.StatusBadRequest)
	case r.Header.Get("Authorization") != "Bearer "+token:
		rw.WriteHeader(http.StatusUnauthorized)
	case strings.Contains(string(body), ": 0}"):
		rw.WriteHeader(http.StatusUnprocessableEntity)
	case strings.Contains(string(body), ": 99}"):
		rw.Header().Set("Retry-After", "30")
		rw.WriteHeader(http.StatusTooManyRequests)
	default:
		w.mu.Lock()
		w.ids = append(w.ids, id)
		w.mu.Unlock()
	}
}

func (w *warehouse) received() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]int64(nil), w.ids...)
}

func order(id int64, payload string) *delivery.Event {
	return &delivery.Event{ID: id, Type: "order.placed", Payload: []byte(payload), Attempt: 1, Destination: "warehouse"}
}

// A destination of your own: the handler is Warehouse, and testWarehouse is all
// that it takes to prove it.
func Example() {
	_ = testWarehouse // go test runs it
	server := &warehouse{}
	server.Server = httptest.NewServer(http.HandlerFunc(server.serve))
	defer server.Close()
	handler := NewWarehouse(server.URL, token)
	defer func() { _ = handler.Close() }()
	for id, payload := range []string{`{"quantity": 2}`, `{"quantity": 0}`} {
		err := handler.Deliver(context.Background(), order(int64(id), payload))
		fmt.Println(err, delivery.IsPermanent(err))
	}
	fmt.Println("arrived:", server.received())
	// Output:
	// <nil> false
	// warehouse: 422 Unprocessable Entity true
	// arrived: [0]
}
