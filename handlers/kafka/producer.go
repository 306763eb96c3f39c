package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
)

const (
	// reachWithin bounds the check that a broker answers. A broker that is up
	// answers within milliseconds.
	reachWithin = 10 * time.Second
	// metadataAtMost is how often the client asks where partitions are while it
	// has trouble. The default of 5 s would make every change of a leader last as
	// long.
	metadataAtMost = 500 * time.Millisecond
	// settleEvery is how long to wait for the end of records that were given up,
	// before giving up records that have appeared since. One round is nearly
	// always enough.
	settleEvery = 100 * time.Millisecond
	// requestTimeout bounds how long a broker may wait for its replicas, and
	// requestOverhead all else about a request. A request that was given up keeps
	// later ones to the same partition waiting until then.
	requestTimeout    = 10 * time.Second
	minRequestTimeout = 100 * time.Millisecond // kgo takes no less
	requestOverhead   = 5 * time.Second
	// endWithin bounds the end of a transaction that is given up.
	endWithin = 5 * time.Second
	// endedAgain is how often to ask whether the previous transaction has ended, which takes the
	// broker a few milliseconds after its answer. The library's default of 20 ms is most of the
	// duration of a transaction.
	endedAgain = 2 * time.Millisecond
)

// errTimeout is the cause of a delivery that took longer than delivery_timeout.
var errTimeout = errors.New("delivery_timeout is over")

// producer writes one batch at a time. Flushing is manual: everything of a batch
// is buffered before anything of it is sent, so that no record can be buffered
// behind one that has just failed, and overtake it.
type producer struct {
	cfg     Config
	common  []kgo.Opt // of all clients of the handler
	options []kgo.Opt
	link    *link

	transactional bool // it has a transactional id

	client    *kgo.Client      // nil before the first batch, and after a fatal error
	unchecked bool             // ask whether a broker answers before buffering anything
	known     map[string]bool  // topics that the client knows the partitions of
	counts    map[string]int32 // numbers of partitions, of topics with a chosen one

	// Of the batch under way; the memory is used again by the next one.
	records []kgo.Record
	tags    []tag
	todo    []int
	scratch scratch
	waiting sync.WaitGroup // records without an answer
	along   *along         // the position, until it is sent with records
}

// tag is the context of a record: it identifies the record to the promise.
// Nothing may cancel a record that is on its way, so the methods of the context
// read nothing: the client may still ask them while the tag serves the next batch.
type tag struct {
	batch *batch
	i     int
}

// Deadline implements context.Context: a tag never has a deadline.
func (*tag) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Done implements context.Context: it never is.
func (*tag) Done() <-chan struct{} { return nil }

// Err implements context.Context.
func (*tag) Err() error { return nil }

// Value implements context.Context: it carries nothing.
func (*tag) Value(any) any { return nil }

// newProducer returns a producer, with a transactional id unless that is empty. It connects when it
// is used.
func newProducer(cfg Config, opts []kgo.Opt, id string) *producer {
	p := &producer{cfg: cfg, common: opts, link: newLink(cfg), transactional: id != ""}
	p.options = append(append([]kgo.Opt(nil), opts...), kgo.WithHooks(p.link),
		// Not a shared list: kgo sorts it in place.
		kgo.ProducerBatchCompression(codec(cfg.Compression), kgo.NoCompression()))
	if id != "" {
		p.options = append(p.options, kgo.TransactionalID(id), kgo.TransactionTimeout(cfg.DeliveryTimeout+endWithin),
			kgo.ConcurrentTransactionsBackoff(endedAgain))
	}
	return p
}

