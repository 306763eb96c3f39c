package webhook

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// arrivedEvent is an event of a batch, as a CloudEvent or as a line.
type arrivedEvent struct {
	ID        string          `json:"id"`
	DedupeID  string          `json:"dedupe_id"`
	Type      string          `json:"type"`
	EventType string          `json:"event_type"`
	Payload   json.RawMessage `json:"payload"`
	Data      json.RawMessage `json:"data"`
}

func (e *arrivedEvent) id() string   { return cmp.Or(e.ID, e.DedupeID) }
func (e *arrivedEvent) kind() string { return cmp.Or(e.Type, e.EventType) }

// eventsIn reads the body of a batch.
func eventsIn(contentType string, body []byte) (all []arrivedEvent, err error) {
	switch contentType {
	case contentBatch:
		return all, json.Unmarshal(body, &all)
	case contentNDJSON:
		for line := range bytes.Lines(body) {
			var one arrivedEvent
			if err := json.Unmarshal(line, &one); err != nil {
				return nil, err
			}
			all = append(all, one)
		}
		return all, nil
	default:
		return nil, fmt.Errorf("content type %q", contentType)
	}
}

// idsOfBatches returns the ids of the events of each request, in order, such as "1 2, 3".
func idsOfBatches(t *testing.T, all []received) string {
	t.Helper()
	var requests []string
	for _, req := range all {
		events, err := eventsIn(req.Header.Get("Content-Type"), req.body)
		if err != nil {
			t.Fatalf("%v in %s", err, req.body)
		}
		var ids []string
		for _, e := range events {
			ids = append(ids, e.id())
		}
		requests = append(requests, strings.Join(ids, " "))
	}
	return strings.Join(requests, ", ")
}

// eachAnswer is a receiver that answers 207 with the status that answer returns for each event.
func eachAnswer(answer func(e arrivedEvent) result) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		events, err := eventsIn(r.Header.Get("Content-Type"), body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		all := make([]result, len(events))
		for i, e := range events {
			all[i] = answer(e)
			all[i].ID = e.id()
		}
		w.WriteHeader(http.StatusMultiStatus)
		_ = json.NewEncoder(w).Encode(all)
	}
}

// wholeAnswer is a receiver that takes all events of a request, or none: it answers with the status of the first event that
// it refuses.
func wholeAnswer(answer func(e arrivedEvent) int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		events, err := eventsIn(r.Header.Get("Content-Type"), body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, e := range events {
			if status := answer(e); status != 0 {
				http.Error(w, "event "+e.id(), status)
				return
			}
		}
	}
}

// statusOfKind is the status for the types of the suite, 0 for events that are taken.
func statusOfKind(kind string) int {
	return map[string]int{
		"rejected": http.StatusUnprocessableEntity, "tripped": http.StatusInternalServerError, "hurried": http.StatusTooManyRequests,
		"locked": http.StatusUnauthorized, "stopped": http.StatusBadRequest, "conflicting": http.StatusConflict,
	}[kind]
}

