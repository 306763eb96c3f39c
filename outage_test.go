package notifyd

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// passes waits until some of the audit's time is over, and returns whether anything hung in it.
func (p *patient) passes(long time.Duration) (hung bool) {
	p.Helper()
	end := p.audit.now() + long
	p.waitsUntil("time passes", func(h *observe.Health) bool {
		hung = hung || len(h.Hangs) > 0
		return p.audit.now() >= end
	})
	return hung
}

// TestOutageIsNoHang: while the database is down, a relay is not ready and lives. It is ready again soon after the
// database is back.
func TestOutageIsNoHang(t *testing.T) {
	t.Parallel()
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, nil)
			cfg, err := pgxpool.ParseConfig(server.URL("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			// A server that dies may let a connection wait, for up to five real seconds: those would be
			// minutes of the audit.
			cfg.ConnConfig.ConnectTimeout = 500 * time.Millisecond
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			migrate(t, pool, mode)
			delivered := make(chan struct{}, 100)
			p := newPatient(t, pool, short, delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
				delivered <- struct{}{}
				return nil
			}))
			p.start()
			execute(t, pool, insertThree)
			<-delivered
			if err := server.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.waitsUntil("the database is down", func(h *observe.Health) bool { return h.DatabaseDown })
			if p.passes(4 * time.Minute) {
				t.Errorf("an outage is a hang: %+v", p.Health())
			}
			if h := p.Health(); h.Ready() == nil || h.Live() != nil {
				t.Errorf("during the outage: %+v", h)
			}
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.waitsUntil("the database is back", func(h *observe.Health) bool { return h.Ready() == nil })
			if p.passes(3 * time.Minute) {
				t.Errorf("after the outage: %+v", p.Health())
			}
		})
	}
}

// TestRefusalIsNoHang: a relay that stands still because the database refuses to record what it delivers does not
// hang: a restart would not help, and the refusal has a report of its own.
func TestRefusalIsNoHang(t *testing.T) {
	t.Parallel()
	for mode, table := range map[outboxsql.Mode]string{outboxsql.ModeQueue: "outbox_events", outboxsql.ModeStream: "outbox_positions"} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			pool, err := pgxpool.New(t.Context(), testenv.Database(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			migrate(t, pool, mode)
			p := newPatient(t, pool, short, delivery.HandlerFunc(works))
			p.start()
			execute(t, pool, insertThree)
			p.waitsUntil("it works", func(h *observe.Health) bool { return h.Ready() == nil && p.Stats().Destinations[0].Delivered == 3 })
			execute(t, pool, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
			execute(t, pool, `CREATE TRIGGER no BEFORE UPDATE ON `+table+` FOR EACH ROW EXECUTE FUNCTION no()`)
			execute(t, pool, insertThree)
			p.waitsUntil("the database refuses", func(*observe.Health) bool { return len(p.Stats().Refusals) > 0 })
			if p.passes(4 * time.Minute) {
				t.Errorf("a refusal is a hang: %+v", p.Health())
			}
		})
	}
}
