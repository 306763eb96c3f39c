package ops_test

import (
	"errors"
	"testing"

	"github.com/notifyd/notifyd/ops"
)

// TestQueue: an event whose deliveries died is dead, although its row says done.
func TestQueue(t *testing.T) {
	t.Parallel()
	allTables(t, false, func(t *testing.T, d *eventsDB) {
		t.Helper()
		d.exec(`INSERT INTO outbox_events (id, event_type, payload, state, processed_at, available_at) VALUES
			(1, 'a', '1', 'fresh', NULL, NULL), (2, 'a', '1', 'fresh', NULL, now() + interval '1 h'), (3, 'a', '1', 'done', now(), NULL),
			(4, 'a', '1', 'done', now(), NULL), (5, 'a', '1', 'deferred', NULL, NULL), (6, 'a', '1', 'deferred', NULL, NULL),
			(7, 'a', '1', 'deferred', NULL, 'infinity'), (8, 'a', '1', 'deferred', NULL, NULL), (9, 'a', '1', 'done', now(), NULL), (10, 'a', '1', 'deferred', NULL, NULL)`)
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, error_class, last_error) VALUES
			(4, 'mail', 'a', 'dead', 20, now(), 'event', 'no such user'), (5, 'hook', 'a', 'dead', 1, now(), 'event', 'no'),
			(5, 'mail', 'a', 'retry', 3, now() + interval '5 min', 'event', 'try later')`)
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at) VALUES
			(6, 'slow', 'a', 'retry', now()), (7, '', 'a', 'retry', 'infinity'), (8, '', 'a', 'unrouted', now())`)
		d.exec(`UPDATE outbox_deliveries SET state = 'running', lease_owner = 1, lease_token = 2, lease_until = now() + interval '1 min' WHERE event_id = 6`)
		d.exec(`INSERT INTO outbox_audit (event_id, destination, action, actor) VALUES (9, 'mail', 'replay', 'ann'), (9, 'hook', 'replay', 'ann'), (9, 'hook', 'discard', 'bob'), (99, 'hook', 'discard', 'bob'),
			(9, 'mail', 'delivered', 'relay'), (3, 'mail', 'replay', 'ann')`)
		for id, want := range map[int64]string{
			1: "waiting,  not tried", 2: "waiting,  not tried", 3: "unknown, mail unknown, others settled", // its row went without an acknowledgement
			4: "dead, mail dead, others settled", 5: "waiting, hook dead, mail waiting, others settled", 6: "waiting, slow running, others settled",
			7: "waiting,  waiting", 8: "waiting,  unrouted", 9: "discarded, hook discarded, mail delivered, others settled",
			10: "unknown,  unknown", 99: "discarded, hook discarded",
		} {
			if got := d.says(id); got != want {
				t.Errorf("event %d: %q, want %q", id, got, want)
			}
		}
		for id, want := range map[int64]string{
			1: "not tried yet, or its first attempt is under way", 2: "delayed until TIME", 4: "given up TIME after 20 attempts",
			3: "replayed TIME, and the delivery was removed without an acknowledgement", 6: "under way since TIME, after no attempt that counts", 7: "delayed until TIME", 9: "TIME by bob", 5: "given up TIME after 1 attempt",
		} {
			e, err := d.store.Event(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if got := sentence(&e.Destinations[0]); got != want {
				t.Errorf("event %d: %q, want %q", id, got, want)
			}
		}
		e, err := d.store.WholeEvent(t.Context(), 5)
		if err != nil || string(e.Payload) != "1" || sentence(&e.Destinations[1]) != "next try TIME, failed last TIME, 3 attempts" || e.Destinations[1].Error != "try later" {
			t.Errorf("%+v, %v", e, err)
		}
		d.exec(`UPDATE outbox_deliveries SET last_error = 'waits for its rate limit', error_class = 'destination' WHERE event_id = 5 AND state = 'retry'`)
		e, err = d.store.Event(t.Context(), 5)
		if err != nil || sentence(&e.Destinations[1]) != "next try TIME, held back last TIME, 3 attempts" || e.Destinations[1].Class != "" {
			t.Errorf("held back by a rate limit: %+v, %v", e, err)
		}
		d.exec(`INSERT INTO outbox_events (id, event_type, payload, state) VALUES (11, 'a', '1', 'done')`)
		for letters, want := range map[string]string{
			`[{"destination": "mail"}]`:                          "due now, reports the dead letter of mail",
			`[{"destination": "mail"}, {"destination": "hook"}]`: "due now, reports the dead letters of mail, hook",
			`[null, {"destination": "mail", "error": "no"}]`:     "due now, reports the dead letter of mail", // the first is the event itself
			`[null]`: "due now", `[]`: "due now", `["by hand", [], 1]`: "due now",
		} {
			d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, dead_letters) VALUES (11, 'parking', 'a', 'retry', $1)
				ON CONFLICT (event_id, destination) DO UPDATE SET dead_letters = excluded.dead_letters`, letters)
			e, err := d.store.Event(t.Context(), 11)
			if err != nil || sentence(&e.Destinations[0]) != want {
				t.Errorf("reports %s: %+v, %v, want %q", letters, e, err, want)
			}
		}
		if _, err := d.store.Event(t.Context(), 100); !errors.Is(err, ops.ErrNoEvent) {
			t.Errorf("of no event: %v", err)
		}
	})
}

// TestStream: what became of an event follows from positions, routes and rows.
func TestStream(t *testing.T) {
	t.Parallel()
	allTables(t, true, func(t *testing.T, d *eventsDB) {
		t.Helper()
		d.exec(`INSERT INTO outbox_events (id, event_type, payload) SELECT i, 'order.placed', '1' FROM generate_series(1, 12) i`)
		if got := d.says(1); got != "waiting,  not reached" {
			t.Errorf("nobody reads: %q", got)
		}
		d.exec(`UPDATE outbox_events SET event_type = 'user.gone' WHERE id IN (6, 12)`)
		// A mark from the time as a queue.
		d.exec(`UPDATE outbox_events SET state = 'done', processed_at = now() WHERE id = 1`)
		d.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('', 10, '{}'), ('audit', 9, '{[7,8)}'), ('hook', 12, '{}'), ('mail', 10, '{[4,5)}'), ('new', 12, '{}')`)
		d.exec(`INSERT INTO outbox_routes (destination, since, patterns, others, head, open, until_head, until_open) VALUES
			('audit', 1, '{*}', '{order.*}', 2, '{}', 5, '{}'), ('audit', 2, '{order.*}', '{}', 5, '{}', NULL, '{}'), ('audit', 0, '{*}', '{}', 9223372036854775807, '{}', NULL, '{}'),
			('hook', 1, '{}', '{order.*}', 1, '{}', NULL, '{}'), ('mail', 1, '{order.*}', '{user.*}', 1, '{}', NULL, '{}'), ('new', 1, '{order.*}', '{}', 12, '{}', NULL, '{}')`)
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key, last_error) VALUES
			(3, 'mail', 'order.placed', 'dead', 20, 'order/1', 'no'), (5, 'mail', 'order.placed', 'parked', 0, 'order/1', NULL), (8, 'mail', 'order.placed', 'parked', 0, 'order/1', NULL),
			(8, 'gone', 'order.placed', 'dead', 2, NULL, 'no')`)
		d.exec(`INSERT INTO outbox_audit (event_id, destination, action, actor) VALUES (2, 'mail', 'discard', 'ann'), (9, 'mail', 'replay', 'ann'), (9, 'mail', 'delivered', 'relay'), (11, 'mail', 'discard', 'from before a crash')`)
		for id, want := range map[int64]string{
			1:  "done, others settled", // every position passed it before it was made
			2:  "discarded, audit passed, hook not routed, mail discarded, new passed",
			3:  "dead, audit not routed, hook not routed, mail dead, new passed", // audit by its former routes
			4:  "waiting, audit not routed, hook not routed, mail not acknowledged, new passed",
			5:  "waiting, audit not routed, hook not routed, mail parked, new passed",
			6:  "done, audit not routed, hook not routed, mail not routed, new passed",
			7:  "waiting, audit not acknowledged, hook not routed, mail delivered, new passed",
			8:  "waiting, audit delivered, gone dead, hook not routed, mail parked, new passed",
			9:  "done, audit delivered, hook not routed, mail delivered, new passed",
			10: "waiting, audit not reached, hook not routed, mail delivered, new passed",
			11: "waiting, audit not reached, hook not routed, mail not reached, new passed",
		} {
			if got := d.says(id); got != want {
				t.Errorf("event %d: %q, want %q", id, got, want)
			}
		}
		e, err := d.store.Event(t.Context(), 8)
		if err != nil {
			t.Fatal(err)
		}
		if got := sentence(&e.Destinations[3]); got != "behind event 3 of its aggregate (dead)" {
			t.Errorf("parked: %q", got)
		}
		// Without new, no destination may have received it: the router will store that.
		d.exec(`DELETE FROM outbox_positions WHERE destination = 'new'`)
		for id, want := range map[int64]string{
			6:  "done, audit not routed, hook not routed, mail not routed",
			12: "waiting,  unrouted, audit not routed, hook not routed, mail not routed",
		} {
			if got := d.says(id); got != want {
				t.Errorf("event %d: %q, want %q", id, got, want)
			}
		}
		d.exec(`UPDATE outbox_mode SET becoming = 'queue'`)
		if _, err := d.store.Event(t.Context(), 8); !errors.Is(err, ops.ErrChanging) {
			t.Errorf("in between: %v", err)
		}
	})
}
