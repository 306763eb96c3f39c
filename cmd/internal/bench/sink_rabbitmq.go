package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
)

// rabbitPrefetch is how many unacknowledged messages a reader may have.
const rabbitPrefetch = 1000

// rabbitSink has one durable queue.
type rabbitSink struct {
	server *rabbitserver.Server // nil for the broker of --amqp-url
	url    string
	queue  string
	reader *rabbitReader // nil without --consume
}

func openRabbitMQ(ctx context.Context, o *Drain) (*place, error) {
	s := &rabbitSink{url: o.AMQPURL, queue: fmt.Sprintf("notifyd_bench_%08x", rand.Uint32())} //nolint:gosec // tells runs apart, hides nothing
	p := &place{arrived: s.arrived, close: s.close, lane: rabbitmq.DefaultLane(), note: "RabbitMQ, a durable classic queue, confirmed persistent messages"}
	p.lane.Batch = cmp.Or(o.SinkBatch, p.lane.Batch)

	if s.url == "" {
		server, err := rabbitserver.Start(ctx, rabbitserver.Config{})
		if errors.Is(err, privateserver.ErrNotFound) {
			err = fmt.Errorf("%w; or name your broker with --amqp-url", err)
		}
		if err != nil {
			return nil, err
		}
		s.server = server
		s.url = server.URL("")
		p.pid = server.PID()
		p.note = "a private " + p.note
	}

	h, err := rabbitmq.New(rabbitmq.Config{
		URL: handlers.NewSecret(s.url), RoutingKey: s.queue,
		Declare: rabbitmq.Declare{Queues: []rabbitmq.Queue{{Name: s.queue, Arguments: queueArguments()}}},
	})
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}

	p.handlers = []delivery.Handler{h}
	p.close = func(ctx context.Context) error { return errors.Join(h.Close(), s.close(ctx)) }

	if o.Consume {
		p.note += ", with a consumer"
		s.reader, err = s.consume(o.Events)
		if err != nil {
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

func queueArguments() map[string]any { return map[string]any{amqp.QueueTypeArg: "classic"} }

// dial connects. The library's error about a URL repeats it, with its password.
func (s *rabbitSink) dial() (*amqp.Connection, *amqp.Channel, error) {
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return nil, nil, errors.New("read from RabbitMQ: cannot connect")
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read from RabbitMQ: %w", err), conn.Close())
	}
	return conn, ch, nil
}

// close removes the queue or the private server.
func (s *rabbitSink) close(ctx context.Context) error {
	if s.reader != nil {
		s.reader.close()
	}
	if s.server != nil {
		return s.server.Stop(ctx)
	}
	conn, ch, err := s.dial()
	if err != nil {
		return err
	}
	_, err = ch.QueueDelete(s.queue, false, false, false)
	return errors.Join(err, conn.Close())
}

// consume starts a consumer that reads a number of events from the queue; 0 means all events that the queue has now. It
// declares the queue if the handler has not.
func (s *rabbitSink) consume(events int) (*rabbitReader, error) {
	conn, ch, err := s.dial()
	if err != nil {
		return nil, err
	}
	isRemoving := events == 0 // the broker removes each message as it sends it, so that none returns to the queue
	q, err := ch.QueueDeclare(s.queue, true, false, false, false, queueArguments())
	if err == nil {
		err = ch.Qos(rabbitPrefetch, 0, false)
	}
	if events == 0 {
		events = q.Messages
	}
	got, consumeErr := ch.Consume(s.queue, "", isRemoving, false, false, false, nil)
	if err := errors.Join(err, consumeErr); err != nil {
		return nil, errors.Join(fmt.Errorf("read from RabbitMQ: %w", err), conn.Close())
	}
	r := &rabbitReader{conn: conn, all: events, ids: make(chan int64, events)}
	go r.read(got, isRemoving)
	return r, nil
}

// rabbitReader reads a queue as a consumer does.
type rabbitReader struct {
	conn *amqp.Connection
	all  int // events to read
	ids  chan int64
}

// read ends when the connection ends; close waits for it.
func (r *rabbitReader) read(got <-chan amqp.Delivery, isRemoving bool) {
	defer close(r.ids)
	n := 0
	for d := range got {
		n++
		if !isRemoving && n%(rabbitPrefetch/2) == 0 {
			_ = d.Ack(true) // the last messages may stay unacknowledged, and an error ends the connection
		}
		r.ids <- number64(d.MessageId)
	}
}

// arrived calls note with the ids since the last call. It returns when they are all events of a drain, or when no more
// arrive: missing events are counted.
func (r *rabbitReader) arrived(ctx context.Context, note func(id int64)) error {
	timer := time.NewTimer(readWithin)
	defer timer.Stop()
	for range r.all {
		timer.Reset(readWithin)
		select {
		case id, ok := <-r.ids:
			if !ok {
				return errors.New("the broker has closed the connection")
			}
			note(id)
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *rabbitReader) close() {
	_ = r.conn.Close() // nothing depends on it
	for range r.ids {
	}
}