// taken returns the ids of the events that the receiver took: answers of 2xx without a refused event, or refused events
// taken out.
func taken(r *receiver, each bool) []int64 {
	var ids []int64
	for _, req := range r.all() {
		events, err := eventsIn(req.Header.Get("Content-Type"), req.body)
		refused := func(e arrivedEvent) bool { return statusOfKind(e.kind()) != 0 }
		if err != nil || !each && slices.ContainsFunc(events, refused) {
			continue
		}
		for _, e := range events {
			var id int64
			if _, err := fmt.Sscan(e.id(), &id); err == nil && !refused(e) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// TestBatchSuite runs both formats, both kinds of receivers and both versions of HTTP through the suite.
func TestBatchSuite(t *testing.T) {
	t.Parallel()
	t.Run("CloudEvents, 207, HTTP/2", func(t *testing.T) {
		t.Parallel()
		r, ca := startTLSReceiver(t, eachAnswer(func(e arrivedEvent) result {
			one := result{Status: cmp.Or(statusOfKind(e.kind()), http.StatusOK), Error: e.kind() + " with Bearer " + suiteToken}
			if slices.Contains([]string{"tripped", "hurried", "conflicting"}, e.kind()) {
				one.RetryAfter = 7
			}
			return one
		}))
		proxy := handlertest.StartProxy(t, r.addr)
		runBatchSuite(t, r, proxy, Config{
			URL: "https://" + proxy.Addr() + "/hook?key=" + suiteQuery, TLS: handlers.TLS{CAFile: ca}, BatchFormat: BatchCloudEvents,
		}, true, "HTTP/2.0")
	})
	t.Run("NDJSON, all or nothing, HTTP/1.1", func(t *testing.T) {
		t.Parallel()
		r := startReceiver(t, wholeAnswer(func(e arrivedEvent) int { return statusOfKind(e.kind()) }))
		proxy := handlertest.StartProxy(t, r.addr)
		runBatchSuite(t, r, proxy, Config{URL: "http://" + proxy.Addr() + "/hook?key=" + suiteQuery, BatchFormat: BatchNDJSON}, false, "HTTP/1.1")
	})
}

func runBatchSuite(t *testing.T, r *receiver, proxy *handlertest.Proxy, cfg Config, each bool, proto string) {
	t.Helper()
	cfg.BearerToken, cfg.SigningSecrets = secretOf(suiteToken), secrets(suiteSecret)
	kind := func(kind string) func(testing.TB) error {
		e := event(ada)
		e.Type = kind
		return deliverytest.Once(NewBatch, cfg, e)
	}
	wait := map[bool]time.Duration{true: 7 * time.Second}[each]
	handlertest.Run(t, handlertest.Destination{
		Open:     deliverytest.Opener(NewBatch, cfg),
		Received: func(testing.TB) []int64 { return taken(r, each) },
		Rejected: func(id int64) *delivery.Event {
			e := event(ada)
			e.ID, e.Type = id, "rejected"
			return e
		},
		Network: proxy, Stop: r.stop, Start: r.start,
		Secrets: []string{suiteToken, suiteSecret, strings.TrimPrefix(suiteSecret, secretPrefix), suiteQuery},
		Ordered: true,
		Cases: []handlertest.Case{
			{Name: "refused for itself", Provoke: kind("rejected"), Class: delivery.ClassEvent, Permanent: true, Text: "422 Unprocessable Entity: "},
			{Name: "tripped", Provoke: kind("tripped"), Class: delivery.ClassEvent, Unclear: true, RetryAfter: wait, Text: "500 Internal Server Error: "},
			{Name: "refused by a gateway", Provoke: kind("stopped"), Class: delivery.ClassEvent, Unclear: true, Permanent: true, Text: "400 Bad Request: "},
			{Name: "to be tried later", Provoke: kind("conflicting"), Class: delivery.ClassEvent, RetryAfter: wait, Text: "409 Conflict: "},
			{Name: "too many", Provoke: kind("hurried"), Class: delivery.ClassDestination, Throttled: true, RetryAfter: wait, Text: "429 Too Many Requests: "},
			{Name: "credentials refused", Provoke: kind("locked"), Class: delivery.ClassDestination, Text: "401 Unauthorized: "},
		},
	})
	for _, req := range r.all() {
		if req.Proto != proto {
			t.Fatalf("a request came by %s, want %s", req.Proto, proto)
		}
	}
}

// TestBatchForms: the body, the headers and the signature of a request with several events.
func TestBatchForms(t *testing.T) {
	t.Parallel()
	cloudEvent := func(id int, data string) string {
		return fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/shop","type":"order.created","datacontenttype":"application/json",`+
			`"subject":"A-7","time":"2026-03-04T05:06:07Z","partitionkey":"A-7","aggregatetype":"order","data":%s}`, id, data)
	}
	line := func(id int, data string) string {
		return fmt.Sprintf(`{"event_id":%d,"dedupe_id":"%d","event_type":"order.created","aggregate_type":"order","aggregate_id":"A-7",`+
			`"created_at":"2026-03-04T05:06:07Z","destination":"hook","headers":{"tenant":"acme"},"payload":%s}`, id, id, data)
	}
	shop := handlers.Message{Source: "/shop"}
	structured := handlers.Message{Source: "/shop", Format: handlers.FormatCloudEventsStructured}
	for name, c := range map[string]struct {
		cfg        Config
		kind, body string
	}{
		"CloudEvents": {
			Config{BatchFormat: BatchCloudEvents, Message: shop},
			"application/cloudevents-batch+json",
			"[" + cloudEvent(1, "{\n  \"n\": 1.50}") + "," + cloudEvent(2, "null") + "]",
		},
		"lines":                {Config{BatchFormat: BatchNDJSON}, "application/x-ndjson", line(1, `{"n":1.50}`) + "\n" + line(2, "null") + "\n"},
		"lines of CloudEvents": {Config{BatchFormat: BatchNDJSON, Message: structured}, "application/x-ndjson", cloudEvent(1, `{"n":1.50}`) + "\n" + cloudEvent(2, "null") + "\n"},
		"lines of a template": {
			Config{BatchFormat: BatchNDJSON, Message: handlers.Message{Body: `{"id": {{ json .Event.DedupeID }},` + "\n" + ` "data": {{ json .Payload }}}`}},
			"application/x-ndjson", `{"id":"1","data":{"n":1.50}}` + "\n" + `{"id":"2","data":null}` + "\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t, nil)
			c.cfg.URL, c.cfg.SigningSecrets, c.cfg.Headers = r.url(), secrets(oldSecret), map[string]string{"X-Shop": "main"}
			h := deliverytest.Open(t, NewBatch, c.cfg)
			deliverytest.Deliver(t, h, []*delivery.Event{deliverytest.Event("hook", 1, "{\n  \"n\": 1.50}"), deliverytest.Event("hook", 2, "null")})
			req := r.one(t)
			if got := string(req.body); got != c.body {
				t.Errorf("body\n%s\nwant\n%s", got, c.body)
			}
			if kind := req.Header.Get("Content-Type"); kind != c.kind || req.Header.Get("X-Shop") != "main" || req.Header.Get("notifyd-id") != "" || req.Header.Get("tenant") != "" {
				t.Errorf("headers %v", req.Header)
			}
			verifier, err := standardwebhooks.NewWebhook(oldSecret)
			if err != nil {
				t.Fatal(err)
			}
			if err := verifier.Verify(req.body, req.Header); err != nil {
				t.Errorf("the signature of the body: %v", err)
			}
		})
	}
}

// TestBatchPreview: a person sees the request for an event.
func TestBatchPreview(t *testing.T) {
	t.Parallel()
	h := deliverytest.Open(t, NewBatch, Config{URL: "https://example.com/hook", BatchFormat: BatchNDJSON})
	got, err := h.Preview(event(ada))
	if err != nil || !strings.Contains(got, "POST: https://example.com/hook\n") || !strings.Contains(got, `"payload":{"email":"ada@example.com"`) {
		t.Errorf("%v in\n%s", err, got)
	}
}

// TestBatchID: the same events have the same id, which a retry repeats, and other events another one.
func TestBatchID(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	h := deliverytest.Open(t, NewBatch, Config{URL: r.url(), BatchFormat: BatchNDJSON, IDPrefix: "shop"})
	one, two := deliverytest.Event("hook", 1, `1`), deliverytest.Event("hook", 2, `2`)
	again := *two
	again.Replay = 1
	retried := *two
	retried.Attempt = 5
	for _, events := range [][]*delivery.Event{{one, two}, {one, &retried}, {two, one}, {one, &again}, {one}, {two}} {
		deliverytest.Deliver(t, h, events)
	}
	var ids []string
	for _, req := range r.all() {
		id := req.Header.Get("webhook-id")
		if !strings.HasPrefix(id, "shop-batch-") || !strings.HasSuffix(id, "-hook") || strings.Contains(id, ".") || len(id) > 100 {
			t.Errorf("id %s", id)
		}
		ids = append(ids, id)
	}
	if ids[0] != ids[1] || string(r.all()[0].body) != string(r.all()[1].body) {
		t.Errorf("a retry has another id or body: %v", ids[:2])
	}
	slices.Sort(ids)
	if different := len(slices.Compact(ids)); different != 5 {
		t.Errorf("%d ids, want 5: %v", different, ids)
	}
}

// TestBatchRequests: which events share a request.
func TestBatchRequests(t *testing.T) {
	t.Parallel()
	of := func(id int64, shop, payload string) *delivery.Event {
		e := deliverytest.Event("hook", id, payload)
		e.Headers["shop"] = shop
		return e
	}
	text := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	for name, c := range map[string]struct {
		cfg    Config
		events []*delivery.Event
		want   string
		keeps  bool
	}{
		"all": {
			Config{}, []*delivery.Event{of(1, "a", "1"), of(2, "b", "2"), of(3, "a", "3")}, "1 2 3", true,
		},
		"too large together": {
			Config{BatchBytes: 2000}, []*delivery.Event{of(1, "a", text(600)), of(2, "a", text(600)), of(3, "a", text(600)), of(4, "a", "4")}, "1 2, 3 4", true,
		},
		"too large alone": {
			Config{BatchBytes: 2000}, []*delivery.Event{of(1, "a", "1"), of(2, "a", text(5000)), of(3, "a", "3"), of(4, "a", "4")}, "1, 2, 3 4", true,
		},
		"several URLs": {
			Config{URL: "/{{ .Headers.shop }}"}, []*delivery.Event{of(1, "a", "1"), of(2, "b", "2"), of(3, "a", "3"), of(4, "b", "4")}, "1 3, 2 4", false,
		},
		"several headers": {
			Config{Headers: map[string]string{"X-Shop": "{{ .Headers.shop }}", "X-Other": "same"}},
			[]*delivery.Event{of(1, "a", "1"), of(2, "b", "2"), of(3, "a", "3")},
			"1 3, 2", false,
		},
		"an event that cannot be sent": {
			Config{URL: "/{{ .Headers.shop }}"}, []*delivery.Event{of(1, "a", "1"), of(2, "..", "2"), of(3, "a", "3")}, "1 3", false,
		},
	} {
		for _, format := range []BatchFormat{BatchCloudEvents, BatchNDJSON} {
			t.Run(name+", "+string(format), func(t *testing.T) {
				t.Parallel()
				r := startReceiver(t, nil)
				cfg := c.cfg
				cfg.URL, cfg.BatchFormat = r.url()+cfg.URL, format
				h := deliverytest.Open(t, NewBatch, cfg)
				errs := h.DeliverBatch(t.Context(), c.events)
				for i, err := range errs {
					if bad := c.events[i].Headers["shop"] == ".."; bad != delivery.IsPermanent(err) || !bad && err != nil {
						t.Errorf("event %d: %v", c.events[i].ID, err)
					}
				}
				all := r.all()
				if got := idsOfBatches(t, all); got != c.want || h.KeepsOrder() != c.keeps {
					t.Errorf("requests %s, want %s; keeps order: %t", got, c.want, h.KeepsOrder())
				}
				for _, req := range all {
					if shop := req.Header.Get("X-Shop"); cfg.Headers != nil && shop == "" || len(req.body) > cmp.Or(cfg.BatchBytes, defaultBatchBytes) && strings.Count(string(req.body), "\n") > 1 {
						t.Errorf("shop %q, %d bytes", shop, len(req.body))
					}
				}
			})
		}
	}
}

// initials are the classes of errors, a letter each: delivered, permanent, retry, throttled, unavailable; "?" is unclear.
func initials(errs []error) string {
	var all strings.Builder
	for _, err := range errs {
		if delivery.IsUnclear(err) {
			all.WriteByte('?')
			continue
		}
		all.WriteByte(deliverytest.Class(err)[0])
	}
	return all.String()
}

// named are the results of a 207.
func named(all ...result) string {
	body, _ := json.Marshal(all)
	return string(body)
}

// TestBatchAnswers: what an answer means for each event, and what is sent again at once.
func TestBatchAnswers(t *testing.T) {
	t.Parallel()
	ok := result{Status: http.StatusOK}
	id := func(id string, r result) result {
		r.ID = id
		return r
	}
	refuses := func(status int, ids ...string) http.HandlerFunc {
		return wholeAnswer(func(e arrivedEvent) int {
			if slices.Contains(ids, e.id()) {
				return status
			}
			return 0
		})
	}
	const several = "1 2 3 4"
	for name, c := range map[string]struct {
		answer   http.HandlerFunc
		want     string // initials of the classes
		requests string // "" for one with all
		text     string // in the first error
		one      bool   // the events are of one aggregate
	}{
		"200":                {answer: statusOf(http.StatusOK, "anything"), want: "dddd"},
		"207, all delivered": {answer: statusOf(http.StatusMultiStatus, named(id("4", ok), id("2", ok), id("1", ok), id("3", ok))), want: "dddd"},
		"207, each its own": {
			answer: statusOf(http.StatusMultiStatus, named(id("1", ok), id("2", result{Status: 422, Error: "no such customer"}), id("3", result{Status: 429}), id("4", result{Status: 503}))),
			want:   "dptu", text: "207 Multi-Status with HTTP 422 Unprocessable Entity: no such customer",
		},
		"207, unknown and missing ids": {
			answer: statusOf(http.StatusMultiStatus, named(id("1", ok), id("17", ok), id("", ok), id("3", result{}), id("4", ok))),
			want:   "duud", text: "207 Multi-Status without a result for this event (maybe delivered: it will be sent again) (name each id of the request)",
		},
		"207, an id with two statuses": {
			answer: statusOf(http.StatusMultiStatus, named(id("1", ok), id("1", result{Status: 409}), id("2", result{Status: 422}), id("2", ok), id("3", ok), id("3", ok), id("4", ok))),
			want:   "rpdd", text: "409 Conflict",
		},
		"207, 424 behind a failure": {
			answer: statusOf(http.StatusMultiStatus, named(id("1", ok), id("2", result{Status: 500}), id("3", result{Status: 424}), id("4", ok))),
			want:   "d?rt", text: "500 Internal Server Error", one: true,
		},
		"207, delivered behind a failure": {
			answer: statusOf(http.StatusMultiStatus, named(id("1", result{Status: 500}), id("2", ok), id("3", result{Status: 422}), id("4", ok))),
			want:   "?tpt", text: "500 Internal Server Error", one: true,
		},
		"207, delivered behind a dead one": {
			answer: statusOf(http.StatusMultiStatus, named(id("1", ok), id("2", result{Status: 422}), id("3", ok), id("4", ok))),
			want:   "dpdd", text: "422", one: true,
		},
		"207 without a body": {answer: statusOf(http.StatusMultiStatus, ""), want: "uuuu", text: `its body holds no results: unexpected end of JSON input (answer with a JSON array of {"id": "...", "status": 200})`},
		"207 of XML":         {answer: statusOf(http.StatusMultiStatus, "<multistatus/>"), want: "uuuu", text: "holds no results"},
		"207 of null":        {answer: statusOf(http.StatusMultiStatus, "null"), want: "uuuu", text: "null is no array"},
		"207 of an object":   {answer: statusOf(http.StatusMultiStatus, `{"results":[]}`), want: "uuuu", text: "holds no results"},
		"207, cut off":       {answer: statusOf(http.StatusMultiStatus, named(id("1", ok))[:15]), want: "uuuu", text: "holds no results"},
		"207, huge": {
			answer: statusOf(http.StatusMultiStatus, named(id("1", ok), id("2", ok), id("3", ok), id("4", result{Status: 200, Error: strings.Repeat("x", 1<<20)}))),
			want:   "uuuu", text: "holds no results: it has more than 67584 bytes",
		},
		"413, too much at once": {
			answer: func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if events, err := eventsIn(r.Header.Get("Content-Type"), body); err != nil || len(events) > 2 {
					w.WriteHeader(http.StatusRequestEntityTooLarge)
				}
			},
			want: "dddd", requests: "1 2 3 4, 1 2, 3 4",
		},
		"413, one too large": {answer: refuses(413, "3"), want: "ddpd", requests: "1 2 3 4, 1 2, 3 4, 3, 4", text: "413 Request Entity Too Large: event 3"},
		"422":                {answer: refuses(422, "2"), want: "dpdd", requests: "1 2 3 4, 1 2, 1, 2, 3 4", text: "422 Unprocessable Entity: event 2"},
		"422, one aggregate": {answer: refuses(422, "2"), want: "dpdd", requests: "1 2 3 4, 1 2, 1, 2, 3 4", text: "422", one: true},
		"500 over one":       {answer: refuses(500, "2"), want: "d?dd", requests: "1 2 3 4, 1 2, 1, 2, 3 4", text: "500 Internal Server Error: event 2"},
		"500, one aggregate": {answer: refuses(500, "2"), want: "d?tt", requests: "1 2 3 4, 1 2, 1, 2", text: "500", one: true},
		"500 with a pause":   {answer: statusOf(500, "", "Retry-After", "7"), want: "????"},
		"409 with a pause":   {answer: statusOf(409, "", "Retry-After", "7"), want: "rrrr"},
		"400 over one":       {answer: refuses(400, "2"), want: "d?dd", requests: "1 2 3 4, 1 2, 1, 2, 3 4", text: "400 Bad Request: event 2"},
		"402":                {answer: statusOf(402, ""), want: "uuuu"},
		"415":                {answer: statusOf(415, ""), want: "uuuu", text: "(the receiver takes no such batches: set another batch_format, or take it out)"},
		"401":                {answer: statusOf(401, ""), want: "uuuu"},
		"404":                {answer: statusOf(404, ""), want: "uuuu"},
		"429":                {answer: statusOf(429, "", "Retry-After", "7"), want: "tttt"},
		"503":                {answer: statusOf(503, ""), want: "uuuu"},
		"302":                {answer: statusOf(302, "", "Location", "/"), want: "uuuu", text: "redirects are not followed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t, c.answer)
			h := deliverytest.Open(t, NewBatch, Config{URL: r.url(), BatchFormat: BatchCloudEvents})
			events := deliverytest.Spread("hook", deliverytest.UpTo(4)...)
			if c.one {
				for _, e := range events {
					e.AggregateID = "one"
				}
			}
			errs := h.DeliverBatch(t.Context(), events)
			if errs == nil {
				errs = make([]error, len(events))
			}
			if got := initials(errs); got != c.want {
				t.Errorf("%s, want %s: %v", got, c.want, errs)
			}
			if first := slices.IndexFunc(errs, func(err error) bool { return err != nil }); c.text != "" {
				deliverytest.WantText(t, errs[max(first, 0)], c.text)
			}
			if got := idsOfBatches(t, r.all()); got != cmp.Or(c.requests, several) {
				t.Errorf("requests %s, want %s", got, cmp.Or(c.requests, several))
			}
		})
	}
}

