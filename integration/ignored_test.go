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
				if !strings.HasSuffix(name, " UPDATE") {
					testenv.Long(t)
				}
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
				// Not a wait for nothing to happen: some attempts to record the outcomes are made.
				testenv.Await(t, "refusals", func() bool { return ignoredWrites(t, r) >= 3 })
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
	testenv.Long(t)
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
		{"outbox_server", "INSERT", []outboxsql.Mode{outboxsql.ModeStream}},
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
	testenv.Await(t, "refusals", func() bool { return ignoredWrites(t, r) >= 3 })

	e.exec(cure)
	e.until("the replay ends", `SELECT EXISTS (SELECT FROM outbox_replays WHERE state = 'done')`)
	for id := range int64(events) {
		if n := h.times(id + 1); n != 2 {
			t.Errorf("event %d was delivered %d times", id+1, n)
		}
	}
}

// ignoredWrites returns how many statements of a relay were refused. All of them must be writes that a trigger or a rule ignores.
func ignoredWrites(t *testing.T, r *running) (n uint64) {
	t.Helper()
	for _, one := range r.Stats().Refusals {
		if one.Code != "02000" || !strings.Contains(one.Cure, "rule") {
			t.Errorf("refusal %+v", one)
		}
		n += one.Count
	}
	return n
}

// TestIgnoredRenewal: a trigger ignores the renewal of the leases while a relay runs. The relay names the cause. It has not
// lost its leases, and delivers each event once when the trigger is gone.
func TestIgnoredRenewal(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]string{
		"every write": "true",
		"renewals":    "OLD.pid = NEW.pid AND OLD.wants = NEW.wants",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const events = 30
			e, h := newEnvIn(t, outboxsql.ModeStream), newRecorder(t)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
			e.untilDone()

			ignore, cure := trigger("outbox_members", "BEFORE UPDATE", "OLD.owner > 0", `RETURN NULL`)
			e.exec(strings.Replace(ignore, "FOR EACH ROW", "FOR EACH ROW WHEN ("+when+")", 1))
			testenv.Await(t, "refusals", func() bool { return ignoredWrites(t, r) >= 3 })
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
			e.exec(cure)
			e.untilDone()
			for id := range int64(2 * events) {
				if n := h.times(id + 1); n != 1 {
					t.Errorf("event %d was delivered %d times", id+1, n)
				}
			}
			if n := r.count("leases lost"); n > 0 {
				t.Errorf("the relay has lost its leases %d times", n)
			}
		})
	}
}

// TestIgnoredRelease: a trigger ignores that a relay releases a shard which another relay should take. The relay names the
// cause, and the other one takes the shard when the trigger is gone.
func TestIgnoredRelease(t *testing.T) {
	t.Parallel()
	e, h := newEnvIn(t, outboxsql.ModeStream), newRecorder(t)
	first := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
	owners := `SELECT count(DISTINCT owner) FROM outbox_positions`
	e.until("the relay has both shards", `SELECT count(owner) = 2 FROM outbox_positions`)
	ignore, cure := trigger("outbox_positions", "BEFORE UPDATE", "NEW.owner IS NULL", `RETURN NULL`)
	e.exec(ignore)

	e.start(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
	testenv.Await(t, "refusals", func() bool { return ignoredWrites(t, first) >= 3 })
	if n := scan[int](e, owners); n != 1 {
		t.Fatalf("%d relays have shards", n)
	}
	e.exec(cure)
	e.until("both have shards", `SELECT count(DISTINCT owner) = 2 FROM outbox_positions`)
	testenv.Await(t, "no refusal", func() bool { return first.Stats().Refusals == nil })
}

// TestIgnoredRemoval: a trigger ignores that a relay removes another one that is dead. The relay names the cause, and takes
// the shards when the trigger is gone.
func TestIgnoredRemoval(t *testing.T) {
	t.Parallel()
	e, h := newEnvIn(t, outboxsql.ModeStream), newRecorder(t)
	if err := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{}).end(); err != nil {
		t.Fatal(err)
	}
	e.exec(`INSERT INTO outbox_members (owner, wants, layouts, pid, alive_until, renewals) VALUES (1, '{"",all}', '{"",""}', 0, now(), 1)`)
	e.exec(`UPDATE outbox_positions SET owner = 1`)
	ignore, cure := trigger("outbox_members", "BEFORE DELETE", "OLD.owner = 1", `RETURN NULL`)
	e.exec(ignore)

	r := e.start(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
	testenv.Await(t, "refusals", func() bool { return ignoredWrites(t, r) >= 3 })
	e.exec(cure)
	id := e.insert("a", "1")
	e.untilDone()
	if n := h.times(id); n != 1 {
		t.Errorf("delivered %d times", n)
	}
	testenv.Await(t, "no refusal", func() bool { return r.Stats().Refusals == nil })
}

// TestIgnoredPurge: a trigger ignores that the purge deletes events, or a rule makes PostgreSQL refuse it. The purge names
// the cause, deletes the others, and holds up nothing.
func TestIgnoredPurge(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const events = 500
	for name, c := range map[string]struct {
		ignore, message string
		left            int
	}{
		"some":   {`CREATE TRIGGER mine BEFORE DELETE ON outbox_events FOR EACH ROW WHEN (OLD.id IN (3, 250, 251, 500)) EXECUTE FUNCTION mine()`, "delivered events cannot be deleted", 4},
		"all":    {`CREATE TRIGGER mine BEFORE DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION mine()`, "delivered events cannot be deleted", events},
		"a rule": {`CREATE RULE mine AS ON DELETE TO outbox_events DO INSTEAD NOTHING`, "purge failed", events},
	} {
		for _, mode := range bothModes() {
			t.Run(string(mode)+" "+name, func(t *testing.T) {
				t.Parallel()
				e, h := newEnvIn(t, mode), newRecorder(t)
				e.exec(`CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1)`, events)
				e.exec(c.ignore)
				r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{Retention: notifyd.Retention{Keep: time.Nanosecond, Batch: 100}})

				e.untilDone()
				testenv.Await(t, "the warning", func() bool { return r.count(c.message) > 0 })
				e.until("the others are purged", `SELECT count(*) = $1 FROM outbox_events`, c.left)
				if log := r.log.text(); !strings.Contains(log, `cure="drop the`) || !strings.Contains(log, "rule that") {
					t.Errorf("the log:\n%s", log)
				}
				if copies := h.all(e, c.left); copies > 0 {
					t.Errorf("%d copies", copies)
				}
			})
		}
	}
}
