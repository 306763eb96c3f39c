package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/laneconf"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Shards measures how the rate of one destination with a slow handler grows with the number of its shards and relays.
type Shards struct {
	Events      int // of the backlog, per relay
	Concurrency int
	HandlerTime time.Duration
	Busy        bool
	Relays      []int
}

// shardsKeys is the number of aggregates of the events.
const shardsKeys = 1000

// Define implements [Experiment].
func (x *Shards) Define(cmd *cobra.Command) {
	cmd.Use = "shards"
	cmd.Short = "Speed of one slow destination by its shards and relays"
	cmd.Long = `shards delivers a backlog of a stream to one destination with a slow handler: by one
relay with one shard, and by several relays with a shard for each, in turns, three
times each. The time begins when all relays have their shard and have begun a call,
and ends with the last delivery. The exit code is 1 if an event was lost, or came
after a later one of its aggregate.

The relays share one process and the CPU of this machine. With --busy the rate grows
up to its number of cores, and one relay uses all of them unless --concurrency is 1.`
	cmd.Example = "  bench shards --relays 1,2,8 --handler-time 20ms\n  bench shards --busy --concurrency 1 --events 1000 --relays 1,2"

	flags := cmd.Flags()
	flags.IntVar(&x.Events, "events", 20_000, "`number` of events in the backlog for each relay")
	flags.IntVar(&x.Concurrency, "concurrency", 8, "`number` of calls of the handler at once, per shard")
	flags.DurationVar(&x.HandlerTime, "handler-time", 5*time.Millisecond, "`time` that each call of the handler takes")
	flags.BoolVar(&x.Busy, "busy", false, "use the CPU for that time instead of waiting")
	flags.IntSliceVar(&x.Relays, "relays", []int{1, 2, 4}, "`numbers` of relays, and of shards, to measure; the first is 1")
}

// Check implements [Experiment].
func (x *Shards) Check() error {
	if x.HandlerTime < 0 {
		return fmt.Errorf("--handler-time %s is below 0", x.HandlerTime)
	}
	if len(x.Relays) == 0 || x.Relays[0] != 1 {
		return fmt.Errorf("--relays %v does not begin with 1, which the others are compared with", x.Relays)
	}
	for _, n := range x.Relays {
		if err := upToShards("relays", n); err != nil {
			return err
		}
	}
	return atLeast(1, option{"events", x.Events}, option{"concurrency", x.Concurrency})
}

// upToShards returns an error for a number of shards that no destination can have.
func upToShards(name string, n int) error {
	if n < 1 || n > laneconf.MaxShards {
		return fmt.Errorf("--%s %d is not from 1 to %d", name, n, laneconf.MaxShards)
	}
	return nil
}

// shards uses the tables and the checks of a drain.
type shards struct {
	drain
	want *Shards
}

// Run implements [Experiment].
func (x *Shards) Run(ctx context.Context, e *Env) (*Result, error) {
	b := &shards{drain: drain{Env: e}, want: x}
	took, err := inTurns(ctx, leastRounds, x.Relays, b.round)
	if err != nil {
		return nil, err
	}

	how := "waits"
	if x.Busy {
		how = "uses the CPU"
	}
	r := &Result{}
	r.Say("%s events of %d B of %s aggregates for each relay, to one destination whose handler %s for %s; %d calls at once per shard",
		number(float64(x.Events)), payloadBytes, number(shardsKeys), how, x.HandlerTime, x.Concurrency)
	r.Say("relays in one process, with a shard each; medians of %d rounds, in turns", leastRounds)
	for i, n := range x.Relays {
		name := "1 relay"
		if n > 1 {
			name = fmt.Sprintf("%d relays", n)
		}
		c := r.Column(name)
		m := middle(took[i])
		b.fill(c, m, n*x.Events)
		c.relate("ratio to 1 relay", eventsPerSecond, r.Columns[0])
		r.Count(m.Faults)
		r.Note("%s, seconds of the rounds: %s", name, seconds(took[i]))
	}
	return r, nil
}

