package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Drain measures how fast a relay drains a backlog, to a handler that does nothing or to a sink. In the same run it
// measures the same statements without a relay. Define describes the options.
type Drain struct {
	Events, Payload, Keys int
	Delete                bool
	Batch, Workers        int // of a claim in events, and of claims
	Mode                  Mode

	// To is a key of sinks. Brokers and AMQPURL name a sink that the bench does not start.
	To          string
	Brokers     []string
	AMQPURL     string
	SinkBatch   int
	ExactlyOnce bool
	Consume     bool

	// One of these measures a second backlog in turns with the plain one.
	BlockedKeys, Urgent, Partitions, Destinations, Shards int

	HeldSnapshot bool
	Foreign      string // one of foreigns, or ""
	Total        bool
}

// Values of [Drain.Foreign]: where the open transaction has written.
const (
	foreignElsewhere = "elsewhere" // no event
	foreignHere      = "here"      // an event, before all others
)

func foreigns() []string { return []string{foreignElsewhere, foreignHere} }

// Define implements [Experiment].
func (x *Drain) Define(cmd *cobra.Command) {
	cmd.Use = "drain"
	cmd.Short = "Speed of working off a backlog"
	cmd.Long = `drain inserts a backlog and measures the time that a relay needs to deliver all of it,
from its start until everything is settled; and the time that the same
statements need for an equal backlog without a relay, on as many connections.
For a stream the database alone is a read of the same rows.

Events for Kafka go to two topics of one partition each, and events for RabbitMQ to
a durable queue. Both are read back.

The options --blocked-keys, --urgent, --partitions, --destinations, --shards and
--exactly-once measure a second backlog in turns with the plain one, three times
each. The first event of a blocked aggregate has failed once and is due again in a
day, and two later ones wait for it; all are stored before the backlog.

The exit code is 1 if an event was lost, came after a later one of its aggregate
in a stream, or if a blocked one was touched.`

	flags := cmd.Flags()
	defaults := notifyd.Config{}.WithDefaults()
	flags.IntVar(&x.Events, "events", 200_000, "`number` of events in the backlog")
	flags.IntVar(&x.Payload, "payload", payloadBytes, "`bytes` per payload")
	flags.BoolVar(&x.Delete, "delete", false, "delete delivered events instead of keeping them")
	flags.IntVar(&x.Batch, "batch", defaults.Batch, "largest `number` of events in one claim")
	flags.IntVar(&x.Workers, "workers", defaults.Connections, "`number` of claims in flight, each with a connection")
	x.To = noSink
	word(flags, &x.To, "to", slices.Sorted(maps.Keys(sinks())), "destination: noop, a Go function that does nothing; kafka; or rabbitmq")
	flags.StringSliceVar(&x.Brokers, "brokers", nil, "`addresses` of Kafka's brokers, with commas between them; a private one by default")
	flags.StringVar(&x.AMQPURL, "amqp-url", "", "`URL` of RabbitMQ; a private one by default")
	flags.IntVar(&x.Keys, "keys", 0, "`number` of aggregates of the events, distributed equally in every run; 0 for none, or for 10,000 with --blocked-keys")
	flags.IntVar(&x.BlockedKeys, "blocked-keys", 0, "`number` of further aggregates that earlier failures block")
	flags.IntVar(&x.Urgent, "urgent", 0, "`number` of events for another destination at the end of the backlog; measures it at the same priority and at a higher one")
	flags.IntVar(&x.Partitions, "partitions", 0, "`number` of partitions of a table; measures a plain table and that one")
	flags.BoolVar(&x.HeldSnapshot, "held-snapshot", false, "keep a transaction open that can see the whole backlog, so that nothing can be cleaned up")
	addForeign(flags, &x.Foreign, "keep a transaction open that has written: elsewhere, or here, which is an event before all others")
	flags.IntVar(&x.Destinations, "destinations", 1, "`number` of destinations that get each event; measures one and all of them")
	flags.IntVar(&x.Shards, "shards", 1, "`number` of shards of the destination; measures one and all of them; needs --mode stream")
	flags.IntVar(&x.SinkBatch, "sink-batch", 0, "largest `number` of events in one call to the sink; 0 for the default of its type")
	flags.BoolVar(&x.Total, "total", false, "deliver all events one after the other, in the order of ids (order: total); needs --mode stream")
	flags.BoolVar(&x.ExactlyOnce, "exactly-once", false, "deliver into Kafka exactly once as well, with the position in the transactions; measures both")
	flags.BoolVar(&x.Consume, "consume", false, "read RabbitMQ's queue with a consumer meanwhile")
	addMode(flags, &x.Mode)
}

