package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/bench"
	"github.com/notifyd/notifyd/internal/cli"
)

// newBenchCmd completes the command of an experiment. define adds its flags.
func newBenchCmd(p *program, x bench.Experiment, cmd *cobra.Command, define func(*pflag.FlagSet)) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := x.Check(); err != nil {
			return err
		}
		return p.measure(cmd, x)
	}
	define(cmd.Flags())
	return cmd
}

// words is a flag that takes one of a few words, and stores it.
type words[T ~string] struct {
	cli.OneOf
	into *T
}

// Set implements pflag.Value.
func (w *words[T]) Set(word string) error {
	err := w.OneOf.Set(word)
	*w.into = T(w.Value)
	return err
}

// word defines a flag that takes one of a few words. The first value of into is its default.
func word[T ~string](flags *pflag.FlagSet, into *T, name string, known []string, usage string) {
	flags.Var(&words[T]{cli.OneOf{Words: known, Value: string(*into)}, into}, name, usage)
}

// addMode adds the flag for the mode of the tables.
func addMode(flags *pflag.FlagSet, mode *bench.Mode) {
	*mode = bench.ModeQueue
	word(flags, mode, "mode", bench.Modes(), "what the table is: queue, stream, or both in turns")
}

// addForeign adds the flag for an open transaction.
func addForeign(flags *pflag.FlagSet, foreign *string, usage string) {
	word(flags, foreign, "foreign-transaction", bench.Foreigns(), usage)
	flags.Lookup("foreign-transaction").NoOptDefVal = bench.ForeignElsewhere
}

func newLatencyCmd(p *program) *cobra.Command {
	x := &bench.Latency{}
	return newBenchCmd(p, x, &cobra.Command{
		Use:   "latency",
		Short: "Time from a commit to the call of the handler",
		Long: `latency writes events at a fixed rate, each in a transaction of its own, and takes
the time from the return of COMMIT to the call of the handler. In turns with
that it measures the floor: a bare connection that listens, and a claim of the
row in SQL. The exit code is 1 if an event was lost.`,
		Example: "  bench latency\n" +
			"  bench latency --rate 2000 --events 8000 --json",
	}, func(flags *pflag.FlagSet) {
		flags.IntVar(&x.Events, "events", 2000, "`number` of events to measure")
		flags.IntVar(&x.Rate, "rate", 500, "transactions per `second`")
		flags.BoolVar(&x.HeldSnapshot, "held-snapshot", false, "measure as many events with an old snapshot held, in turns")
		addForeign(flags, &x.Foreign, "measure as many events, in turns, while a transaction is open that has written: elsewhere, or here, which is an event")
		addMode(flags, &x.Mode)
	})
}