// round delivers a backlog by n relays, in a new schema.
func (b *shards) round(ctx context.Context, n int) (result drained, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%d relays: %w", n, err)
		}
	}()
	l := load{mode: outboxsql.ModeStream, events: n * b.want.Events, payload: payloadBytes, keys: shardsKeys, routes: 1, shards: n}
	schema, err := b.tables(ctx, fmt.Sprintf("shards_%d", n), l)
	if err != nil {
		return result, err
	}
	g := &relayGroup{bench: b, seen: l.sightings(), calls: make([]firstCall, n), released: make(chan struct{})}
	defer func() { err = errors.Join(err, g.stop()) }()
	if err := g.start(ctx, schema, l); err != nil {
		return result, err
	}
	result, err = b.metered(ctx, fmt.Sprintf("%d relays", n), schema, l, g.deliver)
	if err != nil {
		return result, err
	}
	left, err := b.left(ctx, schema, l)
	if err != nil {
		return result, err
	}
	result.Lost = max(result.Lost, left)
	return result, b.drop(ctx, schema)
}

// relayGroup has the relays of a round, each with a pool. Calls of the handler wait until released is closed.
type relayGroup struct {
	bench    *shards
	seen     *sightings
	calls    []firstCall // by relay
	released chan struct{}
	began    time.Time // when released was closed

	mu   sync.Mutex
	last time.Duration // the last delivery, since the release

	pools   []*pgxpool.Pool
	running *running // nil once stopped
}

// firstCall is the first call of a relay's handler.
type firstCall struct {
	once  sync.Once
	begun chan struct{} // closed by the call
}

// start starts the relays, waits until each has its shard, inserts the backlog, and waits
// until each relay has begun a call.
func (g *relayGroup) start(ctx context.Context, schema string, l load) error {
	b := g.bench
	var relays []*notifyd.Relay
	var runs []func(context.Context) error
	for i := range g.calls {
		g.calls[i].begun = make(chan struct{})
		pool, err := pgxpool.New(ctx, b.URL)
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
		relays = append(relays, relay)
		runs = append(runs, relay.Run)
	}
	g.running = start(ctx, func(ctx context.Context) error { return Together(ctx, runs...) })
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
	for i := range g.calls {
		if err := g.running.ready(ctx, g.calls[i].begun); err != nil {
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
	for owners := 0; owners < len(g.calls); {
		err := g.bench.Pool.QueryRow(ctx, `SELECT count(DISTINCT p.owner) FROM `+in(schema, "outbox_positions")+` AS p
			JOIN `+in(schema, "outbox_members")+` AS m ON m.owner = p.owner, pg_sleep(0.02) WHERE p.destination = $1`, shardsName).Scan(&owners)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return nil
}

// handler returns the slow handler of the i-th relay.
func (g *relayGroup) handler(i int) delivery.Handler {
	work := g.bench.work()
	first := &g.calls[i]
	return noting(delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error {
		first.once.Do(func() { close(first.begun) })
		select {
		case <-g.released:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := work(ctx); err != nil {
			return err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.last = max(g.last, time.Since(g.began))
		return nil
	}), g.seen)
}

// work returns the work of one call of the handler.
func (b *shards) work() func(context.Context) error {
	if b.want.Busy {
		return func(context.Context) error { burn(b.want.HandlerTime); return nil }
	}
	return func(ctx context.Context) error { return pause(ctx, b.want.HandlerTime) }
}

// deliver releases the calls, waits for all deliveries, and stops the relays, so that
// everything is settled.
func (g *relayGroup) deliver(ctx context.Context, _ string, _ load) (result drained, err error) {
	g.began = time.Now()
	close(g.released)
	err = errors.Join(g.seen.wait(ctx, g.running.ended), g.stop())
	result.Faults = g.seen.faults()
	result.took = g.last // all calls have returned
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
