package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/bench"
	"github.com/notifyd/notifyd/internal/cli"
)

func newLatencyCmd(p *program) *cobra.Command {
	var o bench.LatencyOptions
	mode := modeFlag()
	foreign := cli.OneOf{Words: bench.Foreigns()}
	cmd := &cobra.Command{
		Use:   "latency",
		Args:  cobra.NoArgs,
		Short: "Time from a commit to the call of the handler",
		Long: `latency writes events at a fixed rate, each in a transaction of its own, and takes
the time from the return of COMMIT to the call of the handler. In turns with
that it measures the floor: a bare connection that listens, and a claim of the
row in SQL. The exit code is 1 if an event was lost.`,
		Example: "  bench latency\n  bench latency --rate 2000 --events 8000 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "events", "rate"); err != nil {
				return err
			}
			o.Mode, o.Foreign = bench.Mode(mode.Value), foreign.Value
			return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.LatencyResult, error) {
				o.Options = common
				return bench.Latency(ctx, o)
			})
		},
	}
	cmd.Flags().IntVar(&o.Events, "events", 2000, "`number` of events to measure")
	cmd.Flags().IntVar(&o.Rate, "rate", 500, "transactions per `second`")
	cmd.Flags().BoolVar(&o.HeldSnapshot, "held-snapshot", false, "measure as many events with an old snapshot held, in turns")
	addForeign(cmd, &foreign, "measure as many events, in turns, while a transaction is open that has written: elsewhere, or here, which is an event")
	cmd.Flags().Var(&mode, "mode", modeUsage)
	return cmd
}

func newDrainCmd(p *program) *cobra.Command {
	var o bench.DrainOptions
	mode := modeFlag()
	foreign := cli.OneOf{Words: bench.Foreigns()}
	to := cli.OneOf{Words: bench.Sinks(), Value: "noop"}
	queueType := cli.OneOf{Words: []string{"classic", "quorum"}, Value: "classic"}
	cmd := &cobra.Command{
		Use:   "drain",
		Args:  cobra.NoArgs,
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
		Example: "  bench drain\n  bench drain --mode both --keys 1000\n  bench drain --to kafka --events 1000000\n  bench drain --mode stream --to kafka --exactly-once\n  bench drain --delete --events 1000000 --payload 1024 --json\n  bench drain --held-snapshot\n  bench drain --mode stream --keys 10000 --blocked-keys 100000\n  bench drain --urgent 30",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(atLeastOne(cmd, "events", "batch", "workers", "payload", "topics"),
				atLeast(cmd, 0, "keys", "blocked-keys", "blocked-fresh", "urgent", "partitions", "destinations", "sink-batch"),
				upToShards("shards", o.Shards)); err != nil {
				return err
			}
			o.To, o.QueueType, o.Mode, o.Foreign = to.Value, queueType.Value, bench.Mode(mode.Value), foreign.Value
			if err := errors.Join(checkBlocked(o), checkDrain(o)); err != nil {
				return err
			}
			return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.DrainResult, error) {
				o.Options = common
				return bench.Drain(ctx, o)
			})
		},
	}
	defaults := notifyd.Config{}.WithDefaults()
	flags := cmd.Flags()
	flags.IntVar(&o.Events, "events", 200_000, "`number` of events in the backlog")
	flags.IntVar(&o.Payload, "payload", 256, "`bytes` per payload")
	flags.BoolVar(&o.Delete, "delete", false, "delete delivered events instead of keeping them")
	flags.IntVar(&o.Batch, "batch", defaults.Batch, "largest `number` of events in one claim")
	flags.IntVar(&o.Workers, "workers", defaults.Connections, "`number` of claims in flight, each with a connection")
	flags.Var(&to, "to", "destination: noop, a Go function that does nothing; kafka; or rabbitmq")
	flags.StringSliceVar(&o.Brokers, "brokers", nil, "`addresses` of Kafka's brokers, with commas between them; a private one by default")
	flags.StringVar(&o.AMQPURL, "amqp-url", "", "`URL` of RabbitMQ; a private one by default")
	flags.Var(&queueType, "queue-type", "type of RabbitMQ's queue: classic or quorum")
	flags.IntVar(&o.Topics, "topics", 2, "`number` of Kafka's topics, with one partition each")
	flags.IntVar(&o.Keys, "keys", 0, "`number` of aggregates that the events belong to; 0 for none, or for 10,000 with --blocked-keys")
	flags.IntVar(&o.BlockedKeys, "blocked-keys", 0, "`number` of aggregates beside them that earlier failures block; measures without and with them")
	flags.IntVar(&o.BlockedFresh, "blocked-fresh", 0, "`number` of events of blocked aggregates in the backlog, beside --events")
	flags.IntVar(&o.Urgent, "urgent", 0, "`number` of events for a destination of their own at the end of the backlog; measures it at the same priority and at a higher one")
	flags.IntVar(&o.Partitions, "partitions", 0, "drain a table with this `number` of partitions, and beside it a plain one in place of SQL alone")
	flags.BoolVar(&o.HeldSnapshot, "held-snapshot", false, "keep a transaction open that can see the whole backlog, so that nothing can be cleaned up")
	addForeign(cmd, &foreign, "keep a transaction open that has written: elsewhere, or here, which is an event before all others")
	flags.IntVar(&o.Destinations, "destinations", 1, "`number` of destinations that get each event; measures one and all of them")
	flags.IntVar(&o.Shards, "shards", 1, "`number` of shards of the destination; measures one and all of them; needs --mode stream")
	flags.IntVar(&o.SinkBatch, "sink-batch", 0, "largest `number` of events in one call to the sink; 0 for the default of its type")
	flags.BoolVar(&o.Total, "total", false, "deliver all events one after the other, in the order of ids (order: total); needs --mode stream")
	flags.BoolVar(&o.ExactlyOnce, "exactly-once", false, "deliver into Kafka exactly once as well, with the position in the transactions; measures both")
	flags.BoolVar(&o.Consume, "consume", false, "read RabbitMQ's queue with a consumer meanwhile")
	flags.Var(&mode, "mode", modeUsage)
	return cmd
}

