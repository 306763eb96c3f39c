package admin_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/outbox"
	"github.com/notifyd/notifyd/outbox/outboxtest"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestLibraryPage requires each block of Go of docs/library.md to be part of the example or of the tests below.
func TestLibraryPage(t *testing.T) {
	t.Parallel()
	page := testenv.ReadFile(t, "../../docs/library.md")
	code := testenv.ReadFile(t, "example_test.go") + strings.ReplaceAll(testenv.ReadFile(t, "library_test.go"), "\tt.Parallel()\n", "")
	blocks := strings.Split(page, "```go\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(code, block) {
			t.Errorf("no example contains:\n%s", block)
		}
	}
	if len(blocks) != 7 {
		t.Errorf("%d blocks of Go", len(blocks))
	}
}

// testPool returns a pool on a database of the test, without tables.
func testPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return testdb.Pool(t, testenv.Database(t))
}

func TestShopDelivers(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	pool := testPool(t) // on an empty database of the test
	if err := migrate(ctx, pool); err != nil {
		t.Fatal(err)
	}
	relay, err := newShop(pool, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Write(ctx, tx, outbox.Event{Type: "order.placed", AggregateType: "order", AggregateID: "1042", Payload: 12.5})
	})
	if err != nil {
		t.Fatal(err)
	}
	outboxtest.Delivered(t, outboxtest.Pgx(pool), 30*time.Second) // fails at once if it becomes a dead letter

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestTenants: the relays of the page deliver what their schemas have.
func TestTenants(t *testing.T) {
	t.Parallel()
	pool := testPool(t)
	for _, schema := range []string{"north", "south"} {
		err := pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
			if _, err := c.Exec(t.Context(), "CREATE SCHEMA "+schema); err != nil {
				return err
			}
			_, err := outboxsql.Migrate(t.Context(), c.Conn(), schema, outboxsql.MigrateOptions{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	relays, err := newTenants(pool, "north", "south")
	if err != nil {
		t.Fatal(err)
	}
	for i, schema := range []string{"north", "south"} {
		begin(t, relays[i])
		testdb.Exec(t, pool, `INSERT INTO `+schema+`.outbox_events (event_type, payload) VALUES ('order.placed', '1')`)
		outboxtest.Delivered(t, outboxtest.Pgx(pool).In(schema), patience)
	}
}

// TestPager: the observer of the page pages for what needs a person, and for nothing else.
func TestPager(t *testing.T) {
	t.Parallel()
	pages := make(chan string, 2)
	pool := testPool(t)
	if err := migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	relay, err := notifyd.New(pool, notifyd.Config{Observer: pager{func(text string) { pages <- text }}})
	if err != nil {
		t.Fatal(err)
	}
	broken := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return delivery.Permanent(errors.New("no such shelf")) })
	if err := relay.Handle("*", notifyd.Destination{Name: "stock", Handler: broken}); err != nil {
		t.Fatal(err)
	}
	begin(t, relay)
	testdb.Exec(t, pool, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '1')`)
	if text := testenv.Receive(t, patience, "no page", pages); !strings.Contains(text, "stock: ") || !strings.Contains(text, "no such shelf") {
		t.Errorf("%q", text)
	}
}
