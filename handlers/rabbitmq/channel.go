package rabbitmq

import (
	"context"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// maxWindow is how many messages are published before their confirmations are
// waited for. The broker confirms many at once, and at 1,000 the wait is a
// small part of the whole; more would only be more to send again after a fault.
const maxWindow = 1000

// channel is an AMQP channel in confirm mode. One delivery uses it at a time.
type channel struct {
	amqp *amqp.Channel
	// returns has room for a whole window: the library drops a return that is not
	// received within five seconds, and its confirmation would then count.
	returns chan amqp.Return
	closes  chan *amqp.Error
	// sent are confirmations that may still be to come.
	sent []*amqp.DeferredConfirmation
}

// newChannel opens a channel. It waits for the broker and ignores contexts.
func newChannel(conn *amqp.Connection) (*channel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	c := &channel{
		amqp:    ch,
		returns: ch.NotifyReturn(make(chan amqp.Return, maxWindow)),
		closes:  ch.NotifyClose(make(chan *amqp.Error, 1)),
	}
	return c, ch.Confirm(false)
}

// settle waits for the outstanding answers to a delivery that was given up, so that
// they cannot be taken for answers to the next one.
func (c *channel) settle(ctx context.Context, conn *connection) *failure {
	if f := c.await(ctx, conn); f != nil {
		conn.release(c)
		return f
	}
	c.forget()
	return nil
}

// forget drops all answers.
func (c *channel) forget() {
	c.sent = c.sent[:0]
	c.takeReturns()
}

// takeReturns returns the messages that came back so far, by message id.
func (c *channel) takeReturns() map[string]amqp.Return {
	var all map[string]amqp.Return
	for {
		select {
		case r, ok := <-c.returns:
			if !ok {
				return all
			}
			if all == nil {
				all = make(map[string]amqp.Return)
			}
			all[r.MessageId] = r
		default:
			return all
		}
	}
}

// mandatory reports whether a message must have a queue.
type mandatory func(m *outgoing) bool

// publish sends messages, at most a window, until the first failure. It returns
// how many were sent.
func (c *channel) publish(ctx context.Context, conn *connection, messages []*outgoing, mandatory mandatory) (int, *failure) {
	// A context that ends while a write hangs has to end the write.
	stop := context.AfterFunc(ctx, func() { conn.abort(ended(ctx, stageLost)) })
	defer stop()
	conn.sock.gather()
	n, f := c.write(ctx, conn, messages, mandatory)
	if conn.sock.flush() != nil && f == nil {
		conn.abort(&failure{at: stageLost, text: "a message could not be written"})
		f = conn.lost(ctx)
	}
	return n, f
}

// write is publish without gather and flush.
func (c *channel) write(ctx context.Context, conn *connection, messages []*outgoing, mandatory mandatory) (int, *failure) {
	for i, m := range messages {
		if f, _ := conn.state(); f != nil {
			return i, f
		}
		dc, err := c.amqp.PublishWithDeferredConfirmWithContext(ctx, m.exchange, m.key, mandatory(m), false, m.publishing)
		if err != nil {
			return i, c.closedBy(ctx, conn)
		}
		c.sent = append(c.sent, dc)
	}
	return len(messages), nil
}

// await waits until every message is answered, or never will be. Nil means that each
// one is answered, or that the channel is closed.
func (c *channel) await(ctx context.Context, conn *connection) *failure {
	alarm, calm := conn.state()
	var over <-chan time.Time // the end of the patience with an alarm

	for _, dc := range c.sent {
		for answered := false; !answered; {
			select {
			case <-dc.Done():
				answered = true
				continue
			default:
			}

			if alarm != nil && over == nil {
				// The broker confirms the messages that it took before its alarm.
				timer := time.NewTimer(blockedPatience)
				defer timer.Stop()
				over = timer.C
				calm = nil
			}

			select {
			case <-dc.Done():
				answered = true
			case <-calm:
				alarm, calm = conn.state() // it may be over by now
			case <-over:
				return alarm
			case <-conn.gone:
				return conn.lost(ctx)
			case <-ctx.Done():
				return ended(ctx, stageConfirm)
			}
		}
	}

	return nil
}

// closedBy returns why the channel ended, which it has: because the broker
// closed it, or with its connection.
func (c *channel) closedBy(ctx context.Context, conn *connection) *failure {
	if ctx.Err() != nil {
		return ended(ctx, stageLost)
	}

	timer := time.NewTimer(farewell)
	defer timer.Stop()

	select {
	case e := <-c.closes:
		if e == nil || !e.Server || conn.conn.IsClosed() {
			return conn.lost(ctx)
		}
		f := &failure{at: stageRefused, code: e.Code, text: conn.target.clean(e.Reason)}
		if e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "message size") {
			f.code = amqp.ContentTooLarge // RabbitMQ has one code for both
		}
		return f
	case <-conn.gone:
		return conn.lost(ctx)
	case <-ctx.Done():
		return ended(ctx, stageLost)
	case <-timer.C:
		// A publish that failed without a reply: how much of it was written is
		// unknown, so the connection is not to be used again.
		conn.abort(&failure{at: stageLost, text: "a message could not be written"})
		return conn.lost(ctx)
	}
}
