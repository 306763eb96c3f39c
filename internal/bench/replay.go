package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/deadletter"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ReplayOptions of [Replay].
type ReplayOptions struct {
	Options
	// Letters is how many dead letters are replayed, of so many aggregates (Keys).
	Letters, Keys int
	// Rate is how many events per second another destination gets meanwhile, and Seconds
	// for how long that destination is measured before the replay, and again after it.
	Rate, Seconds int
	// Mode is what the table is. With [ModeBoth] the result is that of the queue, and has
	// that of the stream in it, which is measured after it.
	Mode Mode
}

// ReplayResult is what came of it. Times are those from the return of COMMIT to the call of
// the handler of the other destination, in milliseconds.
type ReplayResult struct {
	Letters int64 `json:"letters"`
	// Seconds is how long it took until the last letter was delivered.
	Seconds float64 `json:"seconds"`
	// The other destination, without the replay and beside it.
	AloneP50  float64 `json:"alone_p50_ms"`
	AloneP99  float64 `json:"alone_p99_ms"`
	BesideP50 float64 `json:"beside_p50_ms"`
	BesideP99 float64 `json:"beside_p99_ms"`
	P99Ratio  float64 `json:"p99_ratio"`
	Repeats   int64   `json:"repeats"`
	Lost      int64   `json:"lost"`
	// Disorder is how many letters came after a later one of their aggregate, where the table
	// is a stream.
	Disorder int64 `json:"disorder"`
	// With ModeBoth: the stream's figures.
	Stream *ReplayResult `json:"stream,omitempty"`
}

// OK reports whether all went as it should.
func (r ReplayResult) OK() bool {
	return r.Lost == 0 && r.Disorder == 0 && (r.Stream == nil || r.Stream.OK())
}

// Replay replays many dead letters of few aggregates at once, and measures how long events of
// another destination take meanwhile.
func Replay(ctx context.Context, o ReplayOptions) (ReplayResult, error) {
	if o.Letters < 1 || o.Keys < 1 || o.Rate < 1 || o.Seconds < 1 {
		return ReplayResult{}, errors.New("letters, keys, rate and seconds must be at least 1")
	}
	if err := o.Mode.check(); err != nil {
		return ReplayResult{}, err
	}
	var results []ReplayResult
	err := within(ctx, o.Options, func(ctx context.Context, e *env) error {
		for _, mode := range o.Mode.tables() {
			one, err := (&replay{env: e, want: o, mode: mode}).run(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", mode, err)
			}
			results = append(results, one)
		}
		return nil
	})
	if err != nil {
		return ReplayResult{}, err
	}
	if len(results) > 1 {
		results[0].Stream = &results[1]
	}
	return results[0], nil
}

type replay struct {
	*env
	want   ReplayOptions
	mode   outboxsql.Mode
	schema string
	seen   *sightings   // letters
	last   []int64      // by aggregate: the last letter; one worker has an aggregate at a time
	wrong  atomic.Int64 // letters that came after a later one

	mu      sync.Mutex
	entered map[int64]time.Time // the other destination's events
}

// sqlDeadLetters inserts the letters and their events: nobody has them left to do.
const sqlDeadLetters = `WITH event AS (
	INSERT INTO $table (event_type, aggregate_type, aggregate_id, payload, state, processed_at)
	SELECT 'letter', 'bench', 'key-' || i % $keys, $payload::json, $state, now()
	FROM generate_series(1, $letters::bigint) AS i RETURNING id, event_type, aggregate_type, aggregate_id)
INSERT INTO $deliveries (event_id, destination, event_type, state, attempts, ordering_key, error_class, last_error)
SELECT id, 'letters', event_type, 'dead', 10, aggregate_type || '/' || aggregate_id, 'event', 'refused by the bench' FROM event`

func (r *replay) run(ctx context.Context) (result ReplayResult, err error) {
	if r.schema, err = r.migrateTo(ctx, "replay_"+string(r.mode), outboxsql.BellAuto, outboxsql.ModeQueue); err != nil {
		return result, err
	}
	if err := r.bury(ctx); err != nil {
		return result, fmt.Errorf("make the dead letters: %w", err)
	}
	r.seen = newSightings(r.want.Letters)
	r.last, r.entered = make([]int64, r.want.Keys), make(map[int64]time.Time)
	relay, err := r.relay()
	if err != nil {
		return result, err
	}
	run := start(ctx, relay.Run)
	defer func() { err = errors.Join(err, run.stop()) }()
	if err := run.ready(ctx, relay.Ready()); err != nil {
		return result, err
	}
	quietly := func(ctx context.Context) error { return sleepTimer(ctx, time.Duration(r.want.Seconds)*time.Second) }
	alone, err := r.measure(ctx, quietly)
	if err != nil {
		return result, err
	}
	began := time.Now()
	beside, err := r.measure(ctx, r.replayAll)
	if err != nil {
		return result, err
	}
	took := time.Since(began)
	// Again: whatever else the machine does may have changed meanwhile.
	again, err := r.measure(ctx, quietly)
	if err != nil {
		return result, err
	}
	alone = append(alone, again...)
	slices.Sort(alone)
	return r.report(alone, beside, took), nil
}

