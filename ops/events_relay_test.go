package ops_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/ops"
)

// ledger is what the destinations of a test did with each event.
type ledger struct {
	mu              sync.Mutex
	acked, rejected map[string]bool // by "destination id", written before the handler returns
	tries           map[string]int
}

func (l *ledger) deliver(name string, e *delivery.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprint(name, " ", e.ID)
	l.tries[key]++
	switch {
	case name == "mail" && e.ID%7 == 0:
		l.rejected[key] = true
		return delivery.Permanent(errors.New("no such user"))
	case name == "mail" && e.ID%5 == 0 && l.tries[key] < 3:
		return errors.New("not yet")
	}
	l.acked[key] = true
	return nil
}

func (l *ledger) is(m map[string]bool, name string, id int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return m[fmt.Sprint(name, " ", id)]
}

// TestTruth asks for events while a relay delivers them: whatever Show and List say has happened,
// has happened, at each moment. In the end they say all of it.
func TestTruth(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			t.Parallel()
			allTables(t, stream, truth)
		})
	}
}

// relay starts a relay with two destinations, until the test ends.
func (d *eventsDB) relay(t *testing.T, l *ledger) {
	t.Helper()
	relay, err := notifyd.New(d.pool, notifyd.Config{Schema: eventSchema, PollInterval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"audit", "mail"} {
		h := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error { return l.deliver(name, e) })
		err = errors.Join(err, relay.Add(notifyd.Destination{Name: name, Handler: h, Lane: delivery.Lane{Backoff: delivery.Backoff{Initial: 10 * time.Millisecond, Max: 20 * time.Millisecond, Multiplier: 2}}}))
	}
	if err = errors.Join(err, relay.Route("order.*", "audit", "mail"), relay.Route("user.*", "audit")); err != nil {
		t.Fatal(err)
	}
	run(t, relay)
}

func truth(t *testing.T, d *eventsDB) {
	t.Helper()
	const all = 420
	l := &ledger{acked: make(map[string]bool), rejected: make(map[string]bool), tries: make(map[string]int)}
	d.relay(t, l)
	for range all / 42 {
		d.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT (ARRAY['order.paid', 'user.gone', 'odd.one'])[1 + g % 3], 'order', (g % 5)::text, '1' FROM generate_series(1, 42) g`)
		page, err := d.store.Events(t.Context(), ops.EventFilter{}, 42)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Events {
			l.holds(t, &page.Events[i])
		}
	}
	deadline := time.After(patience)
	for {
		page, err := d.store.Events(t.Context(), ops.EventFilter{State: ops.Waiting}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		settled := len(page.Events) == all/3
		for i := range page.Events {
			l.holds(t, &page.Events[i])
			settled = settled && page.Events[i].Has(func(s ops.State) bool { return s == ops.Unrouted })
		}
		if settled {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("%d events wait: %s", len(page.Events), line(&page.Events[0]))
		default:
		}
	}
	for id := range int64(all) {
		d.final(l, id+1)
	}
}

// holds fails the test if something is said of the event that has not happened.
func (l *ledger) holds(t *testing.T, e *ops.Event) {
	t.Helper()
	routed := map[string][]string{"order.paid": {"audit", "mail"}, "user.gone": {"audit"}}[e.Type]
	said := make(map[string]ops.State)
	for _, d := range e.Destinations {
		said[d.Name] = d.State
		switch {
		case d.State == ops.Delivered && !l.is(l.acked, d.Name, e.ID), d.State == ops.Dead && !l.is(l.rejected, d.Name, e.ID),
			d.State == ops.NotRouted && (d.Name != "mail" || e.Type == "order.paid") && e.Type != "odd.one":
			t.Errorf("event %d, %s: said to be %s at %s", e.ID, e.Type, d.State, d.Name)
		}
	}
	for _, name := range routed {
		settled := l.is(l.acked, name, e.ID) || l.is(l.rejected, name, e.ID)
		if (e.State == ops.Done || e.State == ops.Dead || e.OthersSettled && said[name] == "") && !settled {
			t.Errorf("event %d, %s: %s, and %s has not got it", e.ID, e.Type, line(e), name)
		}
	}
}

// final checks what is said of an event in the end.
func (d *eventsDB) final(l *ledger, id int64) {
	d.Helper()
	e, err := d.store.Event(d.Context(), id)
	if err != nil {
		d.Fatal(err)
	}
	want := "done"
	switch {
	case e.Type == "odd.one":
		want = "waiting,  unrouted"
	case e.Type == "order.paid" && l.is(l.rejected, "mail", id):
		want = "dead"
	}
	if got := line(&e); !strings.HasPrefix(got, want) {
		d.Errorf("event %d, %s: %s, want %s", id, e.Type, got, want)
	}
}
