package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitReader reads a queue as a consumer does, and records the ids.
type rabbitReader struct {
	conn *amqp.Connection
	all  int // events to read
	done chan struct{}
	// isRemoving reports that the broker removes each message as it sends it, so that none returns to the queue.
	isRemoving bool

	mu   sync.Mutex
	ids  []int64       // since the last call of arrived
	came chan struct{} // capacity 1
	err  error
}

func (r *rabbitReader) begin(s *rabbitSink) (<-chan amqp.Delivery, error) {
	ch, err := r.conn.Channel()
	if err != nil {
		return nil, err
	}
	q, err := ch.QueueDeclare(s.queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: s.kind})
	if err != nil {
		return nil, err
	}
	if r.all == 0 {
		r.all = q.Messages
		r.isRemoving = true
	}
	if err := ch.Qos(rabbitPrefetch, 0, false); err != nil {
		return nil, err
	}
	return ch.Consume(s.queue, "", r.isRemoving, false, false, false, nil)
}

// read ends when the connection ends; close waits for it.
func (r *rabbitReader) read(got <-chan amqp.Delivery) {
	defer close(r.done)
	n := 0
	for d := range got {
		var err error
		// The last messages may stay unacknowledged: nothing depends on that.
		if n++; !r.isRemoving && n%(rabbitPrefetch/2) == 0 {
			err = d.Ack(true)
		}
		r.mu.Lock()
		r.ids, r.err = append(r.ids, messageID(d)), errors.Join(r.err, err)
		r.mu.Unlock()
		select {
		case r.came <- struct{}{}:
		default:
		}
	}
}

// arrived calls note with the ids since the last call. It returns when they are all events of a drain, or when no more
// arrive.
func (r *rabbitReader) arrived(ctx context.Context, note func(id int64)) error {
	for noted := 0; ; {
		r.mu.Lock()
		ids, err := r.ids, r.err
		r.ids = nil
		r.mu.Unlock()
		if err != nil {
			return err
		}
		for _, id := range ids {
			note(id)
		}
		if noted += len(ids); noted >= r.all {
			return nil
		}
		timer := time.NewTimer(readWithin)
		select {
		case <-r.came:
		case <-r.done:
			return errors.New("the broker has closed the connection")
		case <-timer.C:
			return nil // missing events are counted
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

func (r *rabbitReader) close() {
	_ = r.conn.Close() // nothing depends on it
	<-r.done
}
