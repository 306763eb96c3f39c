package notifyd

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// drowsy is a relay that rests after a moment without work.
type drowsy struct {
	*patient

	called chan struct{}
	ended  chan error
	stop   context.CancelFunc
}

// newDrowsy starts a relay that rests for up to long, which may be shorter than a configuration may ask for.
func newDrowsy(t *testing.T, pool *pgxpool.Pool, long time.Duration, answer func(context.Context) error, options ...HandleOption) *drowsy {
	t.Helper()
	h, called := errands(answer)
	d := &drowsy{patient: newPatient(t, shortPool(t, pool), time.Second, h, options...), called: called, ended: make(chan error, 1)}
	d.pool = pool
	d.rest.longest, d.rest.quiet, d.settings.quiet = long, 50*time.Millisecond, 50*time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	d.stop = stop
	go func() { d.ended <- d.Relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-d.ended; err != nil {
			t.Error(err)
		}
	})
	return d
}

// shortPool returns a pool like that of the daemon, to the same database, whose connections end when they are idle.
func shortPool(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	cfg.MaxConnIdleTime, cfg.HealthCheckPeriod = time.Second, time.Second
	cfg.ConnConfig.RuntimeParams["application_name"] = "notifyd/pool"
	short, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(short.Close)
	return short
}

func fine(context.Context) error { return nil }

// until waits for something that nothing announces.
func (d *drowsy) until(what string, is func() bool) {
	d.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case err := <-d.ended:
			d.ended <- nil
			d.Fatalf("the relay has ended before %s: %v", what, err)
		case <-d.Context().Done():
			d.Fatalf("it never came true: %s", what)
		}
	}
}

// rests waits until the relay rests, and the server has seen the end of all its sessions.
func (d *drowsy) rests() {
	d.Helper()
	d.until("it rests", func() bool { return !d.Stats().RestsUntil.IsZero() })
	d.until("it has no session", func() bool { return len(d.sessions()) == 0 })
}

// sessions returns the sessions of the database but those of the test, which have no name.
func (d *drowsy) sessions() []string {
	d.Helper()
	rows, err := d.pool.Query(d.Context(), `SELECT application_name FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> ''`)
	if err != nil {
		d.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.Fatal(err)
	}
	return all
}

// delivered waits for three calls of the handler.
func (d *drowsy) delivered() {
	d.Helper()
	for range 3 {
		select {
		case <-d.called:
		case <-d.Context().Done():
			d.Fatal("the event was never delivered")
		}
	}
}

// opened counts the connections that the relay has opened.
func (d *drowsy) opened() (n uint64) {
	for _, c := range d.Stats().Connections {
		if c.Role != "pool" { // that of the test
			n += c.Opened
		}
	}
	return n
}

// TestRest: a relay that rests has no session, asks for nothing, whoever asks it, and delivers what was written meanwhile
// when it is told to.
func TestRest(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		d := newDrowsy(t, pool, time.Hour, fine)
		execute(t, pool, insertThree)
		d.delivered()
		d.rests()

		execute(t, pool, insertThree)
		before := d.opened()
		if b, err := d.Waiting(t.Context()); err != nil || b.Oldest != nil {
			t.Errorf("waiting: %+v, %v", b, err)
		}
		if _, err := d.Backlog(t.Context()); err != nil {
			t.Error(err)
		}
		if age, err := d.OldestWaiting(t.Context()); err != nil || age != 0 {
			t.Errorf("the oldest waits for %v, %v", age, err)
		}
		h, s := d.Health(), d.Stats()
		if err := errors.Join(h.Ready(), h.Live()); err != nil || s.RestsUntil.IsZero() || s.Mode == "" {
			t.Errorf("%v, %+v", err, s)
		}
		if n := d.opened(); n != before || len(d.called) > 0 {
			t.Errorf("%d connections and %d calls while it rested", n-before, len(d.called))
		}
		d.areKnown(1, 0)

		d.Wake()
		d.delivered()
		d.rests()
		if s := d.Stats(); s.Mode == observe.ModeQueue && s.Claimed != 6 || s.Destinations[0].Delivered != 6 {
			t.Errorf("%d claimed, %d delivered", s.Claimed, s.Destinations[0].Delivered)
		}
		d.stop()
		if err := <-d.ended; err != nil {
			t.Error(err)
		}
		d.ended <- nil
	})
}

