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
	// sinkTopics is the number of topics, with one partition each.
	sinkTopics = 2
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
	addrs  []string
	client *kgo.Client
	admin  *kadm.Client
	topics []string
	opened []io.Closer // the handlers
	read   int64       // records so far
}

func openKafka(ctx context.Context, o *Drain) (*place, error) {
	s := &kafkaSink{}
	p, err := s.place(ctx, o)
	if err != nil {
		return nil, errors.Join(err, s.close(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// place makes the topics and the handlers.
func (s *kafkaSink) place(ctx context.Context, o *Drain) (*place, error) {
	if err := s.make(ctx, o.Brokers); err != nil {
		return nil, err
	}
	p := &place{arrived: s.arrived, close: s.close, lane: kafka.DefaultLane(), exactly: kafka.ExactlyOnceLane()}
	p.lane.Batch = cmp.Or(o.SinkBatch, p.lane.Batch)
	p.exactly.Batch = cmp.Or(o.SinkBatch, p.exactly.Batch)
	p.note = fmt.Sprintf("Kafka at %s, %d topics of 1 partition, acks=all", strings.Join(s.addrs, ","), sinkTopics)

	for _, topic := range s.topics {
		plain, err := s.open(topic, false)
		exact, exactErr := s.open(topic, true)
		if err := errors.Join(err, exactErr); err != nil {
			return nil, err
		}
		p.handlers = append(p.handlers, plain)
		p.exact = append(p.exact, exact)
	}

	if s.server == nil {
		return p, nil
	}
	p.note = "a private, warmed up " + p.note
	p.pid = s.server.PID()
	return p, s.warmUp(ctx, p.lane.Batch, o.Events, o.Payload)
}

// make makes topics for this run alone, at the named brokers or at a private one.
func (s *kafkaSink) make(ctx context.Context, brokers []string) (err error) {
	s.addrs = brokers
	if len(brokers) == 0 {
		s.server, err = kafkaserver.Start(ctx, kafkaserver.Config{Tuned: true})
		if errors.Is(err, privateserver.ErrNotFound) {
			err = fmt.Errorf("%w; or name your brokers with --brokers", err)
		}
		if err != nil {
			return err
		}
		s.addrs = []string{s.server.Addr()}
	}

	s.client, err = kgo.NewClient(kgo.SeedBrokers(s.addrs...), kgo.AlwaysRetryEOF(), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	s.admin = kadm.NewClient(s.client)
	s.topics, err = s.newTopics(ctx)
	return err
}

// newTopics makes topics, and returns once their leaders are known. Otherwise a producer's first batch would wait for
// several of the client's intervals.
func (s *kafkaSink) newTopics(ctx context.Context) (topics []string, err error) {
	prefix := fmt.Sprintf("notifyd_bench_%08x_", rand.Uint32()) //nolint:gosec // tells runs apart, hides nothing
	for i := range sinkTopics {
		topics = append(topics, prefix+strconv.Itoa(i))
	}
	const asBrokersHaveIt = -1
	made, err := s.admin.CreateTopics(ctx, 1, asBrokersHaveIt, nil, topics...)
	err = errors.Join(err, made.Error())
	for known := false; !known && err == nil; {
		ends, listErr := s.admin.ListEndOffsets(ctx, topics...)
		known = listErr == nil && ends.Error() == nil
		if !known {
			err = pause(ctx, 10*time.Millisecond)
		}
	}
	return topics, err
}

// warmUp makes a new broker compile its code. Before that, the broker takes several times the CPU time, and the compiler
// takes as much again. The calls must equal the calls of the drain: other sizes, or records without headers, would run
// other code.
func (s *kafkaSink) warmUp(ctx context.Context, batch, events, bytes int) error {
	topics, err := s.newTopics(ctx)
	if err != nil {
		return err
	}

	share := min(max(events, leastWarmUp), mostWarmUp) / len(topics)
	data := json.RawMessage(`"` + strings.Repeat("x", max(0, bytes-2)) + `"`)

	var tasks []func(context.Context) error
	for i, topic := range topics {
		h, err := s.open(topic, false)
		if err != nil {
			return err
		}
		tasks = append(tasks, func(ctx context.Context) error {
			events := make([]*delivery.Event, batch)
			for n := 0; n < share; n += batch {
				for k := range events {
					id := int64(n + k + 1)
					events[k] = &delivery.Event{
						ID: id, Type: routeType(i), AggregateID: freeAggregate + strconv.FormatInt(id%warmUpKeys, 10),
						Payload: data, CreatedAt: time.Now(), Attempt: 1,
					}
				}
				if errs := h.DeliverBatch(ctx, events); errs != nil {
					return fmt.Errorf("warm up: %w", errors.Join(errs...))
				}
			}
			return nil
		})
	}
	return Together(ctx, tasks...)
}

// open opens a handler. close closes it.
func (s *kafkaSink) open(topic string, exactly bool) (*kafka.Handler, error) {
	h, err := kafka.New(kafka.Config{Brokers: s.addrs, Topic: topic, ExactlyOnce: exactly})
	if err == nil {
		s.opened = append(s.opened, h)
	}
	return h, err
}

// arrived reads the topics from the end of the last call to their present end.
func (s *kafkaSink) arrived(ctx context.Context, note func(id int64)) error {
	end, err := s.end(ctx, s.topics)
	if err != nil {
		return err
	}
	s.client.AddConsumeTopics(s.topics...)
	return readTo(ctx, s.client, &s.read, end, func(r *kgo.Record) {
		if !r.Attrs.IsControl() { // the end of a transaction
			note(recordID(r))
		}
	})
}

// end returns the number of records in topics.
func (s *kafkaSink) end(ctx context.Context, topics []string) (end int64, err error) {
	ends, err := s.admin.ListEndOffsets(ctx, topics...)
	err = errors.Join(err, ends.Error())
	ends.Each(func(o kadm.ListedOffset) { end += o.Offset })
	return end, err
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
			return number64(string(h.Value))
		}
	}
	return 0
}

// close closes the handlers, and removes the topics or the private server.
func (s *kafkaSink) close(ctx context.Context) (err error) {
	for _, h := range s.opened {
		err = errors.Join(err, h.Close())
	}
	if s.client != nil {
		if s.server == nil {
			_, deleteErr := s.admin.DeleteTopics(ctx, s.topics...)
			err = errors.Join(err, deleteErr)
		}
		s.client.Close()
	}
	if s.server != nil {
		err = errors.Join(err, s.server.Stop(ctx))
	}
	return err
}
