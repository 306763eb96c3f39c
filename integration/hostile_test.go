package integration

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// envRows names the environment variable with the number of rows that the tests
// of large tables write, instead of a few.
const envRows = "NOTIFYD_TEST_ROWS"

func rowsOr(t *testing.T, few int) int {
	t.Helper()
	text := os.Getenv(envRows)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDueRowsOfAnother: the retries of one destination, however many, cost the
// others nothing, neither at the start nor while its rows are due.
func TestDueRowsOfAnother(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			n := rowsOr(t, 20_000)
			e := newEnv(t)
			e.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, state) SELECT 'down', 'order', i % 1000, '{}', 'deferred' FROM generate_series(1, $1) AS i`, n)
			e.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts) SELECT id, 'down', 'down', 'retry', 1 FROM outbox_events`)
			e.become(mode)
			good := make(chan int64, 100)
			begin := time.Now()
			r := e.relay(func(r *notifyd.Relay) {
				if err := r.Handle("down", notifyd.Destination{Name: "down", Handler: delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
					return delivery.Unavailable(errors.New("away"))
				})}); err != nil {
					t.Error(err)
				}
				if err := r.Handle("good", notifyd.Destination{Name: "good", Handler: delivery.HandlerFunc(func(_ context.Context, ev *delivery.Event) error {
					good <- ev.ID
					return nil
				})}); err != nil {
					t.Error(err)
				}
			}, notifyd.Config{})
			t.Logf("ready after %v with %d due rows", time.Since(begin), n)
			longest := time.Duration(0)
			for range 40 {
				begin = time.Now()
				id := e.insert("good", "{}")
				select {
				case got := <-good:
					if got != id {
						t.Fatalf("event %d was delivered, want %d", got, id)
					}
				case <-time.After(patience):
					t.Fatalf("event %d was not delivered", id)
				}
				longest = max(longest, time.Since(begin))
			}
			t.Logf("40 events of the other destination, each delivered within %v", longest)
			if err := r.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFarOffID: an explicit id far above all others delays no event.
func TestFarOffID(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	got := make(chan int64, 100)
	r := e.relay(func(r *notifyd.Relay) {
		if err := r.Handle("*", notifyd.Destination{Name: "all", Handler: delivery.HandlerFunc(func(_ context.Context, ev *delivery.Event) error {
			got <- ev.ID
			return nil
		})}); err != nil {
			t.Error(err)
		}
	}, notifyd.Config{})
	const far = int64(9e18)
	e.exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload) VALUES ($1, 'a', 'order', '1', '{}')`, far)
	want := []int64{far}
	for range 20 {
		want = append(want, scan[int64](e, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', 'order', '1', '{}') RETURNING id`))
	}
	seen := make(map[int64]bool)
	for range want {
		select {
		case id := <-got:
			seen[id] = true
		case <-time.After(patience):
			t.Fatalf("%d of %d events were delivered", len(seen), len(want))
		}
	}
	for _, id := range want {
		if !seen[id] {
			t.Errorf("event %d was not delivered", id)
		}
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// TestIDsBeginAgain: a relay of a queue has read ids above the next ones. It logs that once, and searches for events
// anew. A stream stops: see ErrIDs.
func TestIDsBeginAgain(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]string{
		"truncate":   `TRUNCATE outbox_events RESTART IDENTITY`,
		"setval":     `TRUNCATE outbox_events; SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 10)`,
		"far-off id": `INSERT INTO outbox_events (id, event_type, payload) VALUES (9000000000000000000, 'a', '1')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, h := newEnv(t), newRecorder(t)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: 50 * time.Millisecond})
			e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 1000)`)
			e.untilDone()
			for statement := range strings.SplitSeq(again, "; ") {
				e.exec(statement)
			}
			const message = "event ids begin again"
			testenv.Await(t, "the report", func() bool {
				e.insert("a", "1")
				return r.count(message) > 0
			})
			for range 2 {
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 1000)`)
				e.untilDone()
			}
			if n := strings.Count(r.log.text(), "level=WARN msg=\""+message); n != 1 {
				t.Errorf("reported %d times", n)
			}
		})
	}
}
