//go:build testall

package main

import (
	"bytes"
	"fmt"
	"image/png"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// envPicture names the file that gets the picture of the console: see "make picture".
const envPicture = "NOTIFYD_TEST_PICTURE"

// TestConsolePicture takes the picture of README.md: the overview of a relay that delivers, with a destination that is down,
// dead letters and a pause.
func TestConsolePicture(t *testing.T) {
	t.Parallel()
	chromium := testenv.Program(t, "chromium")
	out, seconds := os.Getenv(envPicture), 310
	if out == "" {
		out, seconds = filepath.Join(t.TempDir(), "console.png"), 3
	}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil || r.URL.Path == "/hook":
			http.Error(w, "the service is in maintenance", http.StatusServiceUnavailable)
		case bytes.Contains(body, []byte("nobody@")):
			http.Error(w, "550 5.1.1 Recipient address rejected: User unknown", http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(server.Close)
	url := databaseOf(t, "queue")
	config := file(t, fmt.Sprintf(`version: 1
database: {url: %q}
admin: {listen: "127.0.0.1:0", console: true}
destinations:
  mail: {type: webhook, url: "%s/mail"}
  hook: {type: webhook, url: "%[2]s/hook"}
  audit: {type: log, payload: false}
routes:
  - {match: "order.*", to: mail}
  - {match: "invoice.*", to: hook}
  - {match: "user.*", to: audit}
`, url, server.URL))
	d := startDaemon(t, nil, "run", "-c", config, "--log-format", "json")
	d.stderr.await(t, `"admin server listening"`)
	page := "http://" + listenOf(d) + "/console/"
	if r := invoke(t, "pause", "audit", "-c", config, "--actor", "ann@example.com", "--reason", "moving the server"); r.code != 0 {
		t.Fatalf("%+v", r)
	}

	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for second := range seconds {
		n := int(60 + 30*math.Sin(float64(second)/20) + 20*math.Sin(float64(second)/7))
		execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload) SELECT 'order.placed', '{"to": "ann@example.com"}' FROM generate_series(1, %d)`, n))
		if second%40 == 0 {
			execute(t, url, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '{"to": "nobody@example.com"}'), ('invoice.sent', '{}')`)
		}
		<-tick.C
	}
	until(t, url, `SELECT count(*) > 0 FROM outbox_deliveries WHERE state = 'dead'`)
	// While the browser looks, too: some are delayed.
	execute(t, url, `INSERT INTO outbox_events (event_type, payload, available_at) SELECT 'order.placed', '{"to": "ann@example.com"}', now() + i * interval '16 ms' FROM generate_series(1, 600) AS i`)

	args := []string{"--headless", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1080", "--timeout=4000", "--screenshot=" + out, page}
	if os.Getuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...) // Chromium has no sandbox for root; it loads the console's page only
	}
	if text, err := exec.CommandContext(t.Context(), chromium, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	picture, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if size, err := png.DecodeConfig(bytes.NewReader(picture)); err != nil || size.Width != 1200 {
		t.Errorf("%+v, %v", size, err)
	}
}
