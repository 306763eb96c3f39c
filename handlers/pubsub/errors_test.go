package pubsub

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestRefused is the table of answers.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer      said
		class, text string
	}{
		"message":          {problem(400, "INVALID_ARGUMENT", "bad"), "unclear-permanent", "INVALID_ARGUMENT: bad (look at the event, and at the topic"},
		"too large":        {said{status: 413, body: "<html>"}, "permanent", "HTTP 413"},
		"no topic":         {problem(404, "NOT_FOUND", "Resource not found"), "unavailable", "create the topic"},
		"denied":           {problem(403, "PERMISSION_DENIED", "User not authorized"), "unavailable", "roles/pubsub.publisher"},
		"no credentials":   {problem(401, "UNAUTHENTICATED", ""), "unavailable", "check the credentials"},
		"key of the topic": {problem(400, "FAILED_PRECONDITION", "key disabled"), "unavailable", "key disabled"},
		"quota":            {problem(429, "RESOURCE_EXHAUSTED", "Quota exceeded"), "throttled", "Quota exceeded"},
		"quota, no code":   {said{status: 429}, "throttled", "HTTP 429"},
		"down":             {problem(503, "UNAVAILABLE", "try again"), "unavailable", "UNAVAILABLE: try again"},
		"internal":         {problem(500, "INTERNAL", ""), "unavailable", "INTERNAL"},
		"too late":         {problem(504, "DEADLINE_EXCEEDED", ""), "unavailable", "DEADLINE_EXCEEDED"},
		"aborted":          {problem(409, "ABORTED", ""), "unavailable", "ABORTED"},
		"another server":   {problem(501, "UNIMPLEMENTED", ""), "unavailable", "check endpoint"},
		"unknown":          {problem(400, "SOMETHING_NEW", strings.Repeat("x", 1000)), "unclear-retry", "SOMETHING_NEW: xxx"},
		"unknown, theirs":  {problem(500, "SOMETHING_NEW", ""), "unavailable", "SOMETHING_NEW"},
		"a proxy":          {said{status: 403, body: "<html>no</html>"}, "unavailable", "not from Pub/Sub"},
		"a stranger":       {said{status: 400, body: `{"error": {"status": "INVALID_ARGUMENT", "message": 7}}`}, "unavailable", "not from Pub/Sub"},
		"no JSON":          {said{body: "<html>sign in</html>"}, "unavailable", "maybe sent"},
		"half an answer":   {said{body: `{"messageIds": ["1"`}, "unavailable", "maybe sent"},
		"no ids":           {said{body: `{}`}, "unavailable", "maybe sent"},
		"a redirect":       {said{status: 307, header: map[string]string{"Location": "/elsewhere"}}, "unavailable", "HTTP 307"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFake(t, func(int, sent) said { return c.answer })
			err := deliverytest.Open(t, New, fakeConfig(f)).Deliver(testenv.Within(t, patience), event(1, `{}`))
			if deliverytest.Class(err) != c.class || !strings.Contains(err.Error(), c.text) || len(err.Error()) > 2*oneline.MaxReply {
				t.Errorf("%s, want %s with %q: %v", deliverytest.Class(err), c.class, c.text, err)
			}
			if n := len(f.asked()); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestRetryAfter: the pause of the header is that of the error.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "soon": 0, "-1": 0} {
		f := startFake(t, func(int, sent) said {
			a := problem(http.StatusTooManyRequests, "RESOURCE_EXHAUSTED", "")
			a.header = map[string]string{"Retry-After": value}
			return a
		})
		err := deliverytest.Open(t, New, fakeConfig(f)).Deliver(testenv.Within(t, patience), event(1, `{}`))
		if got, _ := delivery.RetryDelay(err); got != want || !delivery.IsThrottled(err) {
			t.Errorf("%q: %v, %v", value, got, err)
		}
	}
}

// TestSilence: a server that does not answer is at fault.
func TestSilence(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	f := startFake(t, func(int, sent) said { <-end; return said{} })
	defer close(end)
	cfg := fakeConfig(f)
	cfg.RequestTimeout = time.Millisecond
	err := deliverytest.Open(t, New, cfg).Deliver(testenv.Within(t, patience), event(1, `{}`))
	if deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "request_timeout of 1ms is over") {
		t.Errorf("got %v", err)
	}
}

// TestClosed: after Close nothing is sent.
func TestClosed(t *testing.T) {
	t.Parallel()
	f := startFake(t, func(_ int, s sent) said { return taken(s) })
	h := deliverytest.Open(t, New, fakeConfig(f))
	_ = h.Close()
	if errs := h.DeliverBatch(testenv.Within(t, patience), events(3, "a", "b")); deliverytest.Classes(errs) == deliverytest.Times("delivered", 3) || len(f.asked()) != 0 {
		t.Errorf("got %v", errs)
	}
}
