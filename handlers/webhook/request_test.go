package webhook

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/target"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

const (
	oldSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	newSecret = "whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY="
)

func TestForms(t *testing.T) {
	t.Parallel()
	const compact = `{"email":"ada@example.com"}`
	for name, c := range map[string]struct {
		cfg     Config
		payload string
		body    string
		headers map[string]string // "" for none
	}{
		"payload": {
			cfg: Config{EventHeaders: []string{"tenant"}}, payload: ada, body: ada,
			headers: map[string]string{
				"Content-Type": "application/json", "Notifyd-Id": "42", "Notifyd-Type": "order.created", "Notifyd-Aggregate-Type": "order",
				"Notifyd-Aggregate-Id": "A-7", "Notifyd-Time": "2026-03-04T05:06:07Z", "Tenant": "acme", "Traceparent": "00-4bf9-00f0-01",
				"Webhook-Id": "notifyd-42-hook", "User-Agent": "notifyd", "Authorization": "", "Webhook-Signature": "", "Accept-Encoding": "",
			},
		},
		"CloudEvents, binary": {
			cfg: Config{Message: handlers.Message{Format: handlers.FormatCloudEventsBinary, Source: "/shop"}}, payload: ada, body: ada,
			headers: map[string]string{
				"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "42", "Ce-Source": "/shop", "Ce-Type": "order.created",
				"Ce-Subject": "A-7", "Ce-Time": "2026-03-04T05:06:07Z", "Notifyd-Id": "",
			},
		},
		"CloudEvents, structured": {
			cfg: Config{Message: handlers.Message{Format: handlers.FormatCloudEventsStructured}}, payload: compact,
			body: `{"specversion":"1.0","id":"42","source":"/notifyd","type":"order.created","datacontenttype":"application/json",` +
				`"subject":"A-7","time":"2026-03-04T05:06:07Z","partitionkey":"A-7","aggregatetype":"order","traceparent":"00-4bf9-00f0-01","data":` + compact + `}`,
			headers: map[string]string{"Content-Type": "application/cloudevents+json"},
		},
		"template": {
			cfg: Config{
				Method: "PUT", Message: handlers.Message{Body: `{"who":{{ json .Payload.name }}}`}, BearerToken: handlers.NewSecret("t0ken"), IDPrefix: "shop_1",
				Headers: map[string]string{"X-Tenant": " {{ .Headers.tenant }} ", "X-None": "{{ get .Payload `absent` | default `` }}", "User-Agent": "shop/1.0"},
			},
			payload: ada, body: `{"who":"Ada \"A\""}`,
			headers: map[string]string{
				"Content-Type": "application/json", "Authorization": "Bearer t0ken", "X-Tenant": "acme", "X-None": "", "User-Agent": "shop/1.0",
				"Webhook-Id": "shop_1-42-hook", "Notifyd-Id": "42",
			},
		},
		"text": {
			cfg: Config{
				Method: "PATCH", Message: handlers.Message{Body: "Dear {{ .Payload.name }}", ContentType: "text/plain; charset=utf-8"}, Username: "me", Password: handlers.NewSecret("p:w ü"),
			},
			payload: ada, body: `Dear Ada "A"`,
			headers: map[string]string{
				"Content-Type": "text/plain; charset=utf-8", "Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte("me:p:w ü")),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t, nil)
			c.cfg.URL = r.url() + "/hook?x=1#part"
			if err := deliver(t, c.cfg, event(c.payload)); err != nil {
				t.Fatal(err)
			}
			got := r.one(t)
			if string(got.body) != c.body || got.Method != cmp.Or(c.cfg.Method, "POST") || got.RequestURI != "/hook?x=1" {
				t.Errorf("got %s %s\n%s\nwant\n%s", got.Method, got.RequestURI, got.body, c.body)
			}
			if got.ContentLength != int64(len(c.body)) {
				t.Errorf("content length %d", got.ContentLength)
			}
			for header, want := range c.headers {
				if values := got.Header.Values(header); len(values) > 1 || got.Header.Get(header) != want || (want == "") != (len(values) == 0) {
					t.Errorf("%s is %q, want %q", header, values, want)
				}
			}
		})
	}
}

