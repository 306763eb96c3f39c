package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/bench/variants"
)

// VariantsOptions of [Variants].
type VariantsOptions struct {
	Options
	// Only are the variants to measure, of [VariantNames]; none: all.
	Only []string
	// Parts are what to measure of them, of [VariantParts]; none: all.
	Parts []string
	// Events is the size of the backlog, Payload that of an event in bytes, and Keys how
	// many aggregates the events belong to.
	Events  int
	Payload int
	Keys    int
	// Batch is the largest number of events that a worker reads at once.
	Batch int
	// Writers write at once, for so many Seconds, in the parts writers and order.
	Writers int
	Seconds int
	// OpenSeconds is how long a transaction stays open in the part open.
	OpenSeconds int
	// Brokers are those of Kafka; none: a private one is started.
	Brokers []string
}

// The parts of [Variants].
const (
	PartDrain   = "drain"
	PartWriters = "writers"
	PartOpen    = "open"
	PartOrder   = "order"
)

// VariantParts returns the words for [VariantsOptions.Parts].
func VariantParts() []string { return []string{PartDrain, PartWriters, PartOpen, PartOrder} }

// VariantNames returns the words for [VariantsOptions.Only].
func VariantNames() []string {
	var names []string
	for _, who := range contenders() {
		names = append(names, who.name)
	}
	return names
}

// VariantsResult is the result of [Variants].
type VariantsResult struct {
	Events   int             `json:"events"`
	Payload  int             `json:"payload"`
	Batch    int             `json:"batch"`
	Keys     int             `json:"keys"`
	Producer string          `json:"producer"`
	Variants []VariantResult `json:"variants"`
}

// VariantResult has the figures of one variant.
type VariantResult struct {
	Name string `json:"name"`
	// Notifyd is whether it is a relay of ours.
	Notifyd bool            `json:"notifyd"`
	Drains  []VariantDrain  `json:"drains,omitempty"`
	Writers *VariantWriters `json:"writers,omitempty"`
	Open    []VariantOpen   `json:"open,omitempty"`
	Order   []VariantOrder  `json:"order,omitempty"`

	inOrder bool // order per aggregate is promised
}

// Tally is what reading the topics back has found, against the events that were committed.
type Tally struct {
	Lost       int64 `json:"lost"`
	Duplicates int64 `json:"duplicates"`
	// OutOfOrder counts the events that came after a later one of their aggregate;
	// events that were there before do not count.
	OutOfOrder int64 `json:"out_of_order"`
}

// VariantDrain is a drain of the backlog.
type VariantDrain struct {
	Workers int     `json:"workers"`
	Seconds float64 `json:"seconds"`
	// PostgresCPU of a private server and WorkerCPU of all workers are in seconds.
	PostgresCPU float64 `json:"postgres_cpu_s"`
	WorkerCPU   float64 `json:"worker_cpu_s"`
	// ChangedRows are the rows that were updated or deleted, each of which leaves a dead
	// one; DeadRows is PostgreSQL's estimate of those that vacuum has not removed yet.
	ChangedRows int64 `json:"changed_rows"`
	DeadRows    int64 `json:"dead_rows"`
	// WALBytes is the write-ahead log of the drain.
	WALBytes float64 `json:"wal_bytes"`
	Tally
}

// VariantWriters is what writers reach beside a worker that follows them.
type VariantWriters struct {
	InsertsPerSecond float64 `json:"inserts_per_second"`
	// CaughtUpSeconds is how long the worker needs after the last commit.
	CaughtUpSeconds float64 `json:"caught_up_seconds"`
	Tally
}

// VariantOpen is what a transaction does that stays open.
type VariantOpen struct {
	// Transaction is [ForeignElsewhere] or [ForeignHere].
	Transaction string `json:"transaction"`
	// SilentSeconds is the longest time without a delivery while it was open, and
	// LongestCommitMS the longest time that another writer needed for an event.
	SilentSeconds   float64 `json:"silent_seconds"`
	LongestCommitMS float64 `json:"longest_commit_ms"`
	Tally
}

// VariantOrder is what becomes of events whose transactions commit in another order than
// they began in.
type VariantOrder struct {
	Workers int   `json:"workers"`
	Written int64 `json:"written"`
	Tally
}

// OK reports whether notifyd lost no event, and a stream kept the order of each
// aggregate. What became of the others' events is a result.
func (r VariantsResult) OK() bool {
	return !slices.ContainsFunc(r.Variants, func(v VariantResult) bool {
		return v.Notifyd && slices.ContainsFunc(v.tallies(), func(t Tally) bool {
			return t.Lost > 0 || v.inOrder && t.OutOfOrder > 0
		})
	})
}

// tallies are those of all runs.
func (v *VariantResult) tallies() (all []Tally) {
	for _, d := range v.Drains {
		all = append(all, d.Tally)
	}
	if v.Writers != nil {
		all = append(all, v.Writers.Tally)
	}
	for _, o := range v.Open {
		all = append(all, o.Tally)
	}
	for _, o := range v.Order {
		all = append(all, o.Tally)
	}
	return all
}

