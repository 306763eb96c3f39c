package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Replay replays many dead letters of few aggregates at once, or a delivered range of a stream. It measures the times of
// live events meanwhile: from the return of COMMIT to the call of the handler.
type Replay struct {
	// Letters is the number of dead letters to replay. History is the number of delivered events of a stream to replay, in
	// place of dead letters, or 0. Half of the live events are then for the destination of the replay.
	Letters, History int
	// Seconds is how long live events are measured before the replay, and again after it.
	Seconds int
	Mode    Mode
}

const (
	// replayKeys is the number of aggregates of the replayed events.
	replayKeys = 20
	// liveRate is the number of live events per second.
	liveRate = 200
)

// Define implements [Experiment].
func (x *Replay) Define(cmd *cobra.Command) {
	cmd.Use = "replay"
	cmd.Short = "Many dead letters replayed at once, next to another destination"
	cmd.Long = fmt.Sprintf(`replay makes dead letters of %d aggregates for one destination, and replays all of
them at once. It measures the time until the last one is delivered, and the time from a
commit to the call of the handler of %d events/s for another destination: before,
during and after the replay. The exit code is 1 if a letter was lost, or, in a stream,
came after a later one of its aggregate.

With --history it replays as many events that a stream has delivered, as "notifyd replay"
does, and measures live events of the same destination, too.`, replayKeys, liveRate)
	cmd.Example = "  bench replay --mode both\n  bench replay --history 1000000\n  bench replay --letters 100000 --json"

	flags := cmd.Flags()
	flags.IntVar(&x.History, "history", 0, "`number` of delivered events to replay, in place of dead letters")
	flags.IntVar(&x.Letters, "letters", 1_000_000, "`number` of dead letters")
	flags.IntVar(&x.Seconds, "seconds", 20, "`seconds` to measure live events for before the replay, and again after it")
	addMode(flags, &x.Mode)
}

// Check implements [Experiment].
func (x *Replay) Check() error {
	return errors.Join(atLeast(0, option{"history", x.History}), atLeast(1, option{"letters", x.Letters}, option{"seconds", x.Seconds}))
}

// Run implements [Experiment].
func (x *Replay) Run(ctx context.Context, e *Env) (*Result, error) {
	r := &Result{}
	what := "dead letters"
	n := x.Letters
	modes := x.Mode.tables()
	if x.History > 0 {
		what = "delivered events"
		n = x.History
		modes = []outboxsql.Mode{outboxsql.ModeStream}
	}
	r.Say("%s %s of %d aggregates are replayed at once, beside %d live events/s", number(float64(n)), what, replayKeys, liveRate)
	for _, mode := range modes {
		one := &replay{Env: e, want: x, mode: mode, n: n}
		if err := one.measure(ctx, r); err != nil {
			return nil, fmt.Errorf("%s: %w", mode, err)
		}
	}
	return r, nil
}

// replay replays the past events of one table while live events are written.
type replay struct {
	*Env
	want   *Replay
	mode   outboxsql.Mode
	n      int      // events to replay
	kinds  []string // types of the live events, in turns
	schema string
	seen   *sightings   // events of the past
	last   []int64      // by aggregate: the last event; one worker has an aggregate at a time
	wrong  atomic.Int64 // past events delivered after a later one, in a stream

	mu      sync.Mutex
	entered map[int64]time.Time // live events
}

const (
	// sqlPast inserts events that no destination has still to deliver.
	sqlPast = `INSERT INTO $table (event_type, aggregate_type, aggregate_id, payload, state, processed_at)
	SELECT 'letter', $aggregate, 'key-' || i % $keys, $payload::json, 'done', now() FROM generate_series(1, $events::bigint) AS i`
	// sqlDeadLetters inserts such events and their dead letters.
	sqlDeadLetters = `WITH event AS (` + sqlPast + ` RETURNING id, event_type, aggregate_type, aggregate_id)
	INSERT INTO $deliveries (event_id, destination, event_type, state, attempts, ordering_key, error_class, last_error)
	SELECT id, 'letters', event_type, 'dead', 10, aggregate_type || '/' || aggregate_id, 'event', 'refused by the bench' FROM event`
)