// TestHeadersOfEvents: an event may carry any headers; the request has those that the configuration names.
func TestHeadersOfEvents(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	h := deliverytest.Open(t, New, Config{
		URL: r.url(), SigningSecrets: []handlers.Secret{handlers.NewSecret(newSecret)}, EventHeaders: []string{"x-fine", "Tenant-Id", "X_Region"},
		Headers: map[string]string{"Trace_State": "x", "tracestate": "configured"},
	})
	e := event(ada)
	e.Headers = map[string]string{
		"traceparent": "00-ab", "baggage": "a=b", "Tracestate": "forged", "tenant_id": "acme", "TENANT-ID": "exact", "x-region": "eu", "X-Forwarded-User": "admin",
		"X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1", "X-HTTP-Method-Override": "DELETE", "Set-Cookie": "a=b", "Range": "bytes=0-1", "X-Other": "x",
		"notifyd_id": "forged", "webhook_signature": "v1,forged", "Webhook_Id": "forged", "content_type": "text/html", "ce_id": "forged",
		"Authorization": "Bearer of another", "cookie": "a=b", "Host": "evil.example", "content-length": "1", "Transfer-Encoding": "chunked",
		"Connection": "close", "webhook-signature": "v1,forged", "Webhook-Id": "forged", "proxy-authorization": "x", "content-type": "text/html",
		"a b": "blank", "ü": "letter", "": "empty", "X-Fine": "ü\r\nX-Bad: 1", "User-Agent": "curl",
	}
	if err := h.Deliver(testenv.Within(t, patience), e); err != nil {
		t.Fatal(err)
	}
	got := r.one(t)
	var names []string
	for name := range got.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	want := "Baggage Content-Length Content-Type Notifyd-Aggregate-Id Notifyd-Aggregate-Type Notifyd-Id Notifyd-Time Notifyd-Type Tenant-Id Trace_state Traceparent Tracestate " +
		"User-Agent Webhook-Id Webhook-Signature Webhook-Timestamp X-Fine X_region"
	if got.Header.Get("Tenant-Id") != "exact" || got.Header.Get("X_Region") != "eu" || got.Header.Get("Tracestate") != "configured" || got.Header.Get("Traceparent") != "00-ab" {
		t.Errorf("got %v", got.Header)
	}
	if text := strings.Join(names, " "); text != want || got.Host != r.addr || got.Header.Get("Content-Type") != "application/json" ||
		got.Header.Get("X-Fine") != "ü  X-Bad: 1" || got.Header.Get("User-Agent") != "notifyd" {
		t.Errorf("got  %s (%v)\nwant %s", text, got.Header, want)
	}
	if err := verify(got, newSecret); err != "" {
		t.Error(err)
	}
}

func TestEventsThatNoRequestCanBeMadeOf(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	inject := map[string]string{"X-Name": "{{ .Payload.name }}"}
	for text, c := range map[string]struct {
		cfg     Config
		payload string
	}{
		"webhook: the payload is not JSON": {cfg: Config{Headers: inject}, payload: "{"},
		`webhook: template "url", line 1, at {{ .Payload.id }}: the event has no such field`: {
			cfg: Config{URL: r.url() + "/{{ .Payload.id }}"}, payload: ada,
		},
		`webhook: template "headers.X-Name", line 1, at {{ .Payload.name }}: the value holds a line end or another control character: a header has one line`: {
			cfg: Config{Headers: inject}, payload: `{"name":"a\r\nX-Admin: 1"}`,
		},
		`webhook: the output of template "body" is not JSON: write values as {{ json .Payload.name }}, or set content_type`: {
			cfg: Config{Message: handlers.Message{Body: `{"name":{{ .Payload.name }}}`}}, payload: ada,
		},
		`webhook: template "url": a segment of the path is empty or dots, which leads to another path`: {
			cfg: Config{URL: r.url() + "/orders/{{ .Payload.id }}/x"}, payload: `{"id":"a/../../admin"}`,
		},
		`webhook: the output of template "url" has more than 8000 bytes`: {
			cfg: Config{URL: r.url() + "/{{ .Payload.id }}"}, payload: `{"id":"` + strings.Repeat("x", target.MaxURL) + `"}`,
		},
		`webhook: the output of template "url" is not a URL`: {
			cfg: Config{URL: "{{ .Payload.url }}", DynamicHost: true, ProxyURL: none}, payload: `{"url":"https://exa mple.com/"}`,
		},
		`webhook: the output of template "url" must begin with https:// or http://`: {
			cfg: Config{URL: "{{ .Payload.url }}", DynamicHost: true, ProxyURL: none}, payload: `{"url":"file:///etc/passwd"}`,
		},
		`webhook: the output of template "url" must not hold a user or password`: {
			cfg: Config{URL: "{{ .Payload.url }}", DynamicHost: true, ProxyURL: none}, payload: `{"url":"https://a:b@example.com"}`,
		},
		`webhook: the output of template "url" has no host`: {
			cfg: Config{URL: "{{ .Payload.url }}", DynamicHost: true, ProxyURL: none}, payload: `{"url":"https:///x"}`,
		},
	} {
		if c.cfg.URL == "" {
			c.cfg.URL = r.url()
		}
		err := deliver(t, c.cfg, event(c.payload))
		if verdictOn(err) != "permanent" || !strings.HasPrefix(err.Error(), text) {
			t.Errorf("%s: got  %v\nwant %s", verdictOn(err), err, text)
		}
	}
	if n := len(r.all()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestPayloadCannotChangeWhereItGoes: whatever is in it, the request arrives at
// the same host, as one segment and one parameter.
func TestPayloadCannotChangeWhereItGoes(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	h := deliverytest.Open(t, New, Config{URL: r.url() + "/orders/{{ .Payload.id }}/paid?by={{ .Payload.id }}&v=1"})
	values := []string{
		"@evil.example", ".evil.example", "a/b", "..x", "x?admin=1", "x#y", "a&v=2", "%2e%2e", `evil\x`, "ä ö", "x\r\nHost: evil", "a+b=c;d",
	}
	for i, value := range values {
		payload := []byte(`{"id":` + strconv.QuoteToASCII(value) + `}`)
		if err := h.Deliver(testenv.Within(t, patience), &delivery.Event{ID: int64(i + 1), Type: "x", Payload: payload}); err != nil {
			t.Errorf("%s: %v", value, err)
			continue
		}
		got := r.all()[len(r.all())-1]
		parts := strings.Split(got.URL.EscapedPath(), "/")
		query := got.URL.Query()
		if got.Host != r.addr || len(parts) != 4 || got.URL.Path != "/orders/"+value+"/paid" || query.Get("by") != value || query.Get("v") != "1" || len(query) != 2 {
			t.Errorf("%s became %s at %s", value, got.RequestURI, got.Host)
		}
	}
	sent := len(r.all())
	for _, value := range []string{"", ".", "..", "a/../b", "/admin", "//evil.example", `\\evil`, `..\x`} {
		err := h.Deliver(testenv.Within(t, patience), event(`{"id":`+strconv.QuoteToASCII(value)+`}`))
		if verdictOn(err) != "permanent" || !strings.Contains(err.Error(), "is empty or dots") {
			t.Errorf("%q: %v", value, err)
		}
	}
	if n := len(r.all()); n != sent {
		t.Errorf("%d requests to another path", n-sent)
	}
}

// verify is written after the specification, without the library that signs. It
// returns what is wrong, or "".
func verify(r received, secrets ...string) string {
	id, stamp := r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if age := time.Since(time.Unix(at, 0)); err != nil || age < -time.Minute || age > time.Minute {
		return "the timestamp is " + stamp
	}
	var want []string
	for _, s := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, "whsec_"))
		if err != nil {
			return err.Error()
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + stamp + "." + string(r.body)))
		want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	if got := r.Header.Get("webhook-signature"); got != strings.Join(want, " ") {
		return "the signature is " + got
	}
	return ""
}