// clientOptions returns the common options of a handler's producers.
func clientOptions(cfg Config, baseDir string, s *secrets) ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(cfg.brokers()...),
		kgo.ClientID(cfg.ClientID),
		kgo.SoftwareNameAndVersion("notifyd", "v1"),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ManualFlushing(),
		kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(math.MaxInt32), // a batch is the most
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 {
			most := cfg.MaxMessageBytes
			if cfg.ExactlyOnce && topic == cfg.PositionsTopic { // a record lists the ids that are under way
				most = max(most, defaultMaxMessageBytes)
			}
			return int32(most) //nolint:gosec // Validate has bounded it
		}),
		kgo.MetadataMinAge(metadataAtMost),
		kgo.ProduceRequestTimeout(max(min(requestTimeout, cfg.DeliveryTimeout), minRequestTimeout)),
		kgo.RequestTimeoutOverhead(requestOverhead),
		kgo.DisableClientMetrics(), // Close would wait for the last ones to be sent

		// The murmur2 hash of the Java client for records with a key. Others fill a
		// batch for one partition, then for the next.
		kgo.RecordPartitioner(partitioner{
			kgo.UniformBytesPartitioner(64<<10, true, true, nil),
			cfg.PositionsTopic,
			cfg.Partition != "",
		}),
	}

	if cfg.AllowAutoTopicCreation {
		opts = append(opts, kgo.AllowAutoTopicCreation())
	}

	conf, err := tlsconf.Load(cfg.TLS, baseDir)
	if err != nil {
		return nil, err
	}

	if conf != nil {
		opts = append(opts, kgo.DialTLSConfig(conf))
	}
	if cfg.SASL != nil {
		opts = append(opts, kgo.SASL(mechanism(*cfg.SASL, baseDir, s)))
	}

	return opts, nil
}

func codec(word string) kgo.CompressionCodec {
	switch word {
	case CompressionSnappy:
		return kgo.SnappyCompression()
	case CompressionLZ4:
		return kgo.Lz4Compression()
	case CompressionZstd:
		return kgo.ZstdCompression()
	case CompressionGzip:
		return kgo.GzipCompression()
	default:
		return kgo.NoCompression()
	}
}

// encode makes the records of a batch and returns which events have one.
func (p *producer) encode(b *batch) (todo []int) {
	n := len(b.events)
	if cap(p.records) < n {
		p.records = make([]kgo.Record, n)
		p.tags = make([]tag, n)
		p.todo = make([]int, 0, n)
	}

	p.records = p.records[:n]
	p.tags = p.tags[:n]
	p.todo = p.todo[:0]
	p.scratch.reset()

	header := b.headers()
	for i, ev := range b.events {
		p.records[i] = kgo.Record{}
		switch err := b.h.encoder.record(&p.records[i], ev, &p.scratch, header); {
		case is[*eventError](err):
			b.fail(i, err)
			continue
		case is[*registryError](err), isUndecided(err): // no event may go before this one
			b.failOthers(err)
			return nil
		case err != nil:
			b.fail(i, outcome.Content(err))
			continue
		}

		p.tags[i] = tag{b, i}
		p.records[i].Context = &p.tags[i] //nolint:fatcontext // nothing is nested: each record has its own
		p.todo = append(p.todo, i)
	}

	return p.todo
}

// ready makes a client if the producer has no client. A new client, and one after
// trouble, asks first whether a broker answers: that takes less time, and explains
// more, than a delivery that times out. For transactions it also asks for the needed
// requests. Without InitProducerID, kgo would write with no producer id.
func (p *producer) ready(ctx context.Context) error {
	if p.client == nil {
		client, err := kgo.NewClient(p.options...)
		if err != nil {
			return err
		}
		p.client = client
		p.unchecked = true
		p.known = make(map[string]bool)
		p.counts = make(map[string]int32)
	}

	if !p.unchecked {
		return nil
	}

	asking, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()

	err := p.client.Ping(asking)
	if err == nil && p.transactional {
		err = checkTransactions(asking, p.client)
	}

	switch {
	case ctx.Err() != nil:
		return errUndecided
	case asking.Err() != nil:
		return p.link.explain(fmt.Errorf("no broker answers within %v", reachWithin))
	case err != nil:
		return p.link.explain(err)
	}

	p.unchecked = false
	return nil
}