// bury makes the dead letters. A stream has them behind its positions.
func (r *replay) bury(ctx context.Context) error {
	defer r.progress(fmt.Sprintf("burying %s letters", number(float64(r.want.Letters))), 0, nil)()
	_, err := r.pool.Exec(ctx, strings.NewReplacer("$table", table(r.schema), "$deliveries", deliveries(r.schema),
		"$payload", "'"+payload(payloadBytes)+"'", "$letters", fmt.Sprint(r.want.Letters), "$keys", fmt.Sprint(r.want.Keys), "$state", "'done'").Replace(sqlDeadLetters))
	if err == nil && r.mode == outboxsql.ModeStream {
		err = r.makeStream(ctx, r.schema, r.want.Letters)
	}
	return err
}

func (r *replay) relay() (*notifyd.Relay, error) {
	relay, err := notifyd.New(r.pool, notifyd.WithSchema(r.schema), notifyd.WithLogger(r.Log))
	if err != nil {
		return nil, err
	}
	letters := notifyd.HandlerFunc(func(_ context.Context, e *notifyd.Event) error {
		var key int
		if _, err := fmt.Sscanf(e.AggregateID, "key-%d", &key); err != nil {
			return err
		}
		if r.mode == outboxsql.ModeStream {
			if e.ID < r.last[key] {
				r.wrong.Add(1)
			}
			r.last[key] = e.ID
		}
		r.seen.note(e.ID)
		return nil
	})
	other := notifyd.HandlerFunc(func(_ context.Context, e *notifyd.Event) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.entered[e.ID].IsZero() {
			r.entered[e.ID] = time.Now()
		}
		return nil
	})
	return relay, errors.Join(relay.Handle("letters", "letter", letters), relay.Handle("other", eventType, other))
}

// replayAll replays all letters, and waits until they are delivered.
func (r *replay) replayAll(ctx context.Context) error {
	letters, err := deadletter.New(r.pool, deadletter.Config{Schema: r.schema})
	if err != nil {
		return err
	}
	defer r.progress("replaying", int64(r.want.Letters), r.seen.distinct.Load)()
	did, err := letters.Replay(ctx, deadletter.Filter{Destination: "letters"}, deadletter.Action{Actor: "bench"})
	if err != nil {
		return err
	}
	if did.Done != int64(r.want.Letters) {
		return fmt.Errorf("%d letters were replayed, not %d", did.Done, r.want.Letters)
	}
	for before := int64(-1); r.seen.distinct.Load() > before; {
		before = r.seen.distinct.Load()
		timeout := time.NewTimer(settleWithin)
		select {
		case <-r.seen.all:
			timeout.Stop()
			return nil
		case <-timeout.C: // what is missing is counted, once nothing moves any more
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// measure writes events for the other destination until work has ended, and returns how long
// each took, sorted.
func (r *replay) measure(ctx context.Context, work func(context.Context) error) ([]time.Duration, error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAll(ctx, []*pgx.Conn{conn})
	over := make(chan struct{})
	committed := make(map[int64]time.Time)
	err = together(ctx, func(ctx context.Context) error {
		defer close(over)
		return work(ctx)
	}, func(ctx context.Context) error {
		data, begin := payload(payloadBytes), time.Now()
		for i, at := 0, steadily(r.want.Rate); ; i++ {
			select {
			case <-over:
				return nil
			default:
			}
			if err := sleepTimer(ctx, time.Until(begin.Add(at(i)))); err != nil {
				return err
			}
			var id int64
			if err := conn.QueryRow(ctx, insertSQL(r.schema)+" RETURNING id", data).Scan(&id); err != nil {
				return err
			}
			committed[id] = time.Now()
		}
	})
	if err != nil {
		return nil, err
	}
	return r.arrivals(ctx, committed)
}

// arrivals waits for the events, and returns how long each took. One that does not come takes
// for ever.
func (r *replay) arrivals(ctx context.Context, committed map[int64]time.Time) ([]time.Duration, error) {
	if err := r.drained(ctx, r.schema, r.mode); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	took := make([]time.Duration, 0, len(committed))
	for id, at := range committed {
		entered, ok := r.entered[id]
		if !ok {
			return nil, fmt.Errorf("event %d of the other destination is lost", id)
		}
		took = append(took, entered.Sub(at))
	}
	slices.Sort(took)
	return took, nil
}

func (r *replay) report(alone, beside []time.Duration, took time.Duration) ReplayResult {
	result := ReplayResult{
		Letters: int64(r.want.Letters), Seconds: round(took.Seconds(), 2),
		AloneP50: ms(percentile(alone, 0.5)), AloneP99: ms(percentile(alone, 0.99)),
		BesideP50: ms(percentile(beside, 0.5)), BesideP99: ms(percentile(beside, 0.99)),
		Repeats: r.seen.duplicates.Load(), Lost: r.seen.missing(), Disorder: r.wrong.Load(),
	}
	result.P99Ratio = round(ratio(result.BesideP99, result.AloneP99), 3)
	r.printf("%s: %s dead letters of %d aggregates were replayed and delivered within %.1f s; lost=%d repeats=%d disorder=%d\n",
		r.mode, number(float64(r.want.Letters)), r.want.Keys, took.Seconds(), result.Lost, result.Repeats, result.Disorder)
	w := newTable(r.Out, "milliseconds", "p50", "p90", "p99", "max")
	w.times("  another destination alone", alone)
	w.times("  beside the replay", beside)
	r.printf("p99_ratio=%.3f at %d events/s\n\n", result.P99Ratio, r.want.Rate)
	return result
}
