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
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestIgnoredRows: PostgreSQL ignores or refuses a write of one stored row that only the work beside deliveries makes. The
// relay names the cause, delivers the others, and delivers the one when the cause is gone.
func TestIgnoredRows(t *testing.T) {
	t.Parallel()
	const (
		events = 10
		one    = 3 // the event whose row is not written

		ignores = `RETURN NULL`
		refuses = `RAISE 'not this one'`
	)
	leased := `state = 'running', lease_owner = 1, lease_token = 1, lease_until = now()`
	for name, c := range map[string]struct {
		mode outboxsql.Mode
		rows string // sets the columns of the stored rows
		when string // the write that is ignored
		lane delivery.Lane
		all  bool // no event is delivered before the one is
	}{
		"a lease of a dead relay":  {mode: outboxsql.ModeQueue, rows: leased, when: `OLD.state = 'running'`},
		"a parked row in a queue":  {mode: outboxsql.ModeQueue, rows: `state = 'parked', ordering_key = 'order/1'`, when: `OLD.state = 'parked'`},
		"an event without a route": {mode: outboxsql.ModeQueue, rows: `state = 'unrouted', destination = ''`, when: `OLD.state = 'unrouted'`},
		"a parked row":             {outboxsql.ModeStream, `state = 'parked', ordering_key = 'order/1'`, `OLD.state = 'parked'`, delivery.Lane{Order: delivery.OrderNone}, false},
		"a name of a total order":  {mode: outboxsql.ModeStream, rows: `state = 'parked', ordering_key = '*'`, when: `NEW.ordering_key IS NULL`},
		"a shard":                  {outboxsql.ModeStream, `state = 'retry', available_at = now()`, `OLD.shard <> NEW.shard`, delivery.Lane{Shards: 2}, true},
	} {
		for _, then := range []string{ignores, refuses} {
			t.Run(name+", "+then, func(t *testing.T) {
				t.Parallel()
				if then != ignores {
					testenv.Long(t)
				}
				e, h := newEnvIn(t, c.mode), newRecorder(t)
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
				if c.mode == outboxsql.ModeQueue {
					e.exec(`UPDATE outbox_events SET state = 'deferred'`)
				} else {
					e.exec(`INSERT INTO outbox_positions (destination, head) VALUES ('', $1), ('all', $1)`, events)
				}
				e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, 'all', 'a', 'retry' FROM outbox_events`)
				e.exec(`UPDATE outbox_deliveries SET ` + c.rows)
				refuse, cure := trigger("outbox_deliveries", "BEFORE UPDATE", "true", then)
				e.exec(strings.Replace(refuse, "FOR EACH ROW", fmt.Sprintf("FOR EACH ROW WHEN (OLD.event_id = %d AND %s)", one, c.when), 1))

				r := e.start(handleAll(t, h, c.lane), notifyd.Config{})
				testenv.Await(t, "the refusal", func() bool {
					all := r.Stats().Refusals
					return len(all) == 1 && all[0].Cure != "" && strings.Contains(all[0].Err.Error(), fmt.Sprint("event ", one, ", one of 1:"))
				})
				others := func() bool {
					for id := range int64(events) {
						if id+1 != one && h.times(id+1) == 0 {
							return false
						}
					}
					return true
				}
				if !c.all {
					testenv.Await(t, "the others", others)
				}
				if n := h.times(one); n > 0 {
					t.Errorf("the one was delivered %d times", n)
				}

				e.exec(cure)
				e.untilDone()
				for id := range int64(events) {
					if n := h.times(id + 1); n != 1 {
						t.Errorf("event %d was delivered %d times", id+1, n)
					}
				}
				testenv.Await(t, "no refusal", func() bool { return r.Stats().Refusals == nil })
			})
		}
	}
}

// TestIgnoredEnds: a trigger ignores that an event ends, a lease is renewed, a dead letter is reported or a former shard is
// removed. The relay names the cause, repeats no delivery, and completes the write when the trigger is gone.
func TestIgnoredEnds(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	bad := errors.New("not yet")
	reported := delivery.Lane{MaxAttempts: 1, OnDead: delivery.OnDead{To: "letters"}}
	for name, c := range map[string]struct {
		table, when string
		modes       []outboxsql.Mode
		fails       int // attempts that fail
		slow        int // the attempt that lasts until the refusal
		lane        delivery.Lane
		dead        bool
	}{
		"an event after a retry":        {"outbox_events", `UPDATE WHERE OLD.state = 'deferred'`, []outboxsql.Mode{outboxsql.ModeQueue}, 1, 0, delivery.Lane{}, false},
		"an event after a slow attempt": {"outbox_events", `UPDATE WHERE OLD.state = 'deferred'`, []outboxsql.Mode{outboxsql.ModeQueue}, 1, 0, delivery.Lane{}, false},
		"a renewal":                     {"outbox_deliveries", `UPDATE WHERE OLD.lease_token = NEW.lease_token`, []outboxsql.Mode{outboxsql.ModeQueue}, 0, 1, delivery.Lane{}, false},
		"a report":                      {"outbox_deliveries", `INSERT WHERE NEW.dead_letters IS NOT NULL`, bothModes(), 1, 0, reported, true},
	} {
		for _, mode := range c.modes {
			t.Run(fmt.Sprint(mode, " ", name), func(t *testing.T) {
				t.Parallel()
				e, h, letters := newEnvIn(t, mode), newRecorder(t), newRecorder(t)
				done := make(chan struct{})
				h.answer = func(ctx context.Context, event *delivery.Event) error {
					if event.Attempt == c.slow {
						select {
						case <-done:
						case <-ctx.Done():
						}
					}
					if name == "an event after a slow attempt" && event.Attempt == 2 {
						e.until("the lease", `SELECT state = 'running' FROM outbox_deliveries`)
					}
					if event.Attempt <= c.fails {
						return bad
					}
					return nil
				}
				op, when, _ := strings.Cut(c.when, " WHERE ")
				ignore, cure := trigger(c.table, "BEFORE "+op, "true", `RETURN NULL`)
				e.exec(strings.Replace(ignore, "FOR EACH ROW", "FOR EACH ROW WHEN ("+when+")", 1))

				c.lane.Backoff = quick()
				r := e.relay(func(r *notifyd.Relay) {
					handleAll(t, h, c.lane)(r)
					if c.dead {
						if err := r.Add(notifyd.Destination{Name: "letters", Handler: letters}); err != nil {
							t.Error(err)
						}
					}
				}, notifyd.Config{Lease: 6 * time.Second})
				id := e.insert("a", "1")
				testenv.Await(t, "a refusal", func() bool { return ignoredWrites(t, r) >= 1 })
				if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`); n > 0 {
					t.Errorf("%d dead letters without a report", n)
				}
				e.exec(cure)
				close(done)
				if c.dead {
					testenv.Await(t, "the report", func() bool { return letters.times(id) == 1 })
				} else {
					e.untilDone()
				}
				if n := h.times(id); n != c.fails+1 && !c.dead || c.dead && n != 1 {
					t.Errorf("delivered %d times", n)
				}
				testenv.Await(t, "no refusal", func() bool { return r.Stats().Refusals == nil })
			})
		}
	}
}

