package ops_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/ops"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 2, "mail", "order.placed", "order % has no address")
	d.bury(3, 1, "mail", "order.shipped", "order % has no address")
	d.bury(4, 1, "audit", "orders", "timeout")
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (5, 'mail', 'order.placed', 'retry')`)
	d.exec(`UPDATE outbox_deliveries SET updated_at = now() - event_id * interval '1 hour'`)
	page, err := d.store.DeadLetters(t.Context(), ops.DeadLetterFilter{}, ops.DeliveryRef{}, 100)
	if err != nil || fmt.Sprint(ids(page.Letters)) != "[4 1 2 3]" || page.Next != nil {
		t.Fatalf("all of them: %+v, %v; want them by destination and event", page, err)
	}
	l := page.Letters[1]
	if l.Destination != "mail" || l.Type != "order.placed" || l.Attempts != 3 || l.Replays != 0 || l.Class != "event" ||
		l.Error != "order 1 has no address" || l.Fingerprint == "" || l.Fingerprint == page.Letters[0].Fingerprint || l.DiedAt.IsZero() {
		t.Errorf("letter %+v", l)
	}
	for _, c := range []struct {
		f    ops.DeadLetterFilter
		want string
	}{
		{ops.DeadLetterFilter{Destination: "mail"}, "[1 2 3]"},
		{ops.DeadLetterFilter{Destination: "nobody"}, "[]"},
		{ops.DeadLetterFilter{Type: "order.placed"}, "[1 2]"},
		{ops.DeadLetterFilter{Type: "order.*"}, "[1 2 3]"},
		{ops.DeadLetterFilter{All: true}, "[4 1 2 3]"},
		{ops.DeadLetterFilter{Type: "*"}, "[4 1 2 3]"},
		{ops.DeadLetterFilter{Fingerprint: l.Fingerprint}, "[1 2 3]"},
		{ops.DeadLetterFilter{OlderThan: 150 * time.Minute}, "[4 3]"},
		{ops.DeadLetterFilter{NewerThan: 150 * time.Minute}, "[1 2]"},
		{ops.DeadLetterFilter{Until: time.Now().Add(-150 * time.Minute)}, "[4 3]"},
		{ops.DeadLetterFilter{Since: time.Now().Add(-150 * time.Minute)}, "[1 2]"},
		{ops.DeadLetterFilter{Since: time.Now().Add(-210 * time.Minute), Until: time.Now().Add(-90 * time.Minute), Destination: "mail"}, "[2 3]"},
		{ops.DeadLetterFilter{Since: time.Now().Add(-24 * time.Hour), NewerThan: 150 * time.Minute, Until: time.Now(), OlderThan: 90 * time.Minute}, "[2]"},
		{ops.DeadLetterFilter{OlderThan: 90 * time.Minute, NewerThan: 210 * time.Minute, Destination: "mail"}, "[2 3]"},
		{ops.DeadLetterFilter{Events: []int64{2, 4, 5, 77}}, "[4 2]"},
		{ops.DeadLetterFilter{Events: []int64{}}, "[]"},
		{ops.DeadLetterFilter{Letters: []ops.DeliveryRef{{EventID: 2, Destination: "mail"}, {EventID: 4, Destination: "mail"}, {EventID: 5, Destination: "mail"}, {EventID: 4, Destination: "audit"}}}, "[4 2]"},
		{ops.DeadLetterFilter{Letters: []ops.DeliveryRef{{EventID: 1, Destination: "mail"}}, Type: "order.shipped"}, "[]"},
		{ops.DeadLetterFilter{Letters: []ops.DeliveryRef{}}, "[]"},
	} {
		page, err := d.store.DeadLetters(t.Context(), c.f, ops.DeliveryRef{}, 100)
		if err != nil || fmt.Sprint(ids(page.Letters)) != c.want {
			t.Errorf("%+v: %v, %v; want %s", c.f, ids(page.Letters), err, c.want)
		}
		r, err := d.store.ReplayDeadLetters(t.Context(), c.f, ops.BulkAction{DryRun: true})
		if err != nil || r.Matched != int64(len(page.Letters)) || r.Done != 0 {
			t.Errorf("%+v: a dry run gives %+v, %v", c.f, r, err)
		}
	}
}

// TestEmptyFilterDoesNothing: an empty list of ids chooses no dead letter, and certainly not all.
func TestEmptyFilterDoesNothing(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 1, "mail", "a", "bad")
	var forgotten []int64
	for what, do := range map[string]func(context.Context, ops.DeadLetterFilter, ops.BulkAction) (ops.BulkResult, error){
		"replay": d.store.ReplayDeadLetters, "discard": d.store.DiscardDeadLetters,
	} {
		for _, dry := range []bool{true, false} {
			r, err := do(t.Context(), ops.DeadLetterFilter{Events: forgotten}, ops.BulkAction{DryRun: dry})
			if !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), "set All") || r != (ops.BulkResult{}) {
				t.Errorf("%s: %+v, %v", what, r, err)
			}
		}
	}
	if page, err := d.store.DeadLetters(t.Context(), ops.DeadLetterFilter{}, ops.DeliveryRef{}, 10); err != nil || len(page.Letters) != 1 {
		t.Errorf("listed %+v, %v; want the one letter", page, err)
	}
}

func TestRefusedArguments(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	for _, f := range []ops.DeadLetterFilter{
		{OlderThan: -1},
		{NewerThan: -1},
		{OlderThan: time.Hour, NewerThan: time.Minute},
		{Since: time.Unix(2, 0), Until: time.Unix(1, 0)},
		{Type: "a*b"},
		{Type: ".*"},
		{Fingerprint: "x"},
		{Fingerprint: "0123456789AB"},
		{Destination: "a\x00"},
		{All: true, Type: "*"},
		{All: true, Events: []int64{}},
		{All: true, Letters: []ops.DeliveryRef{}},
		{Letters: []ops.DeliveryRef{{EventID: 1, Destination: "a\x00"}}},
	} {
		_, err := d.store.DeadLetters(t.Context(), f, ops.DeliveryRef{}, 1)
		if !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("list %+v: %v", f, err)
		}
		if _, err := d.store.DeadLetterGroups(t.Context(), f, 1); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("groups %+v: %v", f, err)
		}
		if _, err := d.store.DiscardDeadLetters(t.Context(), f, ops.BulkAction{}); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("discard %+v: %v", f, err)
		}
	}
	for _, limit := range []int{-1, 0, ops.MaxDeadLetters + 1} {
		if _, err := d.store.DeadLetters(t.Context(), ops.DeadLetterFilter{}, ops.DeliveryRef{}, limit); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	for _, a := range []ops.BulkAction{{Rate: -1}, {Batch: -1}, {Batch: ops.MaxBatch + 1}, {Actor: "\x00"}, {Reason: "\x00"}} {
		if _, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, a); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%+v: %v", a, err)
		}
	}
	if _, err := ops.New(d.pool, ops.Config{Schema: strings.Repeat("x", 64)}); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("schema: %v", err)
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 3, "mail", "order.placed", "order % has no address")
	d.bury(4, 5, "mail", "order.placed", "no user u% at 10.0.0.%")
	d.bury(1, 1, "audit", "order.placed", "order % has no address")
	d.exec(`UPDATE outbox_deliveries SET updated_at = now() - event_id * interval '1 hour'`)
	groups, err := d.store.DeadLetterGroups(t.Context(), ops.DeadLetterFilter{}, 10)
	if err != nil || len(groups) != 3 {
		t.Fatalf("%+v, %v", groups, err)
	}
	g := groups[0]
	if g.Count != 5 || g.Destination != "mail" || g.Type != "order.placed" || g.Example.EventID != 8 || g.Example.Error != "no user u8 at 10.0.0.8" ||
		g.Example.Fingerprint != g.Fingerprint || !g.Newest.Equal(g.Oldest.Add(4*time.Hour)) {
		t.Errorf("the largest: %+v", g)
	}
	if groups[1].Count != 3 || groups[2].Count != 1 || groups[2].Destination != "audit" || groups[1].Fingerprint != groups[2].Fingerprint {
		t.Errorf("the others: %+v", groups[1:])
	}
	if groups, err := d.store.DeadLetterGroups(t.Context(), ops.DeadLetterFilter{Fingerprint: g.Fingerprint}, 10); err != nil || len(groups) != 1 {
		t.Errorf("one of them: %+v, %v", groups, err)
	}
	if groups, err := d.store.DeadLetterGroups(t.Context(), ops.DeadLetterFilter{}, 1); err != nil || len(groups) != 1 || groups[0].Count != 5 {
		t.Errorf("the first of them: %+v, %v", groups, err)
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	d := newLetters(t, true)
	d.bury(7, 1, "mail", "order.placed", "bad")
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts) VALUES (7, 'audit', 'order.placed', 'retry', 1)`)
	d.exec(`UPDATE outbox_events SET payload = '{"b":  1.50, "a": [ ]}', headers = '{"tenant": "acme"}', state = 'deferred', processed_at = NULL`)
	c, err := d.store.Case(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	if c.Event.Gone || string(c.Event.Payload) != `{"b":  1.50, "a": [ ]}` || string(c.Event.Headers) != `{"tenant": "acme"}` ||
		c.Event.AggregateID != "7" || c.Event.State != "waiting" || c.Event.ProcessedAt != nil ||
		len(c.Event.Destinations) != 2 || !c.Event.OthersSettled {
		t.Errorf("event %+v", c.Event)
	}
	if len(c.Deliveries) != 2 || c.Deliveries[0].State != "retry" || c.Deliveries[1].State != "dead" || c.Deliveries[1].OrderingKey != "order/7" {
		t.Errorf("deliveries %+v", c.Deliveries)
	}
	if len(c.Audit) != 0 {
		t.Errorf("audit %+v", c.Audit)
	}
	d.exec(`DELETE FROM outbox_deliveries WHERE destination = 'audit'`)
	if _, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{Actor: "ann", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	c, err = d.store.Case(t.Context(), 7)
	if err != nil || !c.Event.Gone || c.Event.State != "discarded" || len(c.Deliveries) != 0 || len(c.Audit) != 1 {
		t.Fatalf("a discarded event: %+v, %v", c, err)
	}
	if a := c.Audit[0]; a.Action != "discard" || a.Actor != "ann" || a.DatabaseUser == "" || a.Destination != "mail" || a.EventID != 7 ||
		!strings.Contains(string(a.Details), `"reason": "a test"`) || !strings.Contains(string(a.Details), `"error": "bad"`) || a.OldPayload != nil {
		t.Errorf("audit %+v", a)
	}
	if _, err := d.store.Case(t.Context(), 8); !errors.Is(err, ops.ErrNoEvent) {
		t.Errorf("nothing: %v", err)
	}
}
