package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// sieve is a relay with two destinations for the same events: one with a filter and one without.
type sieve struct {
	t      *testing.T
	pool   *pgxpool.Pool
	stream bool
	n      map[int64]int // the number in each event

	mu     sync.Mutex
	got    map[string][]int64 // by destination, in the order of delivery
	failed map[int64]bool     // deliveries that were refused once
	dead   map[int64]string
	asked  map[int64]bool
	moved  chan struct{} // capacity 1
}

// newSieve writes events of ten aggregates. The payload of each is a number.
func newSieve(t *testing.T, stream bool, events int) *sieve {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &sieve{t: t, pool: pool, stream: stream, n: make(map[int64]int)}
	s.forget()
	err = pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
		_, err := outboxsql.Migrate(t.Context(), c.Conn(), outboxsql.DefaultSchema, outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto})
		if err == nil && stream {
			err = outboxsql.SetMode(t.Context(), c.Conn(), outboxsql.DefaultSchema, outboxsql.ModeStream, outboxsql.ModeOptions{})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		n := rand.IntN(1000)
		var delay any
		if i%17 == 0 {
			delay = "1 ms"
		}
		var id int64
		err := pool.QueryRow(t.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, available_at)
			VALUES ('order.placed', 'order', $1, $2, now() + $3::interval) RETURNING id`, fmt.Sprint(i%10), fmt.Sprint(n), delay).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		s.n[id] = n
	}
	return s
}

func (s *sieve) forget() {
	s.got, s.failed, s.dead, s.asked = make(map[string][]int64), make(map[int64]bool), make(map[int64]string), make(map[int64]bool)
	s.moved = make(chan struct{}, 1)
}

// Observe implements delivery.Observer.
func (s *sieve) Observe(i delivery.Incident) {
	if i.Kind == delivery.IncidentDead {
		s.note(func() { s.dead[i.EventID] = i.Err.Error() })
	}
}

func (s *sieve) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// errNumber is the error of a filter.
var errNumber = errors.New("a number that cannot be decided")

// run runs a relay with a filter until enough is true.
func (s *sieve) run(filter func(n int) (bool, error), enough func() bool) observe.Stats {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	defer stop()
	relay, err := notifyd.New(s.pool, notifyd.Config{Observer: s, PollInterval: 20 * time.Millisecond})
	if err != nil {
		s.t.Fatal(err)
	}
	handler := func(name string) delivery.Handler {
		return delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			again := false
			s.note(func() {
				if again = s.n[e.ID]%11 == 0 && name == "picky" && !s.failed[e.ID]; again {
					s.failed[e.ID] = true
				} else {
					s.got[name] = append(s.got[name], e.ID)
				}
			})
			if again {
				return delivery.RetryAfter(time.Millisecond, errors.New("not the first time"))
			}
			return nil
		})
	}
	picky := func(e *delivery.Candidate) (bool, error) {
		var n int
		if err := json.Unmarshal(e.Payload, &n); err != nil {
			return false, err
		}
		s.note(func() { s.asked[e.ID] = true })
		return filter(n)
	}
	if err := errors.Join(
		relay.Add(notifyd.Destination{Name: "picky", Handler: handler("picky"), Filter: picky}), relay.Add(notifyd.Destination{Name: "all", Handler: handler("all")}),
		relay.Route("order.*", "picky", "all"),
	); err != nil {
		s.t.Fatal(err)
	}
	done := runRelay(ctx, s.t, relay)
	for s.wait(enough) {
		<-s.moved
	}
	stop()
	<-done
	return relay.Stats() // the last filter result is counted a moment later
}

func (s *sieve) wait(enough func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !enough()
}

// rest describes the events that the tables still hold, in words.
func (s *sieve) rest() (rest []string) {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `SELECT state || ' ' || destination || ' ' || attempts || ' ' || coalesce(error_class, '') || ' ' || count(*) FROM outbox_deliveries
		GROUP BY destination, state, attempts, error_class`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			s.t.Fatal(err)
		}
		rest = append(rest, line)
	}
	fresh := `SELECT count(*) FROM outbox_events WHERE state = 'fresh'`
	if s.stream {
		fresh = `SELECT count(*) FROM outbox_positions WHERE destination <> '' AND (open <> '{}' OR head < (SELECT max(id) FROM outbox_events))`
	}
	var n int
	if err := s.pool.QueryRow(s.t.Context(), fresh).Scan(&n); err != nil || n > 0 {
		rest = append(rest, fmt.Sprint(n, " not settled ", err))
	}
	return rest
}

// chosen returns the ids whose number f accepts, in order.
func (s *sieve) chosen(f func(n int) bool) (ids []int64) {
	for _, id := range slices.Sorted(maps.Keys(s.n)) {
		if f(s.n[id]) {
			ids = append(ids, id)
		}
	}
	return ids
}

// received checks what a destination got: exactly the ids, each once, and in a stream the events that were not delayed
// in the order of their aggregate.
func (s *sieve) received(name string, want []int64) {
	s.t.Helper()
	got := slices.Sorted(slices.Values(s.got[name]))
	if !slices.Equal(got, want) {
		s.t.Errorf("%s got %d events, want %d:\n%d\n%d", name, len(got), len(want), got, want)
	}
	if !s.stream {
		return
	}
	first := slices.Min(slices.Collect(maps.Keys(s.n)))
	last := make(map[int64]int64)
	for _, id := range s.got[name] {
		if (id-first)%17 == 0 { // delayed
			continue
		}
		aggregate := (id - first) % 10
		if id < last[aggregate] {
			s.t.Errorf("%s got %d behind %d", name, id, last[aggregate])
		}
		last[aggregate] = id
	}
}

// TestFilter: in both modes a destination gets exactly the matching events, in order, with retries and delays. Events
// that do not match leave nothing behind. An event whose filter fails is a dead letter, once, and its replay evaluates
// the filter again.
func TestFilter(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const events = 400
			s := newSieve(t, mode == "stream", events)
			all := s.chosen(func(int) bool { return true })
			match := s.chosen(func(n int) bool { return n%7 != 0 && n%3 == 0 })
			bad := s.chosen(func(n int) bool { return n%7 == 0 })
			stats := s.run(func(n int) (bool, error) {
				if n%7 == 0 {
					return true, errNumber
				}
				return n%3 == 0, nil
			}, func() bool {
				return len(s.got["all"]) == events && len(s.got["picky"]) == len(match) && len(s.dead) == len(bad) && len(s.asked) == events
			})
			s.received("all", all)
			s.received("picky", match)
			if got := slices.Sorted(maps.Keys(s.dead)); !slices.Equal(got, bad) {
				t.Errorf("dead are %d, want %d", got, bad)
			}
			if got, want := s.rest(), fmt.Sprintf("[dead picky 1 event %d]", len(bad)); fmt.Sprint(got) != want {
				t.Errorf("left are %q, want %s", got, want)
			}
			if text := s.dead[bad[0]]; !strings.Contains(text, errNumber.Error()) {
				t.Errorf("the reason is %q", text)
			}
			if d := stats.Destinations[0]; d.Name != "picky" || d.Filtered != uint64(events-len(match)-len(bad)) || d.Dead != uint64(len(bad)) {
				t.Errorf("the figures are %+v", d)
			}

			s.replay(bad)
			s.forget()
			cured := s.chosen(func(n int) bool { return n%7 == 0 && n%2 == 0 })
			s.run(func(n int) (bool, error) { return n%2 == 0, nil }, func() bool { return len(s.got["picky"]) == len(cured) && len(s.asked) == len(bad) })
			s.received("picky", cured)
			if rest := s.rest(); rest != nil || len(s.got["all"])+len(s.dead) > 0 {
				t.Errorf("left are %q; the other destination got %d, dead are %v", rest, s.got["all"], s.dead)
			}
		})
	}
}

func (s *sieve) replay(ids []int64) {
	s.t.Helper()
	store, err := ops.New(s.pool, ops.Config{})
	if err != nil {
		s.t.Fatal(err)
	}
	if r, err := store.ReplayDeadLetters(s.t.Context(), ops.DeadLetterFilter{Destination: "picky"}, ops.BulkAction{}); err != nil || r.Done != int64(len(ids)) {
		s.t.Fatalf("%+v, %v", r, err)
	}
}

// TestRouteWhen: routes of one pattern have separate filters, which share the decoded event. The destination's filter
// runs before them.
func TestRouteWhen(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.URL(t, testdb.Tables{}))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 10)
	to := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		got <- e.Destination
		return nil
	})
	yes := func(c *delivery.Candidate) (bool, error) {
		c.Memo = "read"
		return true, nil
	}
	shared := func(c *delivery.Candidate) (bool, error) { return c.Memo == "read", nil }
	no := func(*delivery.Candidate) (bool, error) { return false, nil }
	if err := errors.Join(
		relay.Add(notifyd.Destination{Name: "a", Handler: to}), relay.Add(notifyd.Destination{Name: "b", Handler: to}), relay.Add(notifyd.Destination{Name: "c", Handler: to, Filter: no}), relay.Add(notifyd.Destination{Name: "d", Handler: to}),
		relay.RouteWhen("order.*", yes, "a", "c"), relay.RouteWhen("order.*", shared, "b"), relay.Route("order.*", "d"),
	); err != nil {
		t.Fatal(err)
	}
	if err := relay.RouteWhen("order.*", yes, "b"); !errors.Is(err, delivery.ErrPattern) {
		t.Errorf("the same destination twice: %v", err)
	}
	if err := relay.Route("order.*", "e"); err == nil {
		t.Error("a destination that is not there")
	}
	writeOne(t, pool, "order.placed")
	done := runRelay(ctx, t, relay)
	all := []string{<-got, <-got, <-got}
	slices.Sort(all)
	stop()
	<-done
	if !slices.Equal(all, []string{"a", "b", "d"}) || len(got) > 0 {
		t.Errorf("%q got it, and %d more", all, len(got))
	}
}
