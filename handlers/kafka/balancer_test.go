package kafka

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// balanced returns the URL of a balancer of connections. Behind it one server refuses everything, and the next one gives the
// answer. refused counts the requests to the first one.
func balanced(t *testing.T, answer string, refused *atomic.Int32) string {
	t.Helper()
	refuse := func(w http.ResponseWriter, _ *http.Request) {
		refused.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}
	accept := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}
	var addrs []string
	for _, h := range []http.HandlerFunc{refuse, accept} {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		addrs = append(addrs, strings.TrimPrefix(s.URL, "http://"))
	}
	return "http://" + testenv.Balancer(t, addrs...)
}

// TestBalancer: neither the schema registry nor the authorization server is asked again over the connection that has failed.
func TestBalancer(t *testing.T) {
	t.Parallel()
	var byRegistry, byTokens atomic.Int32
	r, err := newRegistry(&SchemaRegistry{URL: balanced(t, `{"id": 7}`, &byRegistry)}, "", newSecrets(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	server := balanced(t, `{"access_token": "t", "expires_in": 60}`, &byTokens)
	o := newTokens(OAuth{TokenURL: server, ClientID: "ann", ClientSecret: handlers.NewSecret("s3cret")})

	for range 2 { // the first call may fail
		_, err = r.header(t.Context(), schemaRef{"orders-value", versionLatest})
	}
	if err != nil || byRegistry.Load() != 1 {
		t.Errorf("the registry refused %d requests: %v", byRegistry.Load(), err)
	}
	for range 2 {
		_, err = o.get(t.Context())
	}
	if err != nil || byTokens.Load() != 1 {
		t.Errorf("the authorization server refused %d requests: %v", byTokens.Load(), err)
	}
}
