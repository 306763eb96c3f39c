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

// TestStatusOfWithheldOutcomes: the refused outcomes of single events have a line of their own, with their number and the
// error. A refusal that concerns them only is not shown as one of all statements.
func TestStatusOfWithheldOutcomes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		metrics string
		refused []string
	}{
		"single events only":   {`notifyd_database_refuses{code="23514"} 1`, nil},
		"other statements too": {`notifyd_database_refuses{code="23514"} 2`, []string{"23514"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("notifyd_database_up 1\n" + c.metrics + "\n"))
			})
			mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("[+] relay: ok\n[!] outcomes: 3 withheld for 5m0s: event 42, one of 3: violates my_check (SQLSTATE 23514)\n"))
			})
			server := httptest.NewServer(mux)
			t.Cleanup(server.Close)
			s := Status{Relay: Scrape(t.Context(), admin.Access{Address: strings.TrimPrefix(server.URL, "http://")}, "")}
			if s.Relay == nil || !slices.Equal(s.Relay.Refused, c.refused) {
				t.Fatalf("relay %+v", s.Relay)
			}
			if all := s.attention(); len(all) != 1+len(c.refused) || !strings.Contains(all[0].Text, "3 withheld for 5m0s: event 42, one of 3: violates my_check") ||
				!strings.Contains(all[0].Cure, "constraint") {
				t.Errorf("%+v", all)
			}
		})
	}
}