// produce writes records and waits until each is answered or given up. On return
// nothing is left in the client.
func (p *producer) produce(b *batch, todo []int) {
	if p.client == nil || p.unchecked { // an earlier part of the batch has failed
		if err := p.ready(b.ctx); err != nil {
			b.failAll(todo, err)
			return
		}
	}
	todo = b.h.refused.permitted(p, b, todo)
	if len(todo) == 0 {
		return
	}

	if p.cfg.Transactional {
		p.transact(b, todo)
		return
	}

	p.send(b, todo)
	if b.errs == nil {
		return
	}

	b.h.refused.noteFailed(b, todo)

	fatal := false
	undecided := false
	for _, i := range todo {
		err := b.errs[i]
		isOfEvent := isContent(err) || b.ownTopic(err)
		p.unchecked = p.unchecked || err != nil && !isOfEvent
		fatal = fatal || isFatal(err)
		undecided = undecided || isUndecided(err)
	}

	// A client that has given up records is kept: only its next epoch makes the
	// broker refuse them.
	if fatal && !undecided {
		p.close()
	}
}

// send writes records and waits for their answers.
//
// The partitions of a topic that the client does not know yet become known while
// the first records are on their way. Meanwhile the client moves the other
// records into the partitions. A record that is moved just after another one has
// failed overtakes the failed one. So one record of such a topic is sent ahead of
// the others.
func (p *producer) send(b *batch, todo []int) {
	ahead, rest := p.scouts(todo)
	if len(ahead) == 0 {
		p.flush(b, todo)
		return
	}

	p.flush(b, ahead)

	failed := make(map[string]error)
	for _, i := range ahead {
		topic := p.records[i].Topic
		if err := b.failure(i); err != nil && !isContent(err) {
			failed[topic] = err
		} else if err == nil {
			p.known[topic] = true
		}
	}

	left := rest[:0]
	for _, i := range rest {
		if err := failed[p.records[i].Topic]; err != nil {
			b.fail(i, err)
			continue
		}
		left = append(left, i)
	}

	if len(left) > 0 {
		p.send(b, left) // the refusal of a scout's content made no topic known
	}
}

// scouts takes out of todo the first record of each topic that is not known.
func (p *producer) scouts(todo []int) (ahead, rest []int) {
	var topics map[string]bool
	for n, i := range todo {
		topic := p.records[i].Topic
		if p.known[topic] || topics[topic] {
			if topics != nil {
				rest = append(rest, i)
			}
			continue
		}
		if topics == nil {
			topics = make(map[string]bool)
			rest = append(rest, todo[:n]...)
		}

		topics[topic] = true
		ahead = append(ahead, i)
	}

	return ahead, rest
}

// flush buffers records and sends them. If ctx is done first, it gives them up.
func (p *producer) flush(b *batch, todo []int) {
	p.waiting.Add(len(todo))
	settled := p.settled
	for _, i := range todo {
		p.client.Produce(&p.tags[i], &p.records[i], settled)
	}

	if a := p.along; a != nil {
		p.along = nil
		p.waiting.Add(1)
		p.client.Produce(&tag{}, &a.record, func(_ *kgo.Record, err error) {
			*a.err = err
			p.waiting.Done()
		})
	}

	if p.client.Flush(b.ctx) != nil {
		p.giveUp(context.WithoutCancel(b.ctx))
	}
	p.waiting.Wait()
}

// settled is the promise of each record.
func (p *producer) settled(r *kgo.Record, err error) {
	if t := r.Context.(*tag); err != nil { //nolint:forcetypeassert // encode has set it
		t.batch.fail(t.i, err)
	}
	p.waiting.Done()
}

// giveUp fails records that are buffered or on their way. The client raises its epoch if
// something was on its way: with that, and because the sequence begins anew, the
// broker refuses the old records after it has taken a newer one.
func (p *producer) giveUp(ctx context.Context) {
	for {
		p.client.UnsafeAbortBufferedRecords()
		// Records that the metadata loop was just moving into a partition were missed.
		round, cancel := context.WithTimeout(ctx, settleEvery)
		err := p.client.AbortBufferedRecords(round)
		cancel()
		if err == nil {
			return
		}
	}
}

// close drops the client, and the records that it may have on their way.
func (p *producer) close() {
	if p.client != nil {
		p.client.Close()
		p.client = nil
	}
}
