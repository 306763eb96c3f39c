package ops_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// moved makes the outbox a copy: its home is another database.
const moved = `UPDATE outbox_mode SET home = '1/2/3/elsewhere'`

// run returns the error with which a relay of the outbox ends at its start.
func (d *positionsDB) refused() error {
	d.Helper()
	relay, err := notifyd.New(d.pool, notifyd.Config{Schema: positionSchema})
	if err == nil {
		err = relay.Handle("*", notifyd.Destination{Name: "mail", Handler: (&sink{}).handler("mail")})
	}
	if err != nil {
		d.Fatal(err)
	}
	return relay.Run(d.Context())
}

// TestAdopt: a relay does not deliver from a copy. An adopted one delivers all that waits, in a stream from its position on.
func TestAdopt(t *testing.T) {
	t.Parallel()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			d := newPositions(t, mode, false)
			s := &sink{}
			stop := d.relay(t, s, route{"mail", "*"})
			d.insert("a", 3)
			s.await(t, "mail", 3)
			if mode == outboxsql.ModeStream {
				d.until(atHead + `'mail'`)
			}
			stop()
			waits := d.insert("a", 2)
			here := value[string](d, `SELECT home FROM outbox_mode`)
			d.exec(moved)
			if err := d.refused(); !errors.Is(err, notifyd.ErrCopy) || !strings.Contains(err.Error(), "database elsewhere (oid 2, table 3) of server 1") || !strings.Contains(err.Error(), "`notifyd adopt`") {
				t.Fatalf("a relay on a copy: %v", err)
			}
			plan, err := d.store.Adopt(t.Context(), false, ops.Action{DryRun: true})
			if err != nil || !plan.Copy() || plan.Mode != mode || plan.Events != 2 || plan.Deliveries != 0 || string(plan.To) != here {
				t.Errorf("plan %+v, %v", plan, err)
			}
			if err := d.refused(); !errors.Is(err, notifyd.ErrCopy) {
				t.Fatalf("after a dry run: %v", err)
			}
			done, err := d.store.Adopt(t.Context(), false, ops.Action{Actor: "ann", Reason: "upgrade"})
			if err != nil || done != plan {
				t.Errorf("%+v, %v", done, err)
			}
			d.relay(t, s, route{"mail", "*"})
			got := s.await(t, "mail", 5)
			if slices.Sort(got[3:]); !slices.Equal(got[3:], waits) {
				t.Errorf("received %v", got)
			}
			if got := value[string](d, `SELECT concat_ws(' ', action, actor, details->>'reason', details->>'from') FROM outbox_audit`); got != "adopt ann upgrade 1/2/3/elsewhere" {
				t.Errorf("audit %q", got)
			}
			if done, err = d.store.Adopt(t.Context(), false, ops.Action{}); err != nil || done.Copy() {
				t.Errorf("at home: %+v, %v", done, err)
			}
			if _, err := d.store.Adopt(t.Context(), true, ops.Action{}); !errors.Is(err, ops.ErrHome) {
				t.Errorf("discard at home: %v", err)
			}
		})
	}
}

// TestAdoptDiscards: nothing of what was written before is delivered, and all that is written later. Dead letters stay.
func TestAdoptDiscards(t *testing.T) {
	t.Parallel()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			d := newPositions(t, mode, false)
			s := &sink{}
			stop := d.relay(t, s, route{"mail", "*"})
			d.insert("a", 3)
			s.await(t, "mail", 3)
			if mode == outboxsql.ModeStream {
				d.until(atHead + `'mail'`)
			}
			stop()
			d.insert("a", 2500)
			d.exec(`WITH e AS (SELECT id, row_number() OVER (ORDER BY id DESC) AS n FROM outbox_events ORDER BY id DESC LIMIT 1200),
				w AS (INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key, dead_letters)
					SELECT id, 'mail', 'a', CASE n WHEN 1 THEN 'dead' WHEN 2 THEN 'parked' WHEN 3 THEN 'unrouted' ELSE 'retry' END, 'a/' || id, CASE n WHEN 4 THEN '[null, {}, {}]'::jsonb END FROM e)
				UPDATE outbox_events SET state = 'deferred' WHERE id IN (SELECT id FROM e) AND EXISTS (SELECT FROM outbox_mode WHERE mode = 'queue')`)
			d.exec(moved)
			done, err := d.store.Adopt(t.Context(), true, ops.Action{})
			wants := int64(1300)
			if mode == outboxsql.ModeStream {
				wants = 2500
			}
			if err != nil || !done.Discarded || done.Events != wants || done.Deliveries != 1199 || done.DeadLetters != 1 {
				t.Fatalf("%+v, %v", done, err)
			}
			d.relay(t, s, route{"mail", "*"}, route{"audit", "*"})
			next := d.insert("a", 1)
			if got := s.await(t, "mail", 4); len(got) != 4 || got[3] != next[0] {
				t.Errorf("received %v", got[3:])
			}
			if got := s.await(t, "audit", 1); len(got) != 1 || got[0] != next[0] {
				t.Errorf("a new destination has received %v", got)
			}
			if got := value[string](d, `SELECT string_agg(state, ',') FROM outbox_deliveries`); got != "dead" {
				t.Errorf("stored deliveries: %q", got)
			}
			d.until(`SELECT mode = 'stream' OR NOT EXISTS (SELECT FROM outbox_events WHERE state = 'fresh') FROM outbox_mode`)
			if n := value[int](d, `SELECT count(*) FROM outbox_events WHERE state = 'deferred' AND id NOT IN (SELECT event_id FROM outbox_deliveries)`); n != 0 {
				t.Errorf("%d events wait for nothing", n)
			}
		})
	}
}

// TestRunningRelayFindsCopy: a relay whose sessions lead to a copy when they are opened anew ends.
func TestRunningRelayFindsCopy(t *testing.T) {
	t.Parallel()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			d := newPositions(t, mode, false)
			relay, err := notifyd.New(d.pool, notifyd.Config{Schema: positionSchema})
			if err == nil {
				err = relay.Handle("*", notifyd.Destination{Name: "mail", Handler: (&sink{}).handler("mail")})
			}
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- relay.Run(t.Context()) }()
			<-relay.Ready()
			conn := d.connect()
			testdb.Exec(t, conn, "SET search_path = "+pgx.Identifier{positionSchema}.Sanitize())
			testdb.Exec(t, conn, moved)
			testdb.Exec(t, conn, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%'`)
			if err := <-ended; !errors.Is(err, notifyd.ErrCopy) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}
