package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
)

const (
	// kafkaIDHeader is the header with the event's id in the format "payload".
	kafkaIDHeader = "notifyd-id"
	// A private broker is warmed up with as many records as the drain has, within these bounds.
	leastWarmUp, mostWarmUp = 200_000, 1_000_000
	warmUpKeys              = 1000
	// readWithin bounds the wait for the next records when reading back.
	readWithin = 30 * time.Second
)

// kafkaSink has a topic of one partition for each handler.
type kafkaSink struct {
	server *kafkaserver.Server // nil for the brokers of --brokers
	client *kgo.Client
	topics []string
	opened []io.Closer // the handlers
	read   int64       // records so far
}

func openKafka(ctx context.Context, o *Drain) (*place, error) {
	s := &kafkaSink{}
	brokers, err := s.brokers(ctx, o)
	if err != nil {
		return nil, err
	}
	p := &place{arrived: s.arrived, close: s.close, lane: kafka.DefaultLane(), exactly: kafka.ExactlyOnceLane()}
	p.lane.Batch, p.exactly.Batch = cmp.Or(o.SinkBatch, p.lane.Batch), cmp.Or(o.SinkBatch, p.exactly.Batch)
	p.note = fmt.Sprintf("Kafka at %s, %d topics of 1 partition, acks=all", strings.Join(brokers, ","), o.Topics)
	if s.server != nil {
		p.note, p.pid = "a private, warmed up "+p.note, s.server.PID()
	}
	if err = s.make(ctx, brokers, o.Topics); err == nil {
		err = s.open(p, brokers)
	}
	if err == nil && s.server != nil {
		err = s.warmUp(ctx, brokers, o)
	}
	if err != nil {
		return nil, errors.Join(err, s.close(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// brokers returns the brokers to use. If none are named, it starts a private one.
func (s *kafkaSink) brokers(ctx context.Context, o *Drain) ([]string, error) {
	if len(o.Brokers) > 0 {
		return o.Brokers, nil
	}
	server, err := kafkaserver.Start(ctx, kafkaserver.Config{Tuned: true})
	if errors.Is(err, privateserver.ErrNotFound) {
		return nil, fmt.Errorf("%w; or name your brokers with --brokers", err)
	}
	s.server = server
	if err != nil {
		return nil, err
	}
	return []string{server.Addr()}, nil
}

// make creates the topics, for the events of this drain alone.
func (s *kafkaSink) make(ctx context.Context, brokers []string, n int) (err error) {
	prefix := fmt.Sprintf("notifyd_bench_%08x_", rand.Uint32()) //nolint:gosec // tells runs apart, hides nothing
	for i := range n {
		s.topics = append(s.topics, prefix+strconv.Itoa(i))
	}
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.AlwaysRetryEOF(), kgo.KeepControlRecords()); err != nil {
		return err
	}
	const asBrokersHaveIt = -1
	_, err = kadm.NewClient(s.client).CreateTopics(ctx, 1, asBrokersHaveIt, nil, s.topics...)
	return err
}

// warmUp makes a new broker compile its code. Before that, the broker takes several times the CPU time, and the compiler
// takes as much again. The calls must equal the calls of the drain: other sizes, or records without headers, would run
// other code.
func (s *kafkaSink) warmUp(ctx context.Context, brokers []string, o *Drain) error {
	topics := make([]string, len(s.topics))
	for i, topic := range s.topics {
		topics[i] = topic + "_warm_up"
	}
	if _, err := kadm.NewClient(s.client).CreateTopics(ctx, 1, 1, nil, topics...); err != nil {
		return err
	}
	handlers, err := s.handlers(brokers, topics, false)
	if err != nil {
		return err
	}
	batch, share := cmp.Or(o.SinkBatch, kafka.DefaultLane().Batch), min(max(o.Events, leastWarmUp), mostWarmUp)/len(topics)
	payload := json.RawMessage(`"` + strings.Repeat("x", max(0, o.Payload-2)) + `"`)
	tasks := make([]func(context.Context) error, len(handlers))
	for i, h := range handlers {
		tasks[i] = func(ctx context.Context) error {
			events := make([]*delivery.Event, batch)
			for n := 0; n < share; n += batch {
				for k := range events {
					id := int64(n + k + 1)
					events[k] = &delivery.Event{
						ID: id, Type: routeType(i), AggregateID: freeAggregate + strconv.FormatInt(id%warmUpKeys, 10),
						Payload: payload, CreatedAt: time.Now(), Attempt: 1,
					}
				}
				if errs := h.DeliverBatch(ctx, events); errs != nil {
					return fmt.Errorf("warm up: %w", errors.Join(errs...))
				}
			}
			return nil
		}
	}
	return together(ctx, tasks...)
}

// open opens the handlers of the drain.
func (s *kafkaSink) open(p *place, brokers []string) error {
	all, err := s.handlers(brokers, s.topics, false)
	for _, h := range all {
		p.handlers = append(p.handlers, h)
	}
	if err != nil {
		return err
	}
	all, err = s.handlers(brokers, s.topics, true)
	for _, h := range all {
		p.exact = append(p.exact, h)
	}
	return err
}

// handlers opens a handler for each topic.
func (s *kafkaSink) handlers(brokers, topics []string, exactly bool) (all []*kafka.Handler, err error) {
	for _, topic := range topics {
		h, err := kafka.New(kafka.Config{Brokers: brokers, Topic: topic, ExactlyOnce: exactly})
		if err != nil {
			return nil, err
		}
		all, s.opened = append(all, h), append(s.opened, h)
	}
	return all, nil
}

// arrived reads the topics from the end of the last call to their present end.
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
	return readTo(ctx, s.client, &s.read, end, func(r *kgo.Record) {
		if !r.Attrs.IsControl() { // the end of a transaction
			note(recordID(r))
		}
	})
}

// readTo reads records until their number is end.
func readTo(ctx context.Context, client *kgo.Client, read *int64, end int64, each func(*kgo.Record)) error {
	for *read < end {
		polling, cancel := context.WithTimeout(ctx, readWithin)
		fetches := client.PollFetches(polling)
		cancel()
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("read the topics back: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			*read++
			each(r)
		})
	}
	return nil
}

// recordID returns the event's id, or 0 for a record of another writer.
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

// close closes the handlers, and removes the topics or the private server.
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
