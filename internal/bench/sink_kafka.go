package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/kafkaserver"
)

const (
	// kafkaBatch is the default of the destination type kafka.
	kafkaBatch = 1000
	// kafkaIDHeader is that of the format "payload".
	kafkaIDHeader = "notifyd-id"
	// A private broker is warmed up with so many requests of so many records.
	warmUpRequests = 2000
	warmUpBatch    = 100
	// readWithin bounds the wait for the next records when reading back.
	readWithin = 30 * time.Second
)

// kafkaSink has a topic of one partition for each handler.
type kafkaSink struct {
	server *kafkaserver.Server // nil for brokers of somebody else
	client *kgo.Client
	topics []string
	opened []io.Closer // the handlers
	read   int64       // records so far
}

func openKafka(ctx context.Context, o DrainOptions) (*place, error) {
	s := &kafkaSink{}
	brokers, err := s.brokers(ctx, o)
	if err != nil {
		return nil, err
	}
	p := &place{arrived: s.arrived, close: s.close, options: []notifyd.HandleOption{
		notifyd.Concurrency(1), notifyd.BatchSize(cmp.Or(o.SinkBatch, kafkaBatch)), notifyd.Timeout(2 * kafka.DefaultDeliveryTimeout),
	}}
	p.note = fmt.Sprintf("Kafka at %s, %d topics of 1 partition, acks=all", strings.Join(brokers, ","), o.Topics)
	if s.server != nil {
		p.note, p.pid = "a private, warmed up "+p.note, s.server.PID()
	}
	if err = s.make(ctx, brokers, o.Topics); err == nil {
		p.handlers, err = s.handlers(brokers)
	}
	if err == nil && s.server != nil {
		err = s.warmUp(ctx, o.Payload)
	}
	if err != nil {
		return nil, errors.Join(err, s.close(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// brokers returns those to use, a private one if none were named.
func (s *kafkaSink) brokers(ctx context.Context, o DrainOptions) ([]string, error) {
	if len(o.Brokers) > 0 {
		return o.Brokers, nil
	}
	server, err := kafkaserver.Start(ctx, kafkaserver.Config{Tuned: true})
	if errors.Is(err, kafkaserver.ErrNotFound) {
		return nil, fmt.Errorf("%w; or name your brokers with --brokers", err)
	}
	s.server = server
	if err != nil {
		return nil, err
	}
	return []string{server.Addr()}, nil
}

// make makes the topics, in which nothing but the events of this drain will be.
func (s *kafkaSink) make(ctx context.Context, brokers []string, n int) (err error) {
	prefix := fmt.Sprintf("notifyd_bench_%08x_", rand.Uint32()) //nolint:gosec // tells runs apart, hides nothing
	for i := range n {
		s.topics = append(s.topics, prefix+strconv.Itoa(i))
	}
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(brokers...)); err != nil {
		return err
	}
	const asBrokersHaveIt = -1
	_, err = kadm.NewClient(s.client).CreateTopics(ctx, 1, asBrokersHaveIt, nil, s.topics...)
	return err
}

// warmUp has a broker that was just started compile its code: for its first
// 100,000 records it takes several times the CPU time of later ones.
func (s *kafkaSink) warmUp(ctx context.Context, size int) error {
	topic := s.topics[0] + "_warm_up"
	if _, err := kadm.NewClient(s.client).CreateTopics(ctx, 1, 1, nil, topic); err != nil {
		return err
	}
	value := make([]byte, size)
	for range warmUpRequests {
		records := make([]*kgo.Record, warmUpBatch)
		for i := range records {
			records[i] = &kgo.Record{Topic: topic, Value: value}
		}
		if err := s.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	return nil
}

func (s *kafkaSink) handlers(brokers []string) (all []notifyd.Handler, err error) {
	for _, topic := range s.topics {
		h, err := kafka.New(kafka.Config{Brokers: brokers, Topic: topic})
		if err != nil {
			return nil, err
		}
		all, s.opened = append(all, h), append(s.opened, h)
	}
	return all, nil
}

// arrived reads the topics from where it has come to the last time up to where they end now.
func (s *kafkaSink) arrived(ctx context.Context, note func(id int64)) error {
	ends, err := kadm.NewClient(s.client).ListEndOffsets(ctx, s.topics...)
	if err != nil {
		return err
	}
	if err := ends.Error(); err != nil {
		return err
	}
	var end int64
	ends.Each(func(o kadm.ListedOffset) { end += o.Offset })
	s.client.AddConsumeTopics(s.topics...)
	for s.read < end {
		polling, cancel := context.WithTimeout(ctx, readWithin)
		fetches := s.client.PollFetches(polling)
		cancel()
		if err := fetches.Err0(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			s.read++
			note(recordID(r))
		})
	}
	return nil
}

// recordID returns the event's id, 0 for a record that is none of ours.
func recordID(r *kgo.Record) int64 {
	for _, h := range r.Headers {
		if h.Key == kafkaIDHeader {
			id, err := strconv.ParseInt(string(h.Value), 10, 64)
			if err != nil {
				return 0
			}
			return id
		}
	}
	return 0
}

// close closes the handlers, and removes the topics, or the whole server.
func (s *kafkaSink) close(ctx context.Context) (err error) {
	for _, h := range s.opened {
		err = errors.Join(err, h.Close())
	}
	if s.server == nil && s.client != nil && len(s.topics) > 0 {
		_, deleteErr := kadm.NewClient(s.client).DeleteTopics(ctx, s.topics...)
		err = errors.Join(err, deleteErr)
	}
	if s.client != nil {
		s.client.Close()
	}
	if s.server != nil {
		err = errors.Join(err, s.server.Stop(ctx))
	}
	return err
}