func newInsertCmd(p *program) *cobra.Command {
	var o bench.InsertOptions
	mode := modeFlag()
	cmd := &cobra.Command{
		Use:   "insert",
		Args:  cobra.NoArgs,
		Short: "What the trigger costs the writers",
		Long: `insert lets writers commit one event after the other, as fast as they can, and
counts: without a trigger; with the trigger as it is by default and a relay at
work; with the trigger silent and no relay, which is what the trigger alone costs;
without a relay; next to a frozen relay, once the server has ended its session; and
with a notification of every event. These take turns. Then it compares commits at a
low rate, at which the relay listens. With --serialized one more is added, in which writers are serialized (migrate --serialize-writers on), and
the latency of its commits is compared with commits without a trigger. With --total
the relay at work delivers all events one after the other (order: total).`,
		Example: "  bench insert\n  bench insert --writers 64 --seconds 15 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "writers", "seconds"); err != nil {
				return err
			}
			o.Mode = bench.Mode(mode.Value)
			return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.InsertResult, error) {
				o.Options = common
				return bench.Insert(ctx, o)
			})
		},
	}
	cmd.Flags().IntVar(&o.Writers, "writers", 16, "`number` of connections that write")
	cmd.Flags().IntVar(&o.Seconds, "seconds", 5, "`seconds` to measure each of them for")
	cmd.Flags().BoolVar(&o.Serialized, "serialized", false, "measure serialized writers as well")
	cmd.Flags().BoolVar(&o.Total, "total", false, "the relay at work delivers in the order of ids (order: total); needs --mode stream")
	cmd.Flags().Var(&mode, "mode", modeUsage)
	return cmd
}

