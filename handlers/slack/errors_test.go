package slack

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestRefusals: what Slack says, by both ways, for a channel that is the same
// for every event and for one that the event names.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]struct{ fixed, templated string }{
		"channel_not_found":                  {"unavailable", "unclear-permanent"},
		"not_in_channel":                     {"unavailable", "unclear-permanent"},
		"is_archived":                        {"unavailable", "unclear-permanent"},
		"channel_is_archived":                {"unavailable", "unclear-permanent"},
		"restricted_action":                  {"unavailable", "unclear-permanent"},
		"action_prohibited":                  {"unavailable", "unclear-permanent"},
		"posting_to_general_channel_denied":  {"unavailable", "unclear-permanent"},
		"user_not_found":                     {"unavailable", "unclear-permanent"},
		"thread_not_found":                   {"unavailable", "unclear-permanent"},
		"msg_too_long":                       {"permanent", "permanent"},
		"invalid_blocks":                     {"unclear-permanent", "unclear-permanent"},
		"invalid_blocks_format":              {"unclear-permanent", "unclear-permanent"},
		"no_text":                            {"unclear-permanent", "unclear-permanent"},
		"metadata_too_large":                 {"permanent", "permanent"},
		"invalid_payload":                    {"unclear-permanent", "unclear-permanent"},
		"invalid_auth":                       {"unavailable", "unavailable"},
		"not_authed":                         {"unavailable", "unavailable"},
		"token_revoked":                      {"unavailable", "unavailable"},
		"token_expired":                      {"unavailable", "unavailable"},
		"account_inactive":                   {"unavailable", "unavailable"},
		"missing_scope":                      {"unavailable", "unavailable"},
		"org_login_required":                 {"unavailable", "unavailable"},
		"team_access_not_granted":            {"unavailable", "unavailable"},
		"ekm_access_denied":                  {"unavailable", "unavailable"},
		"no_service":                         {"unavailable", "unavailable"},
		"no_team":                            {"unavailable", "unavailable"},
		"ratelimited":                        {"throttled", "throttled"},
		"rate_limited":                       {"throttled", "throttled"},
		"internal_error":                     {"unavailable", "unavailable"},
		"fatal_error":                        {"unavailable", "unavailable"},
		"service_unavailable":                {"unavailable", "unavailable"},
		"request_timeout":                    {"unavailable", "unavailable"},
		"rollup_error":                       {"unavailable", "unavailable"},
		"invalid_arguments":                  {"unclear-retry", "unclear-retry"},
		"something_that_slack_invents_later": {"unclear-retry", "unclear-retry"},
	} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			fixed, templated, hook := config(s.host()), config(s.host()), hookConfig(s.host())
			templated.Channel, templated.ThreadTS = "C{{ .Event.ID }}", "17000000{{ .Event.ID }}.000100"
			for _, c := range []struct {
				cfg  Config
				r    reply
				want string
			}{
				{fixed, reply{0, nil, `{"ok":false,"error":"` + word + `"}`}, want.fixed},
				{templated, reply{0, nil, `{"ok":false,"error":"` + word + `"}`}, want.templated},
				{hook, reply{http.StatusBadRequest, nil, word + "\n"}, want.fixed},
			} {
				s.says(&c.r)
				err := newHandler(t, c.cfg).Deliver(testenv.Within(t, patience), event(`{}`))
				if deliverytest.Class(err) != c.want || !strings.Contains(err.Error(), word) {
					t.Errorf("%s, want %s: %v", deliverytest.Class(err), c.want, err)
				}
			}
		})
	}
}

// TestAnswers: answers without a code of Slack.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		api, hook   reply
		class, text string
	}{
		"an answer without ok": {reply{0, nil, `{}`}, reply{0, nil, ``}, "unavailable", "the server that answers is not Slack"},
		"no error":             {reply{0, nil, `{"ok":false}`}, reply{0, nil, `{"ok":false}`}, "unavailable", "the server that answers is not Slack"},
		"a page of a proxy": {
			reply{0, nil, "<html>sign in</html>"}, reply{0, nil, "<html>sign in</html>"}, "unavailable", "check api_url or webhook_url, and proxies",
		},
		"too long to be kept": {
			reply{0, nil, "<html>" + strings.Repeat("x", 5000)}, reply{500, nil, strings.Repeat("x", 5000)}, "unavailable", "xxx",
		},
		"a redirect": {
			reply{307, map[string]string{"Location": "https://example.com/"}, ""},
			reply{302, map[string]string{"Location": "/x"}, ""},
			"unavailable", "HTTP 30",
		},
		"no such page":     {reply{404, nil, "404 page not found"}, reply{404, nil, "gone"}, "unavailable", "HTTP 404 Not Found: "},
		"a bad request":    {reply{400, nil, "Bad. Request"}, reply{400, nil, "Bad. Request"}, "unclear-retry", "HTTP 400 Bad Request: Bad. Request"},
		"too large":        {reply{413, nil, "too large"}, reply{413, nil, "too large"}, "retry", "HTTP 413"},
		"an odd limit":     {reply{429, map[string]string{"Retry-After": "soon"}, ""}, reply{429, nil, ""}, "throttled", "HTTP 429"},
		"an HTML page":     {reply{502, nil, "<html>\n\x1b[2J"}, reply{502, nil, "<html>\n\x1b[2J"}, "unavailable", "HTTP 502 Bad Gateway: <html> [2J"},
		"JSON of an error": {reply{503, nil, `{"ok":false,"error":"service_unavailable"}`}, reply{503, nil, "service_unavailable"}, "unavailable", "service_unavailable"},
		"a cut answer": {
			reply{0, map[string]string{"Content-Length": "500"}, `{"ok":tr`},
			reply{0, map[string]string{"Content-Length": "500"}, "ok"},
			"unavailable", "maybe posted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			for way, cfg := range map[*reply]Config{&c.api: config(s.host()), &c.hook: hookConfig(s.host())} {
				s.says(way)
				err := newHandler(t, cfg).Deliver(testenv.Within(t, patience), event(`{}`))
				if deliverytest.Class(err) != c.class || !strings.Contains(err.Error(), c.text) || len(err.Error()) > 2*oneline.MaxReply {
					t.Errorf("%s, want %s with %q: %v", deliverytest.Class(err), c.class, c.text, err)
				}
			}
		})
	}
}

