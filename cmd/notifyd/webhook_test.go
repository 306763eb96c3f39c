package main

import (
	"encoding/base64"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const webhookSecret = "whsec_bWFya2VyLXNlY3JldC1tYXJrZXItc2VjcmV0"

// TestWebhookPage pastes the configurations of the page, checks them, and sends
// an event by the first one.
func TestWebhookPage(t *testing.T) {
	t.Parallel()
	type arrived struct {
		header http.Header
		body   []byte
	}
	requests := make(chan arrived, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- arrived{r.Header, body}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	env := vars{"DATABASE_URL": database(t), "WEBHOOK_SECRET": webhookSecret, "CRM_TOKEN": "t"}
	path := file(t, strings.Replace(pasted(t, "webhook.md"), "https://partner.example.com", server.URL, 1))
	d := startDaemon(t, env, "run", "-c", path)
	d.stderr.await(t, `"relay started"`)
	publishTo(t, env["DATABASE_URL"], "order.placed", order)
	got := <-requests
	wh, err := standardwebhooks.NewWebhook(webhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	if err := wh.Verify(got.body, got.header); err != nil || string(got.body) != order || got.header.Get("webhook-id") != "notifyd-1-partner" {
		t.Errorf("%v: %v %s", err, got.header, got.body)
	}
	until(t, env["DATABASE_URL"], "SELECT state = 'done' FROM outbox_events")
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestHeadersOfWriters: a writer sets no header of a request that a proxy, or the receiver, takes for its own. event_headers lets a
// name through.
func TestHeadersOfWriters(t *testing.T) {
	t.Parallel()
	requests := make(chan http.Header, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { requests <- r.Header }))
	t.Cleanup(server.Close)
	forged := []string{
		"X-Forwarded-User=admin", "x_forwarded_for=10.0.0.1", "Forwarded=for=10.0.0.1", "X-HTTP-Method-Override=DELETE", "Set-Cookie=a=b", "Range=bytes=0-1",
		"notifyd_id=7", "webhook_signature=v1,forged", "webhook_id=forged", "content_type=text/html", "ce_id=7", "X-Real-IP=10.0.0.1", "Any-Thing=x",
	}
	args := []string{"order.placed", order, "--header", "tenant_id=acme", "--header", "traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	for _, header := range forged {
		args = append(args, "--header", header)
	}
	ours := "Content-Length Content-Type Notifyd-Id Notifyd-Time Notifyd-Type User-Agent Webhook-Id Webhook-Timestamp"
	for _, mode := range []string{"queue", "stream"} {
		url := databaseOf(t, mode)
		for settings, more := range map[string]string{"": "Traceparent", ", event_headers: [Tenant-Id]": "Tenant-Id Traceparent"} {
			r := startReloadable(t, nil, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations:\n  hook: {type: webhook, url: '"+server.URL+"/'"+settings+"}\nroutes: [{match: '*', to: hook}]\n")
			publishTo(t, url, args...)
			got := testenv.Receive(t, patience, "the request", requests)
			delete(got, "Accept-Encoding") // of Go's client
			names := slices.Sorted(maps.Keys(got))
			want := slices.Sorted(slices.Values(strings.Fields(ours + " " + more)))
			if !slices.Equal(names, want) || got.Get("Content-Type") != "application/json" || strings.Contains(settings, "Tenant") && got.Get("Tenant-Id") != "acme" {
				t.Errorf("%s%s: %v\nwant %v", mode, settings, got, want)
			}
			r.end(t)
		}
	}
}

// TestWebhookSecrets lets requests fail in several ways, at the lowest log level,
// and looks for secrets that must not be shown.
func TestWebhookSecrets(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"/locked": 401, "/tripped": 500}[r.URL.Path])
		_, _ = io.WriteString(w, "no: "+r.RequestURI+" "+r.Header.Get("Authorization")+" "+webhookSecret)
	}))
	defer server.Close()
	url := database(t)
	destination := func(name, url string) string {
		return "  " + name + ": {type: webhook, url: '" + url + "?token=marker-query', bearer_token: marker-token,\n" +
			"    signing_secrets: [" + webhookSecret + "], backoff: {initial: 1ms, max: 1ms}, max_attempts: 3}\n"
	}
	path := file(t, "version: 1\nlog: {level: debug, format: json}\ndatabase: {url: '"+url+"'}\ndestinations:\n"+
		destination("locked", server.URL+"/locked")+destination("tripped", server.URL+"/tripped")+
		destination("gone", "http://nobody.invalid/")+
		"routes: [{match: '*', to: [locked, tripped, gone]}]\n")
	shown := commandIn(t, nil, "config", "print", "-c", path)
	d := startDaemon(t, nil, "run", "-c", path)
	publishTo(t, url, "order.placed", order)
	d.stderr.await(t, `"event is a dead letter"`)
	d.stderr.awaitN(t, `"destination down"`, 2) // locked, gone
	d.end(t)
	all := d.stderr.text() + d.stdout.text() + shown.stdout + query[string](t, url, "SELECT coalesce(string_agg(last_error, ' '), '') FROM outbox_deliveries")
	if !strings.Contains(all, "[redacted]") || !strings.Contains(all, "nobody.invalid") {
		t.Errorf("the errors say too little:\n%s", all)
	}
	raw := strings.TrimPrefix(webhookSecret, "whsec_")
	key, err := base64.StdEncoding.DecodeString(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"marker", raw, string(key)} {
		if strings.Contains(all, secret) {
			t.Errorf("%s is shown:\n%s", secret, all)
		}
	}
}
