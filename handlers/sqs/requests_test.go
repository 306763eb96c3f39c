package sqs

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestGroups: a template decides, also on a standard queue.
func TestGroups(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ queue, template, payload, group, class string }{
		{"q.fifo", "{{ .Payload.customer }}", `{"customer":"c1"}`, "c1", "delivered"},
		{"q.fifo", "{{ .Payload.customer }}", `{"customer":""}`, "", "permanent"},
		{"q.fifo", "{{ .Payload.customer }}", `{}`, "", "permanent"},
		{"q", "{{ .Payload.customer }}", `{"customer":"c1"}`, "c1", "delivered"},
		{"q", "{{ .Payload.customer }}", `{"customer":""}`, "", "delivered"},
		{"q", "", `{}`, "", "delivered"},
	} {
		f := startFake(t, func(_ int, s sent) awstest.Said { return taken(s, nil) })
		cfg := fakeConfig(f, c.queue)
		cfg.GroupID = c.template
		err := deliverytest.Open(t, New, cfg).Deliver(awstest.Context(t), awstest.Event(1, c.payload))
		if deliverytest.Class(err) != c.class {
			t.Errorf("%+v: %v", c, err)
		}
		if asked := asked(f); c.class == "delivered" && (len(asked) != 1 || asked[0].Entries[0].MessageGroupID != c.group) {
			t.Errorf("%+v: asked for %+v", c, asked)
		}
	}
}

// TestRequests: a batch takes as few requests as it can, none of them too large.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := startFake(t, func(_ int, s sent) awstest.Said { return taken(s, nil) })
	all := awstest.Events(25)
	for i := range 3 {
		all[i].Payload = json.RawMessage(`"` + strings.Repeat("x", 500_000) + `"`)
	}
	if errs := deliverytest.Open(t, New, fakeConfig(f, "orders")).DeliverBatch(awstest.Context(t), all); deliverytest.Classes(errs) != deliverytest.Times("delivered", 25) {
		t.Error(errs)
	}
	var got []int
	for _, s := range asked(f) {
		got = append(got, len(s.Entries))
	}
	if want := []int{2, 10, 10, 3}; !slices.Equal(got, want) {
		t.Errorf("messages in each request: %v, want %v", got, want)
	}
}
