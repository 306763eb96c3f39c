package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
)

const (
	// rabbitPrefetch is how many unacknowledged messages a reader may have.
	rabbitPrefetch = 1000
)

// rabbitSink has one durable queue.
type rabbitSink struct {
	server *rabbitserver.Server // nil for the broker of --amqp-url
	url    string
	queue  string
	kind   string
	reader *rabbitReader // nil without --consume
}

func openRabbitMQ(ctx context.Context, o *Drain) (*place, error) {
	s := &rabbitSink{url: o.AMQPURL, kind: o.QueueType, queue: fmt.Sprintf("notifyd_bench_%08x", rand.Uint32())} //nolint:gosec // tells runs apart, hides nothing
	p := &place{arrived: s.arrived, close: s.close, lane: rabbitmq.DefaultLane()}
	p.lane.Batch = cmp.Or(o.SinkBatch, p.lane.Batch)
	p.note = fmt.Sprintf("RabbitMQ, a durable %s queue, confirmed persistent messages", o.QueueType)
	if s.url == "" {
		server, err := rabbitserver.Start(ctx, rabbitserver.Config{})
		if errors.Is(err, privateserver.ErrNotFound) {
			err = fmt.Errorf("%w; or name your broker with --amqp-url", err)
		}
		if err != nil {
			return nil, err
		}
		s.server, s.url, p.pid = server, server.URL(""), server.PID()
		p.note = "a private " + p.note
	}
	h, err := rabbitmq.New(rabbitmq.Config{
		URL: handlers.NewSecret(s.url), RoutingKey: s.queue,
		Declare: rabbitmq.Declare{Queues: []rabbitmq.Queue{{Name: s.queue, Arguments: map[string]any{amqp.QueueTypeArg: o.QueueType}}}},
	})
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	p.handlers = []delivery.Handler{h}
	p.close = func(ctx context.Context) error { return errors.Join(h.Close(), s.close(ctx)) }
	if o.Consume {
		p.note += ", with a consumer"
		if s.reader, err = s.consume(o.Events); err != nil {
			return nil, errors.Join(err, p.close(ctx))
		}
		p.arrived = s.reader.arrived
	}
	return p, nil
}

// arrived reads the queue up to its present end.
func (s *rabbitSink) arrived(ctx context.Context, note func(id int64)) error {
	r, err := s.consume(0)
	if err != nil {
		return err
	}
	defer r.close()
	return r.arrived(ctx, note)
}

// messageID returns the event's id, or 0 for a message of another writer.
func messageID(d amqp.Delivery) int64 {
	id, err := strconv.ParseInt(d.MessageId, 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// with calls f with a channel on a new connection.
func (s *rabbitSink) with(f func(ch *amqp.Channel) error) error {
	conn, err := amqp.Dial(s.url)
	if err != nil {
		// The library's error about a URL repeats it, with its password.
		if _, ok := errors.AsType[*amqp.Error](err); !ok {
			err = errors.New("cannot connect")
		}
		return fmt.Errorf("read from RabbitMQ: %w", err)
	}
	ch, err := conn.Channel()
	if err == nil {
		err = f(ch)
	}
	return errors.Join(err, conn.Close())
}

// close removes the queue or the private server.
func (s *rabbitSink) close(ctx context.Context) error {
	if s.reader != nil {
		s.reader.close()
	}
	if s.server != nil {
		return s.server.Stop(ctx)
	}
	return s.with(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(s.queue, false, false, false)
		return err
	})
}

// consume starts a consumer that reads a number of events from the queue; 0 means all events that the queue has now. It
// declares the queue if the handler has not.
func (s *rabbitSink) consume(events int) (*rabbitReader, error) {
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return nil, fmt.Errorf("read from RabbitMQ: %w", errors.New("cannot connect"))
	}
	r := &rabbitReader{conn: conn, all: events, done: make(chan struct{}), came: make(chan struct{}, 1)}
	got, err := r.begin(s)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read from RabbitMQ: %w", err), conn.Close())
	}
	go r.read(got)
	return r, nil
}
