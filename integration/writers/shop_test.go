//go:build testall

package writers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/outbox/outboxtest"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// patience bounds each wait; no test expects it to run out.
const patience = 4 * time.Minute

// trace is the span in which all programs write.
const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// sqlOrders creates the table of the business. An order without an address fails at the commit, when
// its event is written already.
const sqlOrders = `
	CREATE TABLE orders (id bigint PRIMARY KEY, email text NOT NULL, total double precision NOT NULL);
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no address: %', NEW.email; END $$;
	CREATE CONSTRAINT TRIGGER address AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.email NOT LIKE '%@%') EXECUTE FUNCTION refuse();`

// shop is a database with the tables, and a relay that runs while the programs write.
type shop struct {
	mode  outboxsql.Mode
	pool  *pgxpool.Pool // of the owner
	owner string        // the URL of the owner
	url   string        // that of the role of the programs, which may insert and no more

	mu   sync.Mutex
	came map[int64]string // the traces of the delivered events
}

// newRole creates a role for the programs. The test drops it when its databases are gone.
func newRole(t *testing.T) *url.Userinfo {
	t.Helper()
	admin := testenv.Postgres(t).URL("")
	name := "writer_" + strings.ToLower(rand.Text()[:10])
	execute := func(ctx context.Context, statement string) error {
		conn, err := pgx.Connect(ctx, admin)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, statement)
		return errors.Join(err, conn.Close(ctx))
	}
	if err := execute(t.Context(), "CREATE ROLE "+name+" LOGIN PASSWORD 'secret'"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := execute(context.WithoutCancel(t.Context()), "DROP ROLE "+name); err != nil {
			t.Error(err)
		}
	})
	return url.UserPassword(name, "secret")
}

func newShop(t *testing.T, role *url.Userinfo, mode outboxsql.Mode) *shop {
	t.Helper()
	s := &shop{mode: mode, owner: testenv.Database(t), came: make(map[int64]string)}
	u, err := url.Parse(s.owner)
	if err != nil {
		t.Fatal(err)
	}
	u.User = role
	s.url = u.String()
	if s.pool, err = pgxpool.New(t.Context(), s.owner); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	grants, err := outboxsql.Grants(outboxsql.DefaultSchema, outboxsql.Roles{Writer: role.Username()})
	if err != nil {
		t.Fatal(err)
	}
	err = s.pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
		if _, err := outboxsql.Migrate(t.Context(), c.Conn(), outboxsql.DefaultSchema, outboxsql.MigrateOptions{}); err != nil {
			return err
		}
		if err := outboxsql.SetMode(t.Context(), c.Conn(), outboxsql.DefaultSchema, mode, outboxsql.ModeOptions{}); err != nil {
			return err
		}
		_, err := c.Exec(t.Context(), grants+sqlOrders+`GRANT SELECT, INSERT ON orders TO `+role.Username())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// deliver runs a relay to the end of the test.
func (s *shop) deliver(t *testing.T) {
	t.Helper()
	relay, err := notifyd.New(s.pool, notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = relay.Handle("*", notifyd.Destination{Name: "warehouse", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.came[e.ID] = e.Headers["traceparent"]
		return nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("relay: %v", err)
		}
	})
}

// check expects the orders of the programs, in this order, and one delivered event for each, with the content of the
// page. It expects nothing of the orders that were rolled back.
func (s *shop) check(t *testing.T, programs []string) {
	t.Helper()
	src := outboxtest.Pgx(s.pool)
	outboxtest.Delivered(t, src, patience)
	events := src.Events(t)
	if len(events) != len(programs) {
		t.Fatalf("%s: %d events: %v, want one each of %q", s.mode, len(events), events, programs)
	}
	for i, name := range programs {
		headers := map[string]string{"traceparent": trace}
		if name == "readme" {
			headers = nil
		}
		number := int64(i + 1)
		// An order that commits and one that does not draw an id each.
		want := outboxtest.Event{
			ID: 2*number - 1, Type: "order.placed", AggregateType: "order", AggregateID: fmt.Sprint(number), Headers: headers,
			Payload: events[i].Payload, ContentType: delivery.ContentTypeJSON, CreatedAt: events[i].CreatedAt,
		}
		if !reflect.DeepEqual(*events[i], want) {
			t.Errorf("%s, %s: got  %+v\nwant %+v", s.mode, name, *events[i], want)
		}
		var payload, wanted any
		if err := json.Unmarshal(events[i].Payload, &payload); err != nil {
			t.Error(err)
		}
		wanted = map[string]any{"id": float64(number), "email": name + "@example.com", "total": 12.5}
		if !reflect.DeepEqual(payload, wanted) {
			t.Errorf("%s, %s: the payload is %s", s.mode, name, events[i].Payload)
		}
		s.mu.Lock()
		if got, was := s.came[want.ID]; !was || got != headers["traceparent"] {
			t.Errorf("%s, %s: delivered: %t, with the trace %q", s.mode, name, was, got)
		}
		s.mu.Unlock()
	}
	var orders, drawn int
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*), (SELECT last_value FROM outbox_events_id_seq) FROM orders`).Scan(&orders, &drawn); err != nil {
		t.Fatal(err)
	}
	if orders != len(programs) || drawn != 2*len(programs) {
		t.Errorf("%s: %d orders, and %d ids were drawn, want %d and twice as many", s.mode, orders, drawn, len(programs))
	}
}

// lose replaces each event that is written after this call by another one.
func (s *shop) lose(t *testing.T) {
	t.Helper()
	_, err := s.pool.Exec(t.Context(), `CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.event_type := 'order.lost'; RETURN NEW; END $$;
		CREATE TRIGGER lose BEFORE INSERT ON outbox_events FOR EACH ROW EXECUTE FUNCTION lose()`)
	if err != nil {
		t.Fatal(err)
	}
}