// TestIgnoredFewer: a trigger ignores that the position of a former shard is removed. The relay names the cause, delivers nothing
// by the new shards, and does when the trigger is gone.
func TestIgnoredFewer(t *testing.T) {
	t.Parallel()
	e, h := newEnvIn(t, outboxsql.ModeStream), newRecorder(t)
	two := e.relay(handleAll(t, h, delivery.Lane{Shards: 2}), notifyd.Config{})
	e.insert("a", "1")
	e.untilDone()
	if err := two.end(); err != nil {
		t.Fatal(err)
	}

	ignore, cure := trigger("outbox_positions", "BEFORE DELETE", "true", `RETURN NULL`)
	e.exec(ignore)
	one := e.start(handleAll(t, h, delivery.Lane{Shards: 1}), notifyd.Config{})
	id := e.insert("a", "2")
	testenv.Await(t, "a refusal", func() bool { return ignoredWrites(t, one) >= 1 })
	if n := h.times(id); n > 0 {
		t.Errorf("delivered %d times before the former shard was gone", n)
	}

	e.exec(cure)
	e.untilDone()
	if n := h.times(id); n != 1 {
		t.Errorf("delivered %d times", n)
	}
	testenv.Await(t, "no refusal", func() bool { return one.Stats().Refusals == nil })
}