func newSoakCmd(p *program) *cobra.Command {
	var o bench.SoakOptions
	mode := modeFlag()
	cmd := &cobra.Command{
		Use:   "soak",
		Args:  cobra.NoArgs,
		Short: "Latency, table size and CPU time over a while at a fixed rate",
		Long: `soak writes events at a fixed rate, each in a transaction of its own, and takes
the time from the moment at which an event was due to be written to the call of
the handler; how dead tuples and the table grow; and the CPU time of the relay.
The exit code is 1 if an event was lost.`,
		Example: "  bench soak\n  bench soak --rate 1000 --seconds 3600 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "rate", "seconds"); err != nil {
				return err
			}
			o.Mode = bench.Mode(mode.Value)
			return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.SoakResult, error) {
				o.Options = common
				return bench.Soak(ctx, o)
			})
		},
	}
	cmd.Flags().IntVar(&o.Rate, "rate", 5000, "transactions per `second`")
	cmd.Flags().IntVar(&o.Seconds, "seconds", 60, "`seconds` to write for")
	cmd.Flags().Var(&mode, "mode", modeUsage)
	return cmd
}

func newTakeoverCmd(p *program) *cobra.Command {
	var o bench.TakeoverOptions
	mode := modeFlag()
	cmd := &cobra.Command{
		Use:   "takeover",
		Args:  cobra.NoArgs,
		Short: "How long events wait when a relay is killed",
		Long: `takeover writes events at a fixed rate, each in a transaction of its own, for two
relays, and kills in the middle the one that delivered last, with SIGKILL. It takes
the longest time from the moment at which an event was due to be written to the call
of the handler, and counts repeats. The exit code is 1 if an event was lost.`,
		Example: "  bench takeover --mode stream\n  bench takeover --rate 500 --seconds 20 --mode both --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "rate", "seconds"); err != nil {
				return err
			}
			o.Mode = bench.Mode(mode.Value)
			return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.TakeoverResult, error) {
				o.Options = common
				return bench.Takeover(ctx, o)
			})
		},
	}
	cmd.Flags().IntVar(&o.Rate, "rate", 2000, "transactions per `second`")
	cmd.Flags().IntVar(&o.Seconds, "seconds", 10, "`seconds` to write for")
	cmd.Flags().Var(&mode, "mode", modeUsage)
	return cmd
}

func newReplayCmd(p *program) *cobra.Command {
	var o bench.ReplayOptions
	var history bench.HistoryOptions
	mode := modeFlag()
	cmd := &cobra.Command{
		Use:   "replay",
		Args:  cobra.NoArgs,
		Short: "Many dead letters replayed at once, beside another destination",
		Long: `replay makes dead letters of a few aggregates for one destination, and replays all of
them at once. It takes the time until the last one is delivered, and the time from a
commit to the call of the handler of events for another destination: before and after
the replay, and beside it. It exits with 1 if a letter was lost, or, in a stream, came
after a later one of its aggregate.

With --history it replays so many events that a stream has delivered, as "notifyd replay"
does, and measures live events of the same destination, too.`,
		Example: "  bench replay --mode both\n  bench replay --history 1000000\n  bench replay --letters 100000 --keys 5 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "letters", "keys", "rate", "seconds"); err != nil {
				return err
			}
			if history.Events > 0 {
				history.Keys, history.Rate, history.Seconds = o.Keys, o.Rate, o.Seconds
				return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.HistoryResult, error) {
					history.Options = common
					return bench.History(ctx, history)
				})
			}
			o.Mode = bench.Mode(mode.Value)
			return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.ReplayResult, error) {
				o.Options = common
				return bench.Replay(ctx, o)
			})
		},
	}
	cmd.Flags().IntVar(&history.Events, "history", 0, "`number` of delivered events to replay, in place of dead letters")
	cmd.Flags().Float64Var(&history.ReplayRate, "replay-rate", 0, "with --history, the rate of the replay in events per `second`; 0 means no limit")
	cmd.Flags().IntVar(&o.Letters, "letters", 1_000_000, "`number` of dead letters")
	cmd.Flags().IntVar(&o.Keys, "keys", 20, "`number` of aggregates that they belong to")
	cmd.Flags().IntVar(&o.Rate, "rate", 200, "events per `second` for the other destination")
	cmd.Flags().IntVar(&o.Seconds, "seconds", 20, "`seconds` to measure the other destination for before the replay, and again after it")
	cmd.Flags().Var(&mode, "mode", modeUsage)
	return cmd
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

