package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Drain measures how fast a relay drains a backlog, to a handler that does nothing or to a sink. In the same run it
// measures the same statements without a relay.
type Drain struct {
	// Events is the size of the backlog. Payload is the size of an event's payload in bytes.
	Events  int
	Payload int
	// Delete deletes delivered events instead of keeping them.
	Delete bool
	// Batch is the largest claim in events. Workers is the number of concurrent claims, each with a connection.
	Batch   int
	Workers int
	// To is one of [Sinks].
	To string
	// Brokers are the brokers of Kafka. If empty, the bench starts a private one. Topics is the number of topics, at
	// least 1; the events are spread over them.
	Brokers []string
	Topics  int
	// AMQPURL is the URL of RabbitMQ. If empty, the bench starts a private one. QueueType is classic or quorum; "" is
	// classic.
	AMQPURL   string
	QueueType string
	// Keys is the number of aggregates. Events are assigned at random, but equally in every run. 0 means events without
	// an aggregate, or 10,000 aggregates if BlockedKeys is set.
	Keys int
	// BlockedKeys is the number of further aggregates that are blocked: their first event has failed and is due again in
	// a day, and two later ones wait for it. The drain is then measured without and with them, in turns. Requires To
	// "noop".
	BlockedKeys int
	// BlockedFresh is the number of further events of blocked aggregates in the backlog, at most Events. The relay must
	// store them until the failed event is delivered.
	BlockedFresh int
	// Urgent is the number of events for another destination at the end of the backlog. The drain is then measured with
	// that destination at the same priority and at a higher one, in turns. Requires To "noop", no BlockedKeys and no
	// Partitions.
	Urgent int
	// Partitions is the number of partitions of the table; 0 is a plain table. The drain is measured with a plain table and
	// with that one, in turns. Requires To "noop" and no BlockedKeys.
	Partitions int
	// HeldSnapshot keeps a transaction open that can see the whole backlog, so that vacuum cannot remove any of it.
	HeldSnapshot bool
	// Foreign keeps a transaction open that has written: [ForeignElsewhere] or [ForeignHere]. "" keeps no transaction
	// open.
	Foreign string
	// Mode of the tables. With [ModeBoth] a queue and a stream are drained in turns.
	Mode Mode
	// Destinations is the number of destinations that get each event. From 2 the drain is measured with one destination
	// and with all, in turns. Requires To "noop", no BlockedKeys, no Urgent and no Partitions.
	Destinations int
	// Shards is the number of shards of the destination. From 2 the drain is measured with one shard and with all, in
	// turns. Requires To "noop" and ModeStream, and nothing else that is measured in turns.
	Shards int
	// SinkBatch is the largest number of events in one call to a sink; 0 is the default of its type. Each of the Topics,
	// or the queue, gets one call at a time.
	SinkBatch int
	// Total delivers all events one after the other, in the order of ids. Requires ModeStream and no
	// BlockedKeys.
	Total bool
	// ExactlyOnce also measures handlers that deliver exactly once, in turns with the usual handlers. Requires To "kafka"
	// and Mode "stream".
	ExactlyOnce bool
	// Consume reads RabbitMQ's queue with a consumer during the drain.
	Consume bool
}

// Values of [Drain.Foreign]: where the open transaction has written.
const (
	ForeignElsewhere = "elsewhere" // no event
	ForeignHere      = "here"      // an event, before all others
)

// Foreigns returns the words for [Drain.Foreign].
func Foreigns() []string { return []string{ForeignElsewhere, ForeignHere} }

// Check implements [Experiment].
func (x *Drain) Check() error {
	least := cmp.Or(
		atLeast(1, option{"events", x.Events}, option{"batch", x.Batch}, option{"workers", x.Workers}, option{"payload", x.Payload}, option{"topics", x.Topics}),
		atLeast(0, option{"keys", x.Keys}, option{"blocked-keys", x.BlockedKeys}, option{"blocked-fresh", x.BlockedFresh}, option{"urgent", x.Urgent},
			option{"partitions", x.Partitions}, option{"destinations", x.Destinations}, option{"sink-batch", x.SinkBatch}),
		upToShards("shards", x.Shards))
	return cmp.Or(least, x.checkBlocked(), x.checkTurns(), x.checkRest())
}

// checkBlocked returns an error for contradictory options about blocked aggregates.
func (x *Drain) checkBlocked() error {
	switch {
	case x.BlockedKeys > 0 && x.Mode != ModeStream:
		return errors.New("--blocked-keys needs --mode stream: a queue holds nothing back")
	case x.BlockedKeys > 0 && x.To != noSink:
		return fmt.Errorf("--blocked-keys needs --to noop, not %s", x.To)
	case x.BlockedKeys > 0 && x.Foreign == ForeignHere:
		return errors.New("--foreign-transaction=here goes without --blocked-keys")
	case x.BlockedFresh > 0 && x.BlockedKeys == 0:
		return errors.New("--blocked-fresh needs --blocked-keys")
	case x.BlockedFresh > x.Events:
		return fmt.Errorf("--blocked-fresh %d is above --events %d", x.BlockedFresh, x.Events)
	}
	return nil
}

