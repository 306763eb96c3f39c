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

// trigger returns a trigger on a table for the events that match a condition on the row r, and how to drop it.
func trigger(table, when, condition, then string) (create, drop string) {
	return fmt.Sprintf(`CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE r record;
		BEGIN
			IF TG_OP = 'DELETE' THEN r := OLD; ELSE r := NEW; END IF;
			IF %s THEN %s; END IF;
			RETURN r;
		END $$;
		CREATE TRIGGER mine %s ON %s FOR EACH ROW EXECUTE FUNCTION mine()`, condition, then, when, table), `DROP FUNCTION mine CASCADE`
}

// TestOneRowIsRefused: the database refuses to record the outcome of one event. The others are delivered and recorded. The
// one is delivered once, is named in the log once, and is recorded when the cause is gone.
func TestOneRowIsRefused(t *testing.T) {
	t.Parallel()
	type way struct {
		refuse, cure string
		fails        bool // the first attempt at the event fails
		queue        bool // in a queue only
	}
	raise := func(table, when, column string, fails bool) way {
		refuse, cure := trigger(table, when, "r."+column+" = 3", `RAISE 'not this one'`)
		return way{refuse, cure, fails, table == "outbox_events"}
	}
	late := raise("outbox_events", "AFTER UPDATE", "id", false)
	late.refuse = strings.Replace(late.refuse, "CREATE TRIGGER", "CREATE CONSTRAINT TRIGGER", 1)
	late.refuse = strings.Replace(late.refuse, "FOR EACH", "DEFERRABLE INITIALLY DEFERRED FOR EACH", 1)
	for name, c := range map[string]way{
		"a trigger on events":               raise("outbox_events", "BEFORE UPDATE", "id", false),
		"a trigger on events at the commit": late,
		"a constraint of events": {
			`ALTER TABLE outbox_events ADD CONSTRAINT mine CHECK (id <> 3) NOT VALID`,
			`ALTER TABLE outbox_events DROP CONSTRAINT mine`, false, true,
		},
		"a trigger on new deliveries": raise("outbox_deliveries", "BEFORE INSERT", "event_id", true),
		"a trigger on the last write": raise("outbox_deliveries", "BEFORE DELETE", "event_id", true),
		"a constraint of deliveries": {
			`ALTER TABLE outbox_deliveries ADD CONSTRAINT mine CHECK (event_id <> 3) NOT VALID`,
			`ALTER TABLE outbox_deliveries DROP CONSTRAINT mine`, true, false,
		},
	} {
		for _, mode := range bothModes() {
			if c.queue && mode == outboxsql.ModeStream {
				continue
			}
			t.Run(fmt.Sprint(mode, " ", name), func(t *testing.T) {
				t.Parallel()
				if name != "a constraint of events" && name != "a constraint of deliveries" {
					testenv.Long(t)
				}
				const events = 80
				e, h := newEnvIn(t, mode), newRecorder(t)
				h.answer = func(_ context.Context, event *delivery.Event) error {
					if c.fails && event.Attempt == 1 && event.ID%3 == 0 {
						return errors.New("not yet")
					}
					return nil
				}
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'a', 'order', i % 7, '1' FROM generate_series(1, $1) AS i`, events)
				e.exec(c.refuse)
				r := e.relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), notifyd.Config{})
				// In a stream the order of its aggregate holds up some.
				others := `e.id <> 3 AND e.id % 7 <> 3`
				if mode == outboxsql.ModeQueue {
					others = `e.id <> 3`
				}
				e.untilAll("the others are delivered", "all", others)
				e.insert("a", "1")
				e.untilAll("and later ones", "all", others)
				testenv.Await(t, "the report", func() bool {
					all := r.Stats().Refusals
					return len(all) == 1 && all[0].Count > 1 && strings.Contains(all[0].Withheld(time.Now()), "1 withheld for") &&
						strings.Contains(all[0].Withheld(time.Now()), "event 3") && all[0].Cure != ""
				})
				if n := h.times(3); n < 1 || n > 2 {
					t.Errorf("the refused event was delivered %d times", n)
				}
				if n := r.count("the outcome of an event cannot be recorded"); n != 1 {
					t.Errorf("the log names the event %d times", n)
				}
				e.exec(c.cure)
				e.untilDone()
				testenv.Await(t, "no refusal", func() bool { return r.Stats().Refusals == nil })
				want := 1
				if c.fails {
					want = 2
				}
				if n := h.times(3); n != want {
					t.Errorf("the event was delivered %d times, want %d", n, want)
				}
			})
		}
	}
}

// TestOneUnroutedIsRefused: the database refuses to store one event without a route. The others are stored.
func TestOneUnroutedIsRefused(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e, h := newEnvIn(t, mode), newRecorder(t)
			e.exec(`ALTER TABLE outbox_deliveries ADD CONSTRAINT mine CHECK (event_id <> 3) NOT VALID`)
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'b', '1' FROM generate_series(1, 10)`)
			r := e.relay(func(r *notifyd.Relay) {
				if err := r.Handle("a", notifyd.Destination{Name: "all", Handler: h}); err != nil {
					t.Error(err)
				}
			}, notifyd.Config{})
			e.until("the others are stored", `SELECT count(*) = 9 FROM outbox_deliveries WHERE state = 'unrouted'`)
			testenv.Await(t, "the report", func() bool {
				all := r.Stats().Refusals
				return len(all) == 1 && all[0].Count > 1 && strings.Contains(all[0].Err.Error(), "event 3")
			})
			e.exec(`ALTER TABLE outbox_deliveries DROP CONSTRAINT mine`)
			e.until("the one is stored", `SELECT count(*) = 10 FROM outbox_deliveries WHERE state = 'unrouted'`)
			testenv.Await(t, "no refusal", func() bool { return r.Stats().Refusals == nil })
		})
	}
}

