package ops_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/ops"
)

// TestIgnoredActions: a trigger ignores what a person asks for. The action fails, and does not claim success.
func TestIgnoredActions(t *testing.T) {
	t.Parallel()
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
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newStream(t, false, false)
			d.bury(1, 3, "mail", "a", "bad")
			d.exec(`INSERT INTO outbox_positions (destination, head) VALUES ('', 3), ('mail', 3) ON CONFLICT (destination, shard) DO UPDATE SET head = excluded.head`)
			d.exec(`CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
			each := ` FOR EACH ROW`
			if c.name == "seek" {
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