// relays returns the relays that people find in the tables: those that rest, and those that do not.
func (d *drowsy) relays() (resting, awake int) {
	d.Helper()
	conn, err := d.pool.Acquire(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	defer conn.Release()
	state, err := outboxsql.ReadState(d.Context(), conn.Conn(), "public")
	if err != nil {
		d.Fatal(err)
	}
	all, err := store.ReadLive(d.Context(), conn.Conn(), "public", state.Mode)
	if err != nil {
		d.Fatal(err)
	}
	for _, r := range all {
		switch {
		case r.Program == nil: // it has just come
		case r.Program.RestsUntil == nil && r.PID != 0:
			awake++
		case r.Program.RestsUntil != nil && r.PID == 0 && r.Owner == d.owner:
			resting++
		default:
			d.Errorf("a relay that is neither awake nor at rest: %+v, %+v", r, r.Program)
		}
	}
	return resting, awake
}

// areKnown checks which relays people find.
func (d *drowsy) areKnown(resting, awake int) {
	d.Helper()
	if r, a := d.relays(); r != resting || a != awake {
		d.Errorf("%d relays rest and %d are awake, want %d and %d", r, a, resting, awake)
	}
}

// TestRestEnds: nobody has to wake a relay.
func TestRestEnds(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		d := newDrowsy(t, pool, 300*time.Millisecond, fine)
		for range 3 {
			d.until("it rests", func() bool { return !d.Stats().RestsUntil.IsZero() })
			execute(t, pool, insertThree)
			d.delivered()
		}
	})
}

// TestRestUntilDue: what is stored for later than now ends a rest.
func TestRestUntilDue(t *testing.T) {
	t.Parallel()
	const delayed = `INSERT INTO outbox_events (event_type, payload, available_at) SELECT 'x', '{}', now() + interval '2 s' FROM generate_series(1, 3)`
	for name, insert := range map[string]string{"failed": insertThree, "delayed": delayed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
				t.Helper()
				var calls atomic.Int64
				d := newDrowsy(t, pool, time.Hour, func(context.Context) error {
					if calls.Add(1) <= 3 && name == "failed" {
						return errors.New("not yet")
					}
					return nil
				}, WithBackoff(delivery.Backoff{Initial: 4 * time.Second, Max: 4 * time.Second, Multiplier: 1}))
				execute(t, pool, insert)
				d.delivered()
				failed := uint64(0)
				if name == "failed" { // delayed events may be claimed only after the first rest
					d.delivered()
					failed = 3
				}
				if s := d.Stats(); s.Destinations[0].Failed != failed {
					t.Errorf("%d failed", s.Destinations[0].Failed)
				}
			})
		})
	}
}

// TestWakeIsNotLost: whenever a hint comes, the event before it is delivered, and not an hour later.
func TestWakeIsNotLost(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		d := newDrowsy(t, pool, time.Hour, fine)
		for i := range 25 {
			if i%5 == 0 {
				d.rests()
			} else { // somewhere on the way to a rest
				timer := time.NewTimer(rand.N(150 * time.Millisecond))
				<-timer.C
			}
			execute(t, pool, insertThree)
			d.Wake()
			d.delivered()
		}
	})
}

// TestRestLeavesUnits: another relay delivers while the first one rests, at once, and the first one goes on when the
// other has gone.
func TestRestLeavesUnits(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		d := newDrowsy(t, pool, time.Hour, fine)
		d.rests()
		h, called := errands(fine)
		other := newPatient(t, pool, time.Second, h)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- other.Relay.Run(ctx) }()
		<-other.Ready()
		execute(t, pool, insertThree)
		for range 3 {
			<-called
		}
		d.areKnown(1, 1)
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		d.until("the other one has gone", func() bool { resting, awake := d.relays(); return resting == 1 && awake == 0 })
		execute(t, pool, insertThree)
		d.rest.longest = 0 // for good
		d.Wake()
		d.delivered()
		d.areKnown(0, 1)
	})
}

// TestRestKeepsPauses: what waits for a person keeps no database awake, and the end of the pause ends the rest.
func TestRestKeepsPauses(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		d := newDrowsy(t, pool, time.Hour, fine)
		<-d.Ready()
		if err := d.Pause(t.Context(), "mail", "a test", ""); err != nil {
			t.Fatal(err)
		}
		execute(t, pool, insertThree)
		d.Wake()
		d.rests()
		if age, err := d.OldestWaiting(t.Context()); err != nil || age <= 0 || len(d.called) > 0 {
			t.Errorf("the oldest waits for %v, %v; %d calls", age, err, len(d.called))
		}
		if err := d.Resume(t.Context(), "mail"); err != nil {
			t.Fatal(err)
		}
		d.delivered()
	})
}

// TestRestAcrossModes: the table may become a stream while the relay rests.
func TestRestAcrossModes(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeQueue)
	d := newDrowsy(t, pool, time.Hour, fine)
	execute(t, pool, insertThree)
	d.delivered()
	d.rests()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := outboxsql.SetMode(t.Context(), conn.Conn(), "public", outboxsql.ModeStream, outboxsql.ModeOptions{}); err != nil {
		t.Fatal(err)
	}
	execute(t, pool, insertThree)
	d.Wake()
	d.delivered()
	if mode := d.Stats().Mode; mode != observe.ModeStream {
		t.Errorf("mode %q", mode)
	}
}

