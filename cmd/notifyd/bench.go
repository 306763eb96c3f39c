package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/bench"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/engine"
)

// benchFlags are those that every bench has.
type benchFlags struct {
	database   string
	force      bool
	asJSON     bool
	cpuProfile string
	memProfile string
}

func newBenchCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "Measure notifyd on this machine",
		Example: "  notifyd bench latency --rate 2000\n  notifyd bench drain --events 1000000 --payload 1024",
		Long: `bench measures how fast notifyd is here, beside what the database alone can do in
the same run. Each bench starts a private PostgreSQL that flushes to disk like
one in production, and installs one where there is none. With --database-url it
uses that one, in schemas of its own that are dropped at the end.

docs/performance.md says how each figure is got.`,
	}
	f := &benchFlags{}
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.database, "database-url", "", "use this database, in schemas of their own that are dropped at the end")
	flags.BoolVar(&f.force, "force", false, "use it even if it holds events")
	flags.BoolVar(&f.asJSON, "json", false, "print the result as one line of JSON on standard output")
	flags.StringVar(&f.cpuProfile, "cpuprofile", "", "write a profile of this process's CPU time to this `file`")
	flags.StringVar(&f.memProfile, "memprofile", "", "write a profile of this process's allocations to this `file`")
	cmd.AddCommand(newBenchLatencyCmd(a, f), newBenchDrainCmd(a, f), newBenchInsertCmd(a, f), newBenchSoakCmd(a, f), newBenchTakeoverCmd(a, f), newBenchRelayCmd(a))
	return cmd
}

func newBenchLatencyCmd(a *app, f *benchFlags) *cobra.Command {
	var o bench.LatencyOptions
	mode := modeFlag()
	foreign := oneOf{words: bench.Foreigns()}
	cmd := &cobra.Command{
		Use:   "latency",
		Short: "Time from a commit to the call of the handler",
		Long: `latency writes events at a fixed rate, each in a transaction of its own, and takes
the time from the return of COMMIT to the call of the handler. In turns with
that it measures the floor: a bare connection that listens, and a claim of the
row in SQL. It exits with 1 if an event was lost.`,
		Example: "  notifyd bench latency\n  notifyd bench latency --rate 2000 --events 8000 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "events", "rate"); err != nil {
				return err
			}
			o.Mode, o.Foreign = bench.Mode(mode.value), foreign.value
			return runBench(cmd, a, f, func(ctx context.Context, common bench.Options) (bench.LatencyResult, error) {
				o.Options = common
				return bench.Latency(ctx, o)
			})
		},
	}
	cmd.Flags().IntVar(&o.Events, "events", 2000, "`number` of events to measure")
	cmd.Flags().IntVar(&o.Rate, "rate", 500, "transactions per `second`")
	cmd.Flags().BoolVar(&o.HeldSnapshot, "held-snapshot", false, "measure as many events while an old snapshot is held, in turns")
	addForeign(cmd, &foreign, "measure as many events, in turns, while a transaction is open that has written: elsewhere, or here, which is an event")
	cmd.Flags().Var(&mode, "mode", modeUsage)
	return cmd
}

