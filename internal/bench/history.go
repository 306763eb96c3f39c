package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// HistoryOptions of [History].
type HistoryOptions struct {
	Options
	// Events is the number of delivered events to replay. Keys is the number of their aggregates.
	Events, Keys int
	// ReplayRate is the rate of the replay in events per second, 0 for no limit.
	ReplayRate float64
	// Rate is the number of events per second that are written meanwhile, half of them for the destination of the replay
	// and half for another one. Seconds is how long they are measured before the replay, and again after it.
	Rate, Seconds int
}

// HistoryResult is the result of [History]. Times are from the return of COMMIT to the call of the handler, in
// milliseconds.
type HistoryResult struct {
	Events int64 `json:"events"`
	// Seconds is the time until the last event was delivered again.
	Seconds float64 `json:"seconds"`
	// The destination of the replay, and another one.
	Same  HistoryTimes `json:"same"`
	Other HistoryTimes `json:"other"`
	// Repeats counts further deliveries of an event, and Lost the missing events. Disorder counts events delivered after
	// a later event of their aggregate.
	Repeats  int64 `json:"repeats"`
	Lost     int64 `json:"lost"`
	Disorder int64 `json:"disorder"`
}

// HistoryTimes are the times of live events, without the replay and during it.
type HistoryTimes struct {
	AloneP50  float64 `json:"alone_p50_ms"`
	AloneP99  float64 `json:"alone_p99_ms"`
	BesideP50 float64 `json:"beside_p50_ms"`
	BesideP99 float64 `json:"beside_p99_ms"`
	P99Ratio  float64 `json:"p99_ratio"`
}

// OK reports whether all events were delivered, in order.
func (r HistoryResult) OK() bool { return r.Lost == 0 && r.Disorder == 0 }

// History replays a delivered range of a stream. It measures the times of live events of the same destination, and of
// another one, meanwhile.
func History(ctx context.Context, o HistoryOptions) (result HistoryResult, err error) {
	if o.Events < 1 || o.Keys < 1 || o.Rate < 1 || o.Seconds < 1 || o.ReplayRate < 0 {
		return result, errors.New("events, keys, rate and seconds must be at least 1, and the rate of the replay at least 0")
	}
	err = within(ctx, o.Options, func(ctx context.Context, e *env) error {
		h := &history{want: o, meanwhile: meanwhile{
			env: e, mode: outboxsql.ModeStream, kinds: []string{"letter", eventType}, rate: o.Rate, seconds: o.Seconds,
		}}
		result, err = h.run(ctx)
		return err
	})
	return result, err
}

type history struct {
	meanwhile
	want HistoryOptions
}

// sqlHistory inserts delivered events.
const sqlHistory = `INSERT INTO $table (event_type, aggregate_type, aggregate_id, payload, state, processed_at)
	SELECT 'letter', 'bench', 'key-' || i % $keys, $payload::json, 'done', now() FROM generate_series(1, $events::bigint) AS i`

func (h *history) run(ctx context.Context) (result HistoryResult, err error) {
	if h.schema, err = h.migrateTo(ctx, "history", outboxsql.NotifyAuto, outboxsql.ModeQueue); err != nil {
		return result, err
	}
	if err := h.write(ctx); err != nil {
		return result, fmt.Errorf("write the history: %w", err)
	}
	h.expect(h.want.Events, h.want.Keys)
	relay, err := h.relayWith(func(_ context.Context, e *delivery.Event) error {
		if e.Replay > 0 {
			return h.past(e)
		}
		h.live(e)
		return nil
	})
	if err != nil {
		return result, err
	}
	c, err := h.around(ctx, relay, h.replayAll)
	if err != nil {
		return result, err
	}
	return h.report(c.alone, c.busy, c.took), nil
}

func (h *history) write(ctx context.Context) error {
	defer h.progress(fmt.Sprintf("writing %s events", number(float64(h.want.Events))), 0, nil)()
	_, err := h.pool.Exec(ctx, strings.NewReplacer("$table", table(h.schema), "$payload", "'"+payload(payloadBytes)+"'",
		"$events", fmt.Sprint(h.want.Events), "$keys", fmt.Sprint(h.want.Keys)).Replace(sqlHistory))
	if err != nil {
		return err
	}
	return h.makeStream(ctx, h.schema, h.want.Events)
}

// replayAll replays the history, and waits until all of it is delivered.
func (h *history) replayAll(ctx context.Context) error {
	s, err := ops.New(h.pool, ops.Config{Schema: h.schema})
	if err != nil {
		return err
	}
	defer h.progress("replaying", int64(h.want.Events), h.seen.distinct.Load)()
	r, err := s.StartReplay(ctx, ops.ReplayRange{Destination: "letters", To: fmt.Sprint(h.want.Events), Rate: h.want.ReplayRate}, ops.Action{Actor: "bench"})
	if err != nil {
		return err
	}
	r, _, err = s.AwaitReplay(ctx, r.ID, nil)
	if err == nil && r.State != observe.ReplayDone {
		err = fmt.Errorf("the replay is %s", r.State)
	}
	return err
}

func (h *history) report(alone, beside times, took time.Duration) HistoryResult {
	times := func(i int) HistoryTimes {
		t := HistoryTimes{
			AloneP50: ms(percentile(alone[i], 0.5)), AloneP99: ms(percentile(alone[i], 0.99)),
			BesideP50: ms(percentile(beside[i], 0.5)), BesideP99: ms(percentile(beside[i], 0.99)),
		}
		t.P99Ratio = round(ratio(t.BesideP99, t.AloneP99), 3)
		return t
	}
	result := HistoryResult{
		Events: int64(h.want.Events), Seconds: round(took.Seconds(), 2), Same: times(0), Other: times(1),
		Repeats: h.seen.duplicates.Load(), Lost: h.seen.missing(), Disorder: h.wrong.Load(),
	}
	h.printf("stream: %s events of %d aggregates were replayed within %.1f s; lost=%d repeats=%d disorder=%d\n",
		number(float64(h.want.Events)), h.want.Keys, took.Seconds(), result.Lost, result.Repeats, result.Disorder)
	w := newTable(h.Out, "milliseconds", "p50", "p90", "p99", "max")
	w.times("  live events of the destination, alone", alone[0])
	w.times("  beside the replay", beside[0])
	w.times("  another destination, alone", alone[1])
	w.times("  beside the replay", beside[1])
	h.printf("p99_ratio=%.3f (another destination %.3f) at %d events/s for both\n\n", result.Same.P99Ratio, result.Other.P99Ratio, h.want.Rate)
	return result
}