// TestDetails: details beside the code are for the operator.
func TestDetails(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	h := newHandler(t, config(s.host()))
	for body, want := range map[string]string{
		`{"ok":false,"error":"missing_scope","needed":"chat:write.customize","provided":"chat:write"}`:                                       "needs the scope chat:write.customize, has chat:write",
		`{"ok":false,"error":"invalid_blocks","response_metadata":{"messages":["[ERROR] missing required field [json-pointer:/blocks/0]"]}}`: "[json-pointer:/blocks/0]",
	} {
		s.says(&reply{0, nil, body})
		if err := h.Deliver(testenv.Within(t, patience), event(`{}`)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestSilence: a message that was sent and is not answered may be posted, and
// must not be posted endlessly; one that was not sent costs nothing.
func TestSilence(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-gone:
		}
	}))
	defer silent.Close()
	defer close(gone)
	cfg := config(strings.TrimPrefix(silent.URL, "http://"))
	cfg.RequestTimeout = 2 * time.Second // long enough to dial and to write
	err := newHandler(t, cfg).Deliver(testenv.Within(t, patience), event(`{}`))
	if deliverytest.Class(err) != "unclear-retry" || !strings.Contains(err.Error(), "maybe posted") || !strings.Contains(err.Error(), "request_timeout of 2s") {
		t.Errorf("%s: %v", deliverytest.Class(err), err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test is over
	cfg.APIURL = fmt.Sprintf("https://%s/api/", l.Addr())
	err = newHandler(t, cfg).Deliver(testenv.Within(t, patience), event(`{}`))
	if deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "no connection") {
		t.Errorf("%s: %v", deliverytest.Class(err), err)
	}
}

// TestCertificate: a server whose certificate is not trusted never gets the token.
func TestCertificate(t *testing.T) {
	t.Parallel()
	asked := false
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	s.Config.ErrorLog = testenv.Quiet()
	s.StartTLS()
	cfg := config(strings.TrimPrefix(s.URL, "https://"))
	cfg.APIURL = s.URL
	err := newHandler(t, cfg).Deliver(testenv.Within(t, patience), event(`{}`))
	s.Close()
	if deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "certificate") || asked {
		t.Errorf("%s: %v, asked: %t", deliverytest.Class(err), err, asked)
	}
}

// TestProxyAddress: the standard library repeats an address that is not a URL,
// with the password in it.
func TestProxyAddress(t *testing.T) {
	t.Parallel()
	h := newHandler(t, config("127.0.0.1:1"))
	a := &answer{sendError: errors.New(`invalid proxy address "user:hunter2@proxy": bad`)}
	if err := h.silence(t.Context(), t.Context(), a); strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

// TestURLIsTakenOff: the standard library puts the URL into its errors.
func TestURLIsTakenOff(t *testing.T) {
	t.Parallel()
	h := newHandler(t, hookConfig("127.0.0.1:1"))
	a := &answer{readError: &url.Error{Op: "Post", URL: "http://other.example.com/sesame", Err: &url.Error{Op: "x", URL: "sesame", Err: errors.New("odd")}}}
	err := h.silence(t.Context(), t.Context(), a)
	if err.Error() != "slack: no connection: odd" {
		t.Error(err)
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		if strings.Contains(fmt.Sprintf("%+v", e), "sesame") {
			t.Errorf("%+v", e)
		}
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	h := newHandler(t, Config{WebhookURL: handlers.NewSecret("https://example.com/x"), Text: "x"})
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := h.Deliver(t.Context(), event(`{}`)); !errors.Is(err, outcome.ErrClosed) {
		t.Error(err)
	}
}
