package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

const (
	suiteToken  = "marker-token-7Qx2"
	suiteSecret = "whsec_bWFya2VyLXNlY3JldC1tYXJrZXItc2VjcmV0"
	suiteQuery  = "marker-query-93kd"
)

// suiteAnswer says what the event's type asks for, and all the secrets it knows.
func suiteAnswer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Proto", r.Proto)
	switch r.Header.Get("notifyd-type") {
	case "rejected":
		http.Error(w, "no: "+r.Header.Get("Authorization")+" "+r.RequestURI+" "+suiteSecret, http.StatusUnprocessableEntity)
	case "tripped":
		w.Header().Set("Retry-After", "7")
		http.Error(w, "oops", http.StatusInternalServerError)
	case "conflicting":
		w.Header().Set("Retry-After", "8")
		http.Error(w, "later", http.StatusConflict)
	case "stopped":
		w.Header().Set("Retry-After", "8")
		http.Error(w, "No required SSL certificate was sent", http.StatusBadRequest)
	case "hurried":
		w.Header().Set("Retry-After", "9")
		http.Error(w, "slowly", http.StatusTooManyRequests)
	case "locked":
		http.Error(w, "who are you with "+r.Header.Get("Authorization"), http.StatusUnauthorized)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func TestSuite(t *testing.T) {
	t.Parallel()
	t.Run("HTTP/1.1", func(t *testing.T) {
		t.Parallel()
		r := startReceiver(t, suiteAnswer)
		proxy := handlertest.StartProxy(t, r.addr)
		runSuite(t, r, proxy, Config{URL: "http://" + proxy.Addr() + "/hook?key=" + suiteQuery}, "HTTP/1.1")
	})
	t.Run("HTTP/2", func(t *testing.T) {
		t.Parallel()
		r, ca := startTLSReceiver(t, suiteAnswer)
		proxy := handlertest.StartProxy(t, r.addr)
		runSuite(t, r, proxy, Config{URL: "https://" + proxy.Addr() + "/hook?key=" + suiteQuery, TLS: handlers.TLS{CAFile: ca}}, "HTTP/2.0")
	})
}

func runSuite(t *testing.T, r *receiver, proxy *handlertest.Proxy, cfg Config, proto string) {
	t.Helper()
	cfg.BearerToken = handlers.NewSecret(suiteToken)
	cfg.SigningSecrets = []handlers.Secret{handlers.NewSecret(suiteSecret)}
	one := func(kind string) func(testing.TB) error {
		return func(tb testing.TB) error {
			tb.Helper()
			e := event(ada)
			e.Type = kind
			return deliver(tb, cfg, e)
		}
	}
	handlertest.Run(t, handlertest.Destination{
		Open:     func(tb testing.TB) delivery.Handler { tb.Helper(); return deliverytest.Open(tb, New, cfg) },
		Received: func(testing.TB) []int64 { return r.ids() },
		Message:  r.message,
		Rejected: func(id int64) *delivery.Event {
			e := event(ada)
			e.ID, e.Type = id, "rejected"
			return e
		},
		Network: proxy, Stop: r.stop, Start: r.start,
		Secrets: []string{suiteToken, suiteSecret, strings.TrimPrefix(suiteSecret, secretPrefix), suiteQuery},
		Ordered: true,
		Cases: []handlertest.Case{
			{Name: "refused for itself", Provoke: one("rejected"), Class: delivery.ClassEvent, Permanent: true, Text: "422 Unprocessable Entity: no: Bearer [redacted] [url] [redacted]"},
			{Name: "tripped", Provoke: one("tripped"), Class: delivery.ClassEvent, Unclear: true, RetryAfter: 7 * time.Second, Text: "500 Internal Server Error: oops"},
			{Name: "to be tried later", Provoke: one("conflicting"), Class: delivery.ClassEvent, RetryAfter: 8 * time.Second, Text: "409 Conflict: later"},
			{Name: "refused by a gateway", Provoke: one("stopped"), Class: delivery.ClassEvent, Unclear: true, Permanent: true, Text: "400 Bad Request: No required SSL certificate was sent (set tls.cert_file and tls.key_file to a certificate that the receiver takes)"},
			{Name: "too many", Provoke: one("hurried"), Class: delivery.ClassDestination, Throttled: true, RetryAfter: 9 * time.Second, Text: "429 Too Many Requests: slowly"},
			{Name: "credentials refused", Provoke: one("locked"), Class: delivery.ClassDestination, Text: "401 Unauthorized: who are you with Bearer [redacted]"},
			{Name: "payload not JSON is of no interest", Provoke: func(tb testing.TB) error { tb.Helper(); return deliver(tb, cfg, event("x")) }},
		},
	})
	for _, req := range r.all() {
		if req.Proto != proto {
			t.Fatalf("a request came by %s, want %s", req.Proto, proto)
		}
	}
}
