package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Variants measures the ways, from one PostgreSQL into one Kafka.
type Variants struct {
	Only, Parts          []string // words of ways and of variantParts; all if empty
	Events, Batch        int
	Seconds, OpenSeconds int
	Brokers              []string
}

// trialOptions describe one trial of a way, and the part that it belongs to.
type trialOptions struct {
	part    string
	at      string // prefix of the figures
	workers int
	foreign string // where the open transaction has written
	measure func(ctx context.Context, t *trial, c *Column) error
}

const (
	// variantWorkers is the larger number of workers; the other one is 1.
	variantWorkers = 2
	// variantKeys is the number of aggregates of the backlog.
	variantKeys = 1000
	// variantWriters is the number of writers in the parts writers and order.
	variantWriters = 16
	// keysOfWriter is the number of aggregates of a writer. sharedKeys is the number of aggregates that all writers share
	// when they commit out of order.
	keysOfWriter = 8
	sharedKeys   = 100
	// openWriters is how many writers write while a transaction stays open, each at openPace.
	openWriters = 4
	openPace    = 20 * time.Millisecond
)

// variantParts returns the words for [Variants.Parts].
func variantParts() []string { return []string{"drain", "writers", "open", "order"} }

// Define implements [Experiment].
func (x *Variants) Define(cmd *cobra.Command) {
	cmd.Use = "variants"
	cmd.Short = "Other ways to write an outbox, and a queue and a stream, into Kafka"
	cmd.Long = "variants measures the ways of a well-known comparison of outboxes on PostgreSQL,\n" +
		"and notifyd as a queue and as a stream, from one PostgreSQL into one Kafka, with the\nsame settings for all:\n\n"
	for _, w := range ways() {
		cmd.Long += fmt.Sprintf("  %-12s %s\n", w.name, w.about)
	}
	cmd.Long += `
The part drain works a backlog off, with one worker and with two. The part writers counts
what writers commit while a worker follows them. The part open measures the longest time
without a delivery while a transaction is open, which has written elsewhere or an event.
The part order counts what is lost or out of order where writers commit out of order.
After each run the topics are read back. The exit code is 1 if notifyd lost an event, or a
stream delivered one out of order; what the others lose is their result.`

	flags := cmd.Flags()
	flags.StringSliceVar(&x.Only, "only", nil, "`variants` to measure, with commas between them; all by default")
	flags.StringSliceVar(&x.Parts, "parts", nil, "`parts` to measure: "+strings.Join(variantParts(), ",")+"; all by default")
	flags.IntVar(&x.Events, "events", 1_000_000, "`number` of events in the backlog")
	flags.IntVar(&x.Batch, "batch", 100, "largest `number` of events that a worker reads at once")
	flags.IntVar(&x.Seconds, "seconds", 10, "`seconds` to write for, in the parts writers and order")
	flags.IntVar(&x.OpenSeconds, "open-seconds", 20, "`seconds` that a transaction stays open for, in the part open")
	flags.StringSliceVar(&x.Brokers, "brokers", nil, "`addresses` of Kafka's brokers, with commas between them; a private one by default")
}

