package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/laneconf"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// ShardsOptions of [Shards].
type ShardsOptions struct {
	Options
	// Events is the size of the backlog per relay. Payload is the size of an event's payload in bytes. Keys is the number
	// of aggregates.
	Events, Payload, Keys int
	// Concurrency is the number of concurrent handler calls of a shard.
	Concurrency int
	// HandlerTime is how long a call waits, or uses the CPU if Busy.
	HandlerTime time.Duration
	Busy        bool
	// Relays are the numbers of relays to measure. The number of shards is the same. The first is 1.
	Relays []int
}

// ShardsResult is the result of [Shards].
type ShardsResult struct {
	Scenarios []ShardsScenario `json:"scenarios"`
}

// ShardsScenario has the figures for one number of relays: medians of the rounds.
type ShardsScenario struct {
	Relays int   `json:"relays"`
	Shards int   `json:"shards"`
	Events int64 `json:"events"`
	// EventsPerSecond is the rate from the release of the backlog to the last delivery. Ratio divides it by the rate with
	// one relay.
	EventsPerSecond float64 `json:"events_per_second"`
	Ratio           float64 `json:"ratio"`
	// FlowingPerSecond is the rate while all relays deliver: until the first one has
	// delivered its last event.
	FlowingPerSecond float64 `json:"flowing_per_second"`
	FlowingRatio     float64 `json:"flowing_ratio"`
	// LargestShare is the share of the relay that delivered the most events.
	LargestShare float64 `json:"largest_share"`
	// Faults of all rounds.
	Lost       int64 `json:"lost"`
	Duplicates int64 `json:"duplicates"`
	OutOfOrder int64 `json:"out_of_order"`
	// CPU seconds per million events. PostgresCPU is known only for a private server.
	PostgresCPU float64 `json:"postgres_cpu_s_per_million,omitempty"`
	RelayCPU    float64 `json:"relay_cpu_s_per_million"`
}

// OK reports whether no event was lost or out of order.
func (r ShardsResult) OK() bool {
	return !slices.ContainsFunc(r.Scenarios, func(s ShardsScenario) bool { return s.Lost > 0 || s.OutOfOrder > 0 })
}

// Shards measures how the rate of one destination with a slow handler grows with the
// number of its shards and relays.
func Shards(ctx context.Context, o ShardsOptions) (result ShardsResult, err error) {
	if err := o.check(); err != nil {
		return result, err
	}
	err = within(ctx, o.Options, func(ctx context.Context, e *env) (err error) {
		result, err = (&shards{drain: drain{env: e, mode: outboxsql.ModeStream}, want: o}).run(ctx)
		return err
	})
	return result, err
}

// check returns an error for contradictory options.
func (o *ShardsOptions) check() error {
	switch {
	case o.Events < 1 || o.Payload < 1 || o.Keys < 1 || o.Concurrency < 1 || o.HandlerTime < 0:
		return errors.New("events, payload, keys and concurrency must be at least 1, and the time of the handler at least 0")
	case len(o.Relays) == 0 || o.Relays[0] != 1:
		return fmt.Errorf("the numbers of relays, %v, must begin with 1", o.Relays)
	case slices.Min(o.Relays) < 1 || slices.Max(o.Relays) > laneconf.MaxShards:
		return fmt.Errorf("the numbers of relays, %v, must be from 1 to %d", o.Relays, laneconf.MaxShards)
	}
	return nil
}

// shards uses the tables and the checks of a drain.
type shards struct {
	drain
	want ShardsOptions
}

// sharded is the measurement of one backlog. The field start of drained is unused: the relays run before the release.
type sharded struct {
	drained
	whole, flowing float64 // events per second
	largest        float64 // share of one relay
}

func (b *shards) run(ctx context.Context) (result ShardsResult, err error) {
	took, err := inTurns(ctx, leastRounds, b.want.Relays, b.round)
	if err != nil {
		return result, err
	}
	for i, n := range b.want.Relays {
		result.Scenarios = append(result.Scenarios, b.scenario(n, took[i]))
	}
	first := result.Scenarios[0]
	for i := range result.Scenarios {
		s := &result.Scenarios[i]
		s.Ratio = round(ratio(s.EventsPerSecond, first.EventsPerSecond), 3)
		s.FlowingRatio = round(ratio(s.FlowingPerSecond, first.FlowingPerSecond), 3)
	}
	b.report(result, took)
	return result, nil
}

