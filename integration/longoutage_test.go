package integration

import (
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// envLongOutage names the environment variable with the number of events in the
// long outage.
const envLongOutage = "NOTIFYD_TEST_LONG_OUTAGE"

// longOutage is 4,000 events unless the environment says otherwise: half an hour
// at 1,000 per second, with a clock that runs 450 times as fast.
func longOutage(t *testing.T) int {
	t.Helper()
	text := os.Getenv(envLongOutage)
	if text == "" {
		return 4000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number of events", envLongOutage, text)
	}
	return n
}

// untilDestination waits until the figures of the relay's only destination meet a
// condition.
func (r *running) untilDestination(what string, ok func(d *observe.DestinationStats) bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		s := r.Stats()
		if ok(&s.Destinations[0]) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("not %s: %+v", what, s.Destinations[0])
		}
	}
}

// receipts counts the events that a receiver accepts, and further copies of them.
type receipts struct {
	t    *testing.T
	keys int64 // aggregates

	mu     sync.Mutex
	seen   map[int64]bool
	copies int
}

func newReceipts(t *testing.T, keys int64) *receipts {
	t.Helper()
	return &receipts{t: t, keys: keys, seen: make(map[int64]bool)}
}

// insert writes n events, whose aggregate is their id modulo the number of keys.
func (y *receipts) insert(e *env, n int) {
	e.exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload)
		SELECT id, 'order.placed', 'order', (id % $2)::text, to_json(id)
		FROM (SELECT nextval(pg_get_serial_sequence('outbox_events', 'id')) AS id FROM generate_series(1, $1::int)) AS n`, n, y.keys)
}

// came records an event that the receiver accepts.
func (y *receipts) came(req *http.Request) {
	id, err := strconv.ParseInt(req.Header.Get("notifyd-id"), 10, 64)
	y.mu.Lock()
	defer y.mu.Unlock()
	if err != nil || y.seen[id] {
		y.copies++ // of one whose answer was lost
		return
	}
	y.seen[id] = true
}

// TestLongOutage: half an hour without a receiver while 1,000 events per second
// are written, compressed: there are as many probes as in that time, and a
// backoff and a number of attempts that would turn every event into a dead letter
// within a moment if an attempt were counted.
func TestLongOutage(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]struct {
		serve http.HandlerFunc // nil: no server listens
		modes []outboxsql.Mode
	}{
		"connections are refused": {nil, bothModes()},
		// The relay hears the same of these as of a refused connection, which the tests of the handler prove.
		"a gateway answers 502": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, []outboxsql.Mode{outboxsql.ModeQueue}},
		"requests are reset":    {reset, []outboxsql.Mode{outboxsql.ModeStream}},
	} {
		for _, mode := range away.modes {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				if name != "connections are refused" {
					testenv.Long(t)
				}
				meetLongOutage(t, mode, max(1000, longOutage(t)), away.serve)
			})
		}
	}
}

// reset ends the connection of a request as a killed process does.
func reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_ = conn.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // it is one
	_ = conn.Close()
}

func meetLongOutage(t *testing.T, mode outboxsql.Mode, events int, away http.HandlerFunc) {
	t.Helper()
	const before, probes = 500, 300
	e := newEnvIn(t, mode)
	taken := newReceipts(t, 1000)
	var down atomic.Bool
	r := startHTTPReceiver(t, func(w http.ResponseWriter, req *http.Request) {
		if n := req.Header.Get(attemptHeader); n != "1" {
			t.Errorf("event %s came with attempt %q", req.Header.Get("notifyd-id"), n)
		}
		if down.Load() && away != nil {
			away(w, req)
			return
		}
		taken.came(req)
		w.WriteHeader(http.StatusNoContent)
	})
	h := webhookTo(t, r)
	t.Cleanup(func() { _ = h.Close() })
	relay := e.relay(handleAll(t, h, delivery.Lane{MaxAttempts: 1, LongestPause: 20 * time.Millisecond, Concurrency: 16, Backoff: delivery.Backoff{Initial: time.Millisecond, Max: time.Millisecond, Multiplier: 1}}), notifyd.Config{})
	taken.insert(e, before)
	r.await(before / 2)
	down.Store(true)
	if away == nil {
		r.stop()
	}
	const batch = 1000
	for range events / batch {
		taken.insert(e, batch)
	}
	released := relay.Stats().Destinations[0].Released
	relay.untilDestination("probed", func(d *observe.DestinationStats) bool { return d.Released >= released+probes && d.Down })
	relay.checkUncounted(e)
	if n := e.untouched("order.placed", "all"); n < events*9/10 {
		t.Errorf("%d of %d events wait as if they had never been tried", n, events)
	}
	begin := time.Now()
	_, tried := r.events()
	down.Store(false)
	if away == nil {
		r.start()
	}
	for n := batch; n <= events; n += batch { // patience for each of them, for a busy machine
		r.await(tried + n)
	}
	e.untilDone()
	t.Logf("%d events, delivered within %v after %d probes", events+before, time.Since(begin).Round(time.Millisecond), relay.Stats().Destinations[0].Released)
	relay.checkUncounted(e)
	if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
		t.Errorf("%d deliveries left", n)
	}
	taken.checkComplete(before + events/batch*batch)
	relay.untilDestination("well", func(d *observe.DestinationStats) bool { return d.State == observe.BreakerClosed })
}

// checkComplete requires that n events have come, and no more copies than were under way.
func (y *receipts) checkComplete(want int) {
	y.t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	if len(y.seen) != want || y.copies > 16 {
		y.t.Errorf("%d of %d events came, and %d copies", len(y.seen), want, y.copies)
	}
}

// checkUncounted requires that no attempt is counted, in the figures and in the tables.
func (r *running) checkUncounted(e *env) {
	r.t.Helper()
	d := r.Stats().Destinations[0]
	if d.Failed != 0 || d.Dead != 0 || d.Classes[delivery.ClassEvent] != 0 {
		r.t.Errorf("an attempt was counted: %d failed, %d dead, %d by fault of the event", d.Failed, d.Dead, d.Classes[delivery.ClassEvent])
	}
	if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries WHERE attempts > 0 OR state = 'dead'`); n != 0 {
		r.t.Errorf("%d deliveries with an attempt, or dead:\n%s", n, e.dump())
	}
}