func newBenchDrainCmd(a *app, f *benchFlags) *cobra.Command {
	var o bench.DrainOptions
	mode := modeFlag()
	foreign := oneOf{words: bench.Foreigns()}
	to := oneOf{words: bench.Sinks(), value: "noop"}
	queueType := oneOf{words: []string{"classic", "quorum"}, value: "classic"}
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Speed of working off a backlog",
		Long: `drain inserts a backlog and takes the time that a relay needs to deliver all of it,
from its start until everything is settled; and the time that the same
statements need for an equal backlog without a relay around them, on as many
connections. It exits with 1 if an event was lost.

With --to kafka the events go to topics of one partition each, on brokers that
--brokers names, or on a private one. What was lost, or came twice, is found by
reading the topics back. With --to rabbitmq they go to a durable queue, on the
broker of --amqp-url, or on a private one, and are read back too.

The events belong to no aggregate, so that no order has to be kept, unless --keys
says to how many. --blocked-keys measures whether blocked aggregates slow the
others down: the drain is timed without and with so many of them beside, in
turns, three times each. Of each the first event has failed once and is to be
tried again in a day, and two later ones wait behind it, in the tables from
before the backlog. --blocked-fresh adds later events of theirs to the backlog
itself. It exits with 1 if any event of a blocked aggregate was delivered, or is
not stored as it should be at the end.

--urgent puts events for another destination at the end of the backlog, and tells
how many of the others were delivered before them, with that destination like the
others and with a higher priority, in turns, three times each.

With --mode stream the table is a stream, and the database alone is a read of the same
rows without a relay; with --mode both a queue and a stream are drained in turns, three
times each. --destinations measures one destination and so many, each of which gets
every event. With --keys it also exits with 1 if an event came after a later one of its
aggregate.`,
		Example: "  notifyd bench drain\n  notifyd bench drain --mode both --keys 1000\n  notifyd bench drain --to kafka --events 1000000\n  notifyd bench drain --delete --events 1000000 --payload 1024 --json\n  notifyd bench drain --held-snapshot\n  notifyd bench drain --mode stream --keys 10000 --blocked-keys 100000\n  notifyd bench drain --urgent 30",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "events", "batch", "workers", "payload", "topics"); err != nil {
				return err
			}
			if err := atLeast(cmd, 0, "keys", "blocked-keys", "blocked-fresh", "urgent", "partitions", "destinations", "sink-batch"); err != nil {
				return err
			}
			o.To, o.QueueType, o.Mode, o.Foreign = to.value, queueType.value, bench.Mode(mode.value), foreign.value
			if err := errors.Join(checkBlocked(o), checkDrain(o)); err != nil {
				return err
			}
			return runBench(cmd, a, f, func(ctx context.Context, common bench.Options) (bench.DrainResult, error) {
				o.Options = common
				return bench.Drain(ctx, o)
			})
		},
	}
	defaults := engine.DefaultLimits()
	flags := cmd.Flags()
	flags.IntVar(&o.Events, "events", 200_000, "`number` of events in the backlog")
	flags.IntVar(&o.Payload, "payload", 256, "`bytes` per payload")
	flags.BoolVar(&o.Delete, "delete", false, "delete delivered events instead of keeping them")
	flags.IntVar(&o.Batch, "batch", defaults.Batch, "largest `number` of events in one claim")
	flags.IntVar(&o.Workers, "workers", defaults.Claims, "`number` of claims in flight, each with a connection")
	flags.Var(&to, "to", "destination: noop, a Go function that does nothing; kafka; or rabbitmq")
	flags.StringSliceVar(&o.Brokers, "brokers", nil, "`addresses` of Kafka's brokers, with commas between them; a private one by default")
	flags.StringVar(&o.AMQPURL, "amqp-url", "", "`URL` of RabbitMQ; a private one by default")
	flags.Var(&queueType, "queue-type", "type of RabbitMQ's queue: classic or quorum")
	flags.IntVar(&o.Topics, "topics", 2, "`number` of Kafka's topics, with one partition each")
	flags.IntVar(&o.Keys, "keys", 0, "`number` of aggregates that the events belong to; 0 for none, or for 10,000 with --blocked-keys")
	flags.IntVar(&o.BlockedKeys, "blocked-keys", 0, "`number` of aggregates beside them that earlier failures block; measures without and with them")
	flags.IntVar(&o.BlockedFresh, "blocked-fresh", 0, "`number` of events of blocked aggregates in the backlog, beside --events")
	flags.IntVar(&o.Urgent, "urgent", 0, "`number` of events for a destination of their own at the end of the backlog; measures it alike and of higher priority")
	flags.IntVar(&o.Partitions, "partitions", 0, "drain a table with this `number` of partitions, and beside it a plain one in place of SQL alone")
	flags.BoolVar(&o.HeldSnapshot, "held-snapshot", false, "keep a transaction open that can see the whole backlog, so that nothing can be cleaned up")
	addForeign(cmd, &foreign, "keep a transaction open that has written: elsewhere, or here, which is an event before all others")
	flags.IntVar(&o.Destinations, "destinations", 1, "`number` of destinations that get each event; measures one and all of them")
	flags.IntVar(&o.SinkBatch, "sink-batch", 0, "largest `number` of events in one call to the sink; 0 for the default of its type")
	flags.BoolVar(&o.Consume, "consume", false, "have somebody read RabbitMQ's queue meanwhile")
	flags.Var(&mode, "mode", modeUsage)
	return cmd
}

