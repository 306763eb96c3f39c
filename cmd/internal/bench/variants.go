package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/notifyd/notifyd/cmd/internal/bench/variants"
	"github.com/notifyd/notifyd/handlers/kafka"
)

// Variants measures the ways of package variants, and notifyd as a queue and as a stream, from one PostgreSQL into one
// Kafka.
type Variants struct {
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

// VariantParts returns the words for [Variants.Parts].
func VariantParts() []string { return []string{PartDrain, PartWriters, PartOpen, PartOrder} }

// VariantNames returns the words for [Variants.Only].
func VariantNames() []string {
	var names []string
	for _, who := range contenders() {
		names = append(names, who.name)
	}
	return names
}

const (
	// variantTopics is the number of topics, with one partition each.
	variantTopics = 2
	// variantWorkers is the larger number of workers; the other one is 1.
	variantWorkers = 2
	// variantLease is the lease of the comparison.
	variantLease = 15 * time.Second
)

// settings makes a private server vacuum every few seconds: workers that delete have to skip dead rows that vacuum has
// not removed.
func (x *Variants) settings() map[string]string { return map[string]string{"autovacuum_naptime": "5s"} }

// compare is a run of the bench.
type compare struct {
	*env
	want    *Variants
	brokers []string
	admin   *kadm.Client
	trials  int
}

func (x *Variants) run(ctx context.Context, e *env) (*Result, error) {
	c := &compare{env: e, want: x}
	r := &Result{}
	if err := c.openBroker(ctx); err != nil {
		return nil, err
	}
	for _, who := range contenders() {
		if len(x.Only) > 0 && !slices.Contains(x.Only, who.name) {
			continue
		}
		r.say("%-12s%s", who.name, who.about)
		if err := c.measure(ctx, who, r.column(who.name)); err != nil {
			return nil, fmt.Errorf("variant %s: %w", who.name, err)
		}
	}
	r.say("\n%s events of %d B, of %d aggregates", number(float64(x.Events)), x.Payload, x.Keys)
	r.note("-: not measured, or there is no such thing. The faults of notifyd are:")
	return r, nil
}

// Check implements [Experiment].
func (x *Variants) Check() error {
	return cmp.Or(wordsOf("only", x.Only, VariantNames()), wordsOf("parts", x.Parts, VariantParts()),
		atLeast(1, option{"events", x.Events}, option{"payload", x.Payload}, option{"keys", x.Keys}, option{"batch", x.Batch},
			option{"writers", x.Writers}, option{"seconds", x.Seconds}, option{"open-seconds", x.OpenSeconds}))
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

// has reports whether a part is to be measured.
func (x *Variants) has(part string) bool {
	return len(x.Parts) == 0 || slices.Contains(x.Parts, part)
}

// openBroker starts a private broker and warms it up, or uses the named brokers.
func (c *compare) openBroker(ctx context.Context) (err error) {
	load := &Drain{Events: c.want.Events, Payload: c.want.Payload, SinkBatch: max(1, c.want.Batch/variantTopics), Brokers: c.want.Brokers}
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
		err = sink.warmUp(ctx, c.brokers, load)
	}
	c.printf("Kafka at %s (%s), %d topics of 1 partition\nproducers: %s\n", strings.Join(c.brokers, ","), whose, variantTopics, variants.ProducerSettings)
	var naptime string
	err = errors.Join(err, c.pool.QueryRow(ctx, "SELECT current_setting('autovacuum_naptime')").Scan(&naptime))
	c.printf("autovacuum_naptime=%s; sessions of all workers: synchronous_commit=off, statements prepared; batches of %d events\n\n", naptime, c.want.Batch)
	return err
}

// measure measures the parts of one variant.
func (c *compare) measure(ctx context.Context, who contender, column *Column) error {
	for _, part := range []struct {
		name    string
		measure func(context.Context, contender, *Column) error
	}{
		{PartDrain, c.drains}, {PartWriters, c.writers}, {PartOpen, c.opens}, {PartOrder, c.orders},
	} {
		if !c.want.has(part.name) {
			continue
		}
		if err := part.measure(ctx, who, column); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// sinkBatch returns the batch per topic of notifyd. All topics together then have as many events under way as the workers
// of a variant.
func (t *trial) sinkBatch() int {
	return min(max(1, t.want.Batch*t.workers/variantTopics), kafka.DefaultLane().Batch)
}
