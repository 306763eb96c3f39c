package pubsub

import (
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
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
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
	return deliverytest.Event("orders", id, payload)
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
