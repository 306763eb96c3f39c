package doctor

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/admin"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code     int
		answer   string
		severity Severity
		text     string
		known    bool // the database is known to be down
	}{
		"ready":        {http.StatusOK, "[+] relay: ok\n", OK, "is ready.", false},
		"hangs":        {http.StatusServiceUnavailable, "[+] database: ok\n[-] relay: event 42 is due for mail and not claimed\n[!] listener: polls\n", Error, "is not ready: relay: event 42 is due for mail and not claimed.", false},
		"waits":        {http.StatusServiceUnavailable, "[-] database: the database does not answer\n", Error, "is not ready: database: the database does not answer.", false},
		"waits, known": {http.StatusServiceUnavailable, "[-] database: the database does not answer\n", Note, "waits: the database does not answer.", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.answer))
			}))
			t.Cleanup(server.Close)
			f := checkHealth(t.Context(), admin.Access{Address: strings.TrimPrefix(server.URL, "http://")}, c.known)
			if f.Severity != c.severity || !strings.HasSuffix(f.Text, c.text) {
				t.Errorf("%+v", f)
			}
		})
	}
	gone := httptest.NewServer(nil)
	address := strings.TrimPrefix(gone.URL, "http://")
	gone.Close()
	if f := checkHealth(t.Context(), admin.Access{Address: address}, false); f.Severity != OK || !strings.Contains(f.Text, "No relay answers") {
		t.Errorf("%+v", f)
	}
}