// Check implements [Experiment].
func (x *Variants) Check() error {
	var names []string
	for _, w := range ways() {
		names = append(names, w.name)
	}
	return cmp.Or(wordsOf("only", x.Only, names), wordsOf("parts", x.Parts, variantParts()),
		atLeast(1, option{"events", x.Events}, option{"batch", x.Batch}, option{"seconds", x.Seconds}, option{"open-seconds", x.OpenSeconds}))
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

// wants reports whether a list of words has one, or is empty.
func wants(words []string, word string) bool { return len(words) == 0 || slices.Contains(words, word) }

// Settings implements [tuned]. The server vacuums every few seconds: workers that delete have to skip dead rows that
// vacuum has not removed.
func (x *Variants) Settings() map[string]string {
	all := privateSettings()
	all["autovacuum_naptime"] = "5s"
	return all
}

// Run implements [Experiment].
func (x *Variants) Run(ctx context.Context, e *Env) (*Result, error) {
	kafka := &kafkaSink{}
	e.Cleanup(kafka.close)
	if err := kafka.make(ctx, x.Brokers); err != nil {
		return nil, err
	}
	if kafka.server != nil {
		if err := kafka.warmUp(ctx, max(1, x.Batch/sinkTopics), x.Events, payloadBytes); err != nil {
			return nil, err
		}
	}
	e.Printf("Kafka at %s, %d topics of 1 partition\nproducers: %s\n", strings.Join(kafka.addrs, ","), sinkTopics, producerSettings)
	e.Printf("sessions of all workers: synchronous_commit=off, statements prepared; batches of %d events\n\n", x.Batch)

	r := &Result{}
	for _, w := range ways() {
		if !wants(x.Only, w.name) {
			continue
		}
		r.Say("%-12s%s", w.name, w.about)
		for _, o := range w.trials() {
			if !wants(x.Parts, o.part) {
				continue
			}
			t := &trial{Env: e, kafka: kafka, want: x, way: w, trialOptions: o}
			if err := t.run(ctx, r); err != nil {
				return nil, fmt.Errorf("variant %s, %s: %w", w.name, o.part, err)
			}
		}
	}
	r.Say("\n%s events of %d B, of %d aggregates", number(float64(x.Events)), payloadBytes, variantKeys)
	r.Note("-: not measured, or there is no such thing. The faults of notifyd are:")
	return r, nil
}

// drainVariant measures the workers, from their start until they have settled the backlog and ended. Then it counts the
// updated or deleted rows, and PostgreSQL's estimate of those that vacuum has not removed yet.
func drainVariant(ctx context.Context, t *trial, c *Column) error {
	if err := t.insertBacklog(ctx); err != nil {
		return err
	}
	began := time.Now()
	var took time.Duration
	used, err := t.meter(ctx, t.at+t.way.name, 0, func(ctx context.Context) error {
		began = time.Now()
		err := t.withWorkers(ctx, t.want.Events, func(ctx context.Context, w *workers) error {
			return w.until(ctx, func(context.Context) (bool, error) { return w.done() >= int64(t.want.Events), nil })
		})
		took = time.Since(began)
		return err
	})
	if err != nil {
		return err
	}
	dead, err := t.deadRows(ctx, t.schema) // the workers' sessions have reported all changes by then
	if err != nil {
		return err
	}
	var changed int64
	err = t.Pool.QueryRow(ctx, `SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = $1`, t.schema).Scan(&changed)

	c.Set(t.at+"seconds", took.Seconds(), 2)
	if t.Private() {
		c.Set(t.at+"PostgreSQL, CPU s", used.postgres.Seconds(), 2)
	}
	c.Set(t.at+"workers, CPU s", used.relay.Seconds(), 2)
	c.Set(t.at+"WAL, MiB", used.wal/(1<<20), 1)
	c.Set(t.at+"rows changed", float64(changed), 0)
	c.Set(t.at+"dead rows", float64(dead), 0)
	return err
}

// raceWriters measures how many events writers commit as fast as they can, and how soon a worker has delivered them.
func raceWriters(ctx context.Context, t *trial, c *Column) error {
	t.written = make([]int64, variantWriters*keysOfWriter)
	return t.withWriters(ctx, variantWriters, func(ctx context.Context, w *workers, all writers) error {
		began := time.Now()
		err := all.until(ctx, began.Add(time.Duration(t.want.Seconds)*time.Second), func(ctx context.Context, i int, conn *pgx.Conn) error {
			return t.commit(ctx, conn, i+len(all)*rand.IntN(keysOfWriter)) //nolint:gosec // a load
		})
		if err != nil {
			return err
		}
		c.Set(t.at+"inserts/s", float64(t.total())/time.Since(began).Seconds(), 0)
		last := time.Now()
		err = w.caughtUp(ctx)
		c.Set(t.at+"caught up after, s", time.Since(last).Seconds(), 2)
		return err
	})
}

// scramble makes writers commit out of order, but in order within an aggregate. Each locks the aggregate before it writes
// its event, as an application locks the row that the event is about, and unlocks it after its transaction has ended.
func scramble(ctx context.Context, t *trial, c *Column) error {
	t.written = make([]int64, sharedKeys)
	locks := make([]sync.Mutex, sharedKeys)
	return t.withWriters(ctx, variantWriters, func(ctx context.Context, w *workers, all writers) error {
		end := time.Now().Add(time.Duration(t.want.Seconds) * time.Second)
		err := all.until(ctx, end, func(ctx context.Context, _ int, conn *pgx.Conn) error {
			key := rand.IntN(sharedKeys) //nolint:gosec // a load
			return t.commitSlowly(ctx, conn, key, &locks[key])
		})
		c.Set(t.at+"events", float64(t.total()), 0)
		return errors.Join(err, w.caughtUp(ctx))
	})
}

// holding is a trial with an open transaction.
type holding struct {
	*trial
	first chan struct{} // closed with the first delivery
	over  chan struct{} // closed when writers are to end

	mu      sync.Mutex
	opened  bool
	isOpen  bool
	last    time.Time     // the last delivery, or the moment at which the transaction was opened
	silent  time.Duration // longest time without a delivery while it was open
	longest time.Duration // longest commit since it was opened
}

// holdOpen measures the effect of an open transaction.
func holdOpen(ctx context.Context, t *trial, c *Column) error {
	t.written = make([]int64, openWriters*keysOfWriter+1)
	h := &holding{trial: t, first: make(chan struct{}), over: make(chan struct{})}
	client, err := t.consume()
	if err != nil {
		return err
	}
	defer client.Close()
	reader := start(ctx, func(ctx context.Context) error { return h.listen(ctx, client) })

	err = t.withWriters(ctx, openWriters+1, func(ctx context.Context, w *workers, all writers) error {
		err := Together(ctx,
			func(ctx context.Context) error {
				defer close(h.over)
				return h.hold(ctx, all[openWriters])
			},
			func(ctx context.Context) error { return all[:openWriters].each(ctx, h.write) })
		if err != nil {
			return err
		}
		return w.caughtUp(ctx)
	})
	err = errors.Join(err, reader.stop())
	c.Set(t.at+"longest silence, s", h.silent.Seconds(), 2)
	c.Set(t.at+"longest commit, ms", milliseconds(h.longest), 1)
	return err
}

// listen observes the deliveries.
func (h *holding) listen(ctx context.Context, client *kgo.Client) error {
	first := sync.OnceFunc(func() { close(h.first) })
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		if fetches.Empty() {
			continue
		}
		first()
		h.mu.Lock()
		h.endSilence()
		h.mu.Unlock()
	}
	return nil
}

