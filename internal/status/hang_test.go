package status

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/admin"
)

// TestStatusOfARelayThatHangs: its hangs are shown, also without its figures.
func TestStatusOfARelayThatHangs(t *testing.T) {
	t.Parallel()
	for name, figures := range map[string]http.HandlerFunc{
		"with figures":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(metricsText)) },
		"without figures": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("/metrics", figures)
			mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write([]byte("[-] started: not yet\n[-] relay: event 42 is due for mail and not claimed\n"))
			})
			server := httptest.NewServer(mux)
			t.Cleanup(server.Close)
			s := Status{Relay: Scrape(t.Context(), admin.Access{Address: strings.TrimPrefix(server.URL, "http://")}, "")}
			if s.Relay == nil {
				t.Fatal("the relay is unknown")
			}
			if all := s.attention(); !slices.ContainsFunc(all, func(a Attention) bool {
				return strings.Contains(a.Text, "hangs: event 42 is due for mail and not claimed.")
			}) {
				t.Errorf("%+v", all)
			}
		})
	}
}
