package ops_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestReplay: a range comes again in the order of each aggregate and with new ids, beside what is written
// meanwhile, and once more with the next number.
func TestReplay(t *testing.T) {
	t.Parallel()
	bothPositionTables(t, func(t *testing.T, d *positionsDB) {
		t.Helper()
		var s sink
		ids := make(map[string]int)
		s.answers = func(_ string, e *delivery.Event) error {
			ids[e.DedupeID()]++
			return nil
		}
		d.relay(t, &s, route{"mail", "a.*"}, route{"other", "b"})
		d.insert("a.one", 20)
		d.insert("b", 5)
		d.insert("a.two", 10)
		s.await(t, "mail", 30)
		d.until(`SELECT head = outbox_last_id() AND open = '{}' FROM outbox_positions WHERE destination = 'mail'`)

		planned, err := d.store.StartReplay(t.Context(), ops.ReplayRange{Destination: "mail"}, ops.Action{DryRun: true})
		if err != nil || planned.ID != 0 || planned.To-planned.From != 34 {
			t.Fatalf("%+v, %v", planned, err)
		}
		counts, more, err := d.store.CountReplay(t.Context(), planned, 0)
		if err != nil || more || fmt.Sprint(counts) != "[{a.one 20} {a.two 10}]" {
			t.Errorf("%v, %v, %v", counts, more, err)
		}
		r, err := d.store.StartReplay(t.Context(), ops.ReplayRange{Destination: "mail"}, ops.Action{Actor: "ann", Reason: "lost"})
		if err != nil || r.Number != 1000 || r.CreatedBy != "ann" {
			t.Fatalf("%+v, %v", r, err)
		}
		d.insert("a.one", 6)
		r, o, err := d.store.AwaitReplay(t.Context(), r.ID, nil)
		if err != nil || r.State != observe.ReplayDone || r.Delivered != 30 || r.Failed+r.Skipped != 0 || r.Remaining != 0 || o != (ops.ReplayOutcome{Delivered: 30}) {
			t.Fatalf("%+v, %+v, %v", r, o, err)
		}
		got := s.await(t, "mail", 66)
		perAggregate(t, d, slices.DeleteFunc(slices.Clone(got[30:]), func(id int64) bool { return id > r.To }))

		r, err = d.store.StartReplay(t.Context(), ops.ReplayRange{Destination: "mail", From: fmt.Sprint(r.From), To: "now", Types: []string{"a.two"}}, ops.Action{})
		if err == nil {
			r, _, err = d.store.AwaitReplay(t.Context(), r.ID, nil)
		}
		if err != nil || r.Number != 2000 || r.Delivered != 10 {
			t.Fatalf("%+v, %v", r, err)
		}
		r, err = d.store.StartReplay(t.Context(), ops.ReplayRange{Destination: "mail", To: fmt.Sprint(planned.From), KeepIDs: true}, ops.Action{})
		if err == nil {
			r, _, err = d.store.AwaitReplay(t.Context(), r.ID, nil)
		}
		if err != nil || r.Number != 0 || r.Delivered != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		first := planned.From
		for id, n := range map[string]int{fmt.Sprint(first): 2, fmt.Sprintf("%dr1000", first): 1, fmt.Sprintf("%dr2000", first): 0, fmt.Sprintf("%dr2000", first+25): 1} {
			if ids[id] != n {
				t.Errorf("%s came %d times, want %d", id, ids[id], n)
			}
		}
		if got := value[string](d, `SELECT string_agg(concat_ws(' ', action, destination, details ->> 'number'), ', ' ORDER BY id) FROM outbox_audit`); got !=
			"replay range mail 1000, replay range mail 2000, replay range mail 0" {
			t.Error(got)
		}
	})
}