func (b *replay) measure(ctx context.Context, r *Result) (err error) {
	b.schema, err = b.migrate(ctx, "replay_"+string(b.mode), outboxsql.NotifyAuto, outboxsql.ModeQueue)
	if err != nil {
		return err
	}
	if err := b.bury(ctx); err != nil {
		return fmt.Errorf("write the past events: %w", err)
	}
	b.seen = newSightings(b.n)
	b.last = make([]int64, replayKeys)
	b.entered = make(map[int64]time.Time)
	b.kinds = []string{eventType}
	names := []string{"another destination"}
	replayAll := b.replayLetters
	if b.want.History > 0 {
		b.kinds = append(b.kinds, "letter")
		names = append(names, "the same destination")
		replayAll = b.replayHistory
	}
	relay, err := b.relay()
	if err != nil {
		return err
	}
	found, err := b.around(ctx, relay, replayAll)
	if err != nil {
		return err
	}

	c := r.Column(string(b.mode))
	c.Set("seconds until all were delivered", found.took.Seconds(), 2)
	for i, name := range names {
		alone := Percentile(found.alone[i], 0.99)
		busy := Percentile(found.busy[i], 0.99)
		c.percentiles(name+", alone", found.alone[i], 0.5, 0.99)
		c.percentiles(name+", beside the replay", found.busy[i], 0.5, 0.99)
		c.Set(name+", p99 beside / alone", Ratio(milliseconds(busy), milliseconds(alone)), 3)
	}
	faults := b.seen.faults()
	faults.OutOfOrder = b.wrong.Load()
	r.Count(faults)
	return nil
}

// bury creates the past events. In a stream they are behind the positions.
func (b *replay) bury(ctx context.Context) error {
	statement := sqlDeadLetters
	if b.want.History > 0 {
		statement = sqlPast
	}
	_, err := b.Pool.Exec(ctx, load{events: b.n, keys: replayKeys, payload: payloadBytes}.fill(b.schema, statement))
	if err == nil && b.mode == outboxsql.ModeStream {
		err = b.makeStream(ctx, b.schema, b.n)
	}
	return err
}

// relay returns a relay with the destination of the replay, and another one whose events are all live.
func (b *replay) relay() (*notifyd.Relay, error) {
	relay, err := notifyd.New(b.Pool, notifyd.Config{Schema: b.schema, Logger: b.Log})
	if err != nil {
		return nil, err
	}
	letters := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		if b.want.History > 0 && e.Replay == 0 {
			return b.live(e)
		}
		return b.past(e)
	})
	other := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error { return b.live(e) })
	return relay, errors.Join(relay.Handle("letter", notifyd.Destination{Name: "letters", Handler: letters}),
		relay.Handle(eventType, notifyd.Destination{Name: "other", Handler: other}))
}

// replayLetters replays all dead letters, and waits until they are delivered.
func (b *replay) replayLetters(ctx context.Context) error {
	letters, err := ops.New(b.Pool, ops.Config{Schema: b.schema})
	if err != nil {
		return err
	}
	did, err := letters.ReplayDeadLetters(ctx, ops.DeadLetterFilter{Destination: "letters"}, ops.BulkAction{Actor: "bench"})
	if err != nil {
		return err
	}
	if did.Done != int64(b.n) {
		return fmt.Errorf("%d letters were replayed, not %d", did.Done, b.n)
	}
	return b.seen.wait(ctx, nil)
}