// Check implements [Experiment].
func (x *Drain) Check() error {
	return cmp.Or(
		atLeast(1, option{"events", x.Events}, option{"batch", x.Batch}, option{"workers", x.Workers}, option{"payload", x.Payload}),
		atLeast(0, option{"keys", x.Keys}, option{"blocked-keys", x.BlockedKeys}, option{"urgent", x.Urgent},
			option{"partitions", x.Partitions}, option{"destinations", x.Destinations}, option{"sink-batch", x.SinkBatch}),
		upToShards("shards", x.Shards), x.checkTurns(), x.checkRest())
}

// checkTurns returns an error if a drain would be measured in turns with more than one other.
func (x *Drain) checkTurns() error {
	inTurns := 0
	for _, wanted := range []bool{x.BlockedKeys > 0, x.Urgent > 0, x.Partitions > 0, x.Destinations > 1, x.Shards > 1} {
		if wanted {
			inTurns++
		}
	}
	switch {
	case inTurns > 0 && x.To != noSink:
		return errors.New("--blocked-keys, --urgent, --partitions, --destinations and --shards need --to noop")
	case inTurns > 1:
		return errors.New("--blocked-keys, --urgent, --partitions, --destinations and --shards go without each other")
	}
	return nil
}

// checkRest returns an error for other contradictory options.
func (x *Drain) checkRest() error {
	isStream := x.Mode == ModeStream
	switch {
	case x.BlockedKeys > 0 && !isStream:
		return errors.New("--blocked-keys needs --mode stream: a queue holds nothing back")
	case x.BlockedKeys > 0 && x.Foreign == foreignHere:
		return errors.New("--foreign-transaction=here goes without --blocked-keys")
	case x.Shards > 1 && (!isStream || x.Total):
		return errors.New("--shards needs --mode stream, and goes without --total")
	case x.Delete && x.Mode != ModeQueue:
		return errors.New("--delete needs --mode queue")
	case x.Total && (!isStream || x.BlockedKeys > 0):
		return errors.New("--total needs --mode stream, and goes without --blocked-keys")
	case x.ExactlyOnce && (!isStream || x.To != "kafka"):
		return errors.New("--exactly-once needs --mode stream --to kafka")
	case x.Consume && x.To != "rabbitmq":
		return errors.New("--consume needs --to rabbitmq")
	}
	return nil
}

// Settings implements [tuned]. The default buffers are only slightly larger than the backlog: the rows of blocked events
// would evict pages that are needed again.
func (x *Drain) Settings() map[string]string {
	all := privateSettings()
	if x.BlockedKeys > 0 {
		all["shared_buffers"] = "1GB"
	}
	return all
}

// keysBesideBlocked is the default of Keys if BlockedKeys is set.
const keysBesideBlocked = 10_000

type drain struct {
	*Env
	want  *Drain
	place *place
	ahead writers // with an open transaction that has written an event
}

// drained is the measurement of one drain.
type drained struct {
	Faults
	usage

	took   time.Duration
	start  time.Duration // of took, until the first delivery
	behind int64         // events of the backlog before the last urgent one
	dead   int64         // rows
	read   *drained      // of a stream: the read alone, over the same rows
}

// load returns the backlog of a drain with a number of blocked aggregates.
func (d *drain) load(mode outboxsql.Mode, blocked int) load {
	l := load{mode: mode, events: d.want.Events, payload: d.want.Payload, keys: d.want.Keys, routes: 1, blocked: blocked}
	if d.want.BlockedKeys > 0 {
		l.keys = cmp.Or(l.keys, keysBesideBlocked)
	}
	if d.place != nil {
		l.routes = len(d.place.handlers)
	}
	if d.want.Foreign == foreignHere {
		l.ahead = 1
	}
	return l
}