func newDrainCmd(p *program) *cobra.Command {
	x := &bench.Drain{To: "noop", QueueType: "classic"}
	return newBenchCmd(p, x, &cobra.Command{
		Use:   "drain",
		Short: "Speed of working off a backlog",
		Long: `drain inserts a backlog and takes the time that a relay needs to deliver all of it,
from its start until everything is settled; and the time that the same
statements need for an equal backlog without a relay around them, on as many
connections. The exit code is 1 if an event was lost.

With --to kafka the events go to topics of one partition each, on the brokers of
--brokers or on a private one. Reading the topics back finds lost and repeated
events. With --to rabbitmq the events go to a durable queue, on the broker of
--amqp-url or on a private one, and are read back too.

The events belong to no aggregate, so that no order has to be kept, unless --keys
says to how many. --blocked-keys measures whether blocked aggregates slow the
others down: the drain is timed without and with that many of them, in turns,
three times each. The first event of each has failed once and is due again in a
day, and two later ones wait behind it; all are stored before the backlog.
--blocked-fresh adds later events of blocked aggregates to the backlog. The exit
code is 1 if any event of a blocked aggregate was delivered, or is not stored as
expected at the end.

--urgent puts events for another destination at the end of the backlog, and counts
how many of the others were delivered before them, with that destination at the
same priority and at a higher one, in turns, three times each.

With --mode stream the table is a stream, and the database alone is a read of the same
rows without a relay; with --mode both a queue and a stream are drained in turns, three
times each. --destinations measures one destination and that many, each of which gets
every event. With --keys the exit code is 1 also if an event came after a later one of
its aggregate. --shards measures one shard of the destination and that many, all of
one relay. With --total all events go one after the other, as with order: total.`,
		Example: "  bench drain\n" +
			"  bench drain --mode both --keys 1000\n" +
			"  bench drain --to kafka --events 1000000\n" +
			"  bench drain --mode stream --to kafka --exactly-once\n" +
			"  bench drain --delete --events 1000000 --payload 1024 --json\n" +
			"  bench drain --held-snapshot\n" +
			"  bench drain --mode stream --keys 10000 --blocked-keys 100000\n" +
			"  bench drain --urgent 30",
	}, func(flags *pflag.FlagSet) {
		defaults := notifyd.Config{}.WithDefaults()
		flags.IntVar(&x.Events, "events", 200_000, "`number` of events in the backlog")
		flags.IntVar(&x.Payload, "payload", 256, "`bytes` per payload")
		flags.BoolVar(&x.Delete, "delete", false, "delete delivered events instead of keeping them")
		flags.IntVar(&x.Batch, "batch", defaults.Batch, "largest `number` of events in one claim")
		flags.IntVar(&x.Workers, "workers", defaults.Connections, "`number` of claims in flight, each with a connection")
		word(flags, &x.To, "to", bench.Sinks(), "destination: noop, a Go function that does nothing; kafka; or rabbitmq")
		flags.StringSliceVar(&x.Brokers, "brokers", nil, "`addresses` of Kafka's brokers, with commas between them; a private one by default")
		flags.StringVar(&x.AMQPURL, "amqp-url", "", "`URL` of RabbitMQ; a private one by default")
		word(flags, &x.QueueType, "queue-type", []string{"classic", "quorum"}, "type of RabbitMQ's queue: classic or quorum")
		flags.IntVar(&x.Topics, "topics", 2, "`number` of Kafka's topics, with one partition each")
		flags.IntVar(&x.Keys, "keys", 0, "`number` of aggregates that the events belong to; 0 for none, or for 10,000 with --blocked-keys")
		flags.IntVar(&x.BlockedKeys, "blocked-keys", 0, "`number` of aggregates beside them that earlier failures block; measures without and with them")
		flags.IntVar(&x.BlockedFresh, "blocked-fresh", 0, "`number` of events of blocked aggregates in the backlog, in addition to --events")
		flags.IntVar(&x.Urgent, "urgent", 0, "`number` of events for a destination of their own at the end of the backlog; measures it at the same priority and at a higher one")
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
	})
}

func newInsertCmd(p *program) *cobra.Command {
	x := &bench.Insert{}
	return newBenchCmd(p, x, &cobra.Command{
		Use:   "insert",
		Short: "What the trigger costs the writers",
		Long: `insert lets writers commit one event after the other, as fast as they can, and
counts: without a trigger; with the trigger as it is by default and a relay at
work; with the trigger silent and no relay, which is what the trigger alone costs;
without a relay; next to a frozen relay, once the server has ended its session; and
with a notification of every event. These take turns. Then it compares commits at a
low rate, at which the relay listens. With --serialized one more is added, in which writers are serialized (migrate --serialize-writers on), and
the latency of its commits is compared with commits without a trigger. With --total
the relay at work delivers all events one after the other (order: total).`,
		Example: "  bench insert\n" +
			"  bench insert --writers 64 --seconds 15 --json",
	}, func(flags *pflag.FlagSet) {
		flags.IntVar(&x.Writers, "writers", 16, "`number` of connections that write")
		flags.IntVar(&x.Seconds, "seconds", 5, "`seconds` to measure each of them for")
		flags.BoolVar(&x.Serialized, "serialized", false, "measure serialized writers as well")
		flags.BoolVar(&x.Total, "total", false, "the relay at work delivers in the order of ids (order: total); needs --mode stream")
		addMode(flags, &x.Mode)
	})
}