// replayHistory replays the history, and waits until all of it is delivered.
func (b *replay) replayHistory(ctx context.Context) error {
	s, err := ops.New(b.Pool, ops.Config{Schema: b.schema})
	if err != nil {
		return err
	}
	r, err := s.StartReplay(ctx, ops.ReplayRange{Destination: "letters", To: fmt.Sprint(b.n)}, ops.Action{Actor: "bench"})
	if err != nil {
		return err
	}
	r, _, err = s.AwaitReplay(ctx, r.ID, nil)
	if err == nil && r.State != observe.ReplayDone {
		err = fmt.Errorf("the replay is %s", r.State)
	}
	return err
}

// times are the sorted times, by the kind of the event.
type times [][]time.Duration

// live records the first arrival of a live event.
func (b *replay) live(e *delivery.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entered[e.ID].IsZero() {
		b.entered[e.ID] = time.Now()
	}
	return nil
}

// past records the delivery of a past event.
func (b *replay) past(e *delivery.Event) error {
	var key int
	if _, err := fmt.Sscanf(e.AggregateID, "key-%d", &key); err != nil {
		return err
	}
	if b.mode == outboxsql.ModeStream {
		if e.ID < b.last[key] {
			b.wrong.Add(1)
		}
		b.last[key] = e.ID
	}
	b.seen.note(e.ID)
	return nil
}

// compared are the times of live events without the work and during it, and the duration of the work.
type compared struct {
	alone, busy times
	took        time.Duration
}

// around measures live events before work, during it, and after it.
func (b *replay) around(ctx context.Context, relay *notifyd.Relay, work func(context.Context) error) (c compared, err error) {
	run, err := startRelay(ctx, relay)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, run.stop()) }()
	quietly := func(ctx context.Context) error { return pause(ctx, time.Duration(b.want.Seconds)*time.Second) }
	c.alone, err = b.write(ctx, quietly)
	if err != nil {
		return c, err
	}

	began := time.Now()
	c.busy, err = b.write(ctx, work)
	c.took = time.Since(began)
	if err != nil {
		return c, err
	}

	// Measure once more without work: other load on the machine may have changed meanwhile.
	again, err := b.write(ctx, quietly)
	if err != nil {
		return c, err
	}
	for i := range c.alone {
		c.alone[i] = append(c.alone[i], again[i]...)
		slices.Sort(c.alone[i])
	}
	return c, nil
}

// write writes live events until work has ended, and returns the time of each.
func (b *replay) write(ctx context.Context, work func(context.Context) error) (times, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Close(ctx, conn)
	committed := make([]map[int64]time.Time, len(b.kinds))
	for i := range committed {
		committed[i] = make(map[int64]time.Time)
	}

	over := make(chan struct{})
	err = Together(ctx, func(ctx context.Context) error {
		defer close(over)
		return work(ctx)
	}, func(ctx context.Context) error {
		begin := time.Now()
		at := steadily(liveRate)
		data := payload(payloadBytes)
		for i := 0; ; i++ {
			select {
			case <-over:
				return nil
			default:
			}
			if err := pause(ctx, time.Until(begin.Add(at(i)))); err != nil {
				return err
			}
			kind := i % len(b.kinds)
			var id int64
			err := conn.QueryRow(ctx, `INSERT INTO `+table(b.schema)+` (event_type, payload) VALUES ($1, $2) RETURNING id`, b.kinds[kind], data).Scan(&id)
			if err != nil {
				return err
			}
			committed[kind][id] = time.Now()
		}
	})
	if err != nil {
		return nil, err
	}
	return b.arrivals(ctx, committed)
}

// arrivals waits for the live events, and returns the time of each.
func (b *replay) arrivals(ctx context.Context, committed []map[int64]time.Time) (times, error) {
	if err := b.drained(ctx, b.schema, b.mode); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	took := make(times, len(committed))
	for i := range committed {
		for id, at := range committed[i] {
			entered, ok := b.entered[id]
			if !ok {
				return nil, fmt.Errorf("live event %d is lost", id)
			}
			took[i] = append(took[i], entered.Sub(at))
		}
		slices.Sort(took[i])
	}
	return took, nil
}