func newBenchInsertCmd(a *app, f *benchFlags) *cobra.Command {
	var o bench.InsertOptions
	mode := modeFlag()
	cmd := &cobra.Command{
		Use:   "insert",
		Short: "What the trigger costs the writers",
		Long: `insert lets writers commit one event after the other, as fast as they can, and
counts: without a trigger; with the bell as it is by default and a relay at
work; with the bell silent and no relay, which is what the trigger alone costs;
and with a notification of every event. The four take turns.`,
		Example: "  notifyd bench insert\n  notifyd bench insert --writers 64 --seconds 15 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "writers", "seconds"); err != nil {
				return err
			}
			o.Mode = bench.Mode(mode.value)
			return runBench(cmd, a, f, func(ctx context.Context, common bench.Options) (bench.InsertResult, error) {
				o.Options = common
				return bench.Insert(ctx, o)
			})
		},
	}
	cmd.Flags().IntVar(&o.Writers, "writers", 16, "`number` of connections that write")
	cmd.Flags().IntVar(&o.Seconds, "seconds", 5, "`seconds` to measure each of the four for")
	cmd.Flags().Var(&mode, "mode", modeUsage)
	return cmd
}

func newBenchSoakCmd(a *app, f *benchFlags) *cobra.Command {
	var o bench.SoakOptions
	mode := modeFlag()
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Latency, table size and CPU time over a while at a fixed rate",
		Long: `soak writes events at a fixed rate, each in a transaction of its own, and takes
the time from the moment at which an event was due to be written to the call of
the handler; how dead tuples and the table grow; and the CPU time of the relay.
It exits with 1 if an event was lost.`,
		Example: "  notifyd bench soak\n  notifyd bench soak --rate 1000 --seconds 3600 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "rate", "seconds"); err != nil {
				return err
			}
			o.Mode = bench.Mode(mode.value)
			return runBench(cmd, a, f, func(ctx context.Context, common bench.Options) (bench.SoakResult, error) {
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

func newBenchTakeoverCmd(a *app, f *benchFlags) *cobra.Command {
	var o bench.TakeoverOptions
	mode := modeFlag()
	cmd := &cobra.Command{
		Use:   "takeover",
		Short: "How long events wait when a relay is killed",
		Long: `takeover writes events at a fixed rate, each in a transaction of its own, for two
relays, and kills in the middle the one that delivered last, with SIGKILL. It takes
the longest time from the moment at which an event was due to be written to the call
of the handler, and counts what came again. It exits with 1 if an event was lost.`,
		Example: "  notifyd bench takeover --mode stream\n  notifyd bench takeover --rate 500 --seconds 20 --mode both --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "rate", "seconds"); err != nil {
				return err
			}
			o.Mode = bench.Mode(mode.value)
			return runBench(cmd, a, f, func(ctx context.Context, common bench.Options) (bench.TakeoverResult, error) {
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

// newBenchRelayCmd is the relay that insert and soak start as a process.
func newBenchRelayCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "relay",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := newLogger(cmd.ErrOrStderr(), config.Log{Level: first(a.logLevel.value, "warn"), Format: first(a.logFormat.value, "auto")})
			order, _ := a.lookup(bench.EnvRelay)
			return bench.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), log, order)
		},
	}
}