// checkBlocked returns an error for contradictory flags about blocked aggregates and urgent events.
func checkBlocked(o bench.DrainOptions) error {
	switch {
	case o.Urgent > 0 && (o.To != "noop" || o.BlockedKeys > 0 || o.Partitions > 0):
		return fmt.Errorf("--urgent goes with --to noop, and without --blocked-keys and --partitions")
	case o.BlockedKeys > 0 && o.Mode != bench.ModeStream:
		return fmt.Errorf("--blocked-keys needs --mode stream: a queue holds nothing back")
	case o.BlockedKeys > 0 && o.To != "noop":
		return fmt.Errorf("--blocked-keys needs --to noop, not %s", o.To)
	case o.BlockedFresh > 0 && o.BlockedKeys == 0:
		return fmt.Errorf("--blocked-fresh needs --blocked-keys")
	case o.BlockedFresh > o.Events:
		return fmt.Errorf("--blocked-fresh %d is above --events %d", o.BlockedFresh, o.Events)
	}
	return nil
}

// checkDrain returns an error for other contradictory flags.
func checkDrain(o bench.DrainOptions) error {
	switch {
	case o.Destinations > 1 && (o.To != "noop" || o.BlockedKeys > 0 || o.Urgent > 0 || o.Partitions > 0):
		return fmt.Errorf("--destinations goes with --to noop, and without --blocked-keys, --urgent and --partitions")
	case o.Shards > 1 && (o.Mode != bench.ModeStream || o.To != "noop" || o.Total || o.BlockedKeys > 0 || o.Urgent > 0 || o.Partitions > 0 || o.Destinations > 1):
		return fmt.Errorf("--shards goes with --mode stream and --to noop, and without --total, --blocked-keys, --urgent, --partitions and --destinations")
	case o.Delete && o.Mode != bench.ModeQueue:
		return fmt.Errorf("--delete goes with --mode queue")
	case o.Total && (o.Mode != bench.ModeStream || o.BlockedKeys > 0):
		return fmt.Errorf("--total goes with --mode stream, and without --blocked-keys")
	case o.Consume && o.To != "rabbitmq":
		return fmt.Errorf("--consume needs --to rabbitmq")
	case o.Foreign == bench.ForeignHere && o.BlockedKeys > 0:
		return fmt.Errorf("--foreign-transaction=here goes without --blocked-keys")
	}
	return nil
}

const modeUsage = "what the table is: queue, stream, or both in turns"

// modeFlag returns the flag for the mode of the tables.
func modeFlag() cli.OneOf { return cli.OneOf{Words: bench.Modes(), Value: string(bench.ModeQueue)} }

// addForeign adds the flag for an open transaction.
func addForeign(cmd *cobra.Command, foreign *cli.OneOf, usage string) {
	cmd.Flags().Var(foreign, "foreign-transaction", usage)
	cmd.Flags().Lookup("foreign-transaction").NoOptDefVal = bench.ForeignElsewhere
}

// atLeastOne returns an error for numbers below 1.
func atLeastOne(cmd *cobra.Command, names ...string) error { return atLeast(cmd, 1, names...) }

// atLeast returns an error for numbers below least.
func atLeast(cmd *cobra.Command, least int, names ...string) error {
	for _, name := range names {
		if n, err := cmd.Flags().GetInt(name); err != nil || n < least {
			return fmt.Errorf("--%s %s is below %d", name, cmd.Flag(name).Value, least)
		}
	}
	return nil
}
