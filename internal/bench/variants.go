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
	// Only are the variants to measure, of [VariantNames]. If empty, all are measured.
	Only []string
	// Parts are the parts to measure, of [VariantParts]. If empty, all are measured.
	Parts []string
	// Events is the size of the backlog. Payload is the size of an event's payload in bytes. Keys is the number of
	// aggregates.
	Events  int
	Payload int
	Keys    int
	// Batch is the largest number of events that a worker reads at once.
	Batch int
	// Writers is the number of concurrent writers in the parts writers and order, which last Seconds.
	Writers int
	Seconds int
	// OpenSeconds is how long a transaction stays open in the part open.
	OpenSeconds int
	// Brokers are the brokers of Kafka. If empty, the bench starts a private one.
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
	// Notifyd reports whether the variant is a relay of notifyd.
	Notifyd bool            `json:"notifyd"`
	Drains  []VariantDrain  `json:"drains,omitempty"`
	Writers *VariantWriters `json:"writers,omitempty"`
	Open    []VariantOpen   `json:"open,omitempty"`
	Order   []VariantOrder  `json:"order,omitempty"`

	inOrder bool // the variant promises order per aggregate
}

// Counts compares the topics, read back, with the committed events.
type Counts struct {
	Lost       int64 `json:"lost"`
	Duplicates int64 `json:"duplicates"`
	// OutOfOrder counts the events that arrived after a later one of their aggregate. Duplicates do not count.
	OutOfOrder int64 `json:"out_of_order"`
}

// VariantDrain is a drain of the backlog.
type VariantDrain struct {
	Workers int     `json:"workers"`
	Seconds float64 `json:"seconds"`
	// PostgresCPU, of a private server, and WorkerCPU, of all workers, are in seconds.
	PostgresCPU float64 `json:"postgres_cpu_s"`
	WorkerCPU   float64 `json:"worker_cpu_s"`
	// ChangedRows is the number of updated or deleted rows. Each leaves a dead row. DeadRows is PostgreSQL's estimate of
	// the dead rows that vacuum has not removed yet.
	ChangedRows int64 `json:"changed_rows"`
	DeadRows    int64 `json:"dead_rows"`
	// WALBytes is the size of the write-ahead log of the drain.
	WALBytes float64 `json:"wal_bytes"`
	Counts
}

// VariantWriters is the rate of the writers while a worker follows them.
type VariantWriters struct {
	InsertsPerSecond float64 `json:"inserts_per_second"`
	// CaughtUpSeconds is how long the worker needs after the last commit.
	CaughtUpSeconds float64 `json:"caught_up_seconds"`
	Counts
}

// VariantOpen is the effect of a transaction that stays open.
type VariantOpen struct {
	// Transaction is [ForeignElsewhere] or [ForeignHere].
	Transaction string `json:"transaction"`
	// SilentSeconds is the longest time without a delivery while the transaction was open. LongestCommitMS is the longest
	// time that another writer needed for an event.
	SilentSeconds   float64 `json:"silent_seconds"`
	LongestCommitMS float64 `json:"longest_commit_ms"`
	Counts
}

// VariantOrder is the result for transactions that commit in a different order than they began.
type VariantOrder struct {
	Workers int   `json:"workers"`
	Written int64 `json:"written"`
	Counts
}

// OK reports whether notifyd lost no event, and a stream kept the order of each aggregate. Faults of the other variants
// are results, not failures.
func (r VariantsResult) OK() bool {
	return !slices.ContainsFunc(r.Variants, func(v VariantResult) bool {
		return v.Notifyd && slices.ContainsFunc(v.tallies(), func(t Counts) bool {
			return t.Lost > 0 || v.inOrder && t.OutOfOrder > 0
		})
	})
}

// tallies returns the tallies of all runs.
func (v *VariantResult) tallies() (all []Counts) {
	for _, d := range v.Drains {
		all = append(all, d.Counts)
	}
	if v.Writers != nil {
		all = append(all, v.Writers.Counts)
	}
	for _, o := range v.Open {
		all = append(all, o.Counts)
	}
	for _, o := range v.Order {
		all = append(all, o.Counts)
	}
	return all
}

const (
	// variantTopics is the number of topics, with one partition each.
	variantTopics = 2
	// variantWorkers is the larger number of workers; the other one is 1.
	variantWorkers = 2
	// variantLease is the lease of the comparison.
	variantLease = 15 * time.Second
)

// vacuumSoon makes a private server vacuum every few seconds: workers that delete have to skip dead rows that vacuum has
// not removed.
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

// check returns an error for invalid options.
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

// openBroker starts a private broker and warms it up, or uses the named brokers.
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

// sinkBatch returns the batch per topic of notifyd. All topics together then have as many events under way as the workers
// of a variant.
func (t *trial) sinkBatch() int {
	return min(max(1, t.want.Batch*t.workers/variantTopics), kafka.DefaultLane().Batch)
}