// TestResultsOfTotalOrder: all events of the destination are of one order.
func TestResultsOfTotalOrder(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, eachAnswer(func(e arrivedEvent) result {
		return result{Status: map[string]int{"2": 500}[e.id()] + map[bool]int{true: 200}[e.id() != "2"], RetryAfter: 3}
	}))
	h := deliverytest.Open(t, NewBatch, Config{URL: r.url(), BatchFormat: BatchNDJSON, BatchBytes: 1000})
	errs := h.DeliverBatch(delivery.WithCall(t.Context(), delivery.Call{TotalOrder: true}), deliverytest.Spread("hook", deliverytest.UpTo(8)...))
	deliverytest.WantClasses(t, errs, "delivered unclear-retry "+deliverytest.Times("throttled", 6))
	if wait, ok := delivery.RetryDelay(errs[1]); !ok || wait != 3*time.Second {
		t.Errorf("a pause of %v, want 3s", wait)
	}
	if got := len(r.all()); got != 1 {
		t.Errorf("%d requests: nothing may follow a failure", got)
	}
}

// TestRefusedBatchIsBounded: a receiver that refuses every event gets a few requests, and not two for each event. Only the
// events that were refused alone are suspected.
func TestRefusedBatchIsBounded(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 410, 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t, statusOf(status, ""))
			h := deliverytest.Open(t, NewBatch, Config{URL: r.url(), BatchFormat: BatchNDJSON})
			errs := h.DeliverBatch(t.Context(), deliverytest.Spread("hook", deliverytest.UpTo(100)...))
			if got, want := initials(errs), strings.Repeat("?", maxRefused)+strings.Repeat("t", 100-maxRefused); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			deliverytest.WantText(t, errs[99], "not sent: the receiver has refused the 5 events before, each alone")
			if n := len(r.all()); n > 16 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestBadEventsOfBatchAreFound: a receiver that takes events in between gets the whole batch, however many it refuses.