func newCaptureCmd(p *program) *cobra.Command {
	x := &bench.Capture{}
	return newBenchCmd(p, x, &cobra.Command{
		Use:   "capture",
		Short: "What a captured table costs its writers",
		Long: `capture measures an update of all rows of a table, and updates of one row each, without
events; with the triggers of "notifyd capture add"; with the same triggers where the
function names each column; and with a trigger for each row. The four take turns, on one
connection each, and commits do not wait for a flush to disk. The exit code is 1 if a
variant has not written an event for each changed row.`,
		Example: "  bench capture\n" +
			"  bench capture --rows 1000000 --seconds 9 --json",
	}, func(flags *pflag.FlagSet) {
		flags.IntVar(&x.Rows, "rows", 100_000, "`number` of rows of the table")
		flags.IntVar(&x.Seconds, "seconds", 5, "`seconds` to measure updates of one row of each of the four for")
	})
}

func newSoakCmd(p *program) *cobra.Command {
	x := &bench.Soak{}
	return newBenchCmd(p, x, &cobra.Command{
		Use:   "soak",
		Short: "Latency, table size and CPU time over a while at a fixed rate",
		Long: `soak writes events at a fixed rate, each in a transaction of its own, and takes
the time from the moment at which an event was due to be written to the call of
the handler; how dead tuples and the table grow; and the CPU time of the relay.
The exit code is 1 if an event was lost.`,
		Example: "  bench soak\n" +
			"  bench soak --rate 1000 --seconds 3600 --json",
	}, func(flags *pflag.FlagSet) {
		flags.IntVar(&x.Rate, "rate", 5000, "transactions per `second`")
		flags.IntVar(&x.Seconds, "seconds", 60, "`seconds` to write for")
		addMode(flags, &x.Mode)
	})
}

func newTakeoverCmd(p *program) *cobra.Command {
	x := &bench.Takeover{}
	return newBenchCmd(p, x, &cobra.Command{
		Use:   "takeover",
		Short: "How long events wait when a relay is killed",
		Long: `takeover writes events at a fixed rate, each in a transaction of its own, for two
relays, and kills in the middle the one that delivered last, with SIGKILL. It takes
the longest time from the moment at which an event was due to be written to the call
of the handler, and counts repeats. The exit code is 1 if an event was lost.`,
		Example: "  bench takeover --mode stream\n" +
			"  bench takeover --rate 500 --seconds 20 --mode both --json",
	}, func(flags *pflag.FlagSet) {
		flags.IntVar(&x.Rate, "rate", 2000, "transactions per `second`")
		flags.IntVar(&x.Seconds, "seconds", 10, "`seconds` to write for")
		addMode(flags, &x.Mode)
	})
}

func newShardsCmd(p *program) *cobra.Command {
	x := &bench.Shards{}
	return newBenchCmd(p, x, &cobra.Command{
		Use:   "shards",
		Short: "Speed of one slow destination by its shards and relays",
		Long: `shards delivers a backlog of a stream to one destination with a slow handler: by one
relay with one shard, and by several relays with a shard for each, in turns, three
times each. Each call of the handler waits for --handler-time without using the CPU,
or uses that much CPU time with --busy. All relays have their shard, and a call each
has begun, before the time begins.

The rate is taken until the last event is delivered. The shards of few aggregates differ
in size, and the largest one decides it.

The relays share one process and the CPU of this machine. With --busy the rate grows
up to its number of cores, and one relay uses all of them unless --concurrency is 1.
The exit code is 1 if an event was lost, or came after a later one of its aggregate.`,
		Example: "  bench shards\n" +
			"  bench shards --relays 1,2,8 --handler-time 20ms\n" +
			"  bench shards --busy --concurrency 1 --events 1000 --relays 1,2",
	}, func(flags *pflag.FlagSet) {
		flags.IntVar(&x.Events, "events", 20_000, "`number` of events in the backlog for each relay")
		flags.IntVar(&x.Payload, "payload", 256, "`bytes` per payload")
		flags.IntVar(&x.Keys, "keys", 1000, "`number` of aggregates that the events belong to")
		flags.IntVar(&x.Concurrency, "concurrency", 8, "`number` of calls of the handler at once, per shard")
		flags.DurationVar(&x.HandlerTime, "handler-time", 5*time.Millisecond, "`time` that each call of the handler takes")
		flags.BoolVar(&x.Busy, "busy", false, "use the CPU for that time instead of waiting")
		flags.IntSliceVar(&x.Relays, "relays", []int{1, 2, 4}, "`numbers` of relays, and of shards, to measure; the first is 1")
	})
}

