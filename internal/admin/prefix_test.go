package admin

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/internal/profiles"
)

// TestCheckPrefix: which prefixes a server can have.
func TestCheckPrefix(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]bool{
		"": true, "/ops": true, "/team/ops": true, "/a.b-c_d~e": true, "/consoles": true,
		"ops": false, "/": false, "/ops/": false, "//ops": false, "/ops//a": false, "/..": false, "/ops/../a": false, "/{a}": false,
		"/a b": false, "/a%2fb": false, "/a?b": false, "/a#b": false, "/ä": false, "/console": false, "/console/ops": false, "/debug": false, "/metrics": false, "/livez/a": false, "/version": false,
	} {
		if err := CheckPrefix("prefix", prefix); (err == nil) != want {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}

// TestPrefix: the endpoints answer with the prefix, and without it, as a proxy that cuts it off asks; redirects have it.
func TestPrefix(t *testing.T) {
	t.Parallel()
	console := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Console", r.URL.Path) })
	h := Handler(Config{Prefix: "/ops", Version: "v1", Metrics: prometheus.NewRegistry(), Profiles: profiles.Handler(), Console: console})
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://example.com"+path, http.NoBody))
		return w
	}

	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics", "/version", "/debug/pprof/", "/debug/pprof/goroutine", "/console/"} {
		for _, whole := range []string{path, "/ops" + path} {
			if w := get(whole); w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", whole, w.Code, w.Body)
			}
		}
	}
	for path, want := range map[string]string{
		"/": "/ops/console/", "/ops": "/ops/", "/ops/": "/ops/console/", "/console": "/ops/console/", "/ops/console": "/ops/console/",
		"/console/../console/a": "/ops/console/a",
	} {
		if w := get(path); w.Header().Get("Location") != want {
			t.Errorf("%s leads to %q, want %q", path, w.Header().Get("Location"), want)
		}
	}
	if w := get("/console/a%2Fb"); w.Header().Get("Console") != "/ops/console/a/b" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, path := range []string{"/opsy/livez", "/ops/ops/livez", "/nothing"} {
		if w := get(path); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	stripped := http.StripPrefix("/ops/", h) // what is left has no slash at its begin
	w := httptest.NewRecorder()
	stripped.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/ops/livez", http.NoBody))
	if w.Code != http.StatusOK {
		t.Errorf("without a slash: %d", w.Code)
	}
}