// TestReplayFails: what fails is a row in a line of its own, which holds back the later events of its
// aggregate in the replay and nothing that is live; what is stored already is passed over.
func TestReplayFails(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	var s sink
	broken := errors.New("broken")
	fails := make(map[string]bool)
	s.answers = func(_ string, e *delivery.Event) error {
		if fails[e.DedupeID()] {
			return broken
		}
		return nil
	}
	d.relay(t, &s, route{"mail", "*"})
	ids := d.insert("a", 12) // aggregates 1, 2, 0, 1, ...
	s.await(t, "mail", 12)
	d.until(`SELECT head = outbox_last_id() AND open = '{}' FROM outbox_positions WHERE destination = 'mail'`)
	d.exec(fmt.Sprintf(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (%d, 'mail', 'a', 'dead')`, ids[2]))
	s.mu.Lock()
	fails[fmt.Sprintf("%dr1000", ids[0])] = true
	s.mu.Unlock()
	r, err := d.store.StartReplay(t.Context(), ops.ReplayRange{Destination: "mail"}, ops.Action{})
	if err != nil {
		t.Fatal(err)
	}
	d.until(`SELECT state = 'done' FROM outbox_replays`)
	r, o, err := d.store.Replay(t.Context(), r.ID)
	if err != nil || r.Delivered != 7 || r.Failed != 4 || r.Skipped != 1 || o != (ops.ReplayOutcome{Delivered: 7, Waiting: 4}) {
		t.Fatalf("%+v, %+v, %v", r, o, err)
	}
	if got := value[string](d, `SELECT string_agg(concat_ws(' ', state, replays, ordering_key), ', ' ORDER BY event_id) FROM outbox_deliveries WHERE state <> 'dead'`); got !=
		"retry 1000 #1#a:1, parked 1000 #1#a:1, parked 1000 #1#a:1, parked 1000 #1#a:1" {
		t.Error(got)
	}
	before := len(s.of("mail"))
	live := d.insert("a", 3)
	if got := s.await(t, "mail", before+3); fmt.Sprint(got[before:]) != fmt.Sprint(live) && len(got) != before+3 {
		t.Errorf("%v, want %v", got[before:], live)
	}
	s.mu.Lock()
	clear(fails)
	s.mu.Unlock()
	d.exec(`UPDATE outbox_deliveries SET available_at = now() WHERE state = 'retry'`)
	d.in(ring)
	_, o, err = d.store.AwaitReplay(t.Context(), r.ID, nil)
	if err != nil || o != (ops.ReplayOutcome{Delivered: 11}) {
		t.Errorf("%+v, %v", o, err)
	}
	got := s.of("mail")
	perAggregate(t, d, slices.DeleteFunc(slices.Clone(got[12:]), func(id int64) bool { return id > r.To }))
}

// TestReplayRefused: what cannot be replayed is refused, and one that runs can be stopped.
func TestReplayRefused(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	d.insert("a", 10)
	d.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('', 10, '{}'), ('mail', 8, '{[3,4),[6,7)}')`)
	for text, r := range map[string]ops.ReplayRange{
		"replay: invalid argument":         {Destination: "mail", From: "now"},
		`replay: "post": no such position`: {Destination: "post"},
		"replay: nothing to replay: events are kept from 1 on, and mail has received them up to 8": {Destination: "mail", From: "9"},
	} {
		if text == "replay: invalid argument" {
			text = "invalid argument"
		}
		if _, err := d.store.StartReplay(t.Context(), r, ops.Action{}); err == nil || len(err.Error()) < len(text) || err.Error()[:len(text)] != text {
			t.Errorf("%+v: %v", r, err)
		}
	}
	r, err := d.store.StartReplay(t.Context(), ops.ReplayRange{Destination: "mail", From: "2"}, ops.Action{})
	if err != nil || r.From != 2 || r.To != 8 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := value[string](d, `SELECT left_out::text FROM outbox_replays`); got != "{[3,4),[6,7)}" {
		t.Error(got)
	}
	if _, err := d.store.StartReplay(t.Context(), ops.ReplayRange{Destination: "mail"}, ops.Action{}); !errors.Is(err, ops.ErrReplayRunning) {
		t.Error(err)
	}
	all, err := d.store.Positions(t.Context())
	if err != nil || len(all) != 2 || all[1].Replay == nil || !all[1].Replay.HoldsBack || all[1].HoldsBack {
		t.Errorf("%+v, %v", all, err)
	}
	if err := outboxsql.SetMode(t.Context(), d.connect(), positionSchema, outboxsql.ModeQueue, outboxsql.ModeOptions{}); !errors.Is(err, outboxsql.ErrReplay) {
		t.Error(err)
	}
	if r, err = d.store.StopReplay(t.Context(), r.ID, ops.Action{}); err != nil || r.State != observe.ReplayStopped || r.FinishedAt == nil {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := d.store.StopReplay(t.Context(), r.ID, ops.Action{}); !errors.Is(err, ops.ErrNoReplay) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := d.store.AwaitReplay(ctx, r.ID, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	queue := newPositions(t, outboxsql.ModeQueue, false)
	if _, err := queue.store.StartReplay(t.Context(), ops.ReplayRange{Destination: "mail"}, ops.Action{}); !errors.Is(err, ops.ErrQueue) {
		t.Error(err)
	}
}

// TestReplayOfTotalOrder: nothing goes beside the one line of a total order.
func TestReplayOfTotalOrder(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	var s sink
	d.relay(t, &s, route{"total", "*"})
	d.insert("a", 3)
	s.await(t, "total", 3)
	d.until(`SELECT head = outbox_last_id() AND open = '{}' FROM outbox_positions WHERE destination = 'total'`)
	r, err := d.store.StartReplay(t.Context(), ops.ReplayRange{Destination: "total"}, ops.Action{Reason: "lost"})
	if err != nil {
		t.Fatal(err)
	}
	r, _, err = d.store.AwaitReplay(t.Context(), r.ID, nil)
	if err != nil || r.State != observe.ReplayStopped || !strings.HasPrefix(r.Reason, "lost; stopped by the relay: in order: total") || len(s.of("total")) != 3 {
		t.Errorf("%+v, %v, %v", r, err, s.of("total"))
	}
}