// TestSignatures: during a rotation a receiver with either secret is content.
func TestSignatures(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	e := event(ada)
	e.Destination = "hook.v2/ü"
	cfg := Config{URL: r.url(), SigningSecrets: []handlers.Secret{handlers.NewSecret(newSecret), handlers.NewSecret(oldSecret)}}
	if err := deliver(t, cfg, e); err != nil {
		t.Fatal(err)
	}
	got := r.one(t)
	if err := verify(got, newSecret, oldSecret); err != "" {
		t.Error(err)
	}
	if id := got.Header.Get("webhook-id"); id != "notifyd-42-hook%2Ev2%2F%C3%BC" {
		t.Errorf("webhook-id is %s", id)
	}
	stranger := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32))
	for s, good := range map[string]bool{oldSecret: true, newSecret: true, stranger: false} {
		wh, err := standardwebhooks.NewWebhook(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := wh.Verify(got.body, got.Header); (err == nil) != good {
			t.Errorf("a receiver with %s says %v", s, err)
		}
		if err := wh.Verify(append([]byte(" "), got.body...), got.Header); err == nil {
			t.Error("another body has the same signature")
		}
	}
}

// TestIDStaysAndTimeGoesOn: each attempt is signed anew.
func TestIDStaysAndTimeGoesOn(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, statusOf(http.StatusInternalServerError, ""))
	h := deliverytest.Open(t, New, Config{URL: r.url(), SigningSecrets: []handlers.Secret{handlers.NewSecret(newSecret)}})
	for attempt := 1; attempt <= 2; attempt++ {
		e := event(ada)
		e.Attempt = attempt
		_ = h.Deliver(testenv.Within(t, patience), e)
	}
	all := r.all()
	if len(all) != 2 || all[0].Header.Get("webhook-id") != all[1].Header.Get("webhook-id") {
		t.Errorf("%d requests with the ids %s and %s", len(all), all[0].Header.Get("webhook-id"), all[1].Header.Get("webhook-id"))
	}
	for _, req := range all {
		if err := verify(req, newSecret); err != "" {
			t.Error(err)
		}
	}
	d, err := h.draft(event(ada))
	if err != nil {
		t.Fatal(err)
	}
	if stamp := d.header.Get("webhook-timestamp"); stamp != "" {
		t.Errorf("the draft has the time %s: it would be that of every attempt", stamp)
	}
}