func newReplayCmd(p *program) *cobra.Command {
	x := &bench.Replay{}
	return newBenchCmd(p, x, &cobra.Command{
		Use:   "replay",
		Short: "Many dead letters replayed at once, beside another destination",
		Long: `replay makes dead letters of a few aggregates for one destination, and replays all of
them at once. It takes the time until the last one is delivered, and the time from a
commit to the call of the handler of events for another destination: before and after
the replay, and beside it. It exits with 1 if a letter was lost, or, in a stream, came
after a later one of its aggregate.

With --history it replays so many events that a stream has delivered, as "notifyd replay"
does, and measures live events of the same destination, too.`,
		Example: "  bench replay --mode both\n" +
			"  bench replay --history 1000000\n" +
			"  bench replay --letters 100000 --keys 5 --json",
	}, func(flags *pflag.FlagSet) {
		flags.IntVar(&x.History, "history", 0, "`number` of delivered events to replay, in place of dead letters")
		flags.IntVar(&x.Letters, "letters", 1_000_000, "`number` of dead letters")
		flags.IntVar(&x.Keys, "keys", 20, "`number` of aggregates that they belong to")
		flags.IntVar(&x.Rate, "rate", 200, "live events per `second`")
		flags.IntVar(&x.Seconds, "seconds", 20, "`seconds` to measure live events for before the replay, and again after it")
		addMode(flags, &x.Mode)
	})
}

func newVariantsCmd(p *program) *cobra.Command {
	x := &bench.Variants{}
	return newBenchCmd(p, x, &cobra.Command{
		Use:   "variants",
		Short: "Other ways to write an outbox, beside a queue and a stream, into Kafka",
		Long: `variants measures the ways of a well-known comparison of outboxes on PostgreSQL,
and notifyd as a queue and as a stream, from one PostgreSQL into one Kafka, with the
same settings for all:

  long-tx      one transaction: SELECT ... FOR UPDATE SKIP LOCKED, produce, DELETE
  advisory     an advisory lock, one worker, the last id as its position
  lease        two short transactions, with a time in the row as the lease
  partitions   virtual partitions, read up to the oldest open transaction
  serialised   writers take a lock before the id is drawn
  queue        notifyd, at least once
  stream       notifyd, at least once, in order per aggregate

The parts: drain works a backlog off, with one worker and with two. writers counts what
writers commit while a worker follows them. open writes beside a transaction that stays
open, which has written elsewhere or an event, and takes the longest time without a
delivery. order counts what is lost or out of order where writers commit out of order.
After each run the topics are read back. The exit code is 1 if notifyd lost an event, or a
stream delivered one out of order; what the others lose is their result.`,
		Example: "  bench variants\n" +
			"  bench variants --only lease,stream --parts drain,order --events 100000\n" +
			"  bench variants --parts open --open-seconds 60 --json",
	}, func(flags *pflag.FlagSet) {
		flags.StringSliceVar(&x.Only, "only", nil, "`variants` to measure, with commas between them; all by default")
		flags.StringSliceVar(&x.Parts, "parts", nil, "`parts` to measure: "+strings.Join(bench.VariantParts(), ",")+"; all by default")
		flags.IntVar(&x.Events, "events", 1_000_000, "`number` of events in the backlog")
		flags.IntVar(&x.Payload, "payload", 256, "`bytes` per payload")
		flags.IntVar(&x.Keys, "keys", 1000, "`number` of aggregates that the backlog belongs to")
		flags.IntVar(&x.Batch, "batch", 100, "largest `number` of events that a worker reads at once")
		flags.IntVar(&x.Writers, "writers", 16, "`number` of connections that write, in the parts writers and order")
		flags.IntVar(&x.Seconds, "seconds", 10, "`seconds` to write for, in the parts writers and order")
		flags.IntVar(&x.OpenSeconds, "open-seconds", 20, "`seconds` that a transaction stays open for, in the part open")
		flags.StringSliceVar(&x.Brokers, "brokers", nil, "`addresses` of Kafka's brokers, with commas between them; a private one by default")
	})
}

// newRelayCmd runs the relay that insert, soak and takeover start as a process.
func newRelayCmd(p *program) *cobra.Command {
	return &cobra.Command{
		Use:    "relay",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.started = true
			order, _ := p.lookup(bench.EnvRelay)
			return bench.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), p.log(cmd), order)
		},
	}
}
