package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/bench"
	"github.com/notifyd/notifyd/internal/laneconf"
)

func newShardsCmd(p *program) *cobra.Command {
	var o bench.ShardsOptions
	cmd := &cobra.Command{
		Use:   "shards",
		Args:  cobra.NoArgs,
		Short: "Speed of one slow destination by its shards and relays",
		Long: `shards delivers a backlog of a stream to one destination with a slow handler: by one
relay with one shard, and by several relays with a shard for each, in turns, three
times each. Each call of the handler waits for --handler-time without using the CPU,
or uses that much CPU time with --busy. All relays have their shard, and a call each
has begun, before the time begins.

The rate is taken twice: until the last event is delivered, and until the first relay
has no more events. The shards of few aggregates differ in size, and the largest one
decides the former.

The relays share one process and the CPU of this machine. With --busy the rate grows
up to its number of cores, and one relay uses all of them unless --concurrency is 1.
The exit code is 1 if an event was lost, or came after a later one of its aggregate.`,
		Example: "  bench shards\n  bench shards --relays 1,2,8 --handler-time 20ms\n  bench shards --busy --concurrency 1 --events 1000 --relays 1,2",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "events", "payload", "keys", "concurrency"); err != nil {
				return err
			}
			if o.HandlerTime < 0 {
				return fmt.Errorf("--handler-time %s is below 0", o.HandlerTime)
			}
			if len(o.Relays) == 0 || o.Relays[0] != 1 {
				return fmt.Errorf("--relays %s does not begin with 1, which the others are compared with", cmd.Flag("relays").Value)
			}
			for _, n := range o.Relays {
				if err := upToShards("relays", n); err != nil {
					return err
				}
			}
			return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.ShardsResult, error) {
				o.Options = common
				return bench.Shards(ctx, o)
			})
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Events, "events", 20_000, "`number` of events in the backlog for each relay")
	flags.IntVar(&o.Payload, "payload", 256, "`bytes` per payload")
	flags.IntVar(&o.Keys, "keys", 1000, "`number` of aggregates that the events belong to")
	flags.IntVar(&o.Concurrency, "concurrency", 8, "`number` of calls of the handler at once, per shard")
	flags.DurationVar(&o.HandlerTime, "handler-time", 5*time.Millisecond, "`time` that each call of the handler takes")
	flags.BoolVar(&o.Busy, "busy", false, "use the CPU for that time instead of waiting")
	flags.IntSliceVar(&o.Relays, "relays", []int{1, 2, 4}, "`numbers` of relays, and of shards, to measure; the first is 1")
	return cmd
}

// upToShards returns an error for a number of shards that no destination can have.
func upToShards(name string, n int) error {
	if n < 1 || n > laneconf.MaxShards {
		return fmt.Errorf("--%s %d is not from 1 to %d", name, n, laneconf.MaxShards)
	}
	return nil
}
