package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/laneconf"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// DrainOptions of [Drain].
type DrainOptions struct {
	Options
	// Events is the size of the backlog. Payload is the size of an event's payload in bytes.
	Events  int
	Payload int
	// Delete deletes delivered events instead of keeping them.
	Delete bool
	// Batch is the largest claim in events. Workers is the number of concurrent claims, each with a connection. 0 is the
	// relay's default.
	Batch   int
	Workers int
	// To is one of [Sinks]; "" is "noop".
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
	// Partitions is the number of partitions of the table; 0 is a plain table. With partitions the comparison is a drain
	// of a plain table by a relay, in place of SQL alone. Requires To "noop" and no BlockedKeys.
	Partitions int
	// HeldSnapshot keeps a transaction open that can see the whole backlog, so that vacuum cannot remove any of it.
	HeldSnapshot bool
	// Foreign keeps a transaction open that has written: [ForeignElsewhere] or [ForeignHere]. "" keeps no transaction
	// open.
	Foreign string
	// Mode of the tables. With [ModeBoth] the result is the queue's, and its field Stream has the stream's.
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

// Values of [DrainOptions.Foreign]: where the open transaction has written.
const (
	ForeignElsewhere = "elsewhere" // no event
	ForeignHere      = "here"      // an event, before all others
)

// Foreigns returns the words for [DrainOptions.Foreign].
func Foreigns() []string { return []string{ForeignElsewhere, ForeignHere} }

// DrainResult is the result of [Drain].
type DrainResult struct {
	EventsPerSecond float64 `json:"events_per_second"`
	SQLPerSecond    float64 `json:"sql_per_second"`             // of a stream: the read alone
	PlainPerSecond  float64 `json:"plain_per_second,omitempty"` // with Partitions, in place of SQLPerSecond
	Ratio           float64 `json:"ratio"`
	// StartSeconds is the time from the start of the relay to the first delivery. FlowingPerSecond is the rate after the
	// first delivery.
	StartSeconds     float64 `json:"start_seconds"`
	FlowingPerSecond float64 `json:"flowing_per_second"`
	Lost             int64   `json:"lost"`
	Duplicates       int64   `json:"duplicates"`
	WALBytesPerEvent float64 `json:"wal_bytes_per_event"`
	PeakRSSMiB       float64 `json:"peak_rss_mib"`
	// DeadRows is PostgreSQL's estimate of the rows that vacuum still has to remove, in all tables.
	DeadRows int64 `json:"dead_rows"`
	// OutOfOrder counts the events of a stream that were delivered after a later event of their aggregate; nil without
	// Keys.
	OutOfOrder *int64 `json:"out_of_order,omitempty"`
	// CPU seconds per million events, of private servers.
	PostgresCPU float64 `json:"postgres_cpu_s_per_million,omitempty"`
	SinkCPU     float64 `json:"sink_cpu_s_per_million,omitempty"`
	RelayCPU    float64 `json:"relay_cpu_s_per_million,omitempty"`
	DrainBlocked
	DrainUrgent
	// With Destinations: deliveries per second to all of them. The quotient is the CPU time per delivery of the relay and
	// a private PostgreSQL, divided by the CPU time with one destination.
	FannedPerSecond float64 `json:"fanned_deliveries_per_second,omitempty"`
	FannedCPURatio  float64 `json:"fanned_cpu_ratio,omitempty"`
	// With Shards: the rate with all shards, and its quotient with the rate with one. The same quotient for the CPU times
	// of the relay and a private PostgreSQL.
	ShardedPerSecond float64 `json:"sharded_events_per_second,omitempty"`
	ShardedRatio     float64 `json:"sharded_ratio,omitempty"`
	ShardedCPURatio  float64 `json:"sharded_cpu_ratio,omitempty"`
	// With ExactlyOnce: the rate, and its quotient with the rate without.
	ExactPerSecond float64 `json:"exact_events_per_second,omitempty"`
	ExactRatio     float64 `json:"exact_ratio,omitempty"`
	// With ModeBoth: the stream's figures, and its rate divided by the queue's.
	Stream      *DrainResult `json:"stream,omitempty"`
	StreamRatio float64      `json:"stream_ratio,omitempty"`
}

// DrainBlocked has the figures with BlockedKeys, as medians of the rounds. BlockedRatio is the rate with blocked
// aggregates divided by the rate without. BlockedFlowingRatio is the same quotient of the rates after the first delivery.
type DrainBlocked struct {
	BlockedPerSecond        float64 `json:"blocked_events_per_second,omitempty"`
	BlockedRatio            float64 `json:"blocked_ratio,omitempty"`
	BlockedStartSeconds     float64 `json:"blocked_start_seconds,omitempty"`
	BlockedFlowingPerSecond float64 `json:"blocked_flowing_per_second,omitempty"`
	BlockedFlowingRatio     float64 `json:"blocked_flowing_ratio,omitempty"`
	BlockedPeakRSSMiB       float64 `json:"blocked_peak_rss_mib,omitempty"`
}

// DrainUrgent has the figures with Urgent: the rate with that destination at a higher priority, and its quotient with the
// rate at equal priority. For both it counts the events of the backlog that were delivered before the last urgent event.
type DrainUrgent struct {
	UrgentPerSecond   float64 `json:"urgent_events_per_second,omitempty"`
	UrgentRatio       float64 `json:"urgent_ratio,omitempty"`
	UrgentBehindAlike *int64  `json:"urgent_behind_alike,omitempty"`
	UrgentBehind      *int64  `json:"urgent_behind,omitempty"`
}

// OK reports whether no event was lost or out of order. Duplicates are allowed, but unexpected in a run without faults.
func (r DrainResult) OK() bool {
	return r.Lost == 0 && (r.OutOfOrder == nil || *r.OutOfOrder == 0) && (r.Stream == nil || r.Stream.OK())
}

// sum replaces the faults of one round by the faults of all rounds.
func (r *DrainResult) sum(took [][]drained) {
	r.Lost, r.Duplicates = 0, 0
	var disordered int64
	for _, one := range slices.Concat(took...) {
		r.Lost, r.Duplicates, disordered = r.Lost+one.lost, r.Duplicates+one.duplicates, disordered+one.disordered
	}
	if r.OutOfOrder != nil {
		r.OutOfOrder = &disordered
	}
}

// verdict returns the last words of the text for people.
func (r *DrainResult) verdict() string {
	s := fmt.Sprintf("ratio=%.3f lost=%d duplicates=%d", r.Ratio, r.Lost, r.Duplicates)
	if r.OutOfOrder != nil {
		s += fmt.Sprintf(" out_of_order=%d", *r.OutOfOrder)
	}
	return s
}

type drain struct {
	*env
	want  DrainOptions
	mode  outboxsql.Mode // of the tables
	place *place
	ahead []*pgx.Conn // with open transactions that have written events
}

// drained is the measurement of one drain.
type drained struct {
	took       time.Duration
	start      time.Duration // of took, until the first delivery
	wal        float64       // bytes
	rss        int64         // bytes
	rssHow     string
	cpu        split
	lost       int64
	duplicates int64
	behind     int64 // events of the backlog before the last urgent one
	disordered int64
	dead       int64    // rows
	read       *drained // of a stream: the read alone, over the same rows
}

// Drain measures how fast a relay drains a backlog, to a handler that does nothing or to a sink. In the same run it
// measures the same statements without a relay.
func Drain(ctx context.Context, o DrainOptions) (DrainResult, error) {
	if err := o.check(); err != nil {
		return DrainResult{}, err
	}
	if o.Batch == 0 {
		o.Batch = notifyd.Config{}.WithDefaults().Batch
	}
	if o.Workers == 0 {
		o.Workers = notifyd.Config{}.WithDefaults().Connections
	}
	if o.To == "" {
		o.To = "noop"
	}
	o.Topics = max(o.Topics, 1)
	if o.BlockedKeys > 0 && o.Keys == 0 {
		o.Keys = keysBesideBlocked
	}
	if o.BlockedKeys > 0 {
		o.settings = map[string]string{"shared_buffers": buffersForBlocked}
	}
	var result DrainResult
	err := within(ctx, o.Options, func(ctx context.Context, e *env) (err error) {
		result, err = (&drain{env: e, want: o}).run(ctx)
		return err
	})
	return result, err
}

// keysBesideBlocked is the default of Keys if BlockedKeys is set.
const keysBesideBlocked = 10_000

// check returns an error for contradictory options.
func (o *DrainOptions) check() error {
	if err := o.Mode.check(); err != nil {
		return err
	}
	switch {
	case o.Events < 1:
		return fmt.Errorf("events must be at least 1, not %d", o.Events)
	case o.Keys < 0 || o.BlockedKeys < 0 || o.BlockedFresh < 0:
		return fmt.Errorf("keys, blocked keys and their fresh events must be at least 0, not %d, %d and %d", o.Keys, o.BlockedKeys, o.BlockedFresh)
	case o.Partitions < 0 || o.Partitions > 0 && o.BlockedKeys > 0:
		return fmt.Errorf("%d partitions and %d blocked keys: neither may be negative, and only one is measured at a time", o.Partitions, o.BlockedKeys)
	case o.Partitions > 0 && o.To != "" && o.To != "noop":
		return fmt.Errorf("%d partitions into %s: partitions are compared with a plain table into noop only", o.Partitions, o.To)
	case o.Urgent < 0 || o.Urgent > 0 && (o.BlockedKeys > 0 || o.Partitions > 0 || o.To != "" && o.To != "noop"):
		return fmt.Errorf("%d urgent events: the number must be at least 0, and they are measured into noop, without blocked keys and partitions", o.Urgent)
	case o.BlockedKeys > 0 && o.To != "" && o.To != "noop":
		return fmt.Errorf("blocked keys are measured with the sink noop only, not with %s", o.To)
	case o.BlockedKeys > 0 && o.Mode != ModeStream:
		return errors.New("only a stream holds back the later events of an aggregate after a failure: measure blocked keys with --mode stream")
	case o.BlockedFresh > 0 && o.BlockedKeys == 0:
		return errors.New("fresh events of blocked keys need blocked keys")
	case o.Foreign != "" && !slices.Contains(Foreigns(), o.Foreign):
		return fmt.Errorf("there is no transaction %q", o.Foreign)
	case o.Foreign == ForeignHere && o.BlockedKeys > 0:
		return errors.New("blocked keys are measured without a transaction that has written an event")
	case o.Delete && o.Mode != "" && o.Mode != ModeQueue:
		return errors.New("a stream deletes nothing")
	case o.Destinations < 0 || o.Destinations > 1 && (o.BlockedKeys > 0 || o.Urgent > 0 || o.Partitions > 0 || o.To != "" && o.To != "noop"):
		return fmt.Errorf("%d destinations: the number must be at least 0, and they are measured into noop, without blocked keys, urgent events and partitions", o.Destinations)
	case o.Shards < 0 || o.Shards > laneconf.MaxShards:
		return fmt.Errorf("%d shards: the number must be from 1 to %d, or 0 for the default", o.Shards, laneconf.MaxShards)
	case o.Shards > 1 && (o.Mode != ModeStream || o.To != "" && o.To != "noop" || o.Total || o.BlockedKeys > 0 || o.Urgent > 0 || o.Partitions > 0 || o.Destinations > 1):
		return errors.New("several shards are measured of a stream into noop, without total order, blocked keys, urgent events, partitions and further destinations")
	case o.ExactlyOnce && (o.To != "kafka" || o.Mode != ModeStream):
		return errors.New("only a stream into Kafka is delivered exactly once: measure it with --mode stream --to kafka")
	case o.Consume && o.To != "rabbitmq":
		return errors.New("only RabbitMQ's queue has a consumer")
	case o.SinkBatch < 0:
		return fmt.Errorf("a sink batch of %d is below 0", o.SinkBatch)
	case o.BlockedFresh > o.Events:
		return fmt.Errorf("%d fresh events of blocked keys are more than the %d of others", o.BlockedFresh, o.Events)
	}
	return nil
}

// load returns the backlog of a drain with a number of blocked aggregates.
func (d *drain) load(blocked int) load {
	l := load{mode: d.mode, events: d.want.Events, payload: d.want.Payload, keys: d.want.Keys, routes: 1, blocked: blocked}
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

func (d *drain) run(ctx context.Context) (DrainResult, error) {
	release, err := d.hold(ctx)
	if err != nil {
		return DrainResult{}, err
	}
	defer release()
	modes := d.want.Mode.tables()
	if len(modes) == 1 {
		d.mode = modes[0]
		return d.runMode(ctx)
	}
	if d.want.plain() {
		return d.besideQueue(ctx)
	}
	var all [2]DrainResult
	for i, mode := range modes {
		d.printf("%s:\n", mode)
		d.mode = mode
		if all[i], err = d.runMode(ctx); err != nil {
			return DrainResult{}, err
		}
		d.printf("\n")
	}
	return withStream(all[0], all[1]), nil
}

// plain reports whether nothing is measured in turns.
func (o *DrainOptions) plain() bool {
	return !o.ExactlyOnce && o.Partitions == 0 && o.BlockedKeys == 0 && o.Urgent == 0 && o.Destinations < 2 && o.Shards < 2
}

// runMode measures a table of one mode.
func (d *drain) runMode(ctx context.Context) (DrainResult, error) {
	if d.want.Partitions > 0 {
		return d.besidePlain(ctx)
	}
	bare, err := d.floor(ctx)
	if err != nil {
		return DrainResult{}, err
	}
	if err := d.openSink(ctx); err != nil {
		return DrainResult{}, err
	}
	switch {
	case d.want.ExactlyOnce:
		return d.compare(ctx, bare, d.besideExact())
	case d.want.BlockedKeys > 0:
		return d.compare(ctx, bare, d.besideBlocked())
	case d.want.Urgent > 0:
		return d.compare(ctx, bare, d.besideUrgent())
	case d.want.Destinations > 1:
		return d.compare(ctx, bare, d.besideOne())
	case d.want.Shards > 1:
		return d.compare(ctx, bare, d.besideShards())
	}
	relay, err := d.measure(ctx, "relay", d.load(0), d.relay)
	if err != nil {
		return DrainResult{}, fmt.Errorf("drain by the relay: %w", err)
	}
	r := d.result(relay, bare)
	d.report(r, relay, bare)
	return r, nil
}

// floor drains by SQL alone. For a stream, each drain by the relay has a measurement of the read alone.
func (d *drain) floor(ctx context.Context) (drained, error) {
	if d.mode == outboxsql.ModeStream {
		return drained{}, nil
	}
	bare, err := d.measure(ctx, "sql", d.load(0), d.bare)
	if err != nil {
		return drained{}, fmt.Errorf("drain by SQL alone: %w", err)
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
	if err := d.recount(ctx, &result); err != nil {
		return drained{}, err
	}
	left, err := d.left(ctx, schema, l)
	if err != nil {
		return drained{}, err
	}
	result.lost = max(result.lost, left)
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
	debug.FreeOSMemory()
	how, err := resetPeak()
	if err != nil {
		return drained{}, err
	}
	from, err := d.walEnd(ctx)
	if err != nil {
		return drained{}, err
	}
	cpu, err := d.used(ctx)
	if err != nil {
		return drained{}, err
	}
	pprof.Do(ctx, pprof.Labels("drain", name), func(ctx context.Context) { result, err = work(ctx, schema, l) })
	if err != nil {
		return drained{}, err
	}
	now, err := d.used(ctx)
	if err != nil {
		return drained{}, err
	}
	result.cpu = now.since(cpu)
	if result.rss, err = peak(); err != nil {
		return drained{}, err
	}
	result.rssHow = how
	result.wal, err = d.walSince(ctx, from)
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
	relay, err := notifyd.New(d.pool, notifyd.Config{Schema: schema, Logger: d.Log, Connections: d.want.Workers, Batch: d.want.Batch, Retention: notifyd.Retention{Keep: keep, Batch: 1000}})
	if err != nil {
		return result, err
	}
	if err := errors.Join(d.register(relay, l, seen), d.registerUrgent(relay, l, seen[0])); err != nil {
		return result, err
	}
	defer d.progress("the relay drains", int64(d.want.Events), seen[0].distinct.Load)()
	began := time.Now()
	r := start(ctx, relay.Run)
	for _, one := range seen {
		err = errors.Join(err, one.wait(ctx, r))
	}
	if l.fresh > 0 && err == nil {
		err = d.drained(ctx, schema, l.mode) // the table may not have the last settlements yet
	}
	err = errors.Join(err, r.stop())
	result.took, result.start = time.Since(began), time.Unix(0, seen[0].first.Load()).Sub(began)
	result.behind = seen[0].behind.Load()
	for _, one := range seen {
		result.lost, result.duplicates = result.lost+one.missing(), result.duplicates+one.duplicates.Load()+one.unknown.Load()
		result.disordered += one.disordered.Load()
		if strays := one.strays.Load(); strays > 0 {
			err = errors.Join(err, fmt.Errorf("%w: %s were delivered", errUnblocked, number(float64(strays))))
		}
	}
	return result, err
}