// scenario returns the medians of the rounds with n relays.
func (b *shards) scenario(n int, rounds []sharded) ShardsScenario {
	var all []drained
	for _, one := range rounds {
		all = append(all, one.drained)
	}
	m, events := middle(all), float64(n*b.want.Events)
	return ShardsScenario{
		Relays: n, Shards: n, Events: int64(events),
		EventsPerSecond:  round(medianOf(rounds, func(one sharded) float64 { return one.whole }), 0),
		FlowingPerSecond: round(medianOf(rounds, func(one sharded) float64 { return one.flowing }), 0),
		LargestShare:     round(medianOf(rounds, func(one sharded) float64 { return one.largest }), 3),
		Lost:             m.lost, Duplicates: m.duplicates, OutOfOrder: m.disordered,
		PostgresCPU: round(perEvent(m.cpu.postgres, events), 2), RelayCPU: round(perEvent(m.cpu.relay, events), 2),
	}
}

// round delivers a backlog by n relays, in a new schema.
func (b *shards) round(ctx context.Context, n int) (result sharded, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%d relays: %w", n, err)
		}
	}()
	l := load{mode: b.mode, events: n * b.want.Events, payload: b.want.Payload, keys: b.want.Keys, routes: 1, shards: n}
	schema, err := b.tables(ctx, fmt.Sprintf("shards_%d", n), l)
	if err != nil {
		return result, err
	}
	g := &relayGroup{bench: b, seen: l.sightings(), deliveries: make([]deliveryTimes, n), released: make(chan struct{})}
	defer func() { err = errors.Join(err, g.stop()) }()
	if err := g.start(ctx, schema, l); err != nil {
		return result, err
	}
	result.drained, err = b.meter(ctx, fmt.Sprintf("%d relays", n), schema, l, g.deliver)
	if err != nil {
		return result, err
	}
	g.rates(&result)
	left, err := b.left(ctx, schema, l)
	if err != nil {
		return result, err
	}
	result.lost = max(result.lost, left)
	return result, b.drop(ctx, schema)
}

// relayGroup has the relays of a round, each with a pool. Calls of the handler wait until released is closed.
type relayGroup struct {
	bench      *shards
	seen       *sightings
	deliveries []deliveryTimes // by relay
	released   chan struct{}
	began      time.Time // when released was closed

	pools   []*pgxpool.Pool
	running *running // nil once stopped
}

// deliveryTimes has the times of a relay's deliveries since the release.
type deliveryTimes struct {
	once  sync.Once
	begun chan struct{} // closed by the first call

	mu  sync.Mutex
	all []time.Duration // in the order of the deliveries
}

// start starts the relays, waits until each has its shard, inserts the backlog, and waits
// until each relay has begun a call.
func (g *relayGroup) start(ctx context.Context, schema string, l load) error {
	b := g.bench
	var relays []*notifyd.Relay
	var runs []func(context.Context) error
	for i := range g.deliveries {
		g.deliveries[i].begun = make(chan struct{})
		pool, err := pgxpool.New(ctx, b.url)
		if err != nil {
			return err
		}
		g.pools = append(g.pools, pool)
		relay, err := notifyd.New(pool, notifyd.Config{Schema: schema, Logger: b.Log})
		if err != nil {
			return err
		}
		err = relay.Handle("*", notifyd.Destination{Name: shardsName, Handler: g.handler(i), Lane: delivery.Lane{Concurrency: b.want.Concurrency, Shards: l.shards}})
		if err != nil {
			return err
		}
		relays, runs = append(relays, relay), append(runs, relay.Run)
	}
	g.running = start(ctx, func(ctx context.Context) error { return together(ctx, runs...) })
	for _, relay := range relays {
		if err := g.running.ready(ctx, relay.Ready()); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, settleWithin, errNoShard)
	defer cancel()
	if err := g.held(ctx, schema); err != nil {
		return err
	}
	if err := b.insert(ctx, schema, l); err != nil {
		return err
	}
	for i := range g.deliveries {
		if err := g.running.ready(ctx, g.deliveries[i].begun); err != nil {
			return err
		}
	}
	return nil
}

// shardsName is the name of the destination of [Shards].
const shardsName = "slow"

// errNoShard is the error if the relays do not share the shards evenly, or a shard gets no event.
var errNoShard = errors.New("a relay has no shard, or no event: measure more aggregates")