func TestBadEventsOfBatchAreFound(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, wholeAnswer(func(e arrivedEvent) int {
		if len(e.id()) == 2 && e.id()[1] == '0' { // 10, 20, ... 90
			return http.StatusBadRequest
		}
		return 0
	}))
	h := deliverytest.Open(t, NewBatch, Config{URL: r.url(), BatchFormat: BatchNDJSON})
	events := deliverytest.Spread("hook", deliverytest.UpTo(99)...)
	for _, e := range events {
		e.AggregateID = fmt.Sprint(e.ID) // so that none waits for another
	}
	errs := h.DeliverBatch(t.Context(), events)
	if got, want := initials(errs), strings.Repeat(strings.Repeat("d", 9)+"?", 9)+strings.Repeat("d", 9); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestOutageAmidBatch: what follows a fault of the destination is not sent, and costs no attempt.
func TestOutageAmidBatch(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, wholeAnswer(func(e arrivedEvent) int { return map[string]int{"5": http.StatusServiceUnavailable}[e.id()] }))
	h := deliverytest.Open(t, NewBatch, Config{URL: r.url(), BatchFormat: BatchNDJSON, BatchBytes: 1000})
	errs := h.DeliverBatch(t.Context(), deliverytest.Spread("hook", deliverytest.UpTo(9)...))
	deliverytest.WantClasses(t, errs, deliverytest.Times("delivered", 4)+" "+deliverytest.Times("unavailable", 5))
	if got := idsOfBatches(t, r.all()); got != "1 2 3 4, 5 6 7 8" {
		t.Errorf("requests %s", got)
	}
}