const (
	// variantTopics have one partition each.
	variantTopics = 2
	// variantWorkers is the largest number of workers that is measured; 1 is the other.
	variantWorkers = 2
	// variantLease is that of the comparison.
	variantLease = 15 * time.Second
)

// vacuumSoon has a private server look for dead rows every few seconds: workers that delete
// have to step over those that it has not removed.
func vacuumSoon() map[string]string { return map[string]string{"autovacuum_naptime": "5s"} }

// compare is a run of the bench.
type compare struct {
	*env
	want    VariantsOptions
	brokers []string
	admin   *kadm.Client
	trials  int
}

// Variants measures the ways of package variants, and notifyd as a queue and as a stream,
// from one PostgreSQL into one Kafka.
func Variants(ctx context.Context, o VariantsOptions) (VariantsResult, error) {
	if err := o.check(); err != nil {
		return VariantsResult{}, err
	}
	o.settings = vacuumSoon()
	r := VariantsResult{Events: o.Events, Payload: o.Payload, Batch: o.Batch, Keys: o.Keys, Producer: variants.ProducerSettings}
	err := within(ctx, o.Options, func(ctx context.Context, e *env) error {
		c := &compare{env: e, want: o}
		if err := c.openBroker(ctx); err != nil {
			return err
		}
		for _, who := range contenders() {
			if len(o.Only) > 0 && !slices.Contains(o.Only, who.name) {
				continue
			}
			one, err := c.measure(ctx, who)
			if err != nil {
				return fmt.Errorf("variant %s: %w", who.name, err)
			}
			r.Variants = append(r.Variants, one)
		}
		c.report(r)
		return nil
	})
	return r, err
}

// check returns an error for options that cannot be measured.
func (o *VariantsOptions) check() error {
	for _, n := range []int{o.Events, o.Payload, o.Keys, o.Batch, o.Writers, o.Seconds, o.OpenSeconds} {
		if n < 1 {
			return errors.New("events, payload, keys, batch, writers, seconds and open seconds must be at least 1")
		}
	}
	for _, name := range o.Only {
		if !slices.Contains(VariantNames(), name) {
			return fmt.Errorf("there is no variant %q", name)
		}
	}
	for _, part := range o.Parts {
		if !slices.Contains(VariantParts(), part) {
			return fmt.Errorf("there is no part %q", part)
		}
	}
	return nil
}

// has reports whether a part is to be measured.
func (o *VariantsOptions) has(part string) bool {
	return len(o.Parts) == 0 || slices.Contains(o.Parts, part)
}

// openBroker starts a private broker and warms it up, or uses those that are named.
func (c *compare) openBroker(ctx context.Context) (err error) {
	load := DrainOptions{Events: c.want.Events, Payload: c.want.Payload, SinkBatch: max(1, c.want.Batch/variantTopics), Brokers: c.want.Brokers}
	sink := &kafkaSink{}
	c.cleanup = append(c.cleanup, sink.close)
	if c.brokers, err = sink.brokers(ctx, load); err != nil {
		return err
	}
	if err := sink.make(ctx, c.brokers, variantTopics); err != nil {
		return err
	}
	c.admin = kadm.NewClient(sink.client)
	whose := "those of --brokers"
	if sink.server != nil {
		whose = "private, warmed up"
		defer c.progress("warming up Kafka", 0, nil)()
		err = sink.warmUp(ctx, c.brokers, load)
	}
	c.printf("Kafka at %s (%s), %d topics of 1 partition\nproducers: %s\n", strings.Join(c.brokers, ","), whose, variantTopics, variants.ProducerSettings)
	var naptime string
	err = errors.Join(err, c.pool.QueryRow(ctx, "SELECT current_setting('autovacuum_naptime')").Scan(&naptime))
	c.printf("autovacuum_naptime=%s; sessions of all workers: synchronous_commit=off, statements prepared; batches of %d events\n\n", naptime, c.want.Batch)
	return err
}

// measure measures the parts of one variant.
func (c *compare) measure(ctx context.Context, who contender) (r VariantResult, err error) {
	r = VariantResult{Name: who.name, Notifyd: who.way == nil, inOrder: who.inOrder}
	for _, part := range []struct {
		name    string
		measure func(context.Context, contender, *VariantResult) error
	}{
		{PartDrain, c.drains}, {PartWriters, c.writers}, {PartOpen, c.opens}, {PartOrder, c.orders},
	} {
		if !c.want.has(part.name) {
			continue
		}
		if err := part.measure(ctx, who, &r); err != nil {
			return r, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return r, nil
}

// sinkBatch is how many events go to a topic in one call of notifyd, so that it has as many
// on their way as the workers of a variant have, all topics together.
func (t *trial) sinkBatch() int {
	return min(max(1, t.want.Batch*t.workers/variantTopics), kafka.DefaultLane().Batch)
}
