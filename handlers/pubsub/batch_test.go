//go:build testall

package pubsub

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestMessage compares the message with the event.
func TestMessage(t *testing.T) {
	t.Parallel()
	e := event(42, `{"a":  1}`)
	e.Headers = map[string]string{
		"traceparent": "00-1", "empty": "", "odd name ä": "x", "notifyd-id": "7", "goog-x": "no", "long": strings.Repeat("x", maxValue+1),
		strings.Repeat("n", maxName+1): "no",
	}
	many := event(43, `{}`)
	for i := range 2 * maxAttributes {
		many.Headers[fmt.Sprintf("h%03d", i)] = "x"
	}
	ours := map[string]string{
		"notifyd-id": "42", "notifyd-type": "order.created", "notifyd-aggregate-type": "order",
		"notifyd-aggregate-id": "A-7", "notifyd-time": "2026-03-04T05:06:07Z",
	}
	full := maps.Clone(ours)
	full["notifyd-id"] = "43"
	for i := range maxAttributes - len(ours) {
		full[fmt.Sprintf("h%03d", i)] = "x"
	}
	with := maps.Clone(ours)
	maps.Copy(with, map[string]string{"traceparent": "00-1", "empty": "", "odd name ä": "x"})
	for name, c := range map[string]struct {
		format handlers.Format
		event  *delivery.Event
		body   string
		want   map[string]string
	}{
		"payload":      {handlers.FormatPayload, e, `{"a":  1}`, with},
		"many headers": {handlers.FormatPayload, many, `{}`, full},
		"binary": {
			handlers.FormatCloudEventsBinary, event(42, `{}`), `{}`, map[string]string{
				"ce-specversion": "1.0", "ce-id": "42", "ce-source": "/notifyd", "ce-type": "order.created", "ce-subject": "A-7",
				"ce-time": "2026-03-04T05:06:07Z", "ce-partitionkey": "A-7", "ce-aggregatetype": "order", "tenant": "acme",
			},
		},
		"structured": {
			handlers.FormatCloudEventsStructured, event(42, `{}`), "", map[string]string{"content-type": "application/cloudevents+json", "tenant": "acme"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := newTopic(t, "")
			cfg := top.config()
			cfg.Format = c.format
			if err := deliverytest.Open(t, New, cfg).Deliver(testenv.Within(t, patience), c.event); err != nil {
				t.Fatal(err)
			}
			got := top.messages(t)
			if len(got) != 1 || c.body != "" && string(got[0].Data) != c.body || got[0].OrderingKey != "A-7" {
				t.Fatalf("got %+v", got)
			}
			if !maps.Equal(got[0].Attributes, c.want) {
				t.Errorf("got  %v\nwant %v", got[0].Attributes, c.want)
			}
		})
	}
}

// TestKeys: the aggregate, what a template makes of the event, or none.
func TestKeys(t *testing.T) {
	t.Parallel()
	top := newTopic(t, "")
	long := strings.Repeat("ä", maxKey)
	for _, c := range []struct{ template, aggregate, want string }{
		{"", "A-7", "A-7"},
		{"", "", ""},
		{"", long, fit(long)},
		{"{{ .Payload.customer }}", "A-7", "c1"},
		{`{{ "" }}`, "A-7", ""},
	} {
		cfg := top.config()
		cfg.OrderingKey = c.template
		e := event(1, `{"customer": "c1"}`)
		e.AggregateID = c.aggregate
		h := deliverytest.Open(t, New, cfg)
		if err := h.Deliver(testenv.Within(t, patience), e); err != nil {
			t.Error(err)
		}
		if all := top.messages(t); all[len(all)-1].OrderingKey != c.want || h.KeepsOrder() != (c.template == "") {
			t.Errorf("%.40q: got %+v", c, all[len(all)-1])
		}
	}
	if len(fit(long)) != len("sha256:")+64 {
		t.Errorf("hash %s", fit(long))
	}
}

// TestSplit: a batch takes as few requests as it can, and each is one that Pub/Sub takes.
func TestSplit(t *testing.T) {
	t.Parallel()
	top := newTopic(t, "")
	h := deliverytest.Open(t, New, top.config())
	all := events(maxMessages*3/2+40, "a", "", "a")
	for _, i := range []int{0, 2} { // together they are too large
		all[i].Payload = json.RawMessage(`"` + strings.Repeat("x", 4_000_000) + `"`)
	}
	if errs := h.DeliverBatch(testenv.Within(t, patience), all); slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		t.Fatal(errs)
	}
	last := make(map[string]int64)
	for i, id := range top.ids(t) {
		key := all[id-1].AggregateID
		if id <= last[key] {
			t.Fatalf("%d of %q came after %d, as message %d", id, key, last[key], i)
		}
		last[key] = id
	}
	f := startFake(t, func(_ int, s sent) said { return taken(s) })
	if errs := deliverytest.Open(t, New, fakeConfig(f)).DeliverBatch(testenv.Within(t, patience), events(2500)); deliverytest.Classes(errs) != deliverytest.Times("delivered", 2500) {
		t.Error("not all are delivered")
	}
	var sizes []int
	for _, s := range f.asked() {
		sizes = append(sizes, len(s.Messages))
	}
	if !slices.Equal(sizes, []int{1000, 1000, 500}) {
		t.Errorf("requests of %v", sizes)
	}
}

