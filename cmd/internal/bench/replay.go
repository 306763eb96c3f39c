package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	past   *sightings
	start  time.Time
	live   side
}

const (
	// sqlPast inserts events that no destination has still to deliver.
	sqlPast = `INSERT INTO $table (event_type, aggregate_type, aggregate_id, payload, state, processed_at)
	SELECT 'letter', $aggregate, '` + freeAggregate + `' || i % $keys, $payload::json, 'done', now() FROM generate_series(1, $events::bigint) AS i`
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
	b.past = b.backlog().sightings()
	b.start = time.Now()
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
	faults := b.past.faults()
	if b.mode == outboxsql.ModeQueue {
		faults.OutOfOrder = 0 // a queue promises no order
	}
	r.Count(faults)
	return nil
}

// backlog describes the past events.
func (b *replay) backlog() load { return load{events: b.n, keys: replayKeys, payload: payloadBytes} }

// bury creates the past events. In a stream they are behind the positions.
func (b *replay) bury(ctx context.Context) error {
	statement := sqlDeadLetters
	if b.want.History > 0 {
		statement = sqlPast
	}
	_, err := b.Pool.Exec(ctx, b.backlog().fill(b.schema, statement))
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
	other := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		b.live.handled(e.ID, time.Since(b.start))
		return nil
	})
	past := noting(delivery.HandlerFunc(doNothing), b.past)
	letters := delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		if b.want.History > 0 && e.Replay == 0 {
			return other(ctx, e)
		}
		return past.Deliver(ctx, e)
	})
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
	return b.past.wait(ctx, nil)
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

// compared are the times of live events without the work and during it, and the duration of the work.
type compared struct {
	alone, busy times
	took        time.Duration
}

// around measures live events before work, during it, and after it: other load on the machine may have changed meanwhile.
func (b *replay) around(ctx context.Context, relay *notifyd.Relay, work func(context.Context) error) (c compared, err error) {
	stop, err := StartRelay(ctx, relay)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	quietly := func(ctx context.Context) error { return pause(ctx, time.Duration(b.want.Seconds)*time.Second) }

	var written [3]times
	for i, phase := range []func(context.Context) error{quietly, work, quietly} {
		began := time.Now()
		written[i], err = b.write(ctx, phase)
		if err != nil {
			return c, err
		}
		if i == 1 {
			c.took = time.Since(began)
		}
	}
	c.busy = written[1]
	for kind := range b.kinds {
		c.alone = append(c.alone, slices.Concat(written[0][kind], written[2][kind]))
		slices.Sort(c.alone[kind])
	}
	return c, nil
}

// write writes live events until work has ended, and returns the sorted times, by the kind of the event.
func (b *replay) write(ctx context.Context, work func(context.Context) error) (times, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Close(ctx, conn)

	over := make(chan struct{})
	var marks []*mark
	err = Together(ctx, func(ctx context.Context) error {
		defer close(over)
		return work(ctx)
	}, func(ctx context.Context) error {
		begin := time.Now()
		at := steadily(liveRate)
		data := payload(payloadBytes)
		insert := `INSERT INTO ` + table(b.schema) + ` (event_type, payload) VALUES ($1, $2) RETURNING id`
		for i := 0; ; i++ {
			select {
			case <-over:
				return nil
			default:
			}
			if err := pause(ctx, time.Until(begin.Add(at(i)))); err != nil {
				return err
			}
			marks = append(marks, &mark{})
			err := b.live.write(ctx, conn, b.start, marks[i], insert, b.kinds[i%len(b.kinds)], data)
			if err != nil {
				return err
			}
		}
	})
	if err == nil {
		err = b.drained(ctx, b.schema, b.mode)
	}
	if err != nil {
		return nil, err
	}

	took := make(times, len(b.kinds))
	for i, m := range marks {
		if m.arrival() == 0 {
			return nil, errors.New("a live event is lost")
		}
		kind := i % len(b.kinds)
		took[kind] = append(took[kind], m.arrival()-m.committed)
	}
	for _, sorted := range took {
		slices.Sort(sorted)
	}
	return took, nil
}