// TestBatchWithoutTime: a request that ctx's deadline would interrupt is not begun, and costs no attempt.
func TestBatchWithoutTime(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	h := deliverytest.Open(t, NewBatch, Config{URL: r.url(), BatchFormat: BatchNDJSON, BatchBytes: 1000, RequestTimeout: 2 * patience})
	errs := h.DeliverBatch(testenv.Within(t, patience), deliverytest.Spread("hook", deliverytest.UpTo(6)...))
	deliverytest.WantClasses(t, errs, deliverytest.Times("delivered", 4)+" "+deliverytest.Times("throttled", 2))
	deliverytest.WantText(t, errs[4], "timeout leaves no time for another request: raise timeout, or lower batch")
	if got := idsOfBatches(t, r.all()); got != "1 2 3 4" {
		t.Errorf("requests %s", got)
	}
}

// TestBatchFaults: a fault of the connection is a fault of the destination, for all events, and a request that the relay ends
// has its cause.
func TestBatchFaults(t *testing.T) {
	t.Parallel()
	head := "HTTP/1.1 207 Multi-Status\r\nContent-Length: 1000\r\n\r\n" + `[{"id":"1","status":200},`
	for name, c := range map[string]struct {
		serve func(c net.Conn, r *bufio.Reader) // after the request
		cfg   Config
		text  string
	}{
		"closed without an answer": {serve: func(net.Conn, *bufio.Reader) {}, text: "maybe delivered"},
		"results cut off":          {serve: func(c net.Conn, _ *bufio.Reader) { _, _ = io.WriteString(c, head) }, text: "207 Multi-Status, but its results: unexpected EOF"},
		"slow results": {
			serve: func(c net.Conn, r *bufio.Reader) {
				_, _ = io.WriteString(c, head)
				awaitEnd(r)
			}, cfg: Config{RequestTimeout: 20 * short, ResponseTimeout: 20 * short}, text: "207 Multi-Status, but its results: request_timeout of 1s is over",
		},
		"endless results": {
			serve: func(c net.Conn, _ *bufio.Reader) {
				_, _ = io.WriteString(c, "HTTP/1.1 207 Multi-Status\r\n\r\n[")
				for {
					if _, err := io.WriteString(c, `{"id":"9","status":200},`); err != nil {
						return
					}
				}
			}, text: "it has more than 66560 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := serveRaw(t, func(_ int, conn net.Conn, r *bufio.Reader) {
				if readRequest(r) {
					c.serve(conn, r)
				}
			})
			c.cfg.URL, c.cfg.BatchFormat = "http://"+addr, BatchCloudEvents
			h := deliverytest.Open(t, NewBatch, c.cfg)
			errs := h.DeliverBatch(testenv.Within(t, patience), deliverytest.Spread("hook", 1, 2))
			deliverytest.WantClasses(t, errs, deliverytest.Times("unavailable", 2))
			deliverytest.WantText(t, errs[1], c.text)
		})
	}
	t.Run("the relay stops", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		stopping := errors.New("stopping")
		addr := serveRaw(t, func(_ int, conn net.Conn, r *bufio.Reader) {
			if readRequest(r) {
				_, _ = io.WriteString(conn, head)
				cancel(stopping)
				awaitEnd(r)
			}
		})
		h := deliverytest.Open(t, NewBatch, Config{URL: "http://" + addr, BatchFormat: BatchCloudEvents})
		for i, err := range h.DeliverBatch(ctx, deliverytest.Spread("hook", 1, 2)) {
			if !errors.Is(err, stopping) || delivery.IsUnavailable(err) {
				t.Errorf("event %d: %v", i+1, err)
			}
		}
	})
}

