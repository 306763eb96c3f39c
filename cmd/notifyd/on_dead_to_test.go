package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestOnDeadTo: from a reload on, a daemon sends a dead letter to the destination that the file names, and shows the
// delivery there as one of the event. check-config names a receiver that is missing.
func TestOnDeadTo(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			type request struct {
				http.Header

				body string
			}
			parked, open := make(chan request, 10), make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/partner" {
					http.Error(w, "no such customer", http.StatusUnprocessableEntity)
					return
				}
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				select {
				case <-open:
					parked <- request{r.Header, string(body)}
				default:
					http.Error(w, "closed", http.StatusServiceUnavailable)
				}
			}))
			t.Cleanup(server.Close)
			url := databaseOf(t, mode)
			text := strings.NewReplacer("DB", url, "URL", server.URL).Replace(`version: 1
database: {url: 'DB'}
admin: {listen: '127.0.0.1:0', console: true}
destinations:
  partner: {type: webhook, url: URL/partner, on_dead: {to: parking}}
  parking: {type: webhook, url: URL/parking, longest_pause: 100ms}
routes: [{match: '*', to: partner}]
`)
			missing := file(t, strings.Replace(text, "  parking:", "  park:", 1))
			if got := invoke(t, "check-config", "-c", missing); got.code != command.ExitConfig ||
				!strings.Contains(got.stderr, `:5:`) || !strings.Contains(got.stderr, `destinations.partner.on_dead.to: there is no destination "parking": add it`) {
				t.Errorf("check-config of a missing receiver: %+v", got)
			}
			path := file(t, text)
			if got := invoke(t, "check-config", "-c", path); got.code != command.ExitOK || strings.Contains(got.stderr+got.stdout, "no route") {
				t.Errorf("check-config: %+v", got)
			}
			r := startReloadable(t, nil, strings.Replace(text, "{to: parking}", "continue", 1))
			v := visit(t, r)
			r.write(t, text)
			r.reloads <- struct{}{}
			r.stderr.await(t, saidDelivers)
			publishTo(t, url, "order.placed", `{"order": 1042}`)
			until(t, url, `SELECT count(*) = 2 FROM outbox_deliveries WHERE destination = 'partner' AND state = 'dead' OR destination = 'parking' AND last_error IS NOT NULL`)
			if got := invoke(t, "events", "show", "1", "-c", path); got.code != command.ExitOK || !strings.Contains(got.stdout, "partner: dead") || !regexp.MustCompile(`parking: (waiting|running).*, reports the dead letter of partner\n`).MatchString(got.stdout) { // an attempt may be under way
				t.Errorf("events show: %+v", got)
			}
			for _, form := range []string{"table", "json"} {
				if got := invoke(t, "status", "-c", path, "-o", form); got.code != command.ExitOK || !strings.Contains(got.stdout, "partner has 1 dead letter; dead letters go to parking.") {
					t.Errorf("status: %+v", got)
				}
				if got := invoke(t, "doctor", "-c", path, "-o", form); !strings.Contains(got.stdout, "no such customer. Dead letters go to parking.") {
					t.Errorf("doctor: %+v", got)
				}
			}
			if got := invoke(t, "status", "-c", path, "-o", "json"); !regexp.MustCompile(`"dead_letters_to": \{\s+"partner": "parking"\s+\}`).MatchString(got.stdout) {
				t.Errorf("status: %+v", got)
			}
			v.awaits("/console/destination?name=partner", `<dt>Dead letters go to</dt><dd><a href="/console/destination?name=parking">parking</a></dd>`)
			v.awaits("/console/", "partner has 1 dead letter; dead letters go to parking.")
			if _, page := v.get("/console/events/1"); !strings.Contains(page, ", reports the dead letter of partner</span>") {
				t.Errorf("the page of the event:\n%s", page)
			}
			close(open)
			got := testenv.Receive(t, patience, "the dead letter", parked)
			for name, want := range map[string]string{
				"Notifyd-Id": "1-partner", "Notifyd-Dead-Destination": "partner", "Notifyd-Dead-Attempts": "1", "Notifyd-Dead-Class": "event",
			} {
				if got.Get(name) != want {
					t.Errorf("%s: %q, want %q", name, got.Get(name), want)
				}
			}
			if got.body != `{"order": 1042}` || !strings.Contains(got.Get("Notifyd-Dead-Error"), "no such customer") {
				t.Errorf("reported: %+v", got)
			}
			until(t, url, `SELECT count(*) = 1 AND bool_and(state = 'dead') FROM outbox_deliveries`)
		})
	}
}