// TestTotalOrder: all events of a call are one line.
func TestTotalOrder(t *testing.T) {
	t.Parallel()
	var got []string
	f := startFake(t, func(n int, s sent) said {
		var ids []string
		for _, m := range s.Messages {
			ids = append(ids, m.Attributes["notifyd-id"])
		}
		got = append(got, strings.Join(ids, " "))
		if n == 2 {
			return problem(400, "SOMETHING_NEW", "")
		}
		return taken(s)
	})
	all := events(6, "a")
	all[2].AggregateID, all[4].AggregateID = "b", "b"
	errs := deliverytest.Open(t, New, fakeConfig(f)).DeliverBatch(delivery.WithCall(testenv.Within(t, patience), delivery.Call{TotalOrder: true}), all)
	if want := deliverytest.Times("delivered", 3) + " " + deliverytest.Times("unclear-retry", 3); deliverytest.Classes(errs) != want || !slices.Equal(got, []string{"1 2", "3", "4"}) {
		t.Errorf("%s\nwant %s; requests %q", deliverytest.Classes(errs), want, got)
	}
}

// TestBadOnes: messages that are refused hold up later ones of their aggregate, where the call has an order, and an outage
// holds up all.
func TestBadOnes(t *testing.T) {
	t.Parallel()
	third := func(refusal said) func(string, sent) said {
		return func(ids string, s sent) said {
			if strings.Contains(ids, "3") {
				return refusal
			}
			return taken(s)
		}
	}
	tooLarge, invalid, unknown := said{status: 413}, problem(400, "INVALID_ARGUMENT", ""), problem(400, "SOMETHING_NEW", "")
	for name, c := range map[string]struct {
		answer    func(ids string, s sent) said
		unordered bool
		want      string
	}{
		"dead":               {third(tooLarge), false, deliverytest.Times("delivered", 2) + " permanent " + deliverytest.Times("delivered", 3)},
		"unclear":            {third(invalid), false, deliverytest.Times("delivered", 2) + " unclear-permanent delivered unclear-permanent delivered"},
		"unclear, unordered": {third(invalid), true, deliverytest.Times("delivered", 2) + " unclear-permanent " + deliverytest.Times("delivered", 3)},
		"unknown":            {third(unknown), false, deliverytest.Times("delivered", 2) + " unclear-retry delivered unclear-retry delivered"},
		"unknown, unordered": {third(unknown), true, deliverytest.Times("delivered", 2) + " unclear-retry " + deliverytest.Times("delivered", 3)},
		"down":               {func(string, sent) said { return problem(503, "UNAVAILABLE", "") }, true, deliverytest.Times("unavailable", 6)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFake(t, func(_ int, s sent) said {
				ids := ""
				for _, m := range s.Messages {
					ids += m.Attributes["notifyd-id"]
				}
				return c.answer(ids, s)
			})
			ctx := testenv.Within(t, patience)
			if c.unordered {
				ctx = delivery.WithCall(ctx, delivery.Call{Unordered: true})
			}
			errs := deliverytest.Open(t, New, fakeConfig(f)).DeliverBatch(ctx, events(6, "a", "b"))
			if got := deliverytest.Classes(errs); got != c.want {
				t.Errorf("got %s, want %s: %v", got, c.want, errs)
			}
		})
	}
}

// TestNothingOvertakes: whatever a batch holds and whichever requests fail, the messages of a
// key arrive in their order, none after one that will be tried again, and the answers
// are true.
func TestNothingOvertakes(t *testing.T) {
	t.Parallel()
	var answer func(s sent) said
	f := startFake(t, func(_ int, s sent) said { return answer(s) })
	h := deliverytest.Open(t, New, fakeConfig(f))
	rapid.Check(t, func(r *rapid.T) {
		before := len(f.asked())
		all := events(rapid.IntRange(1, 30).Draw(r, "events"))
		fate := make(map[string]string)
		for i, e := range all {
			e.AggregateID = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(r, "key")
			fate[e.DedupeID()] = rapid.SampledFrom([]string{"", "", "", "INVALID_ARGUMENT", "SOMETHING_NEW", "UNAVAILABLE"}).Draw(r, fmt.Sprint("fate of ", i+1))
		}
		verdict := func(s sent) string {
			for _, m := range s.Messages {
				if f := fate[m.Attributes["notifyd-id"]]; f != "" {
					return f
				}
			}
			return ""
		}
		answer = func(s sent) said {
			if code := verdict(s); code != "" {
				return problem(400, code, "")
			}
			return taken(s)
		}
		ctx := testenv.Within(t, patience)
		total := rapid.Bool().Draw(r, "total")
		if total {
			ctx = delivery.WithCall(ctx, delivery.Call{TotalOrder: true})
		}
		errs := h.DeliverBatch(ctx, all)
		arrived := make(map[string]bool)
		for _, s := range f.asked()[before:] {
			if verdict(s) != "" {
				continue
			}
			for _, m := range s.Messages {
				if m.OrderingKey != s.Messages[0].OrderingKey || arrived[m.Attributes["notifyd-id"]] {
					r.Fatalf("a request of two keys, or a message twice: %v", s)
				}
				arrived[m.Attributes["notifyd-id"]] = true
			}
		}
		blocked := make(map[string]bool)
		for i, e := range all {
			key := e.AggregateID
			if total {
				key = ""
			}
			isOrdered := total || key != ""
			if (errs[i] == nil) != arrived[e.DedupeID()] || errs[i] == nil && isOrdered && blocked[key] {
				r.Fatalf("event %d: %v, arrived %t, behind a failure %t", i+1, errs[i], arrived[e.DedupeID()], blocked[key])
			}
			blocked[key] = blocked[key] || errs[i] != nil && !delivery.IsPermanent(errs[i])
		}
	})
}