// TestDuties: what keeps a relay awake, and what does not.
func TestDuties(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeQueue)
	p := newPatient(t, pool, time.Second, HandlerFunc(works))
	other, at := p.owner+1, time.Now()
	due := at.Add(time.Minute)
	one := observe.Count{N: 1}
	paused := observe.DestinationBacklog{Name: "mail", Pause: &observe.Pause{By: "a test"}, NextDue: &due, Running: one}
	unit := func(owner *int64, lag int64, replay *observe.Replay) []observe.Position {
		return []observe.Position{{Destination: "mail", Owner: owner, Session: &observe.UnitSession{PID: 1}, Lag: lag, Replay: replay}}
	}
	for name, c := range map[string]struct {
		backlog Backlog
		now     bool
		next    *time.Time
	}{
		"nothing":         {},
		"an event":        {backlog: Backlog{Types: []observe.TypeBacklog{{EventType: "x", Count: one}}}, now: true},
		"a paused event":  {backlog: Backlog{Types: []observe.TypeBacklog{{EventType: "x", Count: one}}, Destinations: []observe.DestinationBacklog{paused}}},
		"a lease":         {backlog: Backlog{Destinations: []observe.DestinationBacklog{{Name: "mail", Running: one}}}, now: true},
		"a retry":         {backlog: Backlog{Destinations: []observe.DestinationBacklog{{Name: "mail", NextDue: &due}}}, next: &due},
		"a strange retry": {backlog: Backlog{Destinations: []observe.DestinationBacklog{{Name: "fax", NextDue: &due, Running: one}}}},
		"a delayed event": {backlog: Backlog{NextDelayed: &due}, next: &due},
		"a dead letter":   {backlog: Backlog{Destinations: []observe.DestinationBacklog{{Name: "mail", Dead: one, Parked: one}}}},
		"no route":        {backlog: Backlog{Unrouted: []observe.TypeBacklog{{EventType: "y", Count: one}}}},
		"no owner":        {backlog: Backlog{Positions: []observe.Position{{Destination: "mail"}}}, now: true},
		"no router":       {backlog: Backlog{Positions: []observe.Position{{}}}, now: true},
		"a strange unit":  {backlog: Backlog{Positions: []observe.Position{{Destination: "fax"}}}},
		"another's unit":  {backlog: Backlog{Positions: unit(&other, 5, nil)}},
		"its own unit":    {backlog: Backlog{Positions: unit(&p.owner, 0, nil)}},
		"its own lag":     {backlog: Backlog{Positions: unit(&p.owner, 5, nil)}, now: true},
		"its own replay":  {backlog: Backlog{Positions: unit(&p.owner, 0, &observe.Replay{})}, now: true},
		"a paused unit":   {backlog: Backlog{Positions: unit(&p.owner, 5, nil), Destinations: []observe.DestinationBacklog{paused}}},
	} {
		d := duties{relay: p.Relay, backlog: &c.backlog}
		if now, next := d.now(), d.next(); now != c.now || next != c.next {
			t.Errorf("%s: something to do: %v, next due: %v", name, now, next)
		}
	}
}

// TestRestBounds: what may be asked for.
func TestRestBounds(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeQueue)
	for long, ok := range map[time.Duration]bool{0: true, engine.MinRest: true, engine.MaxRest: true, engine.MinRest - 1: false, engine.MaxRest + 1: false, -1: false} {
		if _, err := New(pool, WithRest(long)); (err == nil) != ok {
			t.Errorf("a rest of %v: %v", long, err)
		}
	}
}

// TestStuckCallKeepsAwake: a rest would wait for a call that does not return, and end the relay.
func TestStuckCallKeepsAwake(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeQueue)
	var calls atomic.Int64
	hang := make(chan struct{})
	h, called := errands(func(context.Context) error {
		if calls.Add(1) == 1 {
			<-hang
		}
		return nil
	})
	p := newPatient(t, pool, time.Second, h, WithTimeout(10*time.Millisecond), WithBackoff(delivery.Backoff{Initial: time.Millisecond, Max: time.Millisecond, Multiplier: 1}))
	z := newRest(&settings{rest: time.Hour, quiet: time.Millisecond}) // not the relay's own: the test looks in its place
	p.start()
	execute(t, pool, `INSERT INTO outbox_events (event_type, payload) VALUES ('x', '{}')`)
	<-called
	<-called
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	look := func() (idle, may bool) {
		b, err := p.Backlog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := duties{relay: p.Relay, backlog: &b}
		_, _, may = z.look(t.Context(), p.Relay)
		return !d.now() && d.next() == nil, may
	}
	for {
		idle, may := look()
		if may {
			t.Fatal("it may rest in spite of a call that does not return")
		}
		if idle {
			break
		}
		<-tick.C
	}
	if n := p.Stats().Destinations[0].Stuck; n != 1 {
		t.Errorf("%d calls are stuck", n)
	}
	close(hang)
	for {
		if _, may := look(); may {
			break
		}
		<-tick.C
	}
}

// TestRestUnderALimit: the session that takes from rate limits ends with the others, and comes back with them.
func TestRestUnderALimit(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		d := newDrowsy(t, pool, time.Hour, fine, WithRateLimit(delivery.Rate{Events: 1000, Per: time.Second, Burst: 3}))
		execute(t, pool, insertThree)
		d.delivered()
		d.rests()
		execute(t, pool, insertThree)
		d.Wake()
		d.delivered()
		d.rests()
	})
}
