package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestIgnoredWrites: a trigger or a rule ignores the writes of a relay. The relay does not take the rows for those of
// another relay: it repeats no delivery, names the cause, and continues when it is gone.
func TestIgnoredWrites(t *testing.T) {
	t.Parallel()
	type way struct {
		ignore, cure string
		modes        []outboxsql.Mode
		fails        int // attempts at an event that fail
		keep         time.Duration
	}
	queue, stream := []outboxsql.Mode{outboxsql.ModeQueue}, []outboxsql.Mode{outboxsql.ModeStream}
	ignored := func(table, when string, modes []outboxsql.Mode, fails int, keep time.Duration) way {
		ignore, cure := trigger(table, "BEFORE "+when, "true", `RETURN NULL`)
		return way{ignore, cure, modes, fails, keep}
	}
	rule := func(table, on string, modes []outboxsql.Mode, fails int) way {
		return way{`CREATE RULE mine AS ON ` + on + ` TO ` + table + ` DO INSTEAD NOTHING`, `DROP RULE mine ON ` + table, modes, fails, time.Hour}
	}
	moves := ignored("outbox_positions", "UPDATE", stream, 0, time.Hour)
	moves.ignore = strings.Replace(moves.ignore, "FOR EACH ROW", "FOR EACH ROW WHEN (OLD.head <> NEW.head)", 1)
	for name, c := range map[string]way{
		"events UPDATE":        ignored("outbox_events", "UPDATE", queue, 0, time.Hour),
		"events DELETE":        ignored("outbox_events", "DELETE", queue, 0, notifyd.None),
		"events by a rule":     rule("outbox_events", "UPDATE", queue, 0),
		"deliveries INSERT":    ignored("outbox_deliveries", "INSERT", bothModes(), 1, time.Hour),
		"deliveries UPDATE":    ignored("outbox_deliveries", "UPDATE", bothModes(), 2, time.Hour),
		"deliveries DELETE":    ignored("outbox_deliveries", "DELETE", bothModes(), 1, time.Hour),
		"deliveries by a rule": rule("outbox_deliveries", "DELETE", bothModes(), 1),
		"positions UPDATE":     moves,
	} {
		for _, mode := range c.modes {
			t.Run(fmt.Sprint(mode, " ", name), func(t *testing.T) {
				t.Parallel()
				const events = 30
				e, h := newEnvIn(t, mode), newRecorder(t)
				h.answer = func(_ context.Context, event *delivery.Event) error {
					if event.Attempt <= c.fails {
						return errors.New("not yet")
					}
					return nil
				}
				r := e.relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), notifyd.Config{Retention: notifyd.Retention{Keep: c.keep}})
				e.exec(c.ignore)
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
				refused := func() (n uint64) {
					for _, one := range r.Stats().Refusals {
						if one.Code != "02000" || !strings.Contains(one.Cure, "rule") {
							t.Errorf("refusal %+v", one)
						}
						n += one.Count
					}
					return n
				}
				// Not a wait for nothing to happen: some attempts to record the outcomes are made.
				testenv.Await(t, "refusals", func() bool { return refused() >= 3 })
				for id := range int64(events) {
					if n := h.times(id + 1); n > c.fails+1 {
						t.Fatalf("event %d was delivered %d times", id+1, n)
					}
				}
				e.exec(c.cure)
				e.untilDone()
				for id := range int64(events) {
					if n := h.times(id + 1); n != c.fails+1 {
						t.Errorf("event %d was delivered %d times, want %d", id+1, n, c.fails+1)
					}
				}
			})
		}
	}
}

// TestIgnoredAtStart: a trigger ignores what a relay writes before it can deliver. The relay names the cause, and delivers
// when it is gone.
func TestIgnoredAtStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		table, when string
		modes       []outboxsql.Mode
	}{
		{"outbox_limits", "INSERT", bothModes()},
		{"outbox_limits", "UPDATE", bothModes()},
		{"outbox_members", "INSERT", []outboxsql.Mode{outboxsql.ModeStream}},
		{"outbox_members", "UPDATE", []outboxsql.Mode{outboxsql.ModeStream}},
		{"outbox_positions", "INSERT", []outboxsql.Mode{outboxsql.ModeStream}},
		{"outbox_positions", "UPDATE", []outboxsql.Mode{outboxsql.ModeStream}},
		{"outbox_routes", "INSERT", []outboxsql.Mode{outboxsql.ModeStream}},
		{"outbox_routes", "UPDATE", []outboxsql.Mode{outboxsql.ModeStream}},
	} {
		for _, mode := range c.modes {
			t.Run(fmt.Sprint(mode, " ", c.table, " ", c.when), func(t *testing.T) {
				t.Parallel()
				const events = 30
				e, h := newEnvIn(t, mode), newRecorder(t)
				ignore, cure := trigger(c.table, "BEFORE "+c.when, "true", `RETURN NULL`)
				e.exec(ignore)
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
				r := e.start(handleAll(t, h, delivery.Lane{RateLimit: delivery.Rate{Events: 20, Per: time.Second}, RateBurst: 10}), notifyd.Config{})
				testenv.Await(t, "a refusal", func() bool {
					all := r.Stats().Refusals
					return len(all) > 0 && all[0].Code == "02000" && strings.Contains(all[0].Cure, "rule")
				})

				e.exec(cure)
				e.untilDone()
				for id := range int64(events) {
					if n := h.times(id + 1); n != 1 {
						t.Errorf("event %d was delivered %d times", id+1, n)
					}
				}
			})
		}
	}
}

// TestIgnoredReplay: a trigger ignores the progress of a replay. The relay names the cause, and sends the range once.
func TestIgnoredReplay(t *testing.T) {
	t.Parallel()
	const events = 30
	e, h := newEnvIn(t, outboxsql.ModeStream), newRecorder(t)
	r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
	e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
	e.untilDone()
	ignore, cure := trigger("outbox_replays", "BEFORE UPDATE", "true", `RETURN NULL`)
	e.exec(ignore)
	s, err := ops.New(e.pool, ops.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartReplay(e.ctx, ops.ReplayRange{Destination: "all"}, ops.Action{}); err != nil {
		t.Fatal(err)
	}
	// Not a wait for nothing to happen: some attempts to write the progress are made.
	testenv.Await(t, "refusals", func() bool {
		var n uint64
		for _, one := range r.Stats().Refusals {
			if one.Code != "02000" || !strings.Contains(one.Cure, "rule") {
				t.Errorf("refusal %+v", one)
			}
			n += one.Count
		}
		return n >= 3
	})

	e.exec(cure)
	e.until("the replay ends", `SELECT EXISTS (SELECT FROM outbox_replays WHERE state = 'done')`)
	for id := range int64(events) {
		if n := h.times(id + 1); n != 2 {
			t.Errorf("event %d was delivered %d times", id+1, n)
		}
	}
}