// held waits until each relay has one shard.
func (g *relayGroup) held(ctx context.Context, schema string) error {
	for owners := 0; owners < len(g.deliveries); {
		err := g.bench.pool.QueryRow(ctx, `SELECT count(DISTINCT p.owner) FROM `+in(schema, "outbox_positions")+` AS p
			JOIN `+in(schema, "outbox_members")+` AS m ON m.owner = p.owner, pg_sleep(0.02) WHERE p.destination = $1`, shardsName).Scan(&owners)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return nil
}

// handler returns the slow handler of the i-th relay.
func (g *relayGroup) handler(i int) delivery.Handler {
	work, times := g.bench.work(), &g.deliveries[i]
	return noting(delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error {
		times.once.Do(func() { close(times.begun) })
		select {
		case <-g.released:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := work(ctx); err != nil {
			return err
		}
		times.mu.Lock()
		defer times.mu.Unlock()
		times.all = append(times.all, time.Since(g.began))
		return nil
	}), g.seen)
}

// work returns the work of one call of the handler.
func (b *shards) work() func(context.Context) error {
	if b.want.Busy {
		return func(context.Context) error { burn(b.want.HandlerTime); return nil }
	}
	return func(ctx context.Context) error { return sleepTimer(ctx, b.want.HandlerTime) }
}

// deliver releases the calls, waits for all deliveries, and stops the relays, so that
// everything is settled.
func (g *relayGroup) deliver(ctx context.Context, _ string, l load) (result drained, err error) {
	defer g.bench.progress(fmt.Sprintf("%d relays deliver", len(g.deliveries)), int64(l.events), g.seen.distinct.Load)()
	g.began = time.Now()
	close(g.released)
	err = errors.Join(g.seen.wait(ctx, g.running), g.stop())
	result.lost, result.duplicates = g.seen.missing(), g.seen.duplicates.Load()+g.seen.unknown.Load()
	result.disordered = g.seen.disordered.Load()
	return result, err
}

// stop stops the relays, at most once, and closes their pools.
func (g *relayGroup) stop() (err error) {
	if g.running != nil {
		err = g.running.stop()
		g.running = nil
	}
	for _, pool := range g.pools {
		pool.Close()
	}
	g.pools = nil
	return err
}

// rates computes the rates from the times of the deliveries. The relays must have stopped.
func (g *relayGroup) rates(result *sharded) {
	total, most := 0, 0
	var last, from time.Duration
	until := time.Duration(-1) // the end of the first relay
	for i := range g.deliveries {
		all := g.deliveries[i].all
		if len(all) == 0 {
			return // events are lost
		}
		total, most = total+len(all), max(most, len(all))
		end := all[len(all)-1]
		last, from = max(last, end), max(from, all[0])
		if until < 0 || end < until {
			until = end
		}
	}
	result.took = last
	result.whole, result.largest = ratio(float64(total), last.Seconds()), ratio(float64(most), float64(total))
	if until <= from {
		return
	}
	flowing := 0
	for i := range g.deliveries {
		for _, at := range g.deliveries[i].all {
			if at > from && at <= until {
				flowing++
			}
		}
	}
	result.flowing = ratio(float64(flowing), (until - from).Seconds())
}

func (b *shards) report(r ShardsResult, took [][]sharded) {
	how := "waits"
	if b.want.Busy {
		how = "uses the CPU"
	}
	b.printf("%s events of %d B of %s aggregates for each relay, to one destination whose handler %s for %s; %d calls at once per shard\n",
		number(float64(b.want.Events)), b.want.Payload, number(float64(b.want.Keys)), how, b.want.HandlerTime, b.want.Concurrency)
	b.printf("relays in one process, with a shard each; medians of %d rounds, in turns\n\n", leastRounds)
	var names []string
	for _, s := range r.Scenarios {
		name := "1 relay"
		if s.Relays > 1 {
			name = fmt.Sprintf("%d relays", s.Relays)
		}
		names = append(names, name)
	}
	t := newSheet(b.Out, names, r.Scenarios)
	t.counts("events", func(s ShardsScenario) float64 { return float64(s.Events) })
	t.counts("events per second", func(s ShardsScenario) float64 { return s.EventsPerSecond })
	t.fixed("  ratio to one relay", 2, func(s ShardsScenario) float64 { return s.Ratio })
	t.counts("until the first relay is done", func(s ShardsScenario) float64 { return s.FlowingPerSecond })
	t.fixed("  ratio to one relay", 2, func(s ShardsScenario) float64 { return s.FlowingRatio })
	t.fixed("largest share of a relay", 3, func(s ShardsScenario) float64 { return s.LargestShare })
	t.fixed("CPU of this process, us/event", 2, func(s ShardsScenario) float64 { return s.RelayCPU })
	if b.DatabaseURL == "" {
		t.fixed("CPU of PostgreSQL, us/event", 2, func(s ShardsScenario) float64 { return s.PostgresCPU })
	}
	b.printf("\nevents per second of the rounds, to the last event / until the first relay is done\n")
	var lost, duplicates, disordered int64
	for i, s := range r.Scenarios {
		b.printf("%s:", names[i])
		for _, one := range took[i] {
			b.printf(" %s/%s", number(one.whole), number(one.flowing))
		}
		b.printf("\n")
		lost, duplicates, disordered = lost+s.Lost, duplicates+s.Duplicates, disordered+s.OutOfOrder
	}
	last := r.Scenarios[len(r.Scenarios)-1]
	b.printf("ratio=%.3f flowing_ratio=%.3f lost=%d duplicates=%d out_of_order=%d\n", last.Ratio, last.FlowingRatio, lost, duplicates, disordered)
}