// endSilence measures the time since the last delivery. The caller holds the lock.
func (h *holding) endSilence() {
	if h.isOpen {
		h.silent = max(h.silent, time.Since(h.last))
	}
	h.last = time.Now()
}

// hold opens a transaction once events arrive, and closes it.
func (h *holding) hold(ctx context.Context, conn *pgx.Conn) error {
	wait, cancel := context.WithTimeoutCause(ctx, settleWithin, errors.New("no event has arrived"))
	defer cancel()
	select {
	case <-h.first:
	case <-wait.Done():
		return context.Cause(wait)
	}

	if _, err := conn.Exec(ctx, foreignWrite); err != nil {
		return err
	}
	key := len(h.written) - 1 // of nobody else
	if h.foreign == foreignHere {
		if err := h.insert(ctx, conn, key); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.opened = true
	h.isOpen = true
	h.last = time.Now()
	h.mu.Unlock()
	if err := pause(ctx, time.Duration(h.want.OpenSeconds)*time.Second); err != nil {
		return err
	}

	h.mu.Lock()
	h.endSilence()
	h.isOpen = false
	h.mu.Unlock()
	if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
		return err
	}
	if h.foreign == foreignHere {
		h.written[key]++
	}
	return pause(ctx, time.Second) // as things are again
}

// write commits events, at a rate that every variant sustains.
func (h *holding) write(ctx context.Context, i int, conn *pgx.Conn) error {
	tick := time.NewTicker(openPace)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-h.over:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		began := time.Now()
		if err := h.commit(ctx, conn, i+openWriters*(n%keysOfWriter)); err != nil {
			return err
		}
		h.mu.Lock()
		if h.opened {
			h.longest = max(h.longest, time.Since(began))
		}
		h.mu.Unlock()
	}
}