// TestQuota: a receiver with a quota gets its backlog at its pace. It refuses
// little, nothing fails, and the relay does not report it as down.
func TestQuota(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, header := range map[string]string{"with Retry-After": "1", "without": ""} {
		for _, mode := range bothModes() {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				const events, perSecond, burst = 600, 60, 20 // a pace that even a busy machine exceeds
				e := newEnvIn(t, mode)
				taken := newReceipts(t, 100)
				quota := rate.NewLimiter(perSecond, burst)
				r := startHTTPReceiver(t, func(w http.ResponseWriter, req *http.Request) {
					if quota.Allow() {
						taken.came(req)
						w.WriteHeader(http.StatusNoContent)
						return
					}
					if header != "" {
						w.Header().Set("Retry-After", header)
					}
					w.WriteHeader(http.StatusTooManyRequests)
				})
				h := webhookTo(t, r)
				t.Cleanup(func() { _ = h.Close() })
				seen := make(incidents, 1000)
				taken.insert(e, events)
				relay := e.relay(handleAll(t, h, delivery.Lane{MaxAttempts: 1}), notifyd.Config{Observer: seen})
				e.untilDone()
				d := relay.Stats().Destinations[0]
				came, requests := r.events()
				refused := requests - events
				t.Logf("%d events in %d requests, %d of them refused", came, requests, refused)
				if d.Dead != 0 || d.Classes[delivery.ClassEvent] != 0 || scan[int](e, `SELECT count(*) FROM outbox_deliveries`) != 0 {
					t.Errorf("an attempt was counted: %+v\n%s", d, e.dump())
				}
				if came != events || d.Delivered != events || d.Throttled == 0 || int(d.Throttled) != refused {
					t.Errorf("%d events came, %d requests were refused: %d delivered, %d throttled", came, refused, d.Delivered, d.Throttled)
				}
				if 3*refused > requests {
					t.Errorf("%d of %d requests were refused", refused, requests)
				}
				for range len(seen) {
					if i := <-seen; i.Kind == delivery.IncidentDown {
						t.Errorf("the receiver was reported as down: %v", i.Err)
					}
				}
			})
		}
	}
}