// checkBlocked refuses flags about blocked aggregates that do not fit together.
func checkBlocked(o bench.DrainOptions) error {
	switch {
	case o.Urgent > 0 && (o.To != "noop" || o.BlockedKeys > 0 || o.Partitions > 0):
		return usageErrorf("--urgent goes with --to noop, and without --blocked-keys and --partitions")
	case o.BlockedKeys > 0 && o.Mode != bench.ModeStream:
		return usageErrorf("--blocked-keys needs --mode stream: a queue holds nothing back")
	case o.BlockedKeys > 0 && o.To != "noop":
		return usageErrorf("--blocked-keys needs --to noop, not %s", o.To)
	case o.BlockedFresh > 0 && o.BlockedKeys == 0:
		return usageErrorf("--blocked-fresh needs --blocked-keys")
	case o.BlockedFresh > o.Events:
		return usageErrorf("--blocked-fresh %d is above --events %d", o.BlockedFresh, o.Events)
	}
	return nil
}

// checkDrain refuses other flags that do not fit together.
func checkDrain(o bench.DrainOptions) error {
	switch {
	case o.Destinations > 1 && (o.To != "noop" || o.BlockedKeys > 0 || o.Urgent > 0 || o.Partitions > 0):
		return usageErrorf("--destinations goes with --to noop, and without --blocked-keys, --urgent and --partitions")
	case o.Delete && o.Mode != bench.ModeQueue:
		return usageErrorf("--delete goes with --mode queue")
	case o.Consume && o.To != "rabbitmq":
		return usageErrorf("--consume needs --to rabbitmq")
	case o.Foreign == bench.ForeignHere && o.BlockedKeys > 0:
		return usageErrorf("--foreign-transaction=here goes without --blocked-keys")
	}
	return nil
}

const modeUsage = "what the table is: queue, stream, or both in turns"

// modeFlag is what the tables of a bench are.
func modeFlag() oneOf { return oneOf{words: bench.Modes(), value: string(bench.ModeQueue)} }

// addForeign adds the flag for a transaction that stays open.
func addForeign(cmd *cobra.Command, foreign *oneOf, usage string) {
	cmd.Flags().Var(foreign, "foreign-transaction", usage)
	cmd.Flags().Lookup("foreign-transaction").NoOptDefVal = bench.ForeignElsewhere
}

// atLeastOne refuses numbers below 1.
func atLeastOne(cmd *cobra.Command, names ...string) error { return atLeast(cmd, 1, names...) }

// atLeast refuses numbers below the least one.
func atLeast(cmd *cobra.Command, least int, names ...string) error {
	for _, name := range names {
		if n, err := cmd.Flags().GetInt(name); err != nil || n < least {
			return usageErrorf("--%s %s is below %d", name, cmd.Flag(name).Value, least)
		}
	}
	return nil
}

// errBench is returned after a bench that shows that something is wrong.
var errBench = errors.New("events were lost")

// runBench runs a bench with what all have in common and prints its result.
func runBench[R interface{ OK() bool }](cmd *cobra.Command, a *app, f *benchFlags, measure func(context.Context, bench.Options) (R, error)) error {
	out := cmd.OutOrStdout()
	if f.asJSON {
		out = cmd.ErrOrStderr() // standard output is for the result alone
	}
	log := newLogger(cmd.ErrOrStderr(), config.Log{Level: first(a.logLevel.value, "warn"), Format: first(a.logFormat.value, "auto")})
	ctx, stop := untilSignal(cmd.Context(), log)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	var result R
	err = f.profiled(func() (err error) {
		result, err = measure(ctx, bench.Options{
			DatabaseURL: f.database, Force: f.force, Out: out, Live: widthOf(out, a) != nil, Log: log,
			Relay: []string{self, "bench", "relay"},
		})
		return err
	})
	if err != nil {
		return err
	}
	if f.asJSON {
		line, err := json.Marshal(result)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), string(line)); err != nil {
			return err
		}
	}
	if !result.OK() {
		return errBench
	}
	return nil
}

// profiled runs f and writes the profiles that were asked for.
func (f *benchFlags) profiled(run func() error) (err error) {
	if f.cpuProfile != "" {
		file, err := os.Create(f.cpuProfile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return errors.Join(err, file.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, file.Close())
		}()
	}
	if f.memProfile == "" {
		return run()
	}
	if err := run(); err != nil {
		return err
	}
	file, err := os.Create(f.memProfile)
	if err != nil {
		return err
	}
	runtime.GC() // counts what was freed up to now
	return errors.Join(pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
}
