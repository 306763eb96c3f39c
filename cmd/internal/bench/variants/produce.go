package variants

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ProducerSettings describes the producers for people. notifyd's producer has the same settings.
const ProducerSettings = "acks=all, idempotent, no compression, batches of up to 1,000,012 B, linger 0 and a flush for each batch"

// Producer writes batches to topics, for one worker.
type Producer struct {
	client  *kgo.Client
	records []kgo.Record
	headers []kgo.RecordHeader
}

// NewProducer returns a producer with [ProducerSettings]. The caller closes it.
func NewProducer(brokers []string) (*Producer, error) {
	const batchBytes = 1_000_012
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ManualFlushing(), kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(batchBytes), kgo.DisableClientMetrics())
	if err != nil {
		return nil, err
	}
	return &Producer{client: client}, nil
}

// Produce writes messages in order, with key and payload unchanged and the id as a header. It returns once all are
// acknowledged.
func (p *Producer) Produce(ctx context.Context, messages []Message) error {
	if len(p.records) < len(messages) {
		p.records, p.headers = make([]kgo.Record, len(messages)), make([]kgo.RecordHeader, len(messages))
	}
	var (
		waiting sync.WaitGroup
		mu      sync.Mutex
		failed  error
	)
	waiting.Add(len(messages))
	for i := range messages {
		m := &messages[i]
		p.headers[i] = kgo.RecordHeader{Key: "id", Value: strconv.AppendInt(nil, m.ID, 10)}
		p.records[i] = kgo.Record{Topic: m.Topic, Key: []byte(m.Key), Value: m.Payload, Headers: p.headers[i : i+1 : i+1]}
		p.client.Produce(ctx, &p.records[i], func(_ *kgo.Record, err error) {
			if err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
			waiting.Done()
		})
	}
	if err := p.client.Flush(ctx); err != nil {
		return err // the promises may still run: the caller must close the producer
	}
	waiting.Wait()
	return failed
}

// Close closes the connections.
func (p *Producer) Close() { p.client.Close() }
