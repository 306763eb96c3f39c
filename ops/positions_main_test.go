package ops_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const positionSchema = `Odd "shop"`

// positionsDB is a database with a stream in a schema that is not the default one.
type positionsDB struct {
	testing.TB
	pool    *pgxpool.Pool
	store   *ops.Client
	expires time.Duration // for the relays that are started from now on; 0 for never
}

func newPositions(tb testing.TB, mode outboxsql.Mode, partitioned bool) *positionsDB {
	tb.Helper()
	// The names of the store's own statements lead to the schema by themselves.
	pool := testdb.Pool(tb, testdb.URL(tb, testdb.Tables{Schema: positionSchema, Mode: mode, Partitioned: partitioned}))
	s, err := ops.New(pool, ops.Config{Schema: positionSchema})
	if err != nil {
		tb.Fatal(err)
	}
	return &positionsDB{TB: tb, pool: pool, store: s}
}

// bothTables runs f with a plain and with a partitioned stream.
func bothPositionTables(t *testing.T, f func(t *testing.T, d *positionsDB)) {
	t.Helper()
	testdb.Partitions(t, func(tb testing.TB, partitioned bool) *positionsDB {
		tb.Helper()
		return newPositions(tb, outboxsql.ModeStream, partitioned)
	}, f)
}

// in runs f in a transaction whose names lead to the schema.
func (d *positionsDB) in(f func(tx pgx.Tx) error) {
	d.Helper()
	err := pgx.BeginFunc(d.Context(), d.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(d.Context(), `SELECT set_config('search_path', $1, true)`, pgx.Identifier{positionSchema}.Sanitize()); err != nil {
			return err
		}
		return f(tx)
	})
	if err != nil {
		d.Fatal(err)
	}
}

// insert writes n events of a type, one aggregate for each three, and returns their ids.
func (d *positionsDB) insert(eventType string, n int) (ids []int64) {
	d.Helper()
	d.in(func(tx pgx.Tx) error {
		rows, err := tx.Query(d.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT $1, 'a', i % 3, '1' FROM generate_series(1, $2::int) AS i RETURNING id`, eventType, n)
		if err == nil {
			ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		}
		return err
	})
	return ids
}

// value returns what a query yields.
func value[T any](d *positionsDB, sql string) (v T) {
	d.Helper()
	d.in(func(tx pgx.Tx) error { return tx.QueryRow(d.Context(), sql).Scan(&v) })
	return v
}

// until waits for a query to be true.
func (d *positionsDB) until(sql string) {
	d.Helper()
	for deadline := time.Now().Add(patience); !value[bool](d, sql); {
		if time.Now().After(deadline) {
			d.Fatalf("never true: %s", sql)
		}
	}
}

// exec runs a statement.
func (d *positionsDB) exec(sql string) {
	d.Helper()
	d.in(func(tx pgx.Tx) error {
		_, err := tx.Exec(d.Context(), sql)
		return err
	})
}

// ring has relays look for deliveries that are due.
func ring(tx pgx.Tx) error {
	_, err := tx.Exec(context.Background(), `SELECT pg_notify($1, 'deliveries')`, pgschema.Channel(positionSchema))
	return err
}

// connect returns a connection of its own.
func (d *positionsDB) connect() *pgx.Conn {
	d.Helper()
	conn, err := pgx.ConnectConfig(d.Context(), d.pool.Config().ConnConfig)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = conn.Close(context.WithoutCancel(d.Context())) })
	return conn
}

// sink records what the destinations of relays receive, and what they answer.
type sink struct {
	mu      sync.Mutex
	got     map[string][]int64
	answers func(destination string, e *delivery.Event) error
}

func (s *sink) handler(destination string) delivery.Handler {
	return delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.answers != nil {
			if err := s.answers(destination, e); err != nil {
				return err
			}
		}
		if s.got == nil {
			s.got = make(map[string][]int64)
		}
		s.got[destination] = append(s.got[destination], e.ID)
		return nil
	})
}

func (s *sink) of(destination string) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int64{}, s.got[destination]...)
}

// await waits until the destination has received that many.
func (s *sink) await(t *testing.T, destination string, n int) []int64 {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		if got := s.of(destination); len(got) >= n {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has received %v, want %d", destination, s.of(destination), n)
		}
	}
}

// route is a destination of a relay, and the pattern of its events.
type route struct{ destination, pattern string }

// relay starts a relay, until stop or the end of the test.
func (d *positionsDB) relay(t *testing.T, s *sink, routes ...route) (stop func()) {
	t.Helper()
	relay, err := notifyd.New(d.pool, notifyd.Config{Schema: positionSchema})
	if err != nil {
		t.Fatal(err)
	}
	byPattern, known := make(map[string][]string), make(map[string]bool)
	for _, r := range routes {
		byPattern[r.pattern] = append(byPattern[r.pattern], r.destination)
		if known[r.destination] {
			continue
		}
		known[r.destination] = true
		var lane delivery.Lane
		if r.destination == "total" {
			lane.Order = delivery.OrderTotal
		}
		lane.ExpiresAfter = d.expires
		if err := relay.Add(notifyd.Destination{Name: r.destination, Handler: s.handler(r.destination), Lane: lane}); err != nil {
			t.Fatal(err)
		}
	}
	for pattern, destinations := range byPattern {
		if err := relay.Route(pattern, destinations...); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-relay.Ready():
	case <-time.After(patience):
		t.Fatal("the relay is not ready")
	}
	return stop
}

// perAggregate fails unless the ids of each of the three aggregates rise.
func perAggregate(t *testing.T, d *positionsDB, ids []int64) {
	t.Helper()
	last := make(map[string]int64)
	for _, id := range ids {
		key := value[string](d, fmt.Sprintf(`SELECT aggregate_id FROM outbox_events WHERE id = %d`, id))
		if id <= last[key] {
			t.Errorf("%d after %d: %v", id, last[key], ids)
		}
		last[key] = id
	}
}