// TestBatchSettings: which settings go with a batch, and which kind of handler needs them.
func TestBatchSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*Config)
		want   string // "" for none
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.BatchFormat = BatchNDJSON }, ""},
		{func(c *Config) { c.Format, c.Source = handlers.FormatCloudEventsStructured, "/shop" }, ""},
		{func(c *Config) { c.Source = "/shop" }, ""},
		{func(c *Config) {
			c.BatchFormat, c.Format, c.Source = BatchNDJSON, handlers.FormatCloudEventsStructured, "/shop"
		}, ""},
		{func(c *Config) { c.BatchFormat, c.Format = BatchNDJSON, handlers.FormatPayload }, ""},
		{func(c *Config) { c.BatchFormat, c.Body, c.ContentType = BatchNDJSON, `{}`, "application/vnd.shop+json" }, ""},
		{func(c *Config) { c.BatchBytes = 1000 }, ""},
		{func(c *Config) { c.URL = "https://example.com/{{ .Event.Type }}" }, ""},
		{func(c *Config) { c.BatchFormat = "array" }, `batch_format: unknown word "array": use cloudevents, ndjson`},
		{func(c *Config) { c.BatchBytes = 999 }, "batch_bytes: must be 1000 to 100000000, not 999"},
		{func(c *Config) { c.BatchFormat, c.BatchBytes = "", 1000 }, "batch_bytes: has no effect without batch_format: take it out, or set batch_format"},
		{func(c *Config) { c.URL, c.DynamicHost, c.ProxyURL = "{{ .Payload.url }}", true, none }, "dynamic_host: goes with no batch_format: the events of a batch would wait for the hosts of the others"},
		{func(c *Config) { c.Format = handlers.FormatPayload }, "format: goes with a request per event only: take it out, or batch_format"},
		{func(c *Config) { c.BatchFormat, c.Format = BatchNDJSON, handlers.FormatCloudEventsBinary }, "format: goes with a request per event only: take it out, or batch_format"},
		{func(c *Config) { c.Body = `{}` }, "body: goes with batch_format: ndjson only: a batch of CloudEvents holds no other bodies"},
		{func(c *Config) { c.BatchFormat, c.Body, c.ContentType = BatchNDJSON, `x`, "text/plain" }, "content_type: must be JSON with batch_format: ndjson: take it out"},
	} {
		cfg := Config{URL: "https://example.com/hook", BatchFormat: BatchCloudEvents}
		c.change(&cfg)
		got := ""
		if err := cfg.Validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", cfg, got, c.want)
		}
		if again := cfg.WithDefaults(); c.want == "" && (again.Validate() != nil || again.BatchBytes == 0 || fmt.Sprint(again.WithDefaults()) != fmt.Sprint(again)) {
			t.Errorf("the defaults of %+v: %v", cfg, again.Validate())
		}
	}
	if _, err := New(Config{URL: "https://example.com", BatchFormat: BatchNDJSON}); err == nil || !strings.Contains(err.Error(), "webhook.NewBatch") {
		t.Errorf("a handler of single events with batches: %v", err)
	}
	if _, err := NewBatch(Config{URL: "https://example.com"}); err == nil || err.Error() != "batch_format: missing: set cloudevents or ndjson" {
		t.Errorf("a handler of batches without a format: %v", err)
	}
}

