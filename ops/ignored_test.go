package ops_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/ops"
)

// TestIgnoredActions: a trigger ignores what a person asks for. The action fails, and does not claim success.
func TestIgnoredActions(t *testing.T) {
	t.Parallel()
	forget := func(d *lettersDB) error {
		_, err := d.store.Forget(t.Context(), "mail", ops.Action{})
		return err
	}
	adopt := func(d *lettersDB) error {
		_, err := d.store.Adopt(t.Context(), true, ops.Action{})
		return err
	}
	for _, c := range []struct {
		name, when string
		act        func(d *lettersDB) error
	}{
		{"edit", "UPDATE ON outbox_events", func(d *lettersDB) error {
			return d.store.EditEvent(t.Context(), 1, json.RawMessage(`{}`), ops.Action{})
		}},
		{"pause", "INSERT ON outbox_pauses", func(d *lettersDB) error { return d.store.Pause(t.Context(), "mail", ops.Action{}) }},
		{"seek", "UPDATE ON outbox_positions FOR EACH ROW WHEN (OLD.head <> NEW.head)", func(d *lettersDB) error {
			_, err := d.store.Seek(t.Context(), "mail", "beginning", ops.Action{})
			return err
		}},
		{"forget", "DELETE ON outbox_positions", forget},
		{"forget", "DELETE ON outbox_routes", forget},
		{"forget", "DELETE ON outbox_deliveries", forget},
		{"forget", "UPDATE ON outbox_replays", forget},
		{"adopt", "UPDATE ON outbox_mode", adopt},
		{"adopt", "UPDATE ON outbox_positions", adopt},
		{"adopt", "UPDATE ON outbox_replays", adopt},
		{"adopt", "DELETE ON outbox_deliveries", adopt},
		{"adopt a queue", "UPDATE ON outbox_mode", adopt},
		{"adopt a queue", "UPDATE ON outbox_events FOR EACH ROW WHEN (OLD.id = 11)", adopt},
		{"adopt a queue", "UPDATE ON outbox_events FOR EACH ROW WHEN (OLD.id = 12)", adopt},
		{"adopt a queue", "DELETE ON outbox_deliveries", adopt},
	} {
		t.Run(c.name+" "+c.when, func(t *testing.T) {
			t.Parallel()
			d := newStream(t, false, false)
			d.bury(1, 3, "mail", "a", "bad")
			d.exec(`INSERT INTO outbox_positions (destination, head) VALUES ('', 3), ('mail', 3) ON CONFLICT (destination, shard) DO UPDATE SET head = excluded.head`)
			d.exec(`INSERT INTO outbox_routes (destination, patterns, since, head) VALUES ('mail', '{*}', 1, 0)`)
			d.exec(`INSERT INTO outbox_replays (destination, from_id, to_id, head, number, created_by) VALUES ('mail', 1, 3, 0, 1, 'me')`)
			d.exec(`INSERT INTO outbox_events (id, event_type, payload) OVERRIDING SYSTEM VALUE VALUES (11, 'a', '1'), (12, 'a', '1')`)
			d.exec(`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 12)`)
			d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (12, 'mail', 'a', 'retry')`)
			switch c.name {
			case "adopt a queue":
				d.exec(`UPDATE outbox_mode SET mode = 'queue'`)
				d.exec(`UPDATE outbox_events SET state = 'deferred' WHERE id = 12`)
				d.exec(moved)
			case "adopt":
				d.exec(moved)
			}
			d.exec(`CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
			each := ` FOR EACH ROW`
			if strings.Contains(c.when, each) {
				each = ""
			}
			d.exec(`CREATE TRIGGER mine BEFORE ` + c.when + each + ` EXECUTE FUNCTION mine()`)
			err := c.act(d)
			if _, is := errors.AsType[*session.IgnoredError](err); !is {
				t.Errorf("the action returned: %v", err)
			}
			d.exec(`DROP FUNCTION mine CASCADE`)
			if err := c.act(d); err != nil {
				t.Errorf("without the trigger: %v", err)
			}
		})
	}
}
