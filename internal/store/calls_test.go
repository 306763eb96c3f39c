package store

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/session"
)

// TestCalls: a call that has begun is found again, also by another session, until it has ended. A replay counts anew. What the
// database refuses or ignores at the end of a call is written before the next one begins.
func TestCalls(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	var reported []error
	a, b := NewCalls(d.Connector, func(err error) { reported = append(reported, err) }), NewCalls(d.Connector, func(error) {})
	t.Cleanup(func() { a.Close(context.WithoutCancel(t.Context())); b.Close(context.WithoutCancel(t.Context())) })
	begins := func(c *Calls, replays, want int) {
		t.Helper()
		if calls, err := c.Begin(t.Context(), 7, "x", replays); err != nil || calls != want {
			t.Errorf("%d calls have not ended, want %d: %v", calls, want, err)
		}
	}
	set := func(c *Calls, calls int) {
		t.Helper()
		if err := c.Set(t.Context(), 7, "x", calls); err != nil {
			t.Error(err)
		}
	}
	begins(a, 0, 0)
	begins(b, 0, 1)
	set(b, 2)
	begins(a, 0, 2)
	begins(a, 1, 0)
	set(a, 0)
	set(a, 0) // the row is gone
	begins(b, 0, 0)
	if calls, err := b.Begin(t.Context(), 7, "other", 0); err != nil || calls != 0 {
		t.Errorf("another destination has %d calls: %v", calls, err)
	}

	d.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
	d.exec(`CREATE TRIGGER refuse BEFORE DELETE ON outbox_calls FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if err := a.Set(t.Context(), 7, "x", 0); err == nil || !strings.Contains(err.Error(), "record the end of a call: ") {
		t.Error(err)
	}
	if err := reported[len(reported)-1]; err == nil || IsDown(err) {
		t.Errorf("reported is %v", err)
	}
	d.exec(`CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
	_, err := a.Begin(t.Context(), 7, "x", 0)
	if _, ignored := errors.AsType[*session.IgnoredError](err); !ignored {
		t.Error(err)
	}
	d.exec(`DROP TRIGGER refuse ON outbox_calls`)
	begins(a, 0, 0)

	d.exec(`UPDATE outbox_calls SET begun_at = now() - interval '25 hours'`)
	begins(NewCalls(d.Connector, func(error) {}), 0, 0) // the row of yesterday is deleted
}