// TestEventThatIsNoJSON: a line holds the bytes of such an event in base64, and an event that is only called JSON fails
// alone.
func TestEventThatIsNoJSON(t *testing.T) {
	t.Parallel()
	for _, format := range []BatchFormat{BatchCloudEvents, BatchNDJSON} {
		r := startReceiver(t, nil)
		h := deliverytest.Open(t, NewBatch, Config{URL: r.url(), BatchFormat: format})
		events := deliverytest.Spread("hook", 1, 2, 3)
		events[1].Payload, events[1].ContentType = []byte{0xff, '\n'}, "application/avro"
		events[2].Payload = []byte(`{"n":`)
		errs := h.DeliverBatch(t.Context(), events)
		want := map[BatchFormat]string{BatchNDJSON: "ddp"}[format]
		if want == "" && errs != nil || want != "" && initials(errs) != want {
			t.Errorf("%s: %v", format, errs)
		}
		if body := string(r.one(t).body); !strings.Contains(body, `base64":"/wo="`) {
			t.Errorf("%s: %s", format, body)
		}
	}
}

// TestResultsOfPage: the results that docs/destinations/webhook.md shows are read as the page says.
func TestResultsOfPage(t *testing.T) {
	t.Parallel()
	_, block, _ := strings.Cut(testenv.ReadFile(t, "../../docs/destinations/webhook.md"), "```json\n")
	block, _, _ = strings.Cut(block, "```")
	got, err := parseResults([]byte(block), leastResults)
	if err != nil || len(got) != 3 || got["41"].Status != 200 || got["42"].Error != "no such customer" || got["43"].wait() != 30*time.Second {
		t.Errorf("%v, %v", got, err)
	}
}

