package pubsub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/testenv"
)

// TestMain keeps the tests away from whatever Google Cloud this machine knows.
func TestMain(m *testing.M) {
	for _, name := range os.Environ() {
		if name, _, _ = strings.Cut(name, "="); strings.HasPrefix(name, "GOOGLE_") || strings.HasPrefix(name, "PUBSUB_") || strings.HasPrefix(name, "GCE_") {
			_ = os.Unsetenv(name)
		}
	}
	_ = os.Setenv("HOME", os.DevNull)
	_ = os.Setenv("APPDATA", os.DevNull)
	testenv.Main(m)
}

// patience bounds a test that waits for something that must happen.
const patience = 2 * time.Minute

func event(id int64, payload string) *delivery.Event {
	return &delivery.Event{
		ID: id, Type: "order.created", AggregateType: "order", AggregateID: "A-7", Payload: json.RawMessage(payload),
		Headers: map[string]string{"tenant": "acme"}, CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Attempt: 1, Destination: "orders",
	}
}

// events makes events with the ids 1 to n, of one aggregate per word of keys, in turn.
func events(n int, keys ...string) []*delivery.Event {
	all := make([]*delivery.Event, n)
	for i := range all {
		all[i] = event(int64(i)+1, fmt.Sprintf(`{"n": %d}`, i))
		if len(keys) > 0 {
			all[i].AggregateID = keys[i%len(keys)]
		}
	}
	return all
}

func newHandler(tb testing.TB, cfg Config) *Handler {
	tb.Helper()
	h, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = h.Close() })
	return h
}

func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// class names the dispatcher's class of err.
func class(err error) string {
	switch {
	case err == nil:
		return "delivered"
	case delivery.IsPermanent(err):
		return "permanent"
	case delivery.IsUnavailable(err):
		return "unavailable"
	case delivery.IsThrottled(err):
		return "throttled"
	default:
		return "retry"
	}
}

func classes(errs []error) string {
	var all []string
	for _, err := range errs {
		all = append(all, class(err))
	}
	return strings.Join(all, " ")
}

// times repeats a word of classes.
func times(word string, n int) string {
	return strings.TrimSpace(strings.Repeat(word+" ", n))
}

// stored is a message that was published.
type stored struct {
	Data        []byte
	Attributes  map[string]string
	OrderingKey string
}

// said is an answer of the fake.
type said struct {
	status int
	body   string
	header map[string]string
}

// sent is a request to the fake.
type sent struct{ Messages []stored }

// fake is a Pub/Sub that answers as a test says.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	requests []sent
}

// startFake starts a server that answers what answer returns. The nth request
// is number 0.
func startFake(tb testing.TB, answer func(n int, s sent) said) *fake {
	tb.Helper()
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var s sent
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil && err != io.EOF {
			http.Error(w, err.Error(), http.StatusTeapot)
			return
		}
		f.mu.Lock()
		n := len(f.requests)
		f.requests = append(f.requests, s)
		f.mu.Unlock()
		a := answer(n, s)
		for name, value := range a.header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(max(a.status, http.StatusOK))
		_, _ = io.WriteString(w, a.body)
	}))
	tb.Cleanup(f.Close)
	return f
}

func (f *fake) asked() []sent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

// taken is the answer to a request whose messages are taken.
func taken(s sent) said {
	ids := make([]string, len(s.Messages))
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	body, err := json.Marshal(map[string]any{"messageIds": ids})
	if err != nil {
		panic(err)
	}
	return said{body: string(body)}
}

// problem is the answer to a request that is refused.
func problem(status int, code, text string) said {
	body, err := json.Marshal(map[string]any{"error": map[string]any{"code": status, "status": code, "message": text}})
	if err != nil {
		panic(err)
	}
	return said{status: status, body: string(body)}
}

// fakeConfig is a configuration for the fake.
func fakeConfig(f *fake) Config {
	return Config{Topic: "projects/shop/topics/orders", Endpoint: f.URL}
}
