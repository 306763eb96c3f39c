package slack

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestMain passes over a goroutine that slacktest leaves without a receiver for
// its websocket.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/slack-go/slack/slacktest.(*Server).queueForWebsocket"))
}

// patience bounds a test that waits for something that must happen.
const patience = time.Minute

// These belong to no account.
const (
	testToken = "xoxb-not-a-token-0123456789"
	testHook  = "/services/T0000/B0000/sesame-open-0123456789"
)

func event(payload string) *delivery.Event { return deliverytest.Event("team", 42, payload) }

// reply is the server's answer in place of posting.
type reply struct {
	status int // 0 is 200
	header map[string]string
	body   string
}

// server is a small Slack: chat.postMessage, and an incoming webhook.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	requests []map[string]any // in the order of arrival
	ids      []int64          // of the messages that were posted
	reply    *reply
}

func startServer(tb testing.TB) *server {
	tb.Helper()
	s := &server{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/chat.postMessage", s.postMessage)
	mux.HandleFunc("POST "+testHook, s.webhook)
	s.Server = httptest.NewServer(mux)
	tb.Cleanup(s.Close)
	return s
}

func (s *server) postMessage(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	asked := make(map[string]any)
	for name := range r.PostForm {
		asked[name] = r.PostForm.Get(name)
	}
	var meta struct {
		Payload struct {
			ID string `json:"event_id"`
		} `json:"event_payload"`
	}
	_ = json.Unmarshal([]byte(r.PostForm.Get("metadata")), &meta)
	if s.answered(w, asked, meta.Payload.ID) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.PostForm.Get("token") != testToken {
		_, _ = io.WriteString(w, `{"ok":false,"error":"invalid_auth"}`)
		return
	}
	_, _ = io.WriteString(w, `{"ok":true,"channel":"C1","ts":"1700000000.000100","message":{"text":"x"}}`)
}

func (s *server) webhook(w http.ResponseWriter, r *http.Request) {
	var asked map[string]any
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, "invalid_payload", http.StatusBadRequest)
		return
	}
	text, _ := asked["text"].(string)
	if !s.answered(w, asked, text) {
		_, _ = io.WriteString(w, "ok")
	}
}

// answered writes down a request, and answers it if that was scripted.
func (s *server) answered(w http.ResponseWriter, asked map[string]any, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, asked)
	if s.reply == nil {
		if n, err := strconv.ParseInt(id, 10, 64); err == nil {
			s.ids = append(s.ids, n)
		}
		return false
	}
	for name, value := range s.reply.header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(max(s.reply.status, http.StatusOK))
	_, _ = io.WriteString(w, s.reply.body)
	return true
}

// says makes the server answer r; nil is Slack's own answer.
func (s *server) says(r *reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply = r
}

func (s *server) received() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int64(nil), s.ids...)
}

func (s *server) last(tb testing.TB) map[string]any {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 {
		tb.Fatal("the server was not asked")
	}
	return s.requests[len(s.requests)-1]
}

func (s *server) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func (s *server) host() string { return strings.TrimPrefix(s.URL, "http://") }

// config is a complete configuration for the server at host.
func config(host string) Config {
	return Config{
		Token: handlers.NewSecret(testToken), APIURL: "http://" + host + "/api", Channel: "C0123456789",
		Text: "Order {{ .Event.AggregateID }}",
	}
}

func hookConfig(host string) Config {
	return Config{WebhookURL: handlers.NewSecret("http://" + host + testHook), Text: "{{ .Event.ID }}"}
}

// newHandler makes a handler that sends as fast as it can.
func newHandler(tb testing.TB, cfg Config) *Handler {
	tb.Helper()
	h := deliverytest.Open(tb, New, cfg)
	h.gate = newGate(rate.Inf)
	return h
}
