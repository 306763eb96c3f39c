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
	name := fmt.Sprintf("%d relays", n)
	l := load{mode: outboxsql.ModeStream, events: n * b.want.Events, payload: payloadBytes, keys: shardsKeys, routes: 1, shards: n}
	schema, err := b.tables(ctx, fmt.Sprintf("shards_%d", n), l)
	if err != nil {
		return result, err
	}
	g := &relayGroup{shards: b, schema: schema, seen: l.sightings(), released: make(chan struct{})}
	defer func() {
		for _, pool := range g.pools {
			pool.Close()
		}
	}()
	for range n {
		if err := g.add(ctx, n); err != nil {
			return result, fmt.Errorf("%s: %w", name, err)
		}
	}
	r := start(ctx, func(ctx context.Context) error { return Together(ctx, g.runs...) })
	stop := sync.OnceValue(r.stop)
	defer func() { err = errors.Join(err, stop()) }()
	if err := g.await(ctx, r, l); err != nil {
		return result, fmt.Errorf("%s: %w", name, err)
	}

	result, err = b.metered(ctx, name, schema, l, func(ctx context.Context, _ string, _ load) (result drained, err error) {
		g.began = time.Now()
		close(g.released)
		err = errors.Join(g.seen.wait(ctx, r.ended), stop()) // so that everything is settled
		result.Faults = g.seen.faults()
		result.took = g.last
		return result, err
	})
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

// relayGroup has the relays of a round. Calls of the handler wait until released is closed.
type relayGroup struct {
	*shards
	schema   string
	seen     *sightings
	released chan struct{}
	began    time.Time // when released was closed

	mu   sync.Mutex
	last time.Duration // the last delivery, since the release

	// By relay: the task, the channel that is closed when it listens, and the one that its first call closes.
	runs         []func(context.Context) error
	ready, begun []<-chan struct{}
	pools        []*pgxpool.Pool
}

// add adds a relay with its own pool.
func (g *relayGroup) add(ctx context.Context, shardCount int) error {
	pool, err := pgxpool.New(ctx, g.URL)
	if err != nil {
		return err
	}
	g.pools = append(g.pools, pool)
	relay, err := notifyd.New(pool, notifyd.Config{Schema: g.schema, Logger: g.Log})
	if err != nil {
		return err
	}
	begun := make(chan struct{})
	first := sync.OnceFunc(func() { close(begun) })
	slow := delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error {
		first()
		select {
		case <-g.released:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return g.work(ctx)
	})
	g.runs = append(g.runs, relay.Run)
	g.ready = append(g.ready, relay.Ready())
	g.begun = append(g.begun, begun)
	lane := delivery.Lane{Concurrency: g.want.Concurrency, Shards: shardCount}
	return relay.Handle("*", notifyd.Destination{Name: shardsName, Handler: noting(slow, g.seen), Lane: lane})
}

// work is one call of the handler.
func (g *relayGroup) work(ctx context.Context) error {
	if g.want.Busy {
		burn(g.want.HandlerTime)
	} else if err := pause(ctx, g.want.HandlerTime); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = max(g.last, time.Since(g.began))
	return nil
}

// await waits until each relay has its shard, inserts the backlog, and waits until each relay has begun a call.
func (g *relayGroup) await(ctx context.Context, r *running, l load) error {
	for _, ready := range g.ready {
		if err := r.ready(ctx, ready); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, settleWithin, errNoShard)
	defer cancel()
	for owners := 0; owners < len(g.runs); {
		err := g.Pool.QueryRow(ctx, `SELECT count(DISTINCT p.owner) FROM `+in(g.schema, "outbox_positions")+` AS p
			JOIN `+in(g.schema, "outbox_members")+` AS m ON m.owner = p.owner, pg_sleep(0.02) WHERE p.destination = $1`, shardsName).Scan(&owners)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	if err := g.insert(ctx, g.schema, l); err != nil {
		return err
	}
	for _, begun := range g.begun {
		if err := r.ready(ctx, begun); err != nil {
			return err
		}
	}
	return nil
}

// shardsName is the name of the destination of [Shards].
const shardsName = "slow"

// errNoShard is the error if the relays do not share the shards evenly, or a shard gets no event.
var errNoShard = errors.New("a relay has no shard, or no event: measure more events")