// TestOneHandoverIsRefused: a type gains a route, and the database refuses to hand over one of its stored events, or
// ignores a write of it. The others are handed over and delivered, and later events as well. The one is named, and is
// delivered once when the cause is gone, also by another relay.
func TestOneHandoverIsRefused(t *testing.T) {
	t.Parallel()
	type way struct {
		refuse, cure string
		isUnstored   bool // the event has no row when its type gains a route
	}
	on := func(when, then string) way {
		refuse, cure := trigger("outbox_deliveries", "BEFORE "+when, "r.event_id = 3", then)
		return way{refuse, cure, false}
	}
	check := way{`ALTER TABLE outbox_deliveries ADD CONSTRAINT mine CHECK (event_id <> 3) NOT VALID`, `ALTER TABLE outbox_deliveries DROP CONSTRAINT mine`, false}
	unstored := check
	unstored.isUnstored = true
	for name, c := range map[string]way{
		"a constraint":            check,
		"a constraint from start": unstored,
		"a trigger on INSERT":     on("INSERT", `RAISE 'not this one'`),
		"a trigger on DELETE":     on("DELETE", `RAISE 'not this one'`),
		"an ignored INSERT":       on("INSERT", `RETURN NULL`),
		"an ignored DELETE":       on("DELETE", `RETURN NULL`),
	} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", restarts), func(t *testing.T) {
				t.Parallel()
				if name != "a constraint" {
					testenv.Long(t)
				}
				e, h := newEnvIn(t, outboxsql.ModeStream), newRecorder(t)
				routed := func(patterns ...string) *running {
					return e.start(func(r *notifyd.Relay) {
						for _, p := range patterns {
							if err := r.Handle(p, notifyd.Destination{Name: "all", Handler: h}); err != nil {
								t.Error(err)
							}
						}
					}, notifyd.Config{})
				}
				stored := 10
				if c.isUnstored {
					e.exec(c.refuse)
					stored = 9
				}
				first := routed("a")
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'b', 'order', i % 3, '1' FROM generate_series(1, 10) AS i`)
				e.until("the events are stored", `SELECT count(*) = $1 FROM outbox_deliveries WHERE state = 'unrouted'`, stored)
				e.until("all have read them", `SELECT bool_and(head >= 10) FROM outbox_positions`)
				if err := first.end(); err != nil {
					t.Fatal(err)
				}
				if !c.isUnstored {
					e.exec(c.refuse)
				}

				r := routed("*")
				named := func() bool {
					all := r.Stats().Refusals
					return len(all) == 1 && strings.Contains(all[0].Withheld(time.Now()), "1 withheld for") &&
						strings.Contains(all[0].Withheld(time.Now()), "event 3") && all[0].Cure != ""
				}
				testenv.Await(t, "the report", named)
				e.insert("b", "1")
				testenv.Await(t, "the others", func() bool {
					for id := range int64(11) {
						if id+1 != 3 && h.times(id+1) == 0 {
							return false
						}
					}
					return true
				})
				if restarts {
					if err := r.end(); err != nil {
						t.Fatal(err)
					}
					r = routed("*")
					testenv.Await(t, "the report", named)
				}
				// The scanner begins again when the routes have changed, and names the event again.
				if n := r.count("the outcome of an event cannot be recorded"); n < 1 || n > 2 {
					t.Errorf("the log names the event %d times", n)
				}
				if n := h.times(3); n > 0 {
					t.Errorf("the refused event was delivered %d times", n)
				}

				e.exec(c.cure)
				testenv.Await(t, "no refusal", func() bool { return r.Stats().Refusals == nil })
				testenv.Await(t, "the one", func() bool { return h.times(3) > 0 })
				e.untilDone()
				for id := range int64(11) {
					if n := h.times(id + 1); n != 1 {
						t.Errorf("event %d was delivered %d times", id+1, n)
					}
				}
			})
		}
	}
}
