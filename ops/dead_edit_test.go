package ops_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/ops"
)

func TestEdit(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 3, "mail", "a", "bad")
	d.exec(`UPDATE outbox_events SET payload = '{"old":  1.0}'`)
	edit := func(id int64, payload string) error {
		return d.store.EditEvent(t.Context(), id, json.RawMessage(payload), ops.Action{Actor: "ann", Reason: "typo"})
	}
	if err := d.store.EditEvent(t.Context(), 1, []byte("[1]"), ops.Action{DryRun: true}); err != nil {
		t.Fatal(err)
	}
	d.expect("payload after a dry run", `SELECT payload::text FROM outbox_events WHERE id = 1`, `{"old":  1.0}`)
	if err := edit(1, `{"new":  2.0}`); err != nil {
		t.Fatal(err)
	}
	if err := edit(1, "[ ]"); err != nil {
		t.Fatal(err)
	}
	d.expect("payload", `SELECT payload::text FROM outbox_events WHERE id = 1`, "[ ]")
	d.expect("audit", `SELECT concat_ws('|', action, actor, destination, details->>'reason', old_payload) FROM outbox_audit ORDER BY id`,
		`edit|ann|typo|{"old":  1.0}`, `edit|ann|typo|{"new":  2.0}`)
	c, err := d.store.Case(t.Context(), 1)
	if err != nil || len(c.Audit) != 2 || string(c.Audit[1].OldPayload) != `{"new":  2.0}` {
		t.Errorf("%+v, %v", c.Audit, err)
	}
	d.expect("deliveries", deliveries, "1/mail dead 3 r0 order/1", "2/mail dead 3 r0 order/2", "3/mail dead 3 r0 order/3")

	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (2, 'audit', 'a', 'retry')`)
	d.exec(`DELETE FROM outbox_events WHERE id = 3`)
	for _, c := range []struct {
		id      int64
		payload string
		is      error
		text    string
	}{
		{1, "{", ops.ErrInvalid, "not JSON"},
		{1, "", ops.ErrInvalid, "not JSON"},
		{1, "1 2", ops.ErrInvalid, "not JSON"},
		{2, "1", ops.ErrNotDead, `"audit" (retry)`},
		{3, "1", ops.ErrNoEvent, "gone"},
		{4, "1", ops.ErrNotDead, "no delivery of it is dead"},
	} {
		if err := edit(c.id, c.payload); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("event %d, %s: %v", c.id, c.payload, err)
		}
	}
	d.expect("payload", `SELECT payload::text FROM outbox_events WHERE id = 2`, `{"old":  1.0}`)

	// Bytes stay bytes, whatever they are.
	d.exec(`UPDATE outbox_events SET payload = NULL, payload_bytes = '\x00ff', content_type = 'avro/binary' WHERE id = 1`)
	for _, payload := range []string{"\x01", "", "{}"} {
		if err := edit(1, payload); err != nil {
			t.Error(err)
		}
	}
	d.expect("payload", `SELECT content_type || encode(payload_bytes, 'escape') FROM outbox_events WHERE id = 1 AND payload IS NULL`, "avro/binary{}")
	d.expect("audit", `SELECT encode(old_payload_bytes, 'hex') FROM outbox_audit WHERE old_payload IS NULL ORDER BY id`, "00ff", "01", "")

	// Somebody is at it.
	tx, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox_deliveries WHERE event_id = 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if err := edit(1, "2"); !errors.Is(err, ops.ErrNotDead) || !strings.Contains(err.Error(), "try again") {
		t.Errorf("while it is locked: %v", err)
	}
}
