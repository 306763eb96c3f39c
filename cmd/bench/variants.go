package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/bench"
)

func newVariantsCmd(p *program) *cobra.Command {
	var o bench.VariantsOptions
	cmd := &cobra.Command{
		Use:   "variants",
		Args:  cobra.NoArgs,
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
		Example: "  bench variants\n  bench variants --only lease,stream --parts drain,order --events 100000\n  bench variants --parts open --open-seconds 60 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "events", "payload", "keys", "batch", "writers", "seconds", "open-seconds"); err != nil {
				return err
			}
			if err := wordsOf("only", o.Only, bench.VariantNames()); err != nil {
				return err
			}
			if err := wordsOf("parts", o.Parts, bench.VariantParts()); err != nil {
				return err
			}
			return measured(cmd, p, func(ctx context.Context, common bench.Options) (bench.VariantsResult, error) {
				o.Options = common
				return bench.Variants(ctx, o)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.Only, "only", nil, "`variants` to measure, with commas between them; all by default")
	flags.StringSliceVar(&o.Parts, "parts", nil, "`parts` to measure: "+strings.Join(bench.VariantParts(), ",")+"; all by default")
	flags.IntVar(&o.Events, "events", 1_000_000, "`number` of events in the backlog")
	flags.IntVar(&o.Payload, "payload", 256, "`bytes` per payload")
	flags.IntVar(&o.Keys, "keys", 1000, "`number` of aggregates that the backlog belongs to")
	flags.IntVar(&o.Batch, "batch", 100, "largest `number` of events that a worker reads at once")
	flags.IntVar(&o.Writers, "writers", 16, "`number` of connections that write, in the parts writers and order")
	flags.IntVar(&o.Seconds, "seconds", 10, "`seconds` to write for, in the parts writers and order")
	flags.IntVar(&o.OpenSeconds, "open-seconds", 20, "`seconds` that a transaction stays open for, in the part open")
	flags.StringSliceVar(&o.Brokers, "brokers", nil, "`addresses` of Kafka's brokers, with commas between them; a private one by default")
	return cmd
}

// wordsOf returns an error if a flag has a word that is not known.
func wordsOf(flag string, words, known []string) error {
	for _, word := range words {
		if !slices.Contains(known, word) {
			return fmt.Errorf("--%s has %q, which is none of %s", flag, word, strings.Join(known, ", "))
		}
	}
	return nil
}
