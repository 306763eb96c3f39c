package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/internal/store"
)

// trial is one run of a contender, with separate tables and topics.
type trial struct {
	*compare
	who     contender
	workers int
	schema  string
	topics  []string
	look    *pgx.Conn // inspects the tables
	// written is the number of committed events of each aggregate. They are numbered from 0, and one writer at a time
	// writes to an aggregate.
	written []int64
}

// trial prepares tables and topics, calls do, and reads the topics back. It sets the faults in the column, and counts those
// of notifyd; the faults of others are figures, and no failure of the bench.
func (c *compare) trial(ctx context.Context, who contender, workers int, column *Column, at string, do func(context.Context, *trial) error) (err error) {
	c.trials++
	t := &trial{compare: c, who: who, workers: workers}
	if err := t.makeTopics(ctx); err != nil {
		return err
	}
	defer func() {
		_, dropErr := c.admin.DeleteTopics(context.WithoutCancel(ctx), t.topics...)
		err = errors.Join(err, dropErr)
	}()
	if err := t.create(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.drop(context.WithoutCancel(ctx), t.schema)) }()
	if t.look, err = t.inside(ctx, ""); err != nil {
		return err
	}
	defer store.Close(ctx, t.look)

	if err := do(ctx, t); err != nil {
		return err
	}
	faults, err := t.readBack(ctx)
	if err != nil {
		return err
	}
	column.faults(at, faults)
	c.printf("%s, %s%s\n", who.name, at, faults)
	if who.way == nil {
		if !who.inOrder {
			faults.OutOfOrder = 0 // a queue promises no order
		}
		column.result.count(faults)
	}
	return nil
}

// makeTopics makes topics that only this trial writes to.
func (t *trial) makeTopics(ctx context.Context) error {
	prefix := fmt.Sprintf("notifyd_variant_%08x_", rand.Uint32()) //nolint:gosec // tells runs apart, hides nothing
	for i := range variantTopics {
		t.topics = append(t.topics, prefix+strconv.Itoa(i))
	}
	const asBrokersHaveIt = -1
	made, err := t.admin.CreateTopics(ctx, 1, asBrokersHaveIt, nil, t.topics...)
	if err = errors.Join(err, made.Error()); err != nil {
		return err
	}
	// Wait until the leaders are known. Otherwise a producer's first batch would wait for several of the client's
	// intervals.
	for ctx.Err() == nil {
		ends, err := t.admin.ListEndOffsets(ctx, t.topics...)
		if err == nil && ends.Error() == nil {
			return nil
		}
		if err := sleepTimer(ctx, idlePoll); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// idlePoll is the pause between two queries of a broker.
const idlePoll = 10 * time.Millisecond

// consume returns a client that reads the topics from their beginning.
func (t *trial) consume() (*kgo.Client, error) {
	return kgo.NewClient(kgo.SeedBrokers(t.brokers...), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(t.topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
}

// readBack reads the topics to their end, and compares them with the committed events.
func (t *trial) readBack(ctx context.Context) (Faults, error) {
	ends, err := t.admin.ListEndOffsets(ctx, t.topics...)
	if err = errors.Join(err, ends.Error()); err != nil {
		return Faults{}, err
	}
	var end, read int64
	for _, topic := range t.topics {
		offset, _ := ends.Lookup(topic, 0)
		end += offset.Offset
	}
	client, err := t.consume()
	if err != nil {
		return Faults{}, err
	}
	defer client.Close()
	found := newFindings(t.written)
	err = readTo(ctx, client, &read, end, func(r *kgo.Record) { found.note(string(r.Key), r.Value) })
	return found.counts, err
}

// findings are the records found in the topics.
type findings struct {
	seen   [][]bool // by aggregate and number
	last   []int64  // the highest number of each aggregate
	counts Faults
}

func newFindings(written []int64) *findings {
	f := &findings{seen: make([][]bool, len(written)), last: make([]int64, len(written))}
	for key, n := range written {
		f.seen[key], f.last[key] = make([]bool, n), -1
		f.counts.Lost += n
	}
	return f
}

// note records a record of a topic. A record that was never committed counts as a duplicate.
func (f *findings) note(aggregate string, value []byte) {
	digits, _ := strings.CutPrefix(aggregate, freeAggregate)
	key, err := strconv.Atoi(digits)
	n, ok := readNumber(value)
	if err != nil || !ok || key >= len(f.seen) || n >= int64(len(f.seen[key])) || f.seen[key][n] {
		f.counts.Duplicates++
		return
	}
	f.seen[key][n] = true
	f.counts.Lost--
	if n < f.last[key] {
		f.counts.OutOfOrder++
	}
	f.last[key] = max(f.last[key], n)
}

// The payload begins with the number of the event in its aggregate.
const (
	numberPrefix = `{"n":"`
	numberDigits = 10
)

// filling returns the text that makes payloads as large as wanted.
func filling(bytes int) string {
	rest := bytes - len(numberPrefix) - numberDigits - len(`","fill":""}`)
	return strings.Trim(payload(max(0, rest)+2), `"`)
}

// numbered returns the payload of an event.
func numbered(n int64, fill string) string {
	return fmt.Sprintf(`%s%0*d","fill":"%s"}`, numberPrefix, numberDigits, n, fill)
}

func readNumber(value []byte) (n int64, ok bool) {
	rest, found := strings.CutPrefix(string(value[:min(len(value), len(numberPrefix)+numberDigits)]), numberPrefix)
	if !found {
		return 0, false
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	return n, err == nil && n >= 0
}

// settled waits until n events are settled, or no event was settled for settleWithin. Missing events count as lost.
func (t *trial) settled(ctx context.Context, w *workers, n int64) error {
	return t.until(ctx, w, func(context.Context) (bool, error) { return w.done() >= n, nil })
}

// caughtUp waits until the workers would find no more events.
func (t *trial) caughtUp(ctx context.Context, w *workers) error {
	return t.until(ctx, w, func(ctx context.Context) (bool, error) {
		left, err := t.left(ctx)
		return !left, err
	})
}

// until waits until is returns true, or nothing was settled for settleWithin.
func (t *trial) until(ctx context.Context, w *workers, is func(context.Context) (bool, error)) error {
	const lookEvery = 2 * time.Millisecond
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	moved, last := time.Now(), int64(-1)
	for {
		if so, err := is(ctx); so || err != nil {
			return err
		}
		if now := w.done(); now != last {
			moved, last = time.Now(), now
		}
		if time.Since(moved) > settleWithin {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-w.ended:
			w.ended <- nil // for stop
			return errors.Join(errEndedEarly, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