// FuzzResults: whatever a receiver answers, no event is delivered unless every result that names it is 2xx, and no pause is
// negative or longer than an hour.
func FuzzResults(f *testing.F) {
	for _, seed := range []string{
		`[{"id":"1","status":200}]`, `[{"id":"1","status":422,"error":"no"},{"id":"1","status":200}]`, `[{"id":"2","status":429,"retry_after":1.5}]`,
		`[null,{},{"id":"1"},{"id":"1","status":1e2}]`, `null`, `{}`, `[{"ID":"1","Status":200,"retry_after":-1e308}]`, `[{"id":"1","status":204,"retry_after":1e308}]]`,
		`[{"id":"1","status":99}]`, `[{"id":"\ud800","status":299}]`, "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := parseResults(body, leastResults)
		if (err == nil) != (got != nil) {
			t.Fatalf("%v and %v", got, err)
		}
		if err != nil {
			return
		}
		var all []result
		if err := json.Unmarshal(body, &all); err != nil {
			t.Fatalf("results of no JSON: %v", err)
		}
		for _, one := range all {
			known, ok := got[one.ID]
			if one.ID != "" && one.Status >= leastStatus && (!ok || isDelivered(known.Status) && !isDelivered(one.Status)) {
				t.Fatalf("%+v became %+v, %t", one, known, ok)
			}
		}
		for id, one := range got {
			if wait := one.wait(); id == "" || one.ID != id || one.Status < leastStatus || wait < 0 || wait > time.Hour {
				t.Fatalf("%q: %+v, a pause of %v", id, one, wait)
			}
		}
	})
}
