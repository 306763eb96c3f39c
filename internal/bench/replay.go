package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ReplayOptions of [Replay].
type ReplayOptions struct {
	Options
	// Letters is the number of dead letters to replay. Keys is the number of their aggregates.
	Letters, Keys int
	// Rate is the number of events per second for another destination meanwhile. Seconds is how long that destination is
	// measured before the replay, and again after it.
	Rate, Seconds int
	// Mode of the table. With [ModeBoth] the stream is measured after the queue. The result is the queue's, and its field
	// Stream has the stream's.
	Mode Mode
}

// ReplayResult is the result of [Replay]. Times are from the return of COMMIT to the call of the handler of the other
// destination, in milliseconds.
type ReplayResult struct {
	Letters int64 `json:"letters"`
	// Seconds is the time until the last dead letter was delivered.
	Seconds float64 `json:"seconds"`
	// The times of the other destination, without the replay and during it.
	AloneP50  float64 `json:"alone_p50_ms"`
	AloneP99  float64 `json:"alone_p99_ms"`
	BesideP50 float64 `json:"beside_p50_ms"`
	BesideP99 float64 `json:"beside_p99_ms"`
	P99Ratio  float64 `json:"p99_ratio"`
	Repeats   int64   `json:"repeats"`
	Lost      int64   `json:"lost"`
	// Disorder counts dead letters of a stream that were delivered after a later one of their aggregate.
	Disorder int64 `json:"disorder"`
	// With ModeBoth: the stream's figures.
	Stream *ReplayResult `json:"stream,omitempty"`
}

// OK reports whether all dead letters were delivered as they should.
func (r ReplayResult) OK() bool {
	return r.Lost == 0 && r.Disorder == 0 && (r.Stream == nil || r.Stream.OK())
}

// Replay replays many dead letters of few aggregates at once. It measures the times of events of another destination
// meanwhile.
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
			r := &replay{want: o, meanwhile: meanwhile{env: e, mode: mode, kinds: []string{eventType}, rate: o.Rate, seconds: o.Seconds}}
			one, err := r.run(ctx)
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
	meanwhile
	want ReplayOptions
}

// sqlDeadLetters inserts the dead letters and their events. No destination has these events still to deliver.
const sqlDeadLetters = `WITH event AS (
	INSERT INTO $table (event_type, aggregate_type, aggregate_id, payload, state, processed_at)
	SELECT 'letter', 'bench', 'key-' || i % $keys, $payload::json, $state, now()
	FROM generate_series(1, $letters::bigint) AS i RETURNING id, event_type, aggregate_type, aggregate_id)
INSERT INTO $deliveries (event_id, destination, event_type, state, attempts, ordering_key, error_class, last_error)
SELECT id, 'letters', event_type, 'dead', 10, aggregate_type || '/' || aggregate_id, 'event', 'refused by the bench' FROM event`

func (r *replay) run(ctx context.Context) (result ReplayResult, err error) {
	if r.schema, err = r.migrateTo(ctx, "replay_"+string(r.mode), outboxsql.NotifyAuto, outboxsql.ModeQueue); err != nil {
		return result, err
	}
	if err := r.bury(ctx); err != nil {
		return result, fmt.Errorf("make the dead letters: %w", err)
	}
	r.expect(r.want.Letters, r.want.Keys)
	relay, err := r.relayWith(func(_ context.Context, e *delivery.Event) error { return r.past(e) })
	if err != nil {
		return result, err
	}
	c, err := r.around(ctx, relay, r.replayAll)
	if err != nil {
		return result, err
	}
	return r.report(c.alone[0], c.busy[0], c.took), nil
}

// bury creates the dead letters. In a stream they are behind the positions.
func (r *replay) bury(ctx context.Context) error {
	defer r.progress(fmt.Sprintf("burying %s letters", number(float64(r.want.Letters))), 0, nil)()
	_, err := r.pool.Exec(ctx, strings.NewReplacer("$table", table(r.schema), "$deliveries", deliveries(r.schema),
		"$payload", "'"+payload(payloadBytes)+"'", "$letters", fmt.Sprint(r.want.Letters), "$keys", fmt.Sprint(r.want.Keys), "$state", "'done'").Replace(sqlDeadLetters))
	if err == nil && r.mode == outboxsql.ModeStream {
		err = r.makeStream(ctx, r.schema, r.want.Letters)
	}
	return err
}

// replayAll replays all dead letters, and waits until they are delivered.
func (r *replay) replayAll(ctx context.Context) error {
	letters, err := ops.New(r.pool, ops.Config{Schema: r.schema})
	if err != nil {
		return err
	}
	defer r.progress("replaying", int64(r.want.Letters), r.seen.distinct.Load)()
	did, err := letters.ReplayDeadLetters(ctx, ops.DeadLetterFilter{Destination: "letters"}, ops.BulkAction{Actor: "bench"})
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
		case <-timeout.C: // the caller counts the missing ones
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
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