// Run implements [Experiment].
func (x *Drain) Run(ctx context.Context, e *Env) (*Result, error) {
	d := &drain{Env: e, want: x}
	var begin []string
	if x.HeldSnapshot {
		begin = append(begin, heldSnapshot)
	}
	if x.Foreign == foreignElsewhere {
		begin = append(begin, foreignWrite)
	}
	held, err := d.transactions(ctx, begin...)
	if err != nil {
		return nil, err
	}
	defer held.close(ctx)
	bare, err := d.floors(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.openSink(ctx); err != nil {
		return nil, err
	}

	all := d.scenarios()
	rounds := leastRounds
	if len(all) == 1 {
		rounds = 1
	}
	took, err := inTurns(ctx, rounds, all, func(ctx context.Context, s scenario) (drained, error) {
		one, err := d.measure(ctx, s.name, s.load, d.relay)
		if err != nil {
			err = fmt.Errorf("drain, %s: %w", s.name, err)
		}
		return one, err
	})
	if err != nil {
		return nil, err
	}
	return d.report(all, took, bare), nil
}

// floors drains a queue by SQL alone, if a queue is measured. Each drain of a stream by the relay has a measurement of the
// read alone.
func (d *drain) floors(ctx context.Context) (bare drained, err error) {
	if d.want.Mode == ModeStream {
		return bare, nil
	}
	bare, err = d.measure(ctx, "sql", d.load(outboxsql.ModeQueue, 0), d.bare)
	if err != nil {
		return bare, fmt.Errorf("drain by SQL alone: %w", err)
	}
	return bare, nil
}

// measure creates a backlog in a new schema and measures its drain.
func (d *drain) measure(ctx context.Context, name string, l load, work drainer) (result drained, err error) {
	schema, err := d.backlog(ctx, name, l)
	if err != nil {
		return result, err
	}
	result, err = d.metered(ctx, name, schema, l, work)
	if err != nil {
		return result, err
	}

	if err := d.recount(ctx, l, &result); err != nil {
		return result, err
	}
	left, err := d.left(ctx, schema, l)
	if err != nil {
		return result, err
	}
	result.Lost = max(result.Lost, left)
	result.dead, err = d.deadRows(ctx, schema)
	if err != nil {
		return result, err
	}

	if l.mode == outboxsql.ModeStream {
		read, err := d.metered(ctx, "read", schema, l, d.readAlone)
		if err != nil {
			return result, fmt.Errorf("read without a relay: %w", err)
		}
		result.read = &read
	}
	d.release(ctx)
	return result, d.drop(ctx, schema) // there may be many rounds
}

// drainer drains the load in a schema.
type drainer func(ctx context.Context, schema string, l load) (drained, error)

// metered measures what a drain uses.
func (d *drain) metered(ctx context.Context, name, schema string, l load, work drainer) (result drained, err error) {
	sink := 0
	if d.place != nil {
		sink = d.place.pid
	}
	used, err := d.meter(ctx, name, sink, func(ctx context.Context) (err error) {
		result, err = work(ctx, schema, l)
		return err
	})
	result.usage = used
	return result, err
}

// inOneOrder reports whether a single sink must get all events in the order of ids.
func (d *drain) inOneOrder() bool { return d.want.Total && len(d.place.handlers) == 1 }

// relay drains by a relay. The time runs from its start until it has stopped: then everything is settled.
func (d *drain) relay(ctx context.Context, schema string, l load) (result drained, err error) {
	keep := 7 * 24 * time.Hour
	if d.want.Delete {
		keep = notifyd.None
	}

	seen := l.copied()
	if d.inOneOrder() {
		for _, s := range seen {
			s.total = true
			s.last = make([]atomic.Int64, 1)
		}
	}

	relay, err := notifyd.New(d.Pool, notifyd.Config{
		Schema: schema, Logger: d.Log, Connections: d.want.Workers, Batch: d.want.Batch, Retention: notifyd.Retention{Keep: keep, Batch: 1000},
	})
	if err != nil {
		return result, err
	}

	if err := d.register(relay, l, seen); err != nil {
		return result, err
	}

	began := time.Now()
	r := start(ctx, relay.Run)
	for _, one := range seen {
		err = errors.Join(err, one.wait(ctx, r.ended))
	}
	err = errors.Join(err, r.stop())

	result.took = time.Since(began)
	result.start = time.Unix(0, seen[0].first.Load()).Sub(began)
	result.behind = seen[0].behind.Load()
	for _, one := range seen {
		result.add(one.faults())
		if strays := one.strays.Load(); strays > 0 {
			err = errors.Join(err, fmt.Errorf("%w: %s were delivered", errUnblocked, number(float64(strays))))
		}
	}

	if l.mode != outboxsql.ModeStream {
		result.OutOfOrder = 0 // a queue promises no order
	}
	return result, err
}
