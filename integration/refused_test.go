package integration

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// asRelay returns the same database for a relay, as a role that has no more privileges than migrate
// prints for it.
func (e *env) asRelay() (relay *env, role string) {
	e.t.Helper()
	db := e.pool.Config().ConnConfig.Database
	name := "relay_" + db[len(db)-10:]
	role = pgx.Identifier{name}.Sanitize()
	e.exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'x'`)
	e.t.Cleanup(func() {
		if _, err := e.pool.Exec(context.WithoutCancel(e.ctx), `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			e.t.Errorf("drop the role of the test: %v", err)
		}
	})
	script, err := outboxsql.Grants(outboxsql.DefaultSchema, outboxsql.Roles{Relay: name})
	if err != nil {
		e.t.Fatal(err)
	}
	e.exec(script)
	u, err := url.Parse(e.url)
	if err != nil {
		e.t.Fatal(err)
	}
	u.User = url.UserPassword(name, "x")
	pool := testdb.Pool(e.t, u.String())
	return &env{t: e.t, ctx: e.ctx, url: u.String(), pool: pool, mode: e.mode}, role
}

// refusal is a way in which a database refuses to record the results of deliveries.
type refusal struct {
	fails        bool // an attempt has failed; else the event was delivered
	refuse, cure string
	code         string
}

// waysToRefuse returns some: %s is the relay's role. Triggers are on the table in which a mode records
// deliveries, and no other.
func waysToRefuse(mode outboxsql.Mode) map[string]refusal {
	on := "outbox_events FOR EACH ROW"
	if mode == outboxsql.ModeStream {
		on = "outbox_positions FOR EACH ROW WHEN (OLD.head <> NEW.head)"
	}
	raise := func(kind, when string) string {
		return `CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not in this table''; END';
			CREATE ` + kind + ` raise ` + when + ` UPDATE ON ` + strings.Replace(on, "FOR EACH", map[bool]string{true: "DEFERRABLE INITIALLY DEFERRED FOR EACH", false: "FOR EACH"}[when == "AFTER"], 1) +
			` EXECUTE FUNCTION raise()`
	}
	drop := `DROP FUNCTION raise CASCADE`
	full := `CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''could not extend file: No space left on device'' USING ERRCODE = ''disk_full''; END';
		CREATE TRIGGER raise BEFORE INSERT ON outbox_deliveries FOR EACH ROW EXECUTE FUNCTION raise()`
	return map[string]refusal{
		// What a full disk does while there is still room in the pages that the tables have.
		"there is no space for new rows":  {fails: true, refuse: full, cure: drop, code: "53100"},
		"a trigger raises":                {refuse: raise("TRIGGER", "BEFORE"), cure: drop, code: "P0001"},
		"a trigger raises at the commit":  {refuse: raise("CONSTRAINT TRIGGER", "AFTER"), cure: drop, code: "P0001"},
		"a privilege is missing":          {fails: true, refuse: `REVOKE INSERT ON outbox_deliveries FROM %s`, cure: `GRANT INSERT ON outbox_deliveries TO %s`, code: "42501"},
		"a constraint refuses its errors": {fails: true, refuse: `ALTER TABLE outbox_deliveries ADD CONSTRAINT mine CHECK (last_error IS NULL)`, cure: `ALTER TABLE outbox_deliveries DROP CONSTRAINT mine`, code: "23514"},
	}
}

// TestRefusedAnswers: while the database refuses to record the results of deliveries, the relay does not repeat these
// deliveries, and starts no others that the refusal affects. The relay logs the reason, and continues without a restart
// when the cause is gone.
func TestRefusedAnswers(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		for name, c := range waysToRefuse(mode) {
			t.Run(fmt.Sprint(mode, " ", name), func(t *testing.T) {
				t.Parallel()
				e := newEnvIn(t, mode)
				relay, role := e.asRelay()
				run := func(statement string) { e.exec(strings.ReplaceAll(statement, "%s", role)) }
				h, seen := newRecorder(t), make(incidents, 1000)
				h.answer = func(_ context.Context, event *delivery.Event) error {
					if c.fails && event.Attempt == 1 {
						return errors.New("not yet")
					}
					return nil
				}
				r := relay.relay(handleAll(t, h, delivery.Lane{Backoff: quick()}), notifyd.Config{Observer: seen})
				run(c.refuse)
				first := e.insert("order.created", `{}`)
				h.next()
				if i := seen.until(t, delivery.IncidentRefused); i.Err == nil {
					t.Errorf("incident %+v", i)
				}
				second := e.insert("order.created", `{}`)
				// Not a wait for nothing to happen: three more attempts to record it are made.
				refused := func() (n uint64) {
					for _, one := range r.Stats().Refusals {
						if one.Code != c.code || one.Cure == "" || one.Err == nil {
							t.Errorf("refusal %+v", one)
						}
						n += one.Count
					}
					return n
				}
				testenv.Await(t, "three more refusals", func() bool { return refused() >= 4 })
				if n, m := h.times(first), h.times(second); n != 1 || m > 1 || r.Stats().DatabaseDown {
					t.Errorf("delivered %d and %d times while nothing could be recorded; %+v", n, m, r.Stats().Refusals)
				}
				if log := r.log.text(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "refuses a statement") || !strings.Contains(log, "cure=") {
					t.Errorf("the log:\n%s", log)
				}
				run(c.cure)
				seen.until(t, delivery.IncidentAccepted)
				e.untilDone()
				attempts := 1
				if c.fails {
					attempts = 3 // the one that was not recorded, and two that were
				}
				if n, m := h.times(first), h.times(second); n > attempts || m > attempts {
					t.Errorf("%d and %d attempts", n, m)
				}
			})
		}
	}
}