// checkTurns returns an error if a drain would be measured in turns with more than one other.
func (x *Drain) checkTurns() error {
	inTurns := 0
	for _, wanted := range []bool{x.BlockedKeys > 0, x.Urgent > 0, x.Partitions > 0, x.Destinations > 1, x.Shards > 1} {
		if !wanted {
			continue
		}
		inTurns++
		if x.To != noSink {
			return errors.New("--urgent, --partitions, --destinations and --shards need --to noop")
		}
	}
	if inTurns > 1 {
		return errors.New("--blocked-keys, --urgent, --partitions, --destinations and --shards go without each other")
	}
	return nil
}

// checkRest returns an error for other contradictory options.
func (x *Drain) checkRest() error {
	switch {
	case x.Shards > 1 && (x.Mode != ModeStream || x.Total):
		return errors.New("--shards needs --mode stream, and goes without --total")
	case x.Delete && x.Mode != ModeQueue:
		return errors.New("--delete needs --mode queue")
	case x.Total && (x.Mode != ModeStream || x.BlockedKeys > 0):
		return errors.New("--total needs --mode stream, and goes without --blocked-keys")
	case x.ExactlyOnce && (x.Mode != ModeStream || x.To != "kafka"):
		return errors.New("--exactly-once needs --mode stream --to kafka")
	case x.Consume && x.To != "rabbitmq":
		return errors.New("--consume needs --to rabbitmq")
	}
	return nil
}

// settings returns larger buffers for blocked aggregates.
func (x *Drain) settings() map[string]string {
	if x.BlockedKeys == 0 {
		return nil
	}
	return map[string]string{"shared_buffers": buffersForBlocked}
}

// keysBesideBlocked is the default of Keys if BlockedKeys is set.
const keysBesideBlocked = 10_000

type drain struct {
	*env
	want  *Drain
	place *place
	ahead []*pgx.Conn // with open transactions that have written events
}

// drained is the measurement of one drain.
type drained struct {
	Faults
	cost

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
	if blocked > 0 {
		l.fresh = d.want.BlockedFresh
	}
	if d.want.Foreign == ForeignHere {
		l.ahead = 1
	}
	return l
}

func (x *Drain) run(ctx context.Context, e *env) (*Result, error) {
	d := &drain{env: e, want: x}
	release, err := d.hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
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

// measure creates a backlog in a new schema and times its drain. In profiles the label "drain" distinguishes the drains.
func (d *drain) measure(ctx context.Context, name string, l load, work func(context.Context, string, load) (drained, error)) (result drained, err error) {
	schema, err := d.backlog(ctx, name, l)
	if err != nil {
		return drained{}, err
	}
	if result, err = d.meter(ctx, name, schema, l, work); err != nil {
		return drained{}, err
	}
	if err := d.recount(ctx, l, &result); err != nil {
		return drained{}, err
	}
	left, err := d.left(ctx, schema, l)
	if err != nil {
		return drained{}, err
	}
	result.Lost = max(result.Lost, left)
	if result.dead, err = d.deadRows(ctx, schema); err != nil {
		return drained{}, err
	}
	if l.mode == outboxsql.ModeStream {
		read, err := d.meter(ctx, "read", schema, l, d.readAlone)
		if err != nil {
			return drained{}, fmt.Errorf("read without a relay: %w", err)
		}
		result.read = &read
	}
	d.release(ctx)
	return result, d.drop(ctx, schema) // there may be many rounds
}

// meter measures the cost of a drain.
func (d *drain) meter(ctx context.Context, name, schema string, l load, work func(context.Context, string, load) (drained, error)) (result drained, err error) {
	sink := 0
	if d.place != nil {
		sink = d.place.pid
	}
	spent, err := d.env.meter(ctx, name, sink, func(ctx context.Context) (err error) {
		result, err = work(ctx, schema, l)
		return err
	})
	result.cost = spent
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
			s.total, s.last = true, make([]atomic.Int64, 1)
		}
	}
	relay, err := notifyd.New(d.pool, notifyd.Config{
		Schema: schema, Logger: d.Log, Connections: d.want.Workers, Batch: d.want.Batch, Retention: notifyd.Retention{Keep: keep, Batch: 1000},
	})
	if err != nil {
		return result, err
	}
	if err := errors.Join(d.register(relay, l, seen), d.registerUrgent(relay, l, seen[0])); err != nil {
		return result, err
	}
	began := time.Now()
	r := start(ctx, relay.Run)
	for _, one := range seen {
		err = errors.Join(err, one.wait(ctx, r.ended))
	}
	if l.fresh > 0 && err == nil {
		err = d.drained(ctx, schema, l.mode) // the table may not have the last settlements yet
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
