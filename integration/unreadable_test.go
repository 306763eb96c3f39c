package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/ops"
)

// TestUnreadableEvents: an event that PostgreSQL cannot read becomes a dead letter that says so, and the
// others are delivered. A replay of it is another dead letter, and holds up no stored delivery.
func TestUnreadableEvents(t *testing.T) {
	t.Parallel()
	const events, bad = 60, `id % 20 = 0`
	// What a fault of a disk leaves: values that have lost their TOAST chunks.
	const random, lose = `(SELECT to_json(string_agg(md5(random()::text || g), '')) FROM generate_series(1, 1000) AS g)`, `
		SET allow_system_table_mods = on;
		UPDATE pg_class SET relkind = 'r' WHERE oid = (SELECT reltoastrelid FROM pg_class WHERE oid = to_regclass('outbox_events'));
		DO $$ BEGIN EXECUTE format('DELETE FROM %s', (SELECT reltoastrelid::regclass FROM pg_class WHERE oid = to_regclass('outbox_events'))); END $$;
		UPDATE pg_class SET relkind = 't' WHERE oid = (SELECT reltoastrelid FROM pg_class WHERE oid = to_regclass('outbox_events'))`
	for name, damage := range map[string]struct {
		encoding, payload, headers string
		after                      string // what damages the rows
		code                       string
	}{
		"toast":   {"UTF8", random, `NULL::jsonb`, lose, "XX001"},
		"headers": {"UTF8", `'1'::json`, `jsonb_build_object('k', ` + random + `)`, lose, "XX001"},
		// A byte that has no character in UTF-8.
		"bytes":       {"WIN1252", `('"' || chr(129) || '"')::json`, `NULL::jsonb`, ``, "22P05"},
		"bytes of id": {"WIN1252", `'1'::json`, `NULL::jsonb`, `UPDATE outbox_events SET aggregate_type = chr(129) WHERE ` + bad, "22P05"},
	} {
		for _, mode := range bothModes() {
			t.Run(name+" "+string(mode), func(t *testing.T) {
				t.Parallel()
				if name != "toast" {
					testenv.Long(t)
				}
				e := newEnv(t)
				if damage.encoding != "UTF8" {
					e = envAt(t, e.another(damage.encoding))
				}
				e.become(mode)
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, headers)
					SELECT 'a', 'order', i % 7, CASE WHEN i % 20 = 0 THEN `+damage.payload+` ELSE '1'::json END, CASE WHEN i % 20 = 0 THEN `+damage.headers+` END
					FROM generate_series(1, $1) AS i`, events)
				e.exec(damage.after)
				e.exec(`VACUUM outbox_events`) // chunks that are deleted are read all the same
				h := newRecorder(t)
				h.answer = func(_ context.Context, ev *delivery.Event) error {
					if h.times(ev.ID) == 1 && ev.ID%3 == 0 {
						return errors.New("not yet")
					}
					return nil
				}
				relay := e.relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), notifyd.Config{})
				const settled = `SELECT count(*) = $1 AND bool_and(state = 'dead') FROM outbox_deliveries`
				wait := func() {
					e.untilAll("the others are delivered", "all", `NOT e.`+bad)
					e.until("the bad ones are dead letters", settled, events/20)
				}
				wait()
				if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE error_class = 'event' AND last_error LIKE '%event cannot be read%' || $1 || '%'`, damage.code); n != events/20 {
					t.Errorf("%d dead letters say that the event cannot be read: %s", n, e.dump())
				}
				s, err := ops.New(e.pool, ops.Config{})
				if err != nil {
					t.Fatal(err)
				}
				c, err := s.Case(t.Context(), 20)
				isNameEscaped := c.Event.AggregateType == `\201`
				if err != nil || len(c.Deliveries) != 1 || isNameEscaped != (name == "bytes of id") || len(c.Event.Unreadable) == 1 == isNameEscaped {
					t.Errorf("the event is shown as %+v, %v", c, err)
				}
				if page, err := s.Events(t.Context(), ops.EventFilter{}, events); err != nil || len(page.Events) != events {
					t.Errorf("%d events are listed, %v", len(page.Events), err)
				}
				if r, err := s.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil || r.Done != events/20 {
					t.Fatalf("%+v, %v", r, err)
				}
				e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT 'a', 'order', i % 7, '1' FROM generate_series(1, 7) AS i`)
				wait()
				e.until("all are replayed", `SELECT bool_and(replays = 1) FROM outbox_deliveries`)
				if name == "toast" || name == "bytes" {
					if err := s.EditEvent(t.Context(), 20, []byte(`2`), ops.Action{}); err != nil {
						t.Error(err)
					}
					if n, err := s.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Events: []int64{20}}, ops.BulkAction{}); err != nil || n.Done != 1 {
						t.Errorf("%+v, %v", n, err)
					}
					e.until("the new payload is delivered", `SELECT count(*) = $1 FROM outbox_deliveries`, events/20-1)
				}
				if n := relay.count("database refuses a statement"); n > 0 {
					t.Errorf("the log says %d times that database refuses a statement", n)
				}
			})
		}
	}
}

// another creates a database with an encoding on the server of e, and returns its URL.
func (e *env) another(encoding string) string {
	e.t.Helper()
	name := e.pool.Config().ConnConfig.Database + "_other"
	quoted := pgx.Identifier{name}.Sanitize()
	e.exec(`CREATE DATABASE ` + quoted + ` ENCODING '` + encoding + `' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	e.exec(`ALTER DATABASE ` + quoted + ` SET client_encoding = 'UTF8'`)
	return strings.Replace(e.url, e.pool.Config().ConnConfig.Database, name, 1)
}
